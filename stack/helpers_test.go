package stack_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

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

	prefixes6A = []netip.Prefix{netip.MustParsePrefix("fd00::1/64"), netip.MustParsePrefix("fe80::1/64")}
	prefixes6B = []netip.Prefix{netip.MustParsePrefix("fd00::2/64"), netip.MustParsePrefix("fe80::2/64")}
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

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

// neighbours is a route service with the hosts A and B, and no route
// to any other.
type neighbours struct{}

func (neighbours) Resolve(_ context.Context, _, dst netip.Addr) (stack.Route, error) {
	switch {
	case dst == prefixA.Addr(), dst == prefixes6A[0].Addr(), dst == prefixes6A[1].Addr():
		return stack.Route{LinkAddr: linkA}, nil
	case dst == prefixB.Addr(), dst == prefixes6B[0].Addr(), dst == prefixes6B[1].Addr():
		return stack.Route{LinkAddr: linkB}, nil
	case prefixA.Contains(dst), prefixes6A[0].Contains(dst):
		return stack.Route{}, syscall.EHOSTUNREACH
	}
	return stack.Route{}, syscall.ENETUNREACH
}

// newPair makes two stacks with owned IPv4 addresses on the two ends of a memlink. Both get cfg.
func newPair(t testing.TB, cfg stack.Config) (a, b *stack.Stack, la, lb *memlink.Link) {
	t.Helper()
	return newPairOf(t, cfg, nil, nil)
}

// newPair6 makes two stacks with owned addresses of both families.
func newPair6(t testing.TB, cfg stack.Config) (a, b *stack.Stack, la, lb *memlink.Link) {
	t.Helper()
	return newPairOf(t, cfg, prefixes6A, prefixes6B)
}

func newPairOf(t testing.TB, cfg stack.Config, addrs6A, addrs6B []netip.Prefix) (a, b *stack.Stack, la, lb *memlink.Link) {
	t.Helper()
	la, lb = memlink.Pair(memlink.Config{})
	cfg.OwnedAddress, cfg.Resolver = true, neighbours{}
	cfg.LinkAddr, cfg.Addrs = linkA, append([]netip.Prefix{prefixA}, addrs6A...)
	a = newStack(t, la, cfg)
	cfg.LinkAddr, cfg.Addrs = linkB, append([]netip.Prefix{prefixB}, addrs6B...)
	b = newStack(t, lb, cfg)
	return a, b, la, lb
}

// unwrapped returns what the *net.OpError of a socket's call wraps.
func unwrapped(err error) error {
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
	return unwrapped(err)
}

func udpSendTo(c *stack.UDPConn, b []byte, to netip.AddrPort) error {
	_, err := c.WriteToUDPAddrPort(b, to)
	return unwrapped(err)
}

func udpSendBatch(c *stack.UDPConn, msgs []stack.UDPMessage) (int, error) {
	n, err := c.WriteBatch(msgs)
	return n, unwrapped(err)
}

func udpRecv(c *stack.UDPConn, b []byte) (int, error) {
	n, err := c.Read(b)
	return n, unwrapped(err)
}

func udpRecvFrom(c *stack.UDPConn, b []byte) (int, netip.AddrPort, error) {
	n, from, err := c.ReadFromUDPAddrPort(b)
	return n, from, unwrapped(err)
}

func udpRecvBatch(c *stack.UDPConn, msgs []stack.UDPMessage) (int, error) {
	n, err := c.ReadBatch(msgs)
	return n, unwrapped(err)
}

// addrPort is an address of package net as an AddrPort.
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

// clock is a clock that only the test advances.
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

// describe decodes a frame with gopacket, which is independent of our code, and
// describes it in a line. It is an error if gopacket encodes the frame differently,
// checksums and lengths included.
func describe(frame []byte) (string, error) {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		return "", fmt.Errorf("gopacket cannot decode %x: %v", frame, e.Error())
	}
	var line []string
	add := func(format string, args ...any) { line = append(line, fmt.Sprintf(format, args...)) }
	var out []gopacket.SerializableLayer
	var ip gopacket.NetworkLayer
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			add("%s > %s", l.SrcMAC, l.DstMAC)
			out = append(out, l)
		case *layers.ARP:
			op := map[uint16]string{1: "request", 2: "reply"}[l.Operation]
			add("arp %s %v is %v, to %v %v", op, dotted(l.SourceProtAddress), colons(l.SourceHwAddress), dotted(l.DstProtAddress), colons(l.DstHwAddress))
			out = append(out, l)
		case *layers.IPv4:
			ip = l
			add("ip %v > %v ttl %d %v", l.SrcIP, l.DstIP, l.TTL, l.Flags)
			out = append(out, l)
		case *layers.IPv6:
			ip = l
			add("ip6 %v > %v hop %d class %d", l.SrcIP, l.DstIP, l.HopLimit, l.TrafficClass)
			out = append(out, l)
		case *layers.ICMPv6:
			add("icmp6 %v %x", l.TypeCode, l.Payload)
			l.SetNetworkLayerForChecksum(ip)
			out = append(out, l, gopacket.Payload(l.Payload))
			return strings.Join(line, " | "), rewritten(frame, out)
		case *layers.UDP:
			add("udp %d > %d %q", uint16(l.SrcPort), uint16(l.DstPort), l.Payload)
			l.SetNetworkLayerForChecksum(ip)
			out = append(out, l)
		case *layers.TCP:
			add("tcp %d > %d %s %d bytes", uint16(l.SrcPort), uint16(l.DstPort), tcpFlags(l), len(l.Payload))
			l.SetNetworkLayerForChecksum(ip)
			out = append(out, l)
		case *layers.ICMPv4:
			add("icmp %v id %d seq %d %d bytes", l.TypeCode, l.Id, l.Seq, len(l.Payload))
			out = append(out, l)
			out = append(out, gopacket.Payload(l.Payload))
			return strings.Join(line, " | "), rewritten(frame, out)
		case *gopacket.Payload:
			out = append(out, l)
		}
	}
	return strings.Join(line, " | "), rewritten(frame, out)
}

func tcpFlags(t *layers.TCP) (s string) {
	for _, f := range []struct {
		set    bool
		letter string
	}{{t.SYN, "S"}, {t.FIN, "F"}, {t.RST, "R"}, {t.PSH, "P"}, {t.ACK, "A"}} {
		if f.set {
			s += f.letter
		}
	}
	return s
}

func dotted(b []byte) string { return fmt.Sprintf("%d.%d.%d.%d", b[0], b[1], b[2], b[3]) }
func colons(b []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ":")
}

func rewritten(frame []byte, out []gopacket.SerializableLayer) error {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, out...); err != nil {
		return err
	}
	b := buf.Bytes()
	if len(b) > len(frame) { // gopacket pads to 60 bytes, as the device would
		b = b[:len(frame)]
	}
	if !bytes.Equal(b, frame) {
		return fmt.Errorf("gopacket would write\n%x and not\n%x", b, frame)
	}
	return nil
}

// wiretap decodes all frames that a link sends and keeps their descriptions.
type wiretap struct {
	mu    sync.Mutex
	t     testing.TB
	lines []string
	lose  func(line string) bool
}

func tap(t testing.TB, l *memlink.Link) *wiretap {
	w := &wiretap{t: t}
	l.Filter(func(frame []byte) bool {
		line, err := describe(frame)
		if err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lines = append(w.lines, line)
		return w.lose == nil || !w.lose(line)
	})
	return w
}

// take returns what was sent since it was last called.
func (w *wiretap) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	return lines
}

// step is a step of a script: at a time after its start, Do is called and the frames of In
// are received; then exactly Want is sent.
type step struct {
	At   time.Duration
	Do   func()
	In   [][]byte
	Want []string
}

// runScript runs a script on a stack with clock c and link l. The steps are in the order of
// time. Between them the stack is polled at each of its deadlines, so that what a timer
// sends belongs to the step before.
func runScript(t *testing.T, s *stack.Stack, l *memlink.Link, c *clock, steps []step) {
	t.Helper()
	w := tap(t, l)
	start := c.now()
	for i, st := range steps {
		for {
			at, ok := s.NextDeadline()
			if !ok || !at.Before(start.Add(st.At)) {
				break
			}
			c.set(at)
			s.Poll(at)
			stack.Settle(s)
		}
		if got := w.take(); len(got) > 0 {
			t.Fatalf("before step %d, by %v: sent %q", i, c.now().Sub(start), got)
		}
		c.set(start.Add(st.At))
		if st.Do != nil {
			st.Do()
			stack.Settle(s)
		}
		for _, f := range st.In {
			l.Inject(stack.Frame{Data: f})
		}
		s.Poll(c.now())
		stack.Settle(s)
		got := w.take()
		if len(got) != len(st.Want) {
			t.Fatalf("step %d at %v: sent\n%s\nwant\n%s", i, st.At, strings.Join(got, "\n"), strings.Join(st.Want, "\n"))
		}
		for k := range got {
			if !strings.Contains(got[k], st.Want[k]) {
				t.Fatalf("step %d at %v: sent\n%s\nwant\n%s", i, st.At, got[k], st.Want[k])
			}
		}
	}
}
