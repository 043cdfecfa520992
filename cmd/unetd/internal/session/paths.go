//go:build linux

package session

import (
	"iter"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// handOver writes the events of memory paths, each with its descriptors. The application gets no
// more of them while it does not read, since descriptors in a socket count for unetd.
func (s *session) handOver(paths iter.Seq[*endpoint.Path]) {
	defer s.contain()
	select {
	case <-s.leased:
	case <-s.ctx.Done():
	}
	for p := range paths {
		for pause := shortestUnread; unread(s.conn) > maxUnread && s.ctx.Err() == nil; pause = min(2*pause, longestUnread) {
			select {
			case <-time.After(pause):
			case <-s.ctx.Done():
			}
		}
		e, files := protocol.PathEvent(p)
		s.send(e, nil, files...)
		_ = p.Close()
	}
}

// maxUnread is how much an application may have left unread when it gets a memory path, in bytes of
// the kernel's memory. An event of a path takes about one thousand.
const maxUnread = 16 << 10

// Pauses until handOver looks again how much is unread.
const (
	shortestUnread = time.Millisecond
	longestUnread  = 100 * time.Millisecond
)

// unread is how much of what was sent is unread, in bytes of the kernel's memory.
func unread(c *net.UnixConn) (n int) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	}
	return n
}

// capture ends the memory paths of an endpoint, or of all, until the session ends.
func (s *session) capture(id *uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.captured != nil {
		return protocol.Busy("this connection captures already: use another")
	}
	stop, err := s.provider.Capture(id)
	s.captured = stop
	return err
}
