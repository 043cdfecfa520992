package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet"
)

// serve answers commands until ctx ends.
func serve(ctx context.Context, network *unet.Opened, address string, keepAlive time.Duration) error {
	listener, err := network.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s := newServer(network.Host())
	s.keepAlive = keepAlive
	defer context.AfterFunc(ctx, func() { s.close(listener) })()
	fmt.Printf("serving on %v\n", listener.Addr())
	err = s.accept(listener)
	s.sessions.Wait()
	if ctx.Err() == nil {
		return err
	}
	fmt.Printf("answered %d commands on %d connections\n", s.commands.Load(), s.connections.Load())
	return nil
}

// server is what all connections share.
type server struct {
	host        *unet.Host // nil: the kernel
	keepAlive   time.Duration
	start       time.Time
	commands    atomic.Int64
	connections atomic.Int64 // accepted so far

	sessions sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]bool // +checklocks:mu
	closed   bool              // +checklocks:mu

	// Commands run one at a time, as in one thread.
	run  sync.Mutex
	data database
}

func newServer(host *unet.Host) *server {
	return &server{host: host, start: time.Now(), open: make(map[net.Conn]bool), data: make(database)}
}

// accept starts a goroutine for each connection, until the listener is closed.
func (s *server) accept(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if !s.add(conn) {
			conn.Close()
			continue
		}
		s.sessions.Go(func() {
			defer s.remove(conn)
			s.setKeepAlive(conn)
			if err := newSession(s, conn).serve(); err != nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(os.Stderr, "resp: %v: %v\n", conn.RemoteAddr(), err)
			}
		})
	}
}

func (s *server) setKeepAlive(conn net.Conn) {
	if c, ok := conn.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		c.SetKeepAliveConfig(net.KeepAliveConfig{ // Read returns its error again
			Enable: s.keepAlive > 0, Idle: s.keepAlive, Interval: s.keepAlive / 3, Count: 3,
		})
	}
}

func (s *server) add(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.connections.Add(1)
	s.open[conn] = true
	return true
}

func (s *server) remove(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, conn)
	conn.Close()
}

// close closes the listener and all connections. Replies that have been written are still
// sent.
func (s *server) close(listener net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	listener.Close()
	for conn := range s.open {
		conn.Close()
	}
}

// clients is the number of open connections.
func (s *server) clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}
