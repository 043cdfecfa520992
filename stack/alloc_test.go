package stack_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// No message costs an allocation, neither way, by any call.
func TestNoAllocations(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: stack.WaitSpin})
	u := must(sa.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	v := must(sb.ListenUDP(ap("10.0.0.2:9"), stack.UDPOptions{}))
	peer := ap("10.0.0.1:7")
	p, buf := make([]byte, 64), make([]byte, 2048)
	udpSend(u, p)
	must(udpRecv(v, buf))
	udpSendTo(v, p, peer) // routes are known from here on
	must(udpRecv(u, buf))
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
			u.Commit(&b, 64, netip.AddrPort{})
			d, _ := v.Borrow()
			v.Return(&d)
		},
	} {
		if n := testing.AllocsPerRun(200, roundTrip); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// Beyond the quota too, once the buffers are there, and when a parked
	// goroutine is woken.
	l, _ := memlink.Pair(memlink.Config{})
	s := newStack(t, l, stack.Config{LinkAddr: linkA, Addr: prefixA, Resolver: neighbours{}, NoCaretaker: true, FrameQuota: 1})
	c := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
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

// Nor does text on a connection that is established: by Read and Write, with
// deadlines, queued before it is read, and borrowed.
func TestTCPNoAllocations(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: stack.WaitSpin})
	client, server := connect(t, a, b, stack.TCPOptions{})
	p, large, buf := make([]byte, 64), make([]byte, 1400), make([]byte, 2048)
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
			client.Write(large)
			a.Poll(time.Now())
			server.Read(buf)
			b.Poll(time.Now())
		},
		"borrowed": func() {
			client.Write(large)
			a.Poll(time.Now())
			text, _ := server.Borrow()
			text.Return()
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
