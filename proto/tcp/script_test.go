package tcp

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// A script is one engine and a peer that says what the script says, line by line:
//
//	dial | listen             the engine opens; the peer is hostB port 2000
//	established               the handshake that fits dial or listen
//	< SA 0:0 ack 1 win 9000   a segment comes: flags, first number : bytes of text
//	> A 1:0 ack 1             exactly this is sent, in this order; nothing else is
//	+5ms                      time passes, and timers run
//	write 100 [= 50]          application calls and what they return
//	read 100 = 50 | EOF | none | ECONNRESET
//	state ESTABLISHED         the engine's state; TIME-WAIT also if only a record is left
//	count resets_sent 1       a counter
//	window 7000               the congestion window; sacked, lost: what the scoreboard knows
//	events readable connected what NextEvent has told since the last such line
//	toolarge 1:1500 1400      ICMP: the packet of 1500 bytes with number 1; 1400 would pass
//	icmp 1 11                 ICMP: destination unreachable, code 1, of the segment with number 11
//	mtu 1400, suggest 1400    SetMTU, SuggestMTU; path: PathMTU
//	hold, go                  what is ready is not emitted, or is again
//	timer 5ms                 the connection's next timer, from now
//	other S | other A         a second peer sends its SYN, or completes its handshake
//
// and close, closewrite, closeread, abort, flush, lend, accept and the like are the
// calls of those names. "both:" stands for dial or listen and established, one
// after the other: who opened must not matter.
//
// Numbers are relative: our SYN has number 0, and so has the peer's. Options of a
// segment follow as mss 1460, ws 7, sackok, ts VAL/ECR (ours in milliseconds
// since the script began), sack L-R,L-R; ect: it may be marked, ce: it is. An expectation names what it cares about
// of these and of win. Text is the pattern of its place, and is checked.
type script struct {
	name string
	cfg  Config
	opts Options
	lopt ListenOptions
	text string
}

// noOptions is a configuration in which segments are bare.
var noOptions = Config{NoTimestamps: true, NoSACK: true, NoWindowScale: true}

const (
	peerISN   = 0xfffffff0 // so that every script crosses the wrap
	localPort = 1000
	peerPort  = 2000
)

type runner struct {
	t        *testing.T
	line     int
	src      string
	tab      *Table
	now      Time
	c        *Conn
	l        *Listener
	dialed   bool
	id       tuple
	iss      uint32
	issKnown bool
	out      [][]byte
	ect      map[*byte]bool // which of out may be marked, by their first bytes
	written  int
	gotten   int
	events   Events
	accepts  int
	held     bool
	lopt     ListenOptions
	opts     Options
	lent     [][]byte
	frames   map[uint64]bool
	frameID  uint64
	lastTS   uint32 // of the last segment that was expected
	otherISS uint32
	marked   bool // the segment that comes next is
	stamped  bool // the peer sends timestamps of 500
}

func runScripts(t *testing.T, scripts []script) {
	t.Helper()
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			if !strings.Contains(s.text, "both:") {
				runScript(t, s, s.text)
				return
			}
			t.Run("active", func(t *testing.T) {
				runScript(t, s, strings.Replace(s.text, "both:", "dial\nestablished", 1))
			})
			t.Run("passive", func(t *testing.T) {
				runScript(t, s, strings.Replace(s.text, "both:", "listen\nestablished", 1))
			})
		})
	}
}

func runScript(t *testing.T, s script, text string) {
	r := &runner{t: t, now: Time(time.Second), lopt: s.lopt, opts: s.opts, frames: map[uint64]bool{}}
	s.cfg.Secret = testSecret
	s.cfg.ReleaseFrame = func(id uint64) { delete(r.frames, id) }
	r.tab = NewTable(s.cfg)
	r.id = makeTuple(AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort})
	for i, l := range strings.Split(text, "\n") {
		r.line = i
		if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
			r.src = strings.TrimSpace(l)
			r.run(strings.Fields(l))
		}
	}
	r.nothingElse()
}

func (r *runner) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("line %d, %q: %s", r.line, r.src, fmt.Sprintf(format, args...))
}

func (r *runner) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		r.fatalf("%v", err)
	}
	return n
}

// drain emits what is ready and collects the events.
func (r *runner) drain() {
	for !r.held {
		c := r.tab.NextReady()
		if c == nil {
			break
		}
		b := make([]byte, 20000)
		n := c.Emit(r.now, b)
		if n == 0 {
			r.fatalf("ready and nothing to send")
		}
		if wire.TCP(b).DstPort() != peerPort {
			continue // to the other peer
		}
		r.out = append(r.out, b[:n])
		if c.ECT() {
			if r.ect == nil {
				r.ect = make(map[*byte]bool)
			}
			r.ect[&b[0]] = true
		}
		if len(r.out) > 10000 {
			r.fatalf("emits for ever")
		}
	}
	for {
		c, e := r.tab.NextEvent()
		if c == nil {
			break
		}
		r.events |= e
	}
	for r.tab.NextListener() != nil {
		r.accepts++
	}
	for _, c := range r.tab.conns {
		if msg := c.invariant(); msg != "" && !r.held {
			r.fatalf("%s", msg)
		}
	}
}

func (r *runner) nothingElse() {
	if len(r.out) > 0 {
		r.fatalf("not expected: %s", r.describe(r.out[0]))
	}
}

func (r *runner) run(w []string) {
	if w[0] == ">" {
		r.expect(w[1:])
		return
	}
	switch w[0] {
	case "state", "count", "events", "established", "state-of-pair", "window", "sacked", "lost", "path":
	default:
		r.nothingElse()
	}
	switch {
	case w[0] == "<":
		r.inject(w[1:])
	case strings.HasPrefix(w[0], "+"):
		d, err := time.ParseDuration(w[0][1:])
		if err != nil {
			r.fatalf("%v", err)
		}
		r.advance(r.now.add(d))
	case w[0] == "dial":
		c, err := r.tab.Dial(r.now, AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort}, r.opts)
		r.must(err)
		r.c, r.dialed = c, true
	case w[0] == "listen":
		r.lopt.Options = r.opts
		l, err := r.tab.Listen(AddrPort{Port: localPort}, r.lopt)
		r.must(err)
		r.l = l
	case w[0] == "accept":
		r.c = r.l.Accept()
		if (r.c == nil) != (len(w) > 1) {
			r.fatalf("accepted %v", r.c)
		}
	case w[0] == "established":
		r.establish()
	default:
		r.call(w)
	}
	r.drain()
}

// advance moves time on, stopping at each deadline.
func (r *runner) advance(to Time) {
	for {
		at := r.tab.NextDeadline()
		if at > to {
			break
		}
		r.now = max(at, r.now)
		r.tab.Expire(r.now)
		if r.tab.NextDeadline() <= r.now {
			r.fatalf("due after Expire")
		}
		r.drain()
	}
	r.now = to
}

func (r *runner) must(err error) {
	if err != nil {
		r.fatalf("%v", err)
	}
}

func (r *runner) establish() {
	if r.dialed {
		r.drain()
		r.expect(strings.Fields("S 0:0"))
		r.inject(strings.Fields("SA 0:0 ack 1 win 8000"))
		r.drain()
		r.expect(strings.Fields("A 1:0 ack 1"))
	} else {
		r.inject(strings.Fields("S 0:0 win 8000"))
		r.drain()
		r.expect(strings.Fields("SA 0:0 ack 1"))
		r.inject(strings.Fields("A 1:0 ack 1 win 8000"))
		r.c = r.l.Accept()
		if r.c == nil {
			r.fatalf("nothing to accept")
		}
	}
	r.drain()
	r.events, r.accepts = 0, 0
}

func splitLines(text string) (lines [][]string) {
	for _, l := range strings.Split(text, "\n") {
		if w := strings.Fields(l); len(w) > 0 {
			lines = append(lines, w)
		}
	}
	return lines
}
