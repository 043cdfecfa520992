package main

import (
	"bufio"
	"errors"
	"io"
	"net"
)

// bufferSize is the size of a read, and of the replies before they are written, bytes.
const bufferSize = 16 << 10

// session is one connection.
type session struct {
	server *server
	conn   net.Conn
	in     parser
	out    []byte // replies that are not written yet
	quit   bool
}

func newSession(s *server, conn net.Conn) *session {
	c := &session{server: s, conn: conn}
	c.in.Reader = bufio.NewReaderSize(flushFirst{c}, bufferSize)
	return c
}

// flushFirst reads from a session's connection after it has written all replies, so that
// the replies to a pipeline are sent together, and none is held back.
type flushFirst struct{ *session }

func (f flushFirst) Read(b []byte) (int, error) {
	if err := f.flush(); err != nil {
		return 0, err
	}
	return f.conn.Read(b)
}

func (c *session) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	if c.out = c.out[:0]; cap(c.out) > 4*bufferSize {
		c.out = nil
	}
	return err
}

// serve answers requests until the client ends the connection. The error is one of the
// connection, or a violation of the protocol.
func (c *session) serve() error {
	for !c.quit {
		args, err := c.in.next()
		if err != nil {
			var wrong protocolError
			if errors.As(err, &wrong) {
				c.out = appendError(c.out, "ERR "+wrong.Error())
			}
			if err == io.EOF {
				err = nil
			}
			return errors.Join(err, c.flush())
		}
		if len(args) == 0 {
			continue
		}
		c.server.commands.Add(1)
		c.execute(args)
		if len(c.out) >= bufferSize {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return c.flush()
}

// execute runs one command and appends its reply. It does not write to the connection: a
// client that does not read delays no other.
func (c *session) execute(args [][]byte) {
	name := args[0]
	args = args[1:]
	cmd := lookupCommand(name)
	switch {
	case cmd == nil:
		c.out = appendError(c.out, unknownCommand(name, args))
	case !cmd.takes(len(args)):
		c.out = appendError(c.out, "ERR wrong number of arguments for '"+cmd.name+"' command")
	default:
		c.server.run.Lock()
		err := cmd.run(c, args)
		c.server.run.Unlock()
		if err != nil {
			c.out = appendError(c.out, err.Error())
		}
	}
}
