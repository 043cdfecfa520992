package stack_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

var (
	linkA   = wire.LinkAddr{2, 0, 0, 0, 0, 0xa}
	linkB   = wire.LinkAddr{2, 0, 0, 0, 0, 0xb}
	linkC   = wire.LinkAddr{2, 0, 0, 0, 0, 0xc}
	addrA   = [4]byte{10, 0, 0, 1}
	addrB   = [4]byte{10, 0, 0, 2}
	prefixA = netip.MustParsePrefix("10.0.0.1/24")
	prefixB = netip.MustParsePrefix("10.0.0.2/24")
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// must is for calls that cannot fail in a test that makes sense.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newStack makes a stack on l that is closed, and whose frames are counted, at
// the end of the test.
func newStack(t testing.TB, l *memlink.Link, cfg stack.Config) *stack.Stack {
	t.Helper()
	cfg.Link = l
	s, err := stack.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := l.Audit(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// neighbours is a route service that knows the hosts A and B, and that there is no route
// to any other.
type neighbours struct{}

func (neighbours) Resolve(_ context.Context, dst netip.Addr) (stack.Route, error) {
	switch {
	case dst == prefixA.Addr():
		return stack.Route{LinkAddr: linkA}, nil
	case dst == prefixB.Addr():
		return stack.Route{LinkAddr: linkB}, nil
	case prefixA.Contains(dst):
		return stack.Route{}, syscall.EHOSTUNREACH
	}
	return stack.Route{}, syscall.ENETUNREACH
}

// newPair makes two stacks with whole addresses, back to back. cfg is for both.
func newPair(t testing.TB, cfg stack.Config) (a, b *stack.Stack, la, lb *memlink.Link) {
	t.Helper()
	la, lb = memlink.Pair(memlink.Config{})
	cfg.WholeAddress, cfg.Resolver = true, neighbours{}
	cfg.LinkAddr, cfg.Addr = linkA, prefixA
	a = newStack(t, la, cfg)
	cfg.LinkAddr, cfg.Addr = linkB, prefixB
	b = newStack(t, lb, cfg)
	return a, b, la, lb
}

// bare is what the *net.OpError that a socket's call returns wraps.
func bare(err error) error {
	if err == nil {
		return nil
	}
	op, ok := err.(*net.OpError)
	if !ok {
		panic(fmt.Sprintf("%T instead of a *net.OpError: %v", err, err))
	}
	if call, ok := op.Err.(*os.SyscallError); ok {
		return call.Err
	}
	return op.Err
}

func udpSend(c *stack.UDPConn, b []byte) error {
	_, err := c.Write(b)
	return bare(err)
}

func udpSendTo(c *stack.UDPConn, b []byte, to netip.AddrPort) error {
	_, err := c.WriteToUDPAddrPort(b, to)
	return bare(err)
}

func udpSendBatch(c *stack.UDPConn, msgs []stack.UDPMessage) (int, error) {
	n, err := c.WriteBatch(msgs)
	return n, bare(err)
}

func udpRecv(c *stack.UDPConn, b []byte) (int, error) {
	n, err := c.Read(b)
	return n, bare(err)
}

func udpRecvFrom(c *stack.UDPConn, b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	return n, from, bare(err)
}

func udpRecvBatch(c *stack.UDPConn, msgs []stack.UDPMessage) (int, error) {
	n, err := c.ReadBatch(msgs)
	return n, bare(err)
}

// addrPort is an address of package net in numbers.
func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	return a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
}

// counters is the counts that are not zero.
func counters(s *stack.Stack) map[string]uint64 {
	m := make(map[string]uint64)
	for _, c := range s.Counters() {
		if c.Value != 0 {
			m[c.Name] = c.Value
		}
	}
	return m
}

// clock is a time that only a test moves.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) set(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = t
	return t
}

func (c *clock) advance(d time.Duration) time.Time { return c.set(c.now().Add(d)) }
