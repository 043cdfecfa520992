package stack

import (
	"io"
	"net"
	"sync"

	"github.com/unet-go/unet/proto/tcp"
)

// ReadFrom writes what r returns until io.EOF: it is io.ReaderFrom, which io.Copy and
// net/http call. r reads into memory that becomes part of the send queue, unless it returns
// little at a time. The pieces of a *net.Buffers are written as WriteBuffers does.
func (c *TCPConn) ReadFrom(r io.Reader) (n int64, err error) {
	if v, ok := r.(*net.Buffers); ok {
		n, err = c.WriteBuffers(v)
		return n, c.fail("readfrom", "", err)
	}
	space := tcp.ReserveSpace()
	defer func() { space.Cancel() }()
	for err == nil {
		var got, put int
		got, err = r.Read(space[:])
		if got > 0 {
			var wrote error
			if put, space, wrote = c.commit(space, got); wrote != nil {
				err = wrote
			}
		}
		n += int64(put)
	}
	if err == io.EOF {
		return n, nil
	}
	return n, c.fail("readfrom", "", err)
}

// commit writes the first n bytes of space. It returns how many it has written, and space, or
// another one if the send queue has it.
func (c *TCPConn) commit(space *tcp.Space, n int) (put int, left *tcp.Space, err error) {
	s := c.stack
	s.mu.Lock()
	err = c.writeInTurn(func(now tcp.Time) (bool, error) {
		if put == 0 {
			ok, wait, err := c.conn.Commit(now, space, n)
			if ok {
				put, space = n, tcp.ReserveSpace()
			}
			if ok || wait || err != nil {
				return ok, err
			}
		}
		k, err := c.conn.Write(now, space[put:n])
		put += k
		return put == n, err
	})
	s.mu.Unlock()
	return put, space, c.fail("write", "write", err)
}

// WriteTo writes what the peer sends to w, until the peer has closed: it is io.WriterTo,
// which io.Copy calls. A w that gathers (a TCPConn, or a *net.TCPConn or *net.UnixConn, by
// writev) gets the data in the memory in which it was received, without a copy.
func (c *TCPConn) WriteTo(w io.Writer) (n int64, err error) {
	switch w.(type) {
	case *TCPConn, *net.TCPConn, *net.UnixConn:
		n, err = c.gatherTo(w)
	default:
		space := tcp.ReserveSpace()
		n, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{c}, space[:])
		space.Cancel()
	}
	return n, c.fail("writeto", "", err)
}

// pieces are pieces of received data that are written at once.
type pieces struct {
	loans [64]tcp.Loan
	datas [64][]byte
	rest  net.Buffers // of datas, what has not been written
}

var piecesPool = sync.Pool{New: func() any { return new(pieces) }}

func (c *TCPConn) gatherTo(w io.Writer) (n int64, err error) {
	p := piecesPool.Get().(*pieces)
	defer piecesPool.Put(p)
	for {
		count, err := c.borrow(p.loans[:], len(tcp.Space{}))
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		k, err := p.writeTo(w, count)
		c.stack.mu.Lock()
		for i := range p.loans[:count] {
			c.stack.tcp.Return(&p.loans[i])
		}
		c.stack.mu.Unlock()
		if n += k; err != nil {
			return n, err
		}
	}
}

// writeTo writes the first count pieces.
func (p *pieces) writeTo(w io.Writer, count int) (int64, error) {
	if count == 1 {
		n, err := w.Write(p.loans[0].Data)
		return int64(n), err
	}
	for i, l := range p.loans[:count] {
		p.datas[i] = l.Data
	}
	p.rest = p.datas[:count]
	defer clear(p.datas[:count])
	if w, ok := w.(*TCPConn); ok {
		return w.WriteBuffers(&p.rest)
	}
	return p.rest.WriteTo(w)
}

// WriteBuffers writes all pieces of v with one lock, one kick and full segments where
// they are available, and removes from v what has been written, as net.Buffers.WriteTo does.
// net.Buffers.WriteTo itself calls Write for each piece: the interface that a connection of
// package net has for it is not exported.
func (c *TCPConn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	s := c.stack
	s.mu.Lock()
	err = c.writeInTurn(func(now tcp.Time) (bool, error) {
		for len(*v) > 0 {
			piece := (*v)[0]
			k, err := c.conn.Write(now, piece)
			n += int64(k)
			if err != nil {
				return false, err
			}
			if k < len(piece) {
				(*v)[0] = piece[k:]
				return false, nil
			}
			(*v)[0] = nil
			*v = (*v)[1:]
		}
		return true, nil
	})
	s.mu.Unlock()
	return n, c.fail("write", "writev", err)
}
