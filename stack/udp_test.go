package stack_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

func TestUDPExchange(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, la, lb := newPair(t, cfg)
		tap(t, la)
		tap(t, lb)
		server := testutil.Value(sb.ListenUDP(ap("0.0.0.0:9"), stack.UDPOptions{}))
		go func() {
			buf := make([]byte, 2048)
			for {
				n, from, err := udpRecvFrom(server, buf)
				if err != nil {
					return
				}
				udpSendTo(server, buf[:n], from)
			}
		}()
		client := testutil.Value(sa.DialUDP(netip.AddrPort{}, ap("10.0.0.2:9"), stack.UDPOptions{}))
		if addrPort(client.LocalAddr()).Addr() != prefixA.Addr() || addrPort(client.RemoteAddr()) != ap("10.0.0.2:9") {
			t.Errorf("addresses: %v %v", addrPort(client.LocalAddr()), addrPort(client.RemoteAddr()))
		}
		buf := make([]byte, 2048)
		for _, n := range []int{0, 1, 2, 63, 64, 65, 1471, 1472} {
			p := bytes.Repeat([]byte{byte(n)}, n)
			if err := udpSend(client, p); err != nil {
				t.Fatal(err)
			}
			if k, err := udpRecv(client, buf); err != nil || !bytes.Equal(buf[:k], p) {
				t.Fatalf("echo of %d bytes: %d bytes, %v", n, k, err)
			}
		}
		client.SetDontFragment(true)
		if err := udpSend(client, make([]byte, 1473)); err != syscall.EMSGSIZE {
			t.Errorf("too large: %v", err)
		}
		if err := udpSend(client, make([]byte, 70000)); err != syscall.EMSGSIZE {
			t.Errorf("far too large: %v", err)
		}
		// A datagram that is longer than the buffer is truncated, as by the kernel.
		udpSend(client, []byte("0123456789"))
		udpSend(client, []byte("next"))
		if n, err := udpRecv(client, buf[:4]); n != 4 || err != nil || string(buf[:4]) != "0123" {
			t.Errorf("truncated datagram: %q %v", buf[:n], err)
		}
		if n, err := udpRecv(client, buf[:4]); string(buf[:n]) != "next" || err != nil {
			t.Errorf("datagram after a truncated one: %q %v", buf[:n], err)
		}
		server.Close()
		udpSend(client, []byte("to a closed port"))
		if _, err := udpRecv(client, buf); err != syscall.ECONNREFUSED {
			t.Errorf("closed server: %v", err)
		}
	})
}

func TestUDPConnectedReceivesOnlyFromItsPeer(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.OwnedAddress = false })
	u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	l.Inject(
		stack.Frame{Data: datagramFrame(10, 7, []byte("another"))},
		stack.Frame{Data: datagramFrame(9, 7, []byte("peer"))},
	)
	s.Poll(c.now())
	buf := make([]byte, 10)
	if n, _ := udpRecv(u, buf); string(buf[:n]) != "peer" {
		t.Errorf("got %q", buf[:n])
	}
	if got := counters(s)["udp_no_socket"]; got != 1 {
		t.Errorf("udp_no_socket is %d, want 1", got)
	}
	if err := udpSendTo(u, nil, ap("10.0.0.3:9")); err != net.ErrWriteToConnected {
		t.Errorf("SendTo on a connected socket: %v", err)
	}
	if err := udpSendTo(u, nil, ap("[2001:db8::1]:9")); err != net.ErrWriteToConnected {
		t.Errorf("SendTo an IPv6 address on a connected socket: %v", err)
	}
}

func TestUDPAddressErrors(t *testing.T) {
	s, _, _ := newScripted(t, nil)
	u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	ignore := func(_ *stack.UDPConn, err error) error { return err }
	for i, tt := range []struct{ got, want error }{
		{ignore(s.ListenUDP(ap("0.0.0.0:7"), stack.UDPOptions{})), syscall.EADDRINUSE},
		{ignore(s.ListenUDP(ap("10.0.0.2:8"), stack.UDPOptions{})), syscall.EADDRNOTAVAIL},
		{ignore(s.ListenUDP(ap("[fe80::1]:8"), stack.UDPOptions{})), syscall.EAFNOSUPPORT},
		{ignore(s.DialUDP(netip.AddrPort{}, ap("10.0.0.2:0"), stack.UDPOptions{})), syscall.EINVAL},
		{ignore(s.DialUDP(netip.AddrPort{}, ap("[fe80::1]:1"), stack.UDPOptions{})), syscall.EAFNOSUPPORT},
		{udpSend(u, nil), syscall.EDESTADDRREQ},
		{udpSendTo(u, nil, ap("10.0.0.2:0")), syscall.EINVAL},
		{udpSendTo(u, nil, ap("10.0.0.255:1")), syscall.EACCES},
		{udpSendTo(u, nil, ap("255.255.255.255:1")), syscall.EACCES},
	} {
		if !errors.Is(tt.got, tt.want) {
			t.Errorf("%d: %v, want %v", i, tt.got, tt.want)
		}
	}
	if u := testutil.Value(s.ListenUDP(netip.AddrPort{}, stack.UDPOptions{})); addrPort(u.LocalAddr()).Port() == 0 {
		t.Error("no port was chosen")
	}
}

// Sockets of one stack reach each other, at its own address and at 127.0.0.1.
func TestUDPLoopback(t *testing.T) {
	s, l, c := newScripted(t, nil)
	w := tap(t, l)
	server := testutil.Value(s.ListenUDP(ap("0.0.0.0:9"), stack.UDPOptions{}))
	buf := make([]byte, 100)
	for _, host := range []string{"10.0.0.1", "127.0.0.1"} {
		client := testutil.Value(s.DialUDP(netip.AddrPort{}, ap(host+":9"), stack.UDPOptions{}))
		if err := udpSend(client, []byte("ping")); err != nil {
			t.Fatal(err)
		}
		n, from, err := udpRecvFrom(server, buf)
		if err != nil || string(buf[:n]) != "ping" || from != addrPort(client.LocalAddr()) || from.Addr().String() != host {
			t.Fatalf("%s: %q from %v %v", host, buf[:n], from, err)
		}
		udpSendTo(server, []byte("pong"), from)
		if n, err := udpRecv(client, buf); err != nil || string(buf[:n]) != "pong" {
			t.Fatalf("%s: %q %v", host, buf[:n], err)
		}
	}
	refused := testutil.Value(s.DialUDP(netip.AddrPort{}, ap("10.0.0.1:99"), stack.UDPOptions{}))
	if err := udpSend(refused, nil); err != nil {
		t.Error(err)
	}
	if _, err := udpRecv(refused, buf); err != syscall.ECONNREFUSED {
		t.Errorf("no socket there: %v", err)
	}
	// Sends to loopback addresses at which the stack has no socket fail with ENETUNREACH.
	connected := testutil.Value(s.DialUDP(netip.AddrPort{}, ap("127.0.0.53:53"), stack.UDPOptions{}))
	sent := server.Counters().Sent
	for i, err := range []error{
		udpSend(connected, nil),
		udpSendTo(server, nil, ap("127.0.0.1:53")),
		udpSendTo(server, nil, ap("127.9.9.9:53")),
		udpSendTo(server, nil, ap("0.0.0.0:53")),
		udpSendTo(server, nil, ap("[::]:53")),
	} {
		if err != syscall.ENETUNREACH {
			t.Errorf("%d: to the host's loopback: %v", i, err)
		}
	}
	if n := server.Counters().Sent; n != sent || connected.Counters().Sent+refused.Counters().Sent != 0 {
		t.Errorf("datagrams that no socket received are counted as sent")
	}
	if err := udpSendTo(server, []byte("any"), ap("0.0.0.0:9")); err != nil {
		t.Error(err)
	}
	if n, from, _ := udpRecvFrom(server, buf); string(buf[:n]) != "any" || from != ap("127.0.0.1:9") {
		t.Errorf("to the wildcard: %q from %v", buf[:n], from)
	}
	udpSendTo(server, []byte("me"), ap("10.0.0.1:9"))
	if n, from, _ := udpRecvFrom(server, buf); string(buf[:n]) != "me" || from != ap("10.0.0.1:9") {
		t.Errorf("to itself: %q from %v", buf[:n], from)
	}
	s.Poll(c.now())
	if lines := w.take(); len(lines) > 0 {
		t.Errorf("on the wire: %q", lines)
	}
}

func TestUDPBatches(t *testing.T) {
	sa, sb, _, lb := newPair(t, stack.Config{})
	w := tap(t, lb)
	u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
	udpSend(v, []byte("first"))
	in := make([]stack.UDPMessage, 40)
	for i := range in {
		in[i].Buf = make([]byte, 16)
	}
	if n, err := udpRecvBatch(u, in); n != 1 || err != nil || in[0].Addr != ap("10.0.0.2:9") {
		t.Fatalf("%d %v %v", n, err, in[0].Addr)
	}
	w.take()
	out := make([]stack.UDPMessage, 30)
	for i := range out {
		out[i].Buf = []byte{byte(i)}
	}
	if n, err := udpSendBatch(v, out); n != 30 || err != nil {
		t.Fatalf("SendBatch: %d %v", n, err)
	}
	got := 0
	for got < 30 {
		n, err := udpRecvBatch(u, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range in[:n] {
			if m.N != 1 || m.Buf[0] != byte(got) {
				t.Fatalf("message %d: %v", got, m.Buf[:m.N])
			}
			got++
		}
	}
	// With an error in the middle, the number of datagrams sent is returned.
	out[5].Buf = make([]byte, 70000)
	if n, err := udpSendBatch(v, out); n != 5 || err != syscall.EMSGSIZE {
		t.Errorf("SendBatch with a large one: %d %v", n, err)
	}
	for i := range out {
		out[i] = stack.UDPMessage{Addr: ap("10.0.0.2:9")}
	}
	if n, err := udpSendBatch(u, out); n != 30 || err != nil {
		t.Errorf("SendBatch with addresses: %d %v", n, err)
	}
}

func TestUDPReserveAndBorrow(t *testing.T) {
	sa, sb, la, _ := newPair(t, stack.Config{})
	tap(t, la)
	u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	v := testutil.Value(sb.ListenUDP(ap("10.0.0.2:9"), stack.UDPOptions{}))
	for i := range 3 {
		b, err := u.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Payload) != 1472 {
			t.Errorf("room for %d bytes", len(b.Payload))
		}
		n := copy(b.Payload, "composed")
		if err := u.Send(&b, len(b.Payload)+1, ap("10.0.0.2:9")); unwrapped(err) != syscall.EMSGSIZE {
			t.Errorf("too large: %v", err)
		}
		if err := u.Send(&b, n, netip.AddrPort{}); unwrapped(err) != syscall.EDESTADDRREQ {
			t.Errorf("no destination: %v", err)
		}
		to := ap("10.0.0.2:9")
		if i == 2 {
			to = ap("10.0.0.1:7") // itself
		}
		if err := u.Send(&b, n, to); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []*stack.UDPConn{v, v, u} {
		d, err := c.Borrow()
		if err != nil || string(d.Payload) != "composed" || d.From != ap("10.0.0.1:7") {
			t.Fatalf("borrowed %q from %v: %v", d.Payload, d.From, err)
		}
		c.Return(&d)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("returned twice without a panic")
				}
			}()
			c.Return(&d)
		}()
	}
	b := testutil.Value(u.Reserve())
	u.Cancel(&b)
	// A borrowed datagram can be returned after its socket was closed.
	udpSendTo(u, []byte("late"), ap("10.0.0.2:9"))
	d := testutil.Value(v.Borrow())
	v.Close()
	v.Return(&d)
}

// A socket that is never read keeps at most the frame quota of frames, so that the others still
// receive.
func TestFrameQuota(t *testing.T) {
	for _, quota := range []int{1, 4} {
		clk := newClock()
		la, _ := memlink.Pair(memlink.Config{FrameCount: 64})
		s := newStack(t, la, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: neighbours{}, Now: clk.now, NoCaretaker: true, FrameQuota: quota})
		slow := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{QueueDatagrams: 100}))
		fast := testutil.Value(s.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		buf := make([]byte, 2048)
		for i := range 200 {
			la.Inject(stack.Frame{Data: datagramFrame(9, 7, []byte{byte(i)})}, stack.Frame{Data: datagramFrame(9, 8, []byte{byte(i)})})
			s.Poll(clk.now())
			if n, err := udpRecv(fast, buf); n != 1 || err != nil || buf[0] != byte(i) {
				t.Fatalf("fast reader, datagram %d: %v %v", i, buf[:n], err)
			}
		}
		if la.Lost() != 0 {
			t.Errorf("%d frames lost", la.Lost())
		}
		got := counters(s)
		if got["udp_queue_full"] != 100 || got["quota_copied"] < 200 {
			t.Errorf("counters: %v", got)
		}
		for i := range 100 {
			d := testutil.Value(slow.Borrow())
			if d.Payload[0] != byte(i) {
				t.Fatalf("slow reader, datagram %d: %v", i, d.Payload)
			}
			slow.Return(&d)
		}
		// The buffers are used again, and large datagrams fit as well.
		la.Inject(stack.Frame{Data: datagramFrame(9, 7, bytes.Repeat([]byte("x"), 2006))})
		s.Poll(clk.now())
		if n, err := udpRecv(slow, buf); n != 2006 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if quota == 1 {
			b := testutil.Value(slow.Reserve())
			if _, err := slow.Reserve(); unwrapped(err) != syscall.ENOBUFS {
				t.Errorf("reserved beyond the quota: %v", err)
			}
			slow.Cancel(&b)
		}
	}
}

// A reader that takes nothing does not starve the link: without a quota in its configuration, a stack keeps a
// quarter of the link's frames.
func TestDefaultFrameQuotaFollowsTheLink(t *testing.T) {
	clk := newClock()
	la, _ := memlink.Pair(memlink.Config{FrameCount: 64})
	s := newStack(t, la, stack.Config{LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: neighbours{}, Now: clk.now, NoCaretaker: true})
	testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{QueueDatagrams: 100}))
	for range 100 {
		la.Inject(stack.Frame{Data: datagramFrame(9, 7, nil)})
		s.Poll(clk.now())
	}
	if got := counters(s); la.Lost() != 0 || s.Lent() != 16 || got["udp_received"] != 100 || got["quota_copied"] != 84 {
		t.Errorf("%d frames lost, %d kept, counters: %v", la.Lost(), s.Lent(), got)
	}
}

// parts cuts a packet into frames of a link.
func parts(b []byte, gso uint16) (frames []stack.Frame) {
	for len(b) > 0 {
		n := min(1792, len(b))
		frames = append(frames, stack.Frame{Data: b[:n], More: n < len(b), GSOSize: gso})
		b = b[n:]
	}
	return frames
}

func TestSuperFrames(t *testing.T) {
	payload := make([]byte, 60000)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	partial := datagramFrame(9, 7, payload)
	length := uint16(len(payload) + 8)
	sum := wire.Fold(wire.PseudoHeader(wire.AddrFrom4(addrB), wire.AddrFrom4(addrA), wire.ProtocolUDP, length))
	partial[40], partial[41] = byte(sum>>8), byte(sum)
	wrong := append([]byte(nil), partial...)
	wrong[41]++
	for _, tt := range []struct {
		name    string
		frame   []byte
		gso     uint16
		partial bool
		want    int
		counter string
	}{
		{"super-frame", partial, 1400, true, 43, "super_frames"},
		{"super-frame on a real wire", partial, 1400, false, 0, "udp_checksum"},
		{"super-frame, good checksum", datagramFrame(9, 7, payload), 1400, false, 43, "super_frames"},
		{"super-frame, bad checksum", wrong, 1400, true, 0, "udp_checksum"},
		{"small super-frame in one part", datagramFrame(9, 7, payload[:1001]), 500, true, 3, "super_frames"},
		{"one large datagram", partial, 0, true, 1, "multi_part"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, l, c := newScripted(t, func(cfg *stack.Config) { cfg.PartialChecksums = tt.partial })
			u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
			l.Inject(parts(tt.frame, tt.gso)...)
			s.Poll(c.now())
			if counters(s)[tt.counter] == 0 {
				t.Errorf("counters: %v", counters(s))
			}
			var all []byte
			for range tt.want {
				d := testutil.Value(u.Borrow())
				if len(d.Payload) != int(tt.gso) && len(all)+len(d.Payload) < len(tt.frame)-42 {
					t.Errorf("a datagram of %d bytes", len(d.Payload))
				}
				all = append(all, d.Payload...)
				u.Return(&d)
			}
			if tt.want > 0 && !bytes.Equal(all, tt.frame[42:]) {
				t.Errorf("%d bytes, or the data differs", len(all))
			}
			u.SetReadDeadline(c.now())
			if _, err := udpRecv(u, make([]byte, 1)); err != os.ErrDeadlineExceeded {
				t.Errorf("more than was sent: %v", err)
			}
		})
	}
}

// If a batch of frames ends within a packet, which is a bug of the link, the part is dropped and
// counted.
func TestBatchThatEndsWithinAPacket(t *testing.T) {
	s, l, c := newScripted(t, nil)
	l.Inject(stack.Frame{Data: datagramFrame(9, 7, nil), More: true})
	s.Poll(c.now())
	if got := counters(s)["frame_parts"]; got != 1 {
		t.Errorf("counters: %v", counters(s))
	}
}

func TestUDPCallsAfterClose(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{})
	u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
	udpSend(v, []byte("queued"))
	d := testutil.Value(u.Borrow())
	u.Return(&d)
	udpSend(v, []byte("queued"))
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, recvErr := udpRecvFrom(u, nil)
	_, reserveErr := u.Reserve()
	_, borrowErr := u.Borrow()
	for i, err := range []error{recvErr, unwrapped(reserveErr), unwrapped(borrowErr), udpSendTo(u, nil, ap("10.0.0.2:9")), unwrapped(u.Close()), unwrapped(u.SetReadDeadline(time.Now()))} {
		if err != net.ErrClosed {
			t.Errorf("%d: %v", i, err)
		}
	}
	sa.Close()
	if _, err := sa.ListenUDP(netip.AddrPort{}, stack.UDPOptions{}); err != net.ErrClosed {
		t.Errorf("listen on a closed stack: %v", err)
	}
}

// While the link takes no more, a send blocks until the deadline or Close, and for one
// second at most.
func TestUDPSendBlocksWhileTheLinkIsFull(t *testing.T) {
	sa, sb, la, _ := newPair(t, stack.Config{})
	u := testutil.Value(sa.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	v := testutil.Value(sb.ListenUDP(ap("10.0.0.2:9"), stack.UDPOptions{QueueDatagrams: 4096}))
	udpSend(u, nil)
	testutil.Value(udpRecv(v, make([]byte, 1)))
	la.Stick(true)
	u.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	var err error
	sent := 0
	for ; err == nil; sent++ {
		err = udpSend(u, []byte{byte(sent)})
	}
	if err != os.ErrDeadlineExceeded || sent != 65 {
		t.Errorf("after %d: %v", sent, err)
	}
	u.SetWriteDeadline(time.Time{})
	done := make(chan error)
	go func() { done <- udpSend(u, []byte("blocked")) }()
	testutil.Eventually(t, "the send blocks", func() bool { return counters(sa)["send_blocked"] >= 2 })
	la.Stick(false)
	if err := <-done; err != nil {
		t.Errorf("after the link moved again: %v", err)
	}
	buf := make([]byte, 10)
	for range sent - 1 {
		testutil.Value(udpRecv(v, buf))
	}
	if n := testutil.Value(udpRecv(v, buf)); string(buf[:n]) != "blocked" {
		t.Errorf("got %q", buf[:n])
	}

	la.Stick(true)
	before := counters(sa)["send_blocked"]
	for counters(sa)["send_blocked"] == before { // the deadline can also pass before the first attempt
		u.SetWriteDeadline(time.Now().Add(time.Millisecond))
		udpSend(u, nil)
	}
	u.SetWriteDeadline(time.Time{})
	before = counters(sa)["send_blocked"]
	go func() { done <- udpSend(u, nil) }()
	testutil.Eventually(t, "the send blocks", func() bool { return counters(sa)["send_blocked"] > before })
	u.Close()
	if err := <-done; err != net.ErrClosed {
		t.Errorf("socket closed while the send blocks: %v", err)
	}
	w := testutil.Value(sa.DialUDP(ap("10.0.0.1:8"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	if err := udpSend(w, nil); err != syscall.ENOBUFS {
		t.Errorf("a link that takes nothing for a second: %v", err)
	}
	go func() { done <- udpSend(w, nil) }()
	sa.Close() // waits until the sender no longer uses the link
	if err := <-done; err != net.ErrClosed {
		t.Errorf("stack closed: %v", err)
	}
}

// As in package net: Read with an empty buffer takes no datagram, ReadFrom with an empty buffer takes
// one and drops it.
func TestUDPReadIntoEmptyBuffer(t *testing.T) {
	s, l, c := newScripted(t, nil)
	u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	if n, err := udpRecv(u, nil); n != 0 || err != nil { // does not wait
		t.Errorf("nothing queued: %d %v", n, err)
	}
	l.Inject(stack.Frame{Data: datagramFrame(9, 7, []byte("1"))}, stack.Frame{Data: datagramFrame(9, 7, []byte("2"))})
	s.Poll(c.now())
	buf := make([]byte, 2)
	if n, err := udpRecv(u, buf[:0]); n != 0 || err != nil {
		t.Errorf("Recv: %d %v", n, err)
	}
	if n, from, err := udpRecvFrom(u, buf[:0]); n != 0 || from != ap("10.0.0.2:9") || err != nil {
		t.Errorf("RecvFrom: %d %v %v", n, from, err)
	}
	if n, err := udpRecv(u, buf); string(buf[:n]) != "2" || err != nil {
		t.Errorf("the next datagram: %q %v", buf[:n], err)
	}
	u.Close()
	if _, err := udpRecv(u, nil); err != net.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

// Sent counts the datagrams that the link has taken.
func TestSentCountsWhatTheLinkHasTaken(t *testing.T) {
	answer := make(chan struct{})
	s, l, c := newScripted(t, func(cfg *stack.Config) {
		cfg.Resolver = &routes{answer: func(netip.Addr) (stack.Route, error) {
			<-answer
			return stack.Route{LinkAddr: linkB}, nil
		}}
	})
	u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	udpSendTo(u, nil, ap("10.0.0.2:9"))
	if n := u.Counters().Sent; n != 0 {
		t.Errorf("a datagram is held for its route, and Sent is %d", n)
	}
	close(answer)
	stack.Settle(s)
	if n := u.Counters().Sent; n != 1 {
		t.Errorf("the held datagram was sent, and Sent is %d", n)
	}
	l.Stick(true)
	u.SetWriteDeadline(c.now().Add(time.Second))
	taken := uint64(1)
	for udpSendTo(u, nil, ap("10.0.0.2:9")) == nil {
		if taken++; taken == 65 { // the link is full: the next one fails at its deadline
			u.SetWriteDeadline(c.now())
		}
	}
	u.SetWriteDeadline(time.Time{})
	b := testutil.Value(u.Reserve())
	if err := u.Send(&b, 10, ap("127.0.0.1:99")); unwrapped(err) != syscall.ENETUNREACH {
		t.Errorf("commit to a loopback port without a socket: %v", err)
	}
	u.Cancel(&b)
	if n := u.Counters().Sent; n != taken || counters(s)["udp_sent"] != taken {
		t.Errorf("the link has taken %d, Sent is %d, udp_sent is %d", taken, n, counters(s)["udp_sent"])
	}
}

// After Fail, queued datagrams can be read. All other calls return the error at once: calls that
// block already, later calls, and calls after Close.
func TestCallsAfterFail(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, la, _ := newPair(t, cfg)
		failure := errors.New("the lease has ended")
		u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		v := testutil.Value(sb.DialUDP(ap("10.0.0.2:9"), ap("10.0.0.1:7"), stack.UDPOptions{}))
		buf := make([]byte, 10)
		if _, err := udpSendBatch(v, []stack.UDPMessage{{Buf: []byte("now")}, {Buf: []byte("later")}, {Buf: []byte("last")}}); err != nil {
			t.Fatal(err)
		}
		testutil.Value(udpRecv(u, buf)) // the other two were received with it, or are held for the route and are received soon
		testutil.Eventually(t, "three datagrams are received", func() bool {
			sa.Poll(time.Now())
			return u.Counters().Received == 3
		})
		w := testutil.Value(sa.ListenUDP(ap("10.0.0.1:8"), stack.UDPOptions{}))
		udpSendTo(w, []byte("x"), ap("10.0.0.2:9"))
		idle := testutil.Value(sa.ListenUDP(ap("10.0.0.1:9"), stack.UDPOptions{}))
		closed := testutil.Value(sa.ListenUDP(ap("10.0.0.1:17"), stack.UDPOptions{}))
		dialled := testutil.Value(sa.DialUDP(ap("10.0.0.1:18"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		udpSendTo(idle, []byte("x"), ap("10.0.0.2:9"))
		done := make(chan error, 10)
		for range 2 {
			go func() { _, _, err := udpRecvFrom(w, make([]byte, 10)); done <- err }()
			go func() { _, err := w.Borrow(); done <- unwrapped(err) }()
		}
		la.Stick(true)
		go func() {
			for {
				if err := udpSendTo(w, buf, ap("10.0.0.2:9")); err != nil {
					done <- err
					return
				}
			}
		}()
		testutil.Eventually(t, "the calls block", func() bool { return counters(sa)["send_blocked"] > 0 && stack.Parked(sa) >= 3 })
		sa.Fail(failure)
		for range 5 {
			if err := <-done; err != failure {
				t.Errorf("blocked: %v", err)
			}
		}
		la.Stick(false)
		if n, err := udpRecv(u, buf); string(buf[:n]) != "later" || err != nil {
			t.Errorf("queued: %q %v", buf[:n], err)
		}
		u.SetReadDeadline(time.Now().Add(time.Hour))
		msgs := []stack.UDPMessage{{Buf: buf}, {Buf: make([]byte, 10)}}
		if n, err := udpRecvBatch(u, msgs); n != 1 || string(buf[:msgs[0].N]) != "last" || err != nil {
			t.Errorf("queued: %d %v", n, err)
		}
		sa.Fail(errors.New("another reason")) // is ignored
		closed.Close()
		for i, c := range []*stack.UDPConn{u, w, idle, closed, dialled} {
			to := ap("10.0.0.2:9")
			if addrPort(c.RemoteAddr()).IsValid() {
				to = netip.AddrPort{}
			}
			_, reserveErr := c.Reserve()
			sendErr := udpSend(c, nil)
			if to.IsValid() {
				sendErr = udpSendTo(c, nil, to)
			}
			_, sendBatchErr := udpSendBatch(c, []stack.UDPMessage{{Addr: to}})
			_, recvErr := udpRecv(c, buf)
			_, noRoomErr := udpRecv(c, nil)
			_, _, fromErr := udpRecvFrom(c, buf)
			_, batchErr := udpRecvBatch(c, msgs)
			_, borrowErr := c.Borrow()
			loopErr := failure
			if to.IsValid() {
				loopErr = udpSendTo(c, nil, addrPort(c.LocalAddr()))
			}
			for k, err := range []error{recvErr, noRoomErr, fromErr, batchErr, unwrapped(borrowErr), unwrapped(reserveErr), sendBatchErr, sendErr, loopErr} {
				if err != failure {
					t.Errorf("socket %d, call %d: %v", i, k, err)
				}
			}
		}
		_, listenErr := sa.ListenUDP(ap("10.0.0.1:19"), stack.UDPOptions{})
		_, dialErr := sa.DialUDP(ap("10.0.0.1:20"), ap("10.0.0.2:9"), stack.UDPOptions{})
		_, portErr := sa.OpenUDPPort(ap("10.0.0.1:21"), nil, nil)
		_, listenTCPErr := sa.ListenTCP(ap("10.0.0.1:19"), stack.TCPListenOptions{})
		_, dialTCPErr := sa.DialTCP(t.Context(), ap("10.0.0.1:20"), ap("10.0.0.2:9"), stack.TCPOptions{})
		for i, err := range []error{listenErr, dialErr, portErr, listenTCPErr, dialTCPErr, unwrapped(closed.Close()), unwrapped(closed.SetDeadline(time.Time{}))} {
			if err != failure {
				t.Errorf("call %d after Fail: %v", i, err)
			}
		}
	})
}

// While Do runs no other goroutine uses the link, so its function may read the counters of the link.
func TestDoExcludesUseOfTheLink(t *testing.T) {
	l := &feedLink{frame: datagramFrame(9, 7, nil)}
	s := testutil.Value(stack.New(stack.Config{Link: l, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, OwnedAddress: true, Resolver: neighbours{}, NoCaretaker: true}))
	defer s.Close()
	u := testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	udpSendTo(u, nil, ap("10.0.0.2:9"))
	stack.Settle(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			udpSendTo(u, nil, ap("10.0.0.2:9"))
		}
	}()
	last := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		s.Do(func() { last = l.sent }) // otherwise the race detector reports it
	}
	if last != 1001 {
		t.Errorf("%d frames sent", last)
	}
}

// When the link has failed, reads that wait and later reads return its error.
func TestReadsReturnTheErrorOfTheLink(t *testing.T) {
	sa, _, la, _ := newPair(t, stack.Config{Wait: endpoint.WaitBlock})
	u := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	failure := errors.New("the interface was deleted")
	done := make(chan error)
	go func() {
		_, err := udpRecv(u, make([]byte, 1))
		done <- err
	}()
	la.Break(failure)
	if err := <-done; err != failure {
		t.Errorf("reader: %v", err)
	}
	if _, err := udpRecv(u, make([]byte, 1)); err != failure {
		t.Errorf("next read: %v", err)
	}
}
