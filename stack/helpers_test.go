package stack_test

import (
	"net/netip"
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

// newPair makes two stacks with whole addresses, back to back. cfg is for both.
func newPair(t testing.TB, cfg stack.Config) (a, b *stack.Stack, la, lb *memlink.Link) {
	t.Helper()
	la, lb = memlink.Pair(memlink.Config{})
	cfg.WholeAddress = true
	cfg.LinkAddr, cfg.Addr = linkA, prefixA
	a = newStack(t, la, cfg)
	cfg.LinkAddr, cfg.Addr = linkB, prefixB
	b = newStack(t, lb, cfg)
	return a, b, la, lb
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
type clock struct{ t time.Time }

func newClock() *clock { return &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time { return c.t }

func (c *clock) advance(d time.Duration) time.Time {
	c.t = c.t.Add(d)
	return c.t
}
