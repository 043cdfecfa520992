package main

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/unet-go/unet"
)

// command is a command of the server. run gets the arguments without the name, and appends
// the reply; if it returns an error, that is the reply.
type command struct {
	name        string
	least, most int // arguments; most is -1 if there is no bound
	run         func(c *session, args [][]byte) error
}

func (cmd *command) takes(n int) bool { return n >= cmd.least && (cmd.most < 0 || n <= cmd.most) }

// replyError is an error that is sent as a reply.
type replyError string

func (e replyError) Error() string { return string(e) }

const (
	errSyntax     replyError = "ERR syntax error"
	errNotInteger replyError = "ERR value is not an integer or out of range"
	errOverflow   replyError = "ERR increment or decrement would overflow"
	errNegative   replyError = "ERR value is out of range, must be positive"
	errNoDatabase replyError = "ERR DB index is out of range"
	errWrongType  replyError = "WRONGTYPE Operation against a key holding the wrong kind of value"
)

// commands are filled in by init, because COMMAND lists them.
var commands map[string]*command

func init() {
	commands = make(map[string]*command)
	for _, cmd := range []command{
		{"ping", 0, 1, ping},
		{"echo", 1, 1, echo},
		{"quit", 0, -1, quit},
		{"select", 1, 1, selectDatabase},
		{"command", 0, -1, listCommands},
		{"config", 1, -1, config},
		{"info", 0, -1, info},
		{"dbsize", 0, 0, dbsize},
		{"flushall", 0, 1, flushall},
		{"del", 1, -1, del},
		{"exists", 1, -1, exists},
		{"type", 1, 1, typeOf},

		{"set", 2, -1, set},
		{"get", 1, 1, get},
		{"mset", 2, -1, mset},
		{"mget", 1, -1, mget},
		{"append", 2, 2, appendText},
		{"strlen", 1, 1, strlen},
		{"incr", 1, 1, func(c *session, args [][]byte) error { return add(c, args[0], 1) }},
		{"decr", 1, 1, func(c *session, args [][]byte) error { return add(c, args[0], -1) }},
		{"incrby", 2, 2, incrby},

		{"lpush", 2, -1, func(c *session, args [][]byte) error { return push(c, args, (*list).pushFront) }},
		{"rpush", 2, -1, func(c *session, args [][]byte) error { return push(c, args, (*list).pushBack) }},
		{"lpop", 1, 2, func(c *session, args [][]byte) error { return pop(c, args, (*list).popFront) }},
		{"rpop", 1, 2, func(c *session, args [][]byte) error { return pop(c, args, (*list).popBack) }},
		{"llen", 1, 1, llen},
		{"lrange", 3, 3, lrange},

		{"sadd", 2, -1, sadd},
		{"srem", 2, -1, srem},
		{"spop", 1, 1, spop},
		{"scard", 1, 1, scard},
		{"sismember", 2, 2, sismember},
		{"smembers", 1, 1, smembers},

		{"hset", 3, -1, hset},
		{"hget", 2, 2, hget},
		{"hdel", 2, -1, hdel},
		{"hlen", 1, 1, hlen},
		{"hgetall", 1, 1, hgetall},
	} {
		commands[cmd.name] = &cmd
	}
}

// lookupCommand finds a command by a name in upper or lower case.
func lookupCommand(name []byte) *command {
	var buf [16]byte // the longest has 9 letters
	if len(name) > len(buf) {
		return nil
	}
	for i, b := range name {
		buf[i] = lower(b)
	}
	return commands[string(buf[:len(name)])]
}

// unknownCommand is Redis's error for an unknown command, with its first arguments.
func unknownCommand(name []byte, args [][]byte) string {
	const most = 128
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%s', with args beginning with: ", line(name[:min(len(name), most)]))
	for _, arg := range args {
		if b.Len() >= most {
			break
		}
		fmt.Fprintf(&b, "'%s' ", line(arg[:min(len(arg), most)]))
	}
	return b.String()
}

// line replaces the line ends in b by spaces: a RESP error must be one line.
func line(b []byte) string {
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(string(b))
}

func ping(c *session, args [][]byte) error {
	if len(args) == 1 {
		return echo(c, args)
	}
	c.out = appendStatus(c.out, "PONG")
	return nil
}

func echo(c *session, args [][]byte) error {
	c.out = appendBulk(c.out, args[0])
	return nil
}

func (c *session) ok() error {
	c.out = appendStatus(c.out, "OK")
	return nil
}

func quit(c *session, _ [][]byte) error {
	c.quit = true
	return c.ok()
}

// selectDatabase accepts database 0, the only one.
func selectDatabase(c *session, args [][]byte) error {
	switch n, ok := parseInt(args[0]); {
	case !ok:
		return errNotInteger
	case n != 0:
		return errNoDatabase
	}
	return c.ok()
}

// listCommands lists the names of commands. Clients do not need the rest of Redis's reply.
func listCommands(c *session, args [][]byte) error {
	names := slices.Sorted(maps.Keys(commands))
	switch {
	case len(args) == 0 || strings.EqualFold(string(args[0]), "list"):
		c.out = appendArray(c.out, len(names))
		for _, name := range names {
			c.out = appendBulk(c.out, name)
		}
	case strings.EqualFold(string(args[0]), "count"):
		c.out = appendInt(c.out, int64(len(names)))
	default: // DOCS, for one
		c.out = appendArray(c.out, 0)
	}
	return nil
}

// config answers CONFIG GET for the parameters that redis-benchmark prints.
func config(c *session, args [][]byte) error {
	if !strings.EqualFold(string(args[0]), "get") {
		return replyError("ERR only CONFIG GET is known")
	}
	known := map[string]string{"save": "", "appendonly": "no"}
	var out []string
	for _, arg := range args[1:] {
		name := strings.ToLower(string(arg))
		if value, ok := known[name]; ok {
			out = append(out, name, value)
		}
	}
	c.out = appendArray(c.out, len(out))
	for _, s := range out {
		c.out = appendBulk(c.out, s)
	}
	return nil
}

// info lists figures of the server and of this connection, and the counters of the stack.
func info(c *session, _ [][]byte) error {
	s := c.server
	var b strings.Builder
	put := func(format string, args ...any) { fmt.Fprintf(&b, format+"\r\n", args...) }
	put("# Server")
	put("redis_version:0.0.0")
	put("go_version:%s", runtime.Version())
	put("uptime_in_seconds:%d", int(time.Since(s.start).Seconds()))
	put("connected_clients:%d", s.clients())
	put("total_connections_received:%d", s.connections.Load())
	put("total_commands_processed:%d", s.commands.Load())
	put("keys:%d", len(s.data))
	put("\r\n# Connection")
	if conn, ok := c.conn.(*unet.TCPConn); ok {
		i := conn.Info()
		put("tcp:unet")
		put("state:%v", i.State)
		put("mss:%d", i.SendMSS)
		put("round_trip_us:%.1f", float64(i.RTT.Nanoseconds())/1e3)
		put("segments_sent_again:%d", i.Retransmissions)
	} else {
		put("tcp:kernel")
	}
	if s.host != nil {
		put("\r\n# Stack")
		for _, counter := range s.host.Counters() {
			if counter.Value != 0 {
				put("%s:%d", counter.Name, counter.Value)
			}
		}
	}
	c.out = appendBulk(c.out, b.String())
	return nil
}
