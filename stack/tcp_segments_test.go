package stack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// segmentFrame is a whole frame from src, by way of B, to A.
func segmentFrame(src [4]byte, f wire.TCPFields) []byte {
	b := make([]byte, wire.TCPHeaderLen)
	wire.PutTCP(b, &f, len(b), wire.PseudoHeader(wire.AddrFrom4(src), wire.AddrFrom4(addrA), wire.ProtocolTCP, uint16(len(b))))
	return ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolTCP, Src: src}, b)
}

// unreachableToB is a frame with the ICMP error Destination Unreachable from A to B about a packet
// that B has sent. mtu is that of the error Fragmentation Needed.
func unreachableToB(code uint8, mtu uint32, packet []byte) stack.Frame {
	m := make([]byte, wire.MaxICMPv4ErrorLen)
	m = m[:wire.PutICMPv4Error(m, wire.ICMPUnreachable, code, mtu, packet)]
	frame := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP, Src: addrA, Dst: addrB}, m)
	copy(frame[:6], linkB[:])
	return stack.Frame{Data: frame}
}

// A dial waits for its route without using a frame, and fails if there is no route.
func TestTCPDialWaitsForRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{delay: time.Second, answer: answerWith(stack.Route{LinkAddr: linkB})}
		s, _, w := newRouted(t, false, r)
		defer s.Close()
		dial := func() chan error {
			result := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := s.DialTCP(ctx, ap("10.0.0.1:7"), ap("192.0.2.1:9"), stack.TCPOptions{})
				result <- err
			}()
			return result
		}
		first := dial()
		time.Sleep(900 * time.Millisecond)
		expect(t, w)
		time.Sleep(200 * time.Millisecond)
		expect(t, w, macA+" > "+macB+" | ip 10.0.0.1 > 192.0.2.1 ttl 64 DF | tcp 7 > 9 S 0 bytes")
		wantError(t, "dial without an answer", <-first, context.DeadlineExceeded)

		r.set(func(netip.Addr) (stack.Route, error) { return stack.Route{}, syscall.EHOSTUNREACH })
		s.Invalidate(netip.Addr{})
		wantError(t, "dial during which the route is withdrawn", <-dial(), syscall.EHOSTUNREACH)
		w.take()                    // frames that were sent by the old route
		time.Sleep(5 * time.Second) // until the failed request has expired
		before := time.Now()
		wantError(t, "dial of a destination without a route", <-dial(), syscall.EHOSTUNREACH)
		if took := time.Since(before); took != time.Second {
			t.Errorf("the dial failed after %v", took)
		}
		expect(t, w)
	})
}

// SYNs of unknown hosts are answered at the MAC address that they came from. No route to these hosts
// is requested, also when they do not acknowledge the SYN,ACK, which is sent again.
func TestSYNsAreAnsweredWithoutRouteRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &routes{answer: answerWith(stack.Route{LinkAddr: linkC})}
		s, l, w := newRouted(t, false, r)
		defer s.Close()
		testutil.Value(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		for i := range 100 {
			src := [4]byte{192, 0, 2, byte(i)}
			l.Inject(stack.Frame{Data: segmentFrame(src, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: 1, Flags: wire.TCPSyn, Window: 1000})})
		}
		time.Sleep(6 * time.Second)
		answers := w.take()
		if len(answers) != 300 { // at once, after 1 s and after 3 s
			t.Errorf("%d answers", len(answers))
		}
		for _, a := range answers {
			if !strings.HasPrefix(a, macA+" > "+macB) || !strings.HasSuffix(a, "tcp 80 > 9 SA 0 bytes") {
				t.Errorf("answered %q", a)
			}
		}
		if n := r.count(); n != 0 {
			t.Errorf("%d route requests, want none", n)
		}
	})
}

// The answer to a SYN has the MSS of the route to its sender, also if nothing has been sent there
// for some time.
func TestMSSOfAnUnusedRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l, _ := newRouted(t, false, &routes{answer: answerWith(stack.Route{LinkAddr: linkB, MTU: 1200})})
		defer s.Close()
		testutil.Value(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
		defer u.Close()
		testutil.Value(u.Write([]byte("hello"))) // after this the route is known
		for _, unused := range []time.Duration{0, 10 * time.Second} {
			time.Sleep(unused)
			var sizes []uint16
			l.Filter(func(frame []byte) bool {
				var ip wire.IPv4
				if err := ip.Parse(frame[wire.EthernetHeaderLen:]); err != nil {
					t.Error(err)
				} else if ip.Protocol == wire.ProtocolTCP {
					var o wire.TCPOptions
					answer := segmentOf(t, ip.Payload)
					answer.ReadOptions(&o)
					sizes = append(sizes, o.MSS)
				}
				return true
			})
			l.Inject(stack.Frame{Data: segmentFrame(addrB, wire.TCPFields{SrcPort: uint16(9 + unused), DstPort: 80, Seq: 1, Flags: wire.TCPSyn, Window: 1000})})
			time.Sleep(100 * time.Millisecond)
			l.Filter(nil)
			if !slices.Equal(sizes, []uint16{1200 - 40}) {
				t.Errorf("unused for %v: MSS of answers %d", unused, sizes)
			}
		}
	})
}

// A router's report of the path's MTU takes effect, and the segments that it has
// dropped are sent again as smaller ones.
func TestTCPPathMTU(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	var small, large atomic.Int32
	reports := make(chan stack.Frame, 1000)
	lb.Filter(func(frame []byte) bool {
		if len(frame) <= 14+1000 {
			small.Add(1)
			return true
		}
		large.Add(1)
		select {
		case reports <- unreachableToB(wire.ICMPFragmentationNeeded, 1000, frame[14:]):
		default:
		}
		return false
	})
	go func() {
		for frame := range reports {
			lb.Inject(frame)
		}
	}()
	transfer(t, client, server, 200_000)
	server.Close()
	lb.Filter(nil)
	close(reports)
	if small.Load() < 200 || large.Load() > 50 {
		t.Errorf("%d small segments, %d too large", small.Load(), large.Load())
	}
	if n := counters(b)["path_mtu_lowered"]; n != 1 {
		t.Errorf("lowered %d times", n)
	}
}

// ICMP errors end a connection that is being opened, and no other.
func TestTCPUnreachable(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{})
	hostUnreachable := func(frame []byte) {
		lb.Inject(unreachableToB(wire.ICMPHostUnreachable, 0, frame[14:]))
	}
	sent := make(chan []byte, 1000)
	lb.Filter(func(frame []byte) bool {
		sent <- append([]byte(nil), frame...)
		return false
	})
	result := make(chan error)
	go func() {
		_, err := b.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{})
		result <- err
	}()
	hostUnreachable(<-sent)
	wantError(t, "dial", <-result, syscall.EHOSTUNREACH)

	writeAll(t, client, []byte("hello"))
	frame := <-sent
	hostUnreachable(frame)
	testutil.Eventually(t, "the error is counted", func() bool { return counters(b)["tcp_icmp_errors"] == 2 })
	lb.Filter(nil)
	buf := make([]byte, 10)
	if n, err := server.Read(buf); string(buf[:n]) != "hello" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	// An error about a segment that was never sent.
	binary.BigEndian.PutUint32(frame[38:], 12345)
	hostUnreachable(frame)
	testutil.Eventually(t, "the error is counted as unmatched", func() bool { return counters(b)["tcp_icmp_unmatched"] == 1 })
	client.Close()
	server.Close()
}

// The path's MTU that a connection has found applies to the next connection, and to datagrams.
// A router's report about a datagram applies to datagrams only.
func TestPathMTUIsShared(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	report := func(mtu uint32, packet []byte) stack.Frame {
		return unreachableToB(wire.ICMPFragmentationNeeded, mtu, packet)
	}
	var tooLarge, full atomic.Int32
	reports := make(chan stack.Frame, 1000)
	lb.Filter(func(frame []byte) bool {
		size := len(frame) - wire.EthernetHeaderLen
		if size == 1000 {
			full.Add(1)
		}
		if size <= 1000 {
			return true
		}
		tooLarge.Add(1)
		select {
		case reports <- report(1000, frame[wire.EthernetHeaderLen:]):
		default:
		}
		return false
	})
	defer lb.Filter(nil)
	go func() {
		for f := range reports {
			lb.Inject(f)
		}
	}()
	defer close(reports)
	connectAndTransfer := func() {
		t.Helper()
		tooLarge.Store(0)
		full.Store(0)
		client, server := connect(t, a, b, stack.TCPOptions{})
		transfer(t, client, server, 20_000)
		server.Close()
	}
	connectAndTransfer()
	if tooLarge.Load() == 0 {
		t.Error("no segment was too large, so the MTU was not found by the first connection")
	}
	u := testutil.Value(b.DialUDP(ap("10.0.0.2:7"), ap("10.0.0.1:9"), stack.UDPOptions{}))
	defer u.Close()
	u.SetDontFragment(true)
	if err := udpSend(u, make([]byte, 1000-28+1)); err != syscall.EMSGSIZE {
		t.Errorf("a datagram that is too large: %v", err)
	}
	flow := wire.UDPFlow{Src: wire.AddrFrom4(addrB), Dst: wire.AddrFrom4(addrA), SrcPort: 7, DstPort: 9}
	datagram := make([]byte, 1000)
	wire.PutUDPCopy(datagram[20:], &flow, make([]byte, 1000-28))
	wire.PutIPv4(datagram, wire.IPv4Fields{TotalLen: 1000, TTL: 9, Protocol: wire.ProtocolUDP, Src: addrB, Dst: addrA})
	lb.Inject(report(600, datagram))
	testutil.Eventually(t, "the report has taken effect", func() bool { return counters(b)["path_mtu_lowered"] == 2 })
	udpRecv(u, make([]byte, 1))
	if err := udpSend(u, make([]byte, 600-28+1)); err != syscall.EMSGSIZE {
		t.Errorf("a datagram that is larger than was reported: %v", err)
	}
	connectAndTransfer()
	if tooLarge.Load() > 0 || full.Load() < 15 {
		t.Errorf("second connection: %d segments too large, %d of the path's MTU", tooLarge.Load(), full.Load())
	}
}

func segmentOf(t *testing.T, b []byte) (s wire.TCP) {
	if err := s.Parse(b); err != nil {
		t.Error(err)
	}
	return s
}

// The IP header of a segment with data is marked as ECN-capable, that of an ACK and of a retransmitted
// segment is not. A congestion mark is echoed to the sender.
func TestTCPECN(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{TCP: stack.TCPConfig{ECN: tcp.ECNOn}})
	mark, sent := false, map[uint32]bool{}
	lb.Filter(func(frame []byte) bool {
		var ip wire.IPv4
		if err := ip.Parse(frame[wire.EthernetHeaderLen:]); err != nil {
			t.Error(err)
			return false
		}
		want := uint8(0)
		if s := segmentOf(t, ip.Payload); len(s.Payload) > 0 && !sent[s.Seq] { // otherwise it is a retransmission
			want, sent[s.Seq] = wire.ECNCapable, true
		}
		if ip.TOS != want {
			t.Errorf("type of service %#x, want %#x", ip.TOS, want)
		}
		if mark && want != 0 {
			wire.PutIPv4(frame[wire.EthernetHeaderLen:], wire.IPv4Fields{TOS: wire.ECNMarked, TTL: 64, Protocol: ip.Protocol,
				DontFragment: true, TotalLen: uint16(len(ip.Packet)), Src: ip.Src, Dst: ip.Dst})
		}
		return true
	})
	client, server := connect(t, a, b, stack.TCPOptions{})
	read := func(c *stack.TCPConn) {
		t.Helper()
		if _, err := io.ReadFull(c, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if !client.Info().ECN || !server.Info().ECN {
		t.Error("ECN was not agreed on")
	}
	writeAll(t, client, make([]byte, 100))
	read(server)
	mark = true
	writeAll(t, client, make([]byte, 100))
	read(server)
	writeAll(t, client, make([]byte, 100))
	read(server)
	testutil.Eventually(t, "the sender receives an echo of the mark", func() bool { return counters(b)["tcp_congestion_echoes"] > 0 })
	if counters(a)["tcp_congestion_marks"] == 0 {
		t.Error("tcp_congestion_marks is 0")
	}
	client.Close()
	server.Close()
}

// Forged SYNs, RSTs and ACKs flood a stack while one of its connections receives data: every byte
// arrives, and the memory and connections that the flood takes are bounded. The flood leaves some frames
// for the data: it waits whenever it has filled most of those of the link.
func TestTCPReceivesDuringFloodOfForgedSegments(t *testing.T) {
	const limit = 1 << 20
	const burst = 32 // rounds of five frames; 256 wait to be filled
	a, b, la, _ := newPair(t, stack.Config{TCP: stack.TCPConfig{Memory: limit}})
	client, server := connect(t, a, b, stack.TCPOptions{})
	defer client.Close()
	defer server.Close()
	l, err := a.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		port := addrPort(client.LocalAddr()).Port()
		for i := uint32(0); ; i++ {
			for wait := i%burst == 0; wait; wait = la.Pending() {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
			forged := [4]byte{192, byte(i >> 16), byte(i >> 8), byte(i)}
			for _, f := range []struct {
				src    [4]byte
				fields wire.TCPFields
			}{
				{forged, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: i, Flags: wire.TCPSyn, Window: 1000}},
				{forged, wire.TCPFields{SrcPort: 9, DstPort: 80, Seq: i, Ack: i, Flags: wire.TCPAck}},
				{addrB, wire.TCPFields{SrcPort: port, DstPort: addrPort(server.LocalAddr()).Port(), Seq: i << 12, Flags: wire.TCPRst}},
				{addrB, wire.TCPFields{SrcPort: port, DstPort: addrPort(server.LocalAddr()).Port(), Seq: i << 12, Flags: wire.TCPSyn}},
				{addrA, wire.TCPFields{SrcPort: 80, DstPort: 80, Seq: i, Flags: wire.TCPSyn}},
			} {
				la.Inject(stack.Frame{Data: segmentFrame(f.src, f.fields)})
			}
		}
	}()

	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	go func() {
		writeAll(t, client, want)
		client.CloseWrite()
	}()
	got, err := io.ReadAll(server)
	if !bytes.Equal(got, want) || err != nil {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	close(stop)
	<-stopped
	u := a.TCPUsage()
	if u.Connections > 1+tcp.DefaultSynQueue || u.Memory > limit {
		t.Errorf("%+v", u)
	}
	c := counters(a)
	if c["tcp_syns_received"] == 0 || c["tcp_resets_ignored"]+c["tcp_no_timestamp"] == 0 {
		t.Errorf("the flood is not in the counters: %v", c)
	}
}

// A write processes the frames that wait on the link before it sends: they may have closed the window
// or reset the connection. In this test nothing else polls the link.
func TestTCPWriteProcessesReceivedSegmentsFirst(t *testing.T) {
	for _, lend := range []bool{false, true} {
		s, link, c := newScripted(t, nil)
		l := testutil.Value(s.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		var sent []wire.TCP
		link.Filter(func(frame []byte) bool {
			if frame[12] == byte(wire.EtherTypeIPv4>>8) && frame[23] == wire.ProtocolTCP {
				sent = append(sent, segmentOf(t, bytes.Clone(frame[34:])))
			}
			return false
		})
		peer := func(f wire.TCPFields) {
			f.SrcPort, f.DstPort = 9, 80
			link.Inject(stack.Frame{Data: segmentFrame(addrB, f)})
		}
		peer(wire.TCPFields{Seq: 1, Flags: wire.TCPSyn, Window: 8000})
		s.Poll(c.now())
		if len(sent) != 1 {
			t.Fatalf("%d segments", len(sent))
		}
		una := sent[0].Seq + 1
		peer(wire.TCPFields{Seq: 2, Ack: una, Flags: wire.TCPAck, Window: 8000})
		s.Poll(c.now())
		conn := testutil.Value(l.AcceptTCP())
		conn.SetCork(-1) // each write sends
		write := func() error {
			if lend {
				return conn.Lend(make([]byte, 100))
			}
			_, err := conn.Write(make([]byte, 100))
			return err
		}
		stack.Settle(s) // the route is known
		sent = nil
		if err := write(); err != nil || len(sent) != 1 {
			t.Fatalf("write: %v, %d segments", err, len(sent))
		}

		// Its acknowledgment opens the window by 10 bytes; the next one closes it.
		sent = nil
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPAck, Window: 10})
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPAck, Window: 0})
		if err := write(); err != nil || len(sent) != 0 {
			t.Errorf("into a closed window: %v, %d segments", err, len(sent))
		}
		peer(wire.TCPFields{Seq: 2, Ack: una + 100, Flags: wire.TCPRst, Window: 0})
		if err := write(); unwrapped(err) != syscall.ECONNRESET || len(sent) != 0 {
			t.Errorf("after a RST: %v, %d segments", err, len(sent))
		}
		conn.Close()
		l.Close()
	}
}

// Lent and written data is sent in the order of the calls. Reclaim returns when the peer has
// acknowledged the lent data.
func TestTCPLend(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{SendBuffer: 4096})
	data := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{3}).Read(data)
	go func() {
		defer client.CloseWrite()
		for rest, n := data, 1; len(rest) > 0; n = min(n*3, len(rest)) { // some larger than the send buffer
			if err := client.Lend(rest[:n]); err != nil {
				t.Errorf("lend %d bytes: %v", n, err)
				return
			}
			rest = rest[n:]
			k := min(7, len(rest))
			writeAll(t, client, rest[:k])
			rest = rest[k:]
		}
		if err := client.Reclaim(); err != nil {
			t.Errorf("reclaim: %v", err)
		}
	}()
	got, err := io.ReadAll(server)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs", len(data), len(got))
	}
	client.Close()
	server.Close()
}

// Reclaim and Lend return the reason why lent memory is not returned.
func TestTCPReclaim(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{ReceiveBuffer: 4096})
	if err := client.Reclaim(); err != nil {
		t.Errorf("nothing was lent: %v", err)
	}
	data := make([]byte, 50_000) // more than the receive buffer of the peer
	if err := client.Lend(data); err != nil {
		t.Fatal(err)
	}
	client.SetWriteDeadline(time.Now().Add(-time.Second))
	if err := client.Reclaim(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reclaim after the deadline: %v", err)
	}
	if err := client.Lend(data); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("lend after the deadline: %v", err)
	}
	client.SetWriteDeadline(time.Time{})
	client.Close() // the lent data is still to be sent
	if err := client.Lend(data); !errors.Is(err, net.ErrClosed) {
		t.Errorf("lend after Close: %v", err)
	}
	server.SetLinger(0)
	server.Close() // with a RST, and nothing was read
	if err := client.Reclaim(); err != nil {
		t.Errorf("reclaim after the end: %v", err)
	}
}

// The congestion control is chosen by its name. An unknown name is an error.
func TestTCPCongestionControlByName(t *testing.T) {
	for name, want := range map[string]string{"": "", "cubic": "", "reno": "", "bbr": `stack: no congestion control is called "bbr"; there are cubic and reno`} {
		l, _ := memlink.Pair(memlink.Config{})
		s, err := stack.New(stack.Config{Link: l, LinkAddr: linkA, Addrs: []netip.Prefix{prefixA}, Resolver: neighbours{}, NoCaretaker: true, TCP: stack.TCPConfig{Congestion: name}})
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			s.Close()
		}
		if got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

func TestTCPConfig(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{TCP: stack.TCPConfig{MinRTO: 300 * time.Millisecond, TimeWait: time.Hour}})
	client, server := connect(t, a, b, stack.TCPOptions{})
	if i := client.Info(); i.RTO != i.RTT+max(300*time.Millisecond, 4*i.RTTVar) {
		t.Errorf("RTO %v with a round trip of %v", i.RTO, i.RTT)
	}
	client.CloseWrite()
	server.CloseWrite()
	testutil.Eventually(t, "TIME-WAIT", func() bool { return client.Info().State == tcp.TimeWait })
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{30 * time.Minute, 1}, {2 * time.Hour, 0}} {
		b.Poll(time.Now().Add(c.after))
		if n := b.TCPUsage().TimeWaits; n != c.want {
			t.Errorf("%d in TIME-WAIT after %v", n, c.after)
		}
	}
	client.Close()
	server.Close()
}

// By default every second full segment is acknowledged, with SetAdaptiveAck(false) the batch of frames that brings
// data, at its end.
func TestTCPAdaptiveAck(t *testing.T) {
	for _, adaptive := range []bool{false, true} {
		a, b, _, _ := newPair(t, stack.Config{NoCaretaker: true, Wait: endpoint.WaitSpin})
		client, server := connect(t, a, b, stack.TCPOptions{})
		if !adaptive {
			if err := server.SetAdaptiveAck(false); err != nil {
				t.Fatal(err)
			}
		}
		segment := make([]byte, client.Info().SendMSS)
		now := time.Now()
		for i := range 6 {
			writeAll(t, client, segment)
			a.Poll(now)
			b.Poll(now)
			want := 0
			if adaptive && i%2 == 0 {
				want = len(segment)
			}
			if n := client.Info().InFlight; n != want {
				t.Errorf("adaptive %v: %d bytes not acknowledged after segment %d, want %d", adaptive, n, i, want)
			}
		}
		client.Close()
		server.Close()
	}
}
