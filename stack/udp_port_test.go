package stack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// testHandler is a UDPHandler that sends the packets of out, and records what it receives.
type testHandler struct {
	port     *stack.UDPPort
	out      [][]byte // packets from the IPv4 header on
	in       []string
	runs     int
	deadline int64 // what Run returns; 0: never
	echo     bool  // the payload is sent back
	arrived  stack.Event
	err      error
}

func (h *testHandler) Datagram(_ int64, p *stack.UDPPacket) {
	var ip wire.IPv4
	binary.BigEndian.PutUint16(p.Packet[10:], 0) // that of a super-frame is not valid
	binary.BigEndian.PutUint16(p.Packet[10:], ^wire.Fold(wire.Sum(p.Packet[:20], 0)))
	if err := ip.Parse(p.Packet); err != nil {
		h.in = append(h.in, err.Error())
		return
	}
	u, err := wire.ParseUDP(ip.Payload, wire.AddrFrom4(ip.Src), wire.AddrFrom4(ip.Dst), true)
	if err == wire.ErrChecksum {
		err = nil
	}
	h.in = append(h.in, fmt.Sprintf("%v id %d ecn %d %q %v", p.Src.Netip(), binary.BigEndian.Uint16(p.Packet[4:]), p.ECN, p.Payload, err))
	if !bytes.Equal(u.Payload, p.Payload) {
		h.in = append(h.in, "the payload is not that of the packet")
	}
	if h.echo {
		h.out = append(h.out, ipDatagram(ip.Dst, ip.Src, u.DstPort, u.SrcPort, p.Payload))
	}
	h.port.Signal(&h.arrived)
}

func (h *testHandler) Run(int64) int64 {
	h.runs++
	for len(h.out) > 0 {
		p := h.out[0]
		b := h.port.Reserve([4]byte(p[16:20]), len(p))
		if b == nil {
			break
		}
		h.port.Send(copy(b, p))
		h.out = h.out[1:]
	}
	if h.deadline == 0 {
		return stack.Never
	}
	return h.deadline
}

func (h *testHandler) Failed(err error) {
	h.err = errors.Join(h.err, err)
	h.port.Broadcast(&h.arrived)
}

// send sends packets and returns without waiting.
func (h *testHandler) send(packets ...[]byte) {
	h.port.Lock()
	h.out = append(h.out, packets...)
	h.port.Run()
	h.port.Unlock()
}

// wait waits until n datagrams have arrived.
func (h *testHandler) wait(n int) ([]string, error) {
	h.port.Lock()
	defer h.port.Unlock()
	for len(h.in) < n {
		if err := h.port.Err(); err != nil {
			return h.in, err
		}
		h.port.Wait(&h.arrived, stack.Never)
	}
	return h.in, nil
}

func ipDatagram(src, dst [4]byte, srcPort, dstPort uint16, payload []byte) []byte {
	b := make([]byte, 28+len(payload))
	wire.PutUDPCopy(b[20:], &wire.UDPFlow{Src: wire.AddrFrom4(src), Dst: wire.AddrFrom4(dst), SrcPort: srcPort, DstPort: dstPort}, payload)
	wire.PutIPv4(b, wire.IPv4Fields{TotalLen: uint16(len(b)), TOS: wire.ECNCapable, TTL: 64, Protocol: wire.ProtocolUDP, DontFragment: true, Src: src, Dst: dst})
	return b
}

func openPort(t testing.TB, s *stack.Stack, at string) *testHandler {
	t.Helper()
	h := new(testHandler)
	p, err := s.OpenUDPPort(ap(at), h, nil)
	if err != nil {
		t.Fatal(err)
	}
	h.port = p
	return h
}

func TestUDPPortExchange(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, la, lb := newPair(t, cfg)
		tap(t, la)
		tap(t, lb)
		a, b := openPort(t, sa, "10.0.0.1:4791"), openPort(t, sb, "10.0.0.2:4791")
		b.echo = true
		for i := range 100 {
			// The first ones wait for the route, in order.
			a.send(ipDatagram(addrA, addrB, 4791, 4791, fmt.Append(nil, 2*i)), ipDatagram(addrA, addrB, 4791, 4791, fmt.Append(nil, 2*i+1)))
			if _, err := a.wait(2 * i); err != nil { // the caretaker of b answers, or a goroutine that polls while it leaves
				t.Fatal(err)
			}
		}
		got, err := a.wait(200)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range got {
			if want := fmt.Sprintf("10.0.0.2:4791 id 0 ecn 2 %q <nil>", fmt.Sprint(i)); line != want {
				t.Fatalf("got %s, want %s", line, want)
			}
		}
		if c := counters(sb); c["udp_received"] != 200 || c["udp_sent"] != 200 {
			t.Errorf("counted %v", c)
		}
	})
}

// newScriptedPort makes a stack that a test polls, with a port at 10.0.0.1:4791 and the route
// to B.
func newScriptedPort(t *testing.T) (*testHandler, *stack.Stack, *memlink.Link, *clock) {
	s, l, c := newScripted(t, nil)
	h := openPort(t, s, "10.0.0.1:4791")
	h.send(ipDatagram(addrA, addrB, 4791, 9, nil))
	stack.Settle(s)
	return h, s, l, c
}

// The handler gets the datagrams of a super-frame, and of packets in several frames, one by
// one, with the headers that the sender's kernel would have given them.
func TestUDPPortSplitsSuperFrames(t *testing.T) {
	frame := datagramFrame(9, 4791, []byte("aaaabbbbcc"))
	for _, tt := range []struct {
		name   string
		id     uint16
		gso    uint16
		cut    int // where the second frame begins; 0: there is none
		want   []string
		frames string
	}{
		{"in parts", 7, 0, 50, []string{`10.0.0.2:9 id 7 ecn 3 "aaaabbbbcc" <nil>`}, "multi_part"},
		{"super-frame", 7, 4, 0, []string{`10.0.0.2:9 id 7 ecn 3 "aaaa" <nil>`, `10.0.0.2:9 id 8 ecn 3 "bbbb" <nil>`, `10.0.0.2:9 id 9 ecn 3 "cc" <nil>`}, "super_frames"},
		{"super-frame in parts", 0, 4, 44, []string{`10.0.0.2:9 id 0 ecn 3 "aaaa" <nil>`, `10.0.0.2:9 id 0 ecn 3 "bbbb" <nil>`, `10.0.0.2:9 id 0 ecn 3 "cc" <nil>`}, "super_frames"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, s, l, c := newScriptedPort(t)
			f := slices.Clone(frame)
			f[15] |= wire.ECNMarked
			binary.BigEndian.PutUint16(f[18:], tt.id)
			binary.BigEndian.PutUint16(f[24:], 0)
			binary.BigEndian.PutUint16(f[24:], ^wire.Fold(wire.Sum(f[14:34], 0)))
			runs := h.runs
			if tt.cut == 0 {
				l.Inject(stack.Frame{Data: f, GSOSize: tt.gso})
			} else {
				l.Inject(stack.Frame{Data: f[:tt.cut], GSOSize: tt.gso, More: true}, stack.Frame{Data: f[tt.cut:]})
			}
			s.Poll(c.now())
			if !slices.Equal(h.in, tt.want) {
				t.Errorf("got %q, want %q", h.in, tt.want)
			}
			if h.runs != runs+1 {
				t.Errorf("%d runs", h.runs-runs)
			}
			if counters(s)[tt.frames] != 1 {
				t.Errorf("counted %v", counters(s))
			}
		})
	}
}

// Packets for which the link has no room are sent, in order, when it has room.
func TestUDPPortWaitsForTheLink(t *testing.T) {
	h, s, l, c := newScriptedPort(t)
	w := tap(t, l)
	l.Stick(true)
	for i := range 300 { // more than the link has frames
		h.out = append(h.out, ipDatagram(addrA, addrB, 4791, 9, fmt.Append(nil, i)))
	}
	h.send()
	if len(h.out) == 0 {
		t.Fatal("the link took all")
	}
	l.Stick(false)
	for len(h.out) > 0 {
		at, ok := s.NextDeadline()
		if !ok {
			t.Fatal("no further attempt")
		}
		s.Poll(c.set(at))
	}
	s.Poll(c.advance(time.Second))
	lines := w.take()
	if len(lines) != 300 {
		t.Fatalf("%d sent", len(lines))
	}
	for i, line := range lines {
		if want := fmt.Sprintf("udp 4791 > 9 %q", fmt.Sprint(i)); !strings.HasSuffix(line, want) {
			t.Fatalf("packet %d: %s", i, line)
		}
	}
}

// Packets that cannot be sent are dropped and counted, and the port stays usable.
func TestUDPPortCountsLostPackets(t *testing.T) {
	h, s, l, c := newScriptedPort(t)
	w := tap(t, l)
	h.send(ipDatagram(addrA, addrB, 4791, 9, make([]byte, 1473)))
	h.send(ipDatagram(addrA, [4]byte{10, 0, 0, 255}, 4791, 9, nil))
	h.send(ipDatagram(addrA, addrA, 4791, 9, nil)) // another port of this stack
	s.SetLink(0, false)
	h.send(ipDatagram(addrA, addrB, 4791, 9, nil))
	s.SetLink(0, true)
	stack.Settle(s)
	if n := counters(s)["port_lost"]; n != 4 {
		t.Errorf("%d lost", n)
	}
	if lines := w.take(); len(lines) != 0 {
		t.Errorf("sent %q", lines)
	}
	// An ICMP error about a packet of the port, unless it reports an MTU, is only counted.
	b := make([]byte, 128)
	n := wire.PutICMPv4Error(b[34:], wire.ICMPUnreachable, wire.ICMPPortUnreachable, 0, ipDatagram(addrA, addrB, 4791, 9, nil))
	wire.PutEthernet(b, linkA, linkB, wire.EtherTypeIPv4)
	wire.PutIPv4(b[14:], wire.IPv4Fields{TotalLen: uint16(20 + n), TTL: 64, Protocol: wire.ProtocolICMP, Src: addrB, Dst: addrA})
	l.Inject(stack.Frame{Data: b[:34+n]})
	s.Poll(c.now())
	if counters(s)["icmp_errors"] != 1 {
		t.Errorf("counted %v", counters(s))
	}
	h.send(ipDatagram(addrA, addrB, 4791, 9, []byte("sent")))
	if lines := w.take(); len(lines) != 1 || !strings.HasSuffix(lines[0], `udp 4791 > 9 "sent"`) {
		t.Errorf("sent %q", lines)
	}
	// A datagram of a socket of this stack does not reach the handler, because it has no IP header.
	u := testutil.Value(s.DialUDP(netip.AddrPort{}, ap("10.0.0.1:4791"), stack.UDPOptions{}))
	if err := udpSend(u, []byte("x")); err != nil {
		t.Error(err)
	}
	if len(h.in) != 0 {
		t.Errorf("received %q", h.in)
	}
}

// A packet to the stack's own address reaches the handler before Send returns.
func TestUDPPortSendsToItself(t *testing.T) {
	h, s, l, _ := newScriptedPort(t)
	w := tap(t, l)
	h.send(ipDatagram(addrA, addrA, 4791, 4791, []byte("self")))
	if want := []string{`10.0.0.1:4791 id 0 ecn 2 "self" <nil>`}; !slices.Equal(h.in, want) {
		t.Errorf("got %q", h.in)
	}
	if n := counters(s)["looped_back"]; n != 1 {
		t.Errorf("looped back: %d", n)
	}
	if lines := w.take(); len(lines) != 0 {
		t.Errorf("sent %q", lines)
	}
}

// Run is called at the deadline that it has returned. A later call can return an earlier deadline.
func TestUDPPortDeadline(t *testing.T) {
	h, s, _, c := newScriptedPort(t)
	start := c.now()
	h.port.Lock()
	h.deadline = h.port.Deadline(start.Add(20 * time.Millisecond))
	h.port.Unlock()
	h.send()
	h.deadline -= int64(10 * time.Millisecond)
	h.send()
	h.deadline = 0
	at, _ := s.NextDeadline()
	if at.Sub(start) != 10*time.Millisecond {
		t.Errorf("the deadline is after %v, want 10ms", at.Sub(start))
	}
	before := h.runs
	s.Poll(c.set(at))
	if h.runs != before+1 {
		t.Errorf("%d runs at the deadline, want 1", h.runs-before)
	}
}

// At the end of the port, or of the stack, Failed of the handler is called once, and calls that wait
// return.
func TestUDPPortCloseAndFail(t *testing.T) {
	s, _, _ := newScripted(t, nil)
	broken := errors.New("broken")
	for _, end := range []struct {
		name string
		call func(h *testHandler)
		want error
	}{
		{"closed", func(h *testHandler) { h.port.Close() }, net.ErrClosed},
		{"failed", func(*testHandler) { s.Fail(broken) }, broken},
	} {
		h := openPort(t, s, "10.0.0.1:4791")
		if _, err := s.OpenUDPPort(ap("10.0.0.1:4791"), new(testHandler), nil); err != syscall.EADDRINUSE {
			t.Errorf("a second handler: %v", err)
		}
		if _, err := s.ListenUDP(ap("10.0.0.1:4791"), stack.UDPOptions{}); err != syscall.EADDRINUSE {
			t.Errorf("a socket: %v", err)
		}
		got := make(chan error)
		for range 2 {
			go func() {
				_, err := h.wait(1)
				got <- err
			}()
		}
		testutil.Eventually(t, "both calls wait", func() bool { return stack.Waiting(s) == 2 })
		end.call(h)
		for range 2 {
			if err := <-got; err != end.want {
				t.Errorf("%s: %v", end.name, err)
			}
		}
		h.send(ipDatagram(addrA, addrB, 4791, 9, nil))
		if end.name == "failed" {
			if err := h.port.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := h.port.Close(); err != end.want {
			t.Errorf("closed twice: %v", err)
		}
		if h.err.Error() != end.want.Error() {
			t.Errorf("%s: the handler was notified of %v", end.name, h.err)
		}
	}
	if _, err := s.OpenUDPPort(ap("10.0.0.1:4791"), new(testHandler), nil); err != broken {
		t.Errorf("open after Fail: %v", err)
	}
}

// A goroutine that calls Poll in a loop receives the datagrams of its port, and wakes goroutines that
// wait for datagrams of other sockets.
func TestUDPPortPoll(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{})
	a, b := openPort(t, sa, "10.0.0.1:4791"), openPort(t, sb, "10.0.0.2:4791")
	u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	got := make(chan string, 1)
	go func() {
		buf := make([]byte, 100)
		n, err := udpRecv(u, buf)
		got <- fmt.Sprint(string(buf[:n]), " ", err)
	}()
	b.echo = true
	go b.wait(1 << 30)
	a.send(ipDatagram(addrA, addrB, 4791, 4791, []byte("x")))
	for n := 0; n == 0; {
		a.port.Lock()
		a.port.Poll()
		n = len(a.in)
		a.port.Unlock()
	}
	b.send(ipDatagram(addrB, addrA, 4791, 7, []byte("to the socket")))
	for done := false; !done; {
		a.port.Lock()
		a.port.Poll()
		a.port.Unlock()
		select {
		case s := <-got:
			done = true
			if s != "to the socket <nil>" {
				t.Errorf("the socket received %s", s)
			}
		default:
		}
	}
}

// echoHandler is a handler that answers each datagram with a packet and does not allocate.
type echoHandler struct {
	testHandler
	packet []byte
	n      int
}

func (h *echoHandler) Datagram(int64, *stack.UDPPacket) { h.n++ }
func (h *echoHandler) Run(int64) int64 {
	for ; h.n > 0; h.n-- {
		h.port.Send(copy(h.port.Reserve(addrB, len(h.packet)), h.packet))
	}
	return stack.Never
}

func newEchoHandler(b testing.TB) (*feedLink, *stack.Stack, *echoHandler) {
	l, s := newFeedStack(b)
	h := &echoHandler{packet: ipDatagram(addrA, addrB, 4791, 4791, make([]byte, 64))}
	h.port = testutil.Value(s.OpenUDPPort(ap("10.0.0.1:4791"), h, nil))
	l.frame = datagramFrame(4791, 4791, make([]byte, 64))
	return l, s, h
}

func TestUDPPortNoAllocations(t *testing.T) {
	l, s, _ := newEchoHandler(t)
	now := time.Now()
	if n := testing.AllocsPerRun(100, func() {
		l.waiting = 3
		s.Poll(now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A datagram of 64 bytes in and one out, at a port.
func BenchmarkUDPPort(b *testing.B) {
	l, s, _ := newEchoHandler(b)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		l.waiting = 1
		s.Poll(now)
	}
}

// The MTU of a port is bounded by the size of the frames of the link.
func TestUDPPortMTU(t *testing.T) {
	for mtu, want := range map[int]int{1500: 1500, 9000: 2048 - wire.EthernetHeaderLen} {
		s, _, _ := newScripted(t, func(cfg *stack.Config) { cfg.MTU = mtu })
		if got := openPort(t, s, "10.0.0.1:4791").port.MTU(); got != want {
			t.Errorf("link with MTU %d: the MTU of the port is %d, want %d", mtu, got, want)
		}
	}
}

// A datagram in several frames to a group, and to the port number of a UDPPort, is received by the
// socket that is a member of the group. The next datagram does not overwrite it.
func TestGroupDatagramsInPartsGoToTheMemberSocket(t *testing.T) {
	h, s, l, c := newScriptedPort(t)
	group := netip.MustParseAddr("239.1.2.3")
	u := testutil.Value(s.ListenGroup(nil, netip.AddrPortFrom(group, 4791), stack.UDPOptions{}))
	payloads := []string{"the first one", "and the second"}
	for _, payload := range payloads {
		b := append(make([]byte, wire.EthernetHeaderLen), ipDatagram(addrB, group.As4(), 9, 4791, []byte(payload))...)
		wire.PutEthernet(b, wire.GroupLink(wire.AddrFrom(group)), linkB, wire.EtherTypeIPv4)
		l.Inject(stack.Frame{Data: b[:50], More: true}, stack.Frame{Data: b[50:]})
	}
	s.Poll(c.now())
	for _, want := range payloads {
		b := make([]byte, 100)
		if n, err := udpRecv(u, b); err != nil || string(b[:n]) != want {
			t.Errorf("got %q, %v; want %q", b[:n], err, want)
		}
	}
	if len(h.in) != 0 {
		t.Errorf("the UDPPort has received %q", h.in)
	}
}

// A packet too short for a UDP header is counted as such, also if it was sent to a group.
func TestTruncatedGroupDatagrams(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	group := netip.MustParseAddr("239.1.2.3")
	b := make([]byte, wire.EthernetHeaderLen+wire.IPv4HeaderLen+4)
	wire.PutEthernet(b, wire.GroupLink(wire.AddrFrom(group)), linkB, wire.EtherTypeIPv4)
	wire.PutIPv4(b[wire.EthernetHeaderLen:], wire.IPv4Fields{TotalLen: 24, TTL: 1, Protocol: wire.ProtocolUDP, Src: addrB, Dst: group.As4()})
	l.Inject(stack.Frame{Data: b}, stack.Frame{Data: ip6Frame(wire.IPv6Fields{Protocol: wire.ProtocolUDP, Dst: a16("ff02::4791")}, make([]byte, 4))})
	s.Poll(c.now())
	if got := counters(s); got["udp_length"] != 2 || got["ipv4_destination"] != 0 || got["ipv6_destination"] != 0 {
		t.Errorf("counters: %v", got)
	}
}
