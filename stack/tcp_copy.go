package stack

import (
	"io"
	"net"
	"sync"

	"github.com/unet-go/unet/proto/tcp"
)

// copySpace has buffers for ReadFrom and WriteTo.
var copySpace = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// ReadFrom writes what r returns until io.EOF: it is io.ReaderFrom, which io.Copy and
// net/http call. The pieces of a *net.Buffers are written as WriteBuffers does.
func (c *TCPConn) ReadFrom(r io.Reader) (n int64, err error) {
	if v, ok := r.(*net.Buffers); ok {
		n, err = c.WriteBuffers(v)
	} else {
		n, err = copyData(c, r)
	}
	return n, c.fail("readfrom", "", err)
}

// WriteTo writes what the peer sends to w, until the peer has closed: it is io.WriterTo,
// which io.Copy calls.
func (c *TCPConn) WriteTo(w io.Writer) (n int64, err error) {
	n, err = copyData(w, c)
	return n, c.fail("writeto", "", err)
}

// copyData is io.Copy without ReadFrom and WriteTo, by a larger buffer that is used again.
func copyData(w io.Writer, r io.Reader) (n int64, err error) {
	space := copySpace.Get().(*[64 << 10]byte)
	defer copySpace.Put(space)
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, space[:])
}

// WriteBuffers writes all pieces of v with one lock, one kick and full segments where
// they are available, and removes from v what has been written, as net.Buffers.WriteTo does.
// net.Buffers.WriteTo itself calls Write for each piece: the interface that a connection of
// package net has for it is not exported.
func (c *TCPConn) WriteBuffers(v *net.Buffers) (n int64, err error) {
	s := c.stack
	s.mu.Lock()
	c.answering = false // the first segment has the acknowledgment that was held
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
