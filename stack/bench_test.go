package stack_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// feedLink is a link without a peer: it receives the same frame as often as a benchmark has set in
// waiting, and counts what is sent.
type feedLink struct {
	frame   []byte
	room    [2048]byte
	waiting int
	sent    int
}

func (l *feedLink) Borrow(frames []stack.Frame) int {
	n := min(l.waiting, len(frames))
	for i := range n {
		frames[i] = stack.Frame{Data: l.frame, ID: uint64(i)}
	}
	l.waiting -= n
	return n
}
func (l *feedLink) Return(stack.Frame)              {}
func (l *feedLink) Cancel(stack.Frame)              {}
func (l *feedLink) Reserve(int) (stack.Frame, bool) { return stack.Frame{Data: l.room[:]}, true }
func (l *feedLink) Send(stack.Frame) bool           { l.sent++; return true }
func (l *feedLink) Flush() error                    { return nil }
func (l *feedLink) Pending() bool                   { return l.waiting > 0 }
func (l *feedLink) Sleep(time.Time, bool) error     { return nil }
func (l *feedLink) Wake()                           {}
func (l *feedLink) Frames() int                     { return 4096 }

// datagramFrame is a whole frame from B to A.
func datagramFrame(srcPort, dstPort uint16, payload []byte) []byte {
	b := make([]byte, 42+len(payload))
	wire.PutEthernet(b, linkA, linkB, wire.EtherTypeIPv4)
	n := wire.PutUDPCopy(b[34:], &wire.UDPFlow{Src: wire.AddrFrom4(addrB), Dst: wire.AddrFrom4(addrA), SrcPort: srcPort, DstPort: dstPort}, payload)
	wire.PutIPv4(b[14:], wire.IPv4Fields{TotalLen: uint16(20 + n), TTL: 64, Protocol: wire.ProtocolUDP, Src: addrB, Dst: addrA})
	return b
}

func arpFrame(op uint16, from, to wire.LinkAddr, sender, target [4]byte) []byte {
	b := make([]byte, 42)
	wire.PutEthernet(b, to, from, wire.EtherTypeARP)
	wire.PutARP(b[14:], wire.ARPFields{Op: op, SenderLink: from, SenderAddr: sender, TargetLink: to, TargetAddr: target})
	return b
}

func newFeedStack(b testing.TB) (*feedLink, *stack.Stack) {
	l := &feedLink{}
	s := testutil.Value(stack.New(stack.Config{Link: l, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: neighbours{}, NoCaretaker: true, Wait: endpoint.WaitSpin}))
	b.Cleanup(func() { s.Close() })
	udpSend(testutil.Value(s.DialUDP(netip.AddrPort{}, ap("10.0.0.2:9"), stack.UDPOptions{})), nil)
	stack.Settle(s) // the route is known
	return l, s
}

// Input of a datagram of 64 bytes, queue, pop and copy.
func BenchmarkReceive(b *testing.B) {
	for _, from := range []string{"queue", "wait", "batch32"} {
		b.Run(from, func(b *testing.B) {
			l, s := newFeedStack(b)
			c := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
			l.frame = datagramFrame(9, 7, make([]byte, 64))
			buf := make([]byte, 2048)
			now := time.Now()
			b.ReportAllocs()
			switch from {
			case "queue":
				for b.Loop() {
					l.waiting = 1
					s.Poll(now)
					udpRecv(c, buf)
				}
			case "wait": // as in a ping-pong: the read itself receives the frame
				for b.Loop() {
					l.waiting = 1
					udpRecv(c, buf)
				}
			case "batch32":
				msgs := make([]stack.UDPMessage, 32)
				for i := range msgs {
					msgs[i].Buf = make([]byte, 64)
				}
				for n := 0; b.Loop(); n++ {
					if n%32 == 0 {
						l.waiting = 32
						udpRecvBatch(c, msgs)
					}
				}
			}
		})
	}
}

// Output of a datagram of 64 bytes, the kick not included.
func BenchmarkSend(b *testing.B) {
	for _, how := range []string{"connected", "to", "batch32"} {
		b.Run(how, func(b *testing.B) {
			_, s := newFeedStack(b)
			p := make([]byte, 64)
			b.ReportAllocs()
			switch how {
			case "connected":
				c := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
				for b.Loop() {
					udpSend(c, p)
				}
			case "to":
				c := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
				to := ap("10.0.0.2:9")
				for b.Loop() {
					udpSendTo(c, p, to)
				}
			case "batch32":
				c := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
				msgs := make([]stack.UDPMessage, 32)
				for i := range msgs {
					msgs[i] = stack.UDPMessage{Buf: p, Addr: ap("10.0.0.2:9")}
				}
				for n := 0; b.Loop(); n++ {
					if n%32 == 0 {
						udpSendBatch(c, msgs)
					}
				}
			}
		})
	}
}

// A round trip of 64 bytes between two stacks over a memlink, all in one goroutine. Floor is the
// time that the memlink alone takes.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("stack", func(b *testing.B) {
		sa, sb, _, _ := newPair(b, stack.Config{NoCaretaker: true, Wait: endpoint.WaitSpin})
		ca := testutil.Value(sa.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		cb := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
		buf, p := make([]byte, 2048), make([]byte, 64)
		udpSend(ca, nil) // one round trip, after which both routes are known
		testutil.Value(udpRecv(cb, buf))
		udpSend(cb, nil)
		testutil.Value(udpRecv(ca, buf))
		b.ReportAllocs()
		for b.Loop() {
			udpSend(ca, p)
			udpRecv(cb, buf)
			udpSend(cb, p)
			udpRecv(ca, buf)
		}
	})
	b.Run("floor", func(b *testing.B) {
		la, lb := memlink.Pair(memlink.Config{})
		frames := make([]stack.Frame, 64)
		hop := func(from, to *memlink.Link) {
			f, _ := from.Reserve(0)
			f.Data = f.Data[:106]
			from.Send(f)
			from.Flush()
			for _, f := range frames[:to.Borrow(frames)] {
				to.Return(f)
			}
		}
		for b.Loop() {
			hop(la, lb)
			hop(lb, la)
		}
	})
}

// A round trip of 64 bytes over a connection between two stacks on a memlink, all
// in one goroutine. The difference to BenchmarkRoundTrip/stack is the cost of TCP.
func BenchmarkTCPRoundTrip(b *testing.B) {
	sa, sb, _, _ := newPair(b, stack.Config{Wait: endpoint.WaitSpin})
	client, server := connect(b, sa, sb, stack.TCPOptions{})
	client.SetDeadline(time.Time{})
	server.SetDeadline(time.Time{})
	p, buf := make([]byte, 64), make([]byte, 2048)
	b.ReportAllocs()
	for b.Loop() {
		client.Write(p)
		server.Read(buf)
		server.Write(p)
		client.Read(buf)
	}
	client.Close()
	server.Close()
}

// Sending or receiving a datagram allocates nothing, by any call.
func TestUDPNoAllocations(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: endpoint.WaitSpin})
	u := testutil.Value(sa.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	v := testutil.Value(sb.ListenUDP(ap("10.0.0.2:9"), stack.UDPOptions{}))
	peer := ap("10.0.0.1:7")
	p, buf := make([]byte, 64), make([]byte, 2048)
	udpSend(u, p)
	testutil.Value(udpRecv(v, buf))
	udpSendTo(v, p, peer) // routes are known from here on
	testutil.Value(udpRecv(u, buf))
	out := []stack.UDPMessage{{Buf: p}, {Buf: p}, {Buf: p}}
	in := []stack.UDPMessage{{Buf: buf[:64]}, {Buf: buf[:64]}, {Buf: buf[:64]}}
	for name, roundTrip := range map[string]func(){
		"single": func() {
			udpSend(u, p)
			udpRecvFrom(v, buf)
			udpSendTo(v, p, peer)
			udpRecv(u, buf)
		},
		"deadline": func() {
			u.SetWriteDeadline(time.Now().Add(time.Minute))
			v.SetReadDeadline(time.Now().Add(time.Minute))
			udpSend(u, p)
			udpRecv(v, buf)
		},
		"batch": func() {
			udpSendBatch(u, out)
			for n := 0; n < 3; {
				k, _ := udpRecvBatch(v, in)
				n += k
			}
		},
		"in place": func() {
			b, _ := u.Reserve()
			u.Send(&b, 64, netip.AddrPort{})
			d, _ := v.Borrow()
			v.Return(&d)
		},
	} {
		if n := testing.AllocsPerRun(200, roundTrip); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// Also beyond the frame quota, once the buffers exist.
	l, _ := memlink.Pair(memlink.Config{})
	s := newStack(t, l, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: neighbours{}, NoCaretaker: true, FrameQuota: 1})
	c := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	f := stack.Frame{Data: datagramFrame(9, 7, p)}
	if n := testing.AllocsPerRun(200, func() {
		l.Inject(f)
		l.Inject(f)
		l.Inject(f)
		for range 3 {
			udpRecv(c, buf)
		}
	}); n > 0 {
		t.Errorf("beyond the quota: %v allocations", n)
	}
	if counters(s)["quota_copied"] == 0 {
		t.Error("the quota was never reached")
	}
}

// Data on an established connection allocates nothing: by Read and Write, with
// deadlines, queued before it is read, and borrowed.
func TestTCPNoAllocations(t *testing.T) {
	a, b, _, link := newPair(t, stack.Config{NoCaretaker: true, Wait: endpoint.WaitSpin})
	client, server := connect(t, a, b, stack.TCPOptions{})
	p, large, buf := make([]byte, 64), make([]byte, 1400), make([]byte, 2048)
	if err := client.SetCork(-1); err != nil { // nobody polls for the client while the server waits
		t.Fatal(err)
	}
	// After a pause, on a loaded machine, the data may be paced.
	writeLarge := func() {
		client.Write(large)
		for !link.Pending() {
			a.Poll(time.Now())
		}
	}
	for name, roundTrip := range map[string]func(){
		"round trip": func() {
			client.Write(p)
			server.Read(buf)
			server.Write(p)
			client.Read(buf)
		},
		"deadlines": func() {
			client.SetWriteDeadline(time.Now().Add(time.Minute))
			server.SetReadDeadline(time.Now().Add(time.Minute))
			client.Write(p)
			server.Read(buf)
			server.Write(p)
			client.Read(buf)
		},
		"queued": func() {
			writeLarge()
			server.Read(buf)
			b.Poll(time.Now())
		},
		"borrowed": func() {
			writeLarge()
			data, _ := server.Borrow()
			server.Return(&data)
			b.Poll(time.Now())
		},
	} {
		if n := testing.AllocsPerRun(200, roundTrip); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	client.Close()
	server.Close()
}
