package workload

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Memory of connections: the client opens some, and keeps them open. Each has had
// one request and its answer. The first of them, the job's WarmUp, are not
// counted: what a process needs once, it has then. Marks go over connections of
// their own, as in connect, and both sides take their readings there.

// Weigher reads the memory that this process has resident, in bytes.
type Weigher func() (int64, error)

// Hold is the client of idle. It returns with its connections open.
func Hold(d Dialer, j Job, weigh Weigher) (r Report, held []io.Closer, err error) {
	if err := j.Check(); err != nil {
		return r, nil, err
	}
	c := newCaller(d, j)
	defer func() { c.cancel() }()
	open := func(k Kind, n int) error {
		for i := range n {
			c.keep(clock())
			conn, err := c.ask(k, uint64(i))
			if conn != nil {
				held = append(held, conn)
			}
			if err != nil {
				return fmt.Errorf("connection %d: %w", len(held), err)
			}
		}
		return nil
	}
	read := func(k Kind) (size int64, err error) {
		if err := c.settle(k); err != nil {
			return 0, err
		}
		return weigh()
	}
	held = make([]io.Closer, 0, j.WarmUp+j.N)
	if err := open(Warm, j.WarmUp); err != nil {
		return r, held, err
	}
	before, err := read(Mark)
	if err != nil {
		return r, held, err
	}
	if err := open(Data, j.N); err != nil {
		return r, held, err
	}
	after, err := read(End)
	r.N, r.Resident = j.N, after-before
	return r, held, err
}

// Keep is the server of idle. It returns with the connections open.
func Keep(l Listener, j Job, weigh Weigher) (r Report, held []io.Closer, err error) {
	if err := j.Check(); err != nil {
		return r, nil, err
	}
	s := &answerer{listener: l, job: j}
	held = make([]io.Closer, 0, j.WarmUp+j.N)
	var before int64
	for b := make([]byte, j.Size); ; {
		if err := l.SetDeadline(time.Now().Add(2 * j.Patience)); err != nil {
			return r, held, err
		}
		conn, err := l.Accept()
		if err != nil {
			return r, held, fmt.Errorf("accept: %w", err)
		}
		k, err := s.exchange(conn, b, time.Now().Add(2*j.Patience))
		if err != nil {
			return r, held, errors.Join(err, conn.Close())
		}
		switch k {
		case Warm, Data:
			held = append(held, conn)
			continue
		}
		if err := errors.Join(awaitEOF(conn, b), conn.Close()); err != nil {
			return r, held, err
		}
		size, err := weigh()
		if err != nil {
			return r, held, err
		}
		if k == End {
			r.N, r.Resident = s.report.N, size-before
			return r, held, nil
		}
		before = size
	}
}
