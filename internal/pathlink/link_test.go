//go:build linux

package pathlink

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

func readFull(c *stack.TCPConn, b []byte) (int, error) {
	testutil.Renew(c)
	return io.ReadFull(c, b)
}

// Once the path is there, no frame of TCP or UDP goes by the ports, in each way of waiting and over both families.
func TestFramesGoByThePath(t *testing.T) {
	for _, mode := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock} {
		for _, ipv6 := range []bool{false, true} {
			l := newLab(t, stack.Config{Wait: mode})
			client, server := l.connect(t, ipv6)
			l.awaitPath(t, client, server)
			say(t, client, server, "the ports are empty now")
			say(t, server, client, "the ports are empty now")
			before := l.byPort.Load()
			for range 300 {
				say(t, client, server, "question")
				say(t, server, client, "answer")
			}
			u, err := l.ends[1].stack.ListenUDP(l.at(1, 53, ipv6), stack.UDPOptions{})
			testutil.Must(t, err)
			v, err := l.ends[0].stack.ListenUDP(l.at(0, 54, ipv6), stack.UDPOptions{})
			testutil.Must(t, err)
			for range 300 {
				_, err := v.WriteToUDPAddrPort([]byte("question"), l.at(1, 53, ipv6))
				testutil.Must(t, err)
				b := make([]byte, 20)
				testutil.Renew(u)
				n, from, err := u.ReadFromUDPAddrPort(b)
				if err != nil || string(b[:n]) != "question" || from != l.at(0, 54, ipv6) {
					t.Fatalf("%q from %v, %v", b[:n], from, err)
				}
			}
			if n := l.byPort.Load() - before; n != 0 {
				t.Errorf("%v, IPv6 %v: %d frames by the ports", mode, ipv6, n)
			}
			for _, c := range []io.Closer{client, server, u, v} {
				testutil.Must(t, c.Close())
			}
		}
	}
}

// Datagrams that are sent while the path is made are not reordered, and none is lost.
func TestNothingOvertakesTheFramesOfThePort(t *testing.T) {
	for range 20 {
		l := newLab(t, stack.Config{})
		u, err := l.ends[1].stack.ListenUDP(l.at(1, 53, false), stack.UDPOptions{})
		testutil.Must(t, err)
		v, err := l.ends[0].stack.DialUDP(netip.AddrPort{}, l.at(1, 53, false), stack.UDPOptions{})
		testutil.Must(t, err)
		const inFlight = 64
		var sent, received uint64
		for l.ends[0].count("path_frames_sent") < 3*inFlight {
			for sent < received+inFlight {
				sent++
				_, err := v.Write(binary.BigEndian.AppendUint64(nil, sent))
				testutil.Must(t, err)
			}
			var b [8]byte
			testutil.Renew(u)
			_, err := u.Read(b[:])
			testutil.Must(t, err)
			if received++; binary.BigEndian.Uint64(b[:]) != received {
				t.Fatalf("datagram %d came as number %d", binary.BigEndian.Uint64(b[:]), received)
			}
		}
		u.Close()
		v.Close()
	}
}

// The mux ends a path in the middle of a transfer: TCP goes on by the port, and over the next path.
func TestTransferSurvivesTheEndsOfPaths(t *testing.T) {
	l := newLab(t, stack.Config{})
	client, server := l.connect(t, false)
	l.awaitPath(t, client, server)
	const size = 20 << 20
	done := make(chan error, 1)
	go func() {
		b := make([]byte, 10_000)
		for at := 0; at < size; at += len(b) {
			for i := range b {
				b[i] = byte((at + i) * 7 >> 3)
			}
			testutil.Renew(client)
			if _, err := client.Write(b); err != nil {
				done <- err
				return
			}
		}
		done <- client.CloseWrite()
	}()
	b := make([]byte, 64<<10)
	at, ends := 0, 0
	for {
		testutil.Renew(server)
		n, err := server.Read(b)
		for i, c := range b[:n] {
			if c != byte((at+i)*7>>3) {
				t.Fatalf("byte %d is wrong", at+i)
			}
		}
		at += n
		if at/(size/10) > ends {
			ends++
			l.table.Bump(l.ends[ends%2].id())
		}
		if err == io.EOF {
			break
		}
		testutil.Must(t, err)
	}
	testutil.Must(t, <-done)
	if at < size {
		t.Errorf("%d bytes", at)
	}
	for _, n := range l.ends {
		testutil.Eventually(t, "paths are given back", func() bool { return n.given.Load() >= 3 })
		if n.count("path_lies") != 0 || n.count("path_denied") != 0 {
			t.Errorf("%v", n.link.counts)
		}
	}
	client.Close()
	server.Close()
}

// A path without frames is given back by both ends, whichever is idle first, and the next frame gets another.
func TestIdlePathIsGivenBack(t *testing.T) {
	l := newLab(t, stack.Config{})
	client, server := l.connect(t, false)
	l.awaitPath(t, client, server)
	now := time.Now()
	first := l.ends[0].path()
	testutil.Eventually(t, "the path is given back", func() bool {
		now = now.Add(idleTime)
		l.ends[0].stack.Do(func() { l.ends[0].link.sweep(now) })
		l.ends[1].stack.Do(func() { l.ends[1].link.sweep(time.Now()) })
		return l.ends[0].path() != first && l.ends[1].path() == nil
	})
	l.awaitPath(t, client, server)
	client.Close()
	server.Close()
}

// After a refusal frames go by the port, and nobody asks for a path with each of them.
func TestRefusedPath(t *testing.T) {
	l := newLab(t, stack.Config{})
	l.refuse = true
	client, server := l.connect(t, false)
	for range 1000 {
		say(t, client, server, "question")
		say(t, server, client, "answer")
	}
	for _, n := range l.ends {
		if refused := n.count("path_refused"); refused > 2 || n.path() != nil {
			t.Errorf("refused %d times", refused)
		}
	}
	client.Close()
	server.Close()
}

// hostile is an endpoint's end of a path to the other, which uses its end.
func hostile(t *testing.T, l *lab, i int) *mempath.Path {
	t.Helper()
	both, err := l.makePath()
	testutil.Must(t, err)
	l.ends[1-i].paths <- both[1-i]
	ring, err := mempath.Open(both[i])
	testutil.Must(t, err)
	t.Cleanup(func() { ring.Close() })
	testutil.Eventually(t, "the path", func() bool { return l.ends[1-i].path() != nil })
	return ring
}

// send puts a datagram into a path.
func send(t *testing.T, ring *mempath.Path, src, dst netip.AddrPort, payload string) {
	t.Helper()
	put(t, ring, datagram(src, dst, payload))
}

func datagram(src, dst netip.AddrPort, payload string) []byte {
	n := wire.EthernetHeaderLen + wire.IPv4HeaderLen + wire.UDPHeaderLen + len(payload)
	b := make([]byte, n)
	wire.PutEthernet(b, uplink, uplink, wire.EtherTypeIPv4)
	wire.PutIPv4(b[14:], wire.IPv4Fields{TTL: 64, Protocol: wire.ProtocolUDP, TotalLen: uint16(n - 14), Src: src.Addr().As4(), Dst: dst.Addr().As4()})
	u := b[34:]
	binary.BigEndian.PutUint16(u, src.Port())
	binary.BigEndian.PutUint16(u[2:], dst.Port())
	binary.BigEndian.PutUint16(u[4:], uint16(len(u)))
	copy(u[8:], payload)
	return b
}

// put puts a frame into a path.
func put(t *testing.T, ring *mempath.Path, b []byte) {
	t.Helper()
	testutil.Eventually(t, "room", func() bool {
		room := ring.Reserve(len(b))
		if copy(room, b); room == nil {
			ring.Flush() // the reader has to make room
		}
		return room != nil
	})
	ring.Publish(len(b))
	ring.Flush()
}

// Of what a hostile end writes only frames arrive whose source it holds and whose destination the reader holds.
func TestFramesWithTagsOfOthersAreDropped(t *testing.T) {
	l := newLab(t, stack.Config{})
	u, err := l.ends[1].stack.ListenUDP(l.at(1, 53, false), stack.UDPOptions{})
	testutil.Must(t, err)
	ring := hostile(t, l, 0)
	own, to := l.at(0, 1000, false), l.at(1, 53, false)
	third := netip.MustParseAddrPort("10.0.0.3:1000")
	testutil.Must(t, l.table.Set(endpoint.AddrTag(third.Addr()), 3))
	for _, c := range []struct{ src, dst netip.AddrPort }{{third, to}, {to, to}, {own, third}, {own, own}, {netip.MustParseAddrPort("10.0.0.9:1000"), to}} {
		send(t, ring, c.src, c.dst, "forged")
	}
	send(t, ring, own, to, "true")
	b := make([]byte, 100)
	testutil.Renew(u)
	n, from, err := u.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != "true" || from != own {
		t.Errorf("%q from %v, %v", b[:n], from, err)
	}
	if n := l.ends[1].count("path_denied"); n != 5 {
		t.Errorf("%d frames dropped", n)
	}
	// What it does not hold any more it does not send under.
	l.table.Clear(endpoint.AddrTag(own.Addr()))
	send(t, ring, own, to, "too late")
	testutil.Eventually(t, "the frame is dropped", func() bool { return l.ends[1].count("path_denied") == 6 })
	u.Close()
}

// A hostile end cuts a datagram off after each of its bytes, and writes what is no IP packet. Nothing of that arrives, and the path goes on.
func TestFramesThatAreCutOff(t *testing.T) {
	l := newLab(t, stack.Config{})
	u, err := l.ends[1].stack.ListenUDP(l.at(1, 53, false), stack.UDPOptions{})
	testutil.Must(t, err)
	ring := hostile(t, l, 0)
	from, to := l.at(0, 1000, false), l.at(1, 53, false)
	whole := datagram(from, to, "cut off")
	for n := 1; n < len(whole); n++ {
		put(t, ring, whole[:n])
	}
	for _, etherType := range []wire.EtherType{0, wire.EtherTypeARP, wire.EtherTypeIPv6, 0x8100} {
		b := datagram(from, to, "no IPv4 packet")
		binary.BigEndian.PutUint16(b[12:], uint16(etherType))
		put(t, ring, b)
	}
	for _, first := range []byte{0x40, 0x44, 0x46, 0x4f, 0x55, 0x65} { // version and length of the header
		b := datagram(from, to, "another header")
		b[14] = first
		put(t, ring, b)
	}
	put(t, ring, make([]byte, mempath.MaxFrame/2)) // longer than any frame of the reader
	send(t, ring, from, to, "whole")
	b := make([]byte, 100)
	testutil.Renew(u)
	if n, _, err := u.ReadFromUDPAddrPort(b); err != nil || string(b[:n]) != "whole" {
		t.Errorf("%q, %v", b[:n], err)
	}
	if l.ends[1].count("path_lies") != 0 || l.ends[1].path() == nil {
		t.Error("the path has ended")
	}
	u.Close()
}

// An end that reads nothing costs its writer a few milliseconds, and then frames; other sockets go on.
func TestFrozenReader(t *testing.T) {
	l := newLab(t, stack.Config{})
	hostile(t, l, 1)
	u, err := l.ends[0].stack.DialUDP(netip.AddrPort{}, l.at(1, 53, false), stack.UDPOptions{})
	testutil.Must(t, err)
	testutil.Eventually(t, "frames are dropped", func() bool {
		testutil.Renew(u)
		if _, err := u.Write(make([]byte, 1400)); err != nil {
			t.Fatal(err)
		}
		return l.ends[0].count("path_stalled") > 100
	})
	self, err := l.ends[0].stack.ListenUDP(l.at(0, 55, false), stack.UDPOptions{})
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(u.Close(), self.Close()))
}

// A reader that frees a little room at a time holds its writer up no longer than one that reads nothing.
func TestSlowReader(t *testing.T) {
	l := newLab(t, stack.Config{})
	slow := hostile(t, l, 1)
	u, err := l.ends[0].stack.DialUDP(netip.AddrPort{}, l.at(1, 53, false), stack.UDPOptions{})
	testutil.Must(t, err)
	var b [2048]byte
	testutil.Eventually(t, "frames are dropped", func() bool {
		for range 20 {
			testutil.Renew(u)
			if _, err := u.Write(make([]byte, 1400)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := slow.Scan(1)
		testutil.Must(t, err)
		slow.Take(b[:])
		slow.Flush()
		return l.ends[0].count("path_stalled") > 1000
	})
	testutil.Must(t, u.Close())
}

// An end that does not answer keeps no path: not when it is idle, and not when the other process never takes its end.
func TestPathOfSilentEndIsGivenBack(t *testing.T) {
	for _, opened := range []bool{true, false} {
		l := newLab(t, stack.Config{})
		n := l.ends[0]
		if opened {
			hostile(t, l, 1)
		} else {
			both, err := l.makePath()
			testutil.Must(t, err)
			defer both[1].Close()
			n.paths <- both[0]
			testutil.Eventually(t, "the path", func() bool { return n.path() != nil })
		}
		now := time.Now()
		for range 3 {
			now = now.Add(idleTime)
			n.stack.Do(func() { n.link.sweep(now) })
		}
		if n.path() != nil {
			t.Errorf("opened %v: the path is still there", opened)
		}
		testutil.Eventually(t, "it is given back", func() bool { return n.given.Load() == 1 })
	}
}

// A path that cannot be used is given back, so that there can be another.
func TestBadPathIsGivenBack(t *testing.T) {
	l := newLab(t, stack.Config{})
	l.ends[0].paths <- &endpoint.Path{Peer: 2}
	testutil.Eventually(t, "it is given back", func() bool { return l.ends[0].given.Load() == 1 })
	if l.ends[0].count("path_bad") != 1 {
		t.Error("it is not counted")
	}
	client, server := l.connect(t, false)
	l.awaitPath(t, client, server)
	client.Close()
	server.Close()
}

// The memory of a path that ends while a goroutine sleeps is freed when that has woken, and not before.
func TestPathEndsWhileAGoroutineSleeps(t *testing.T) {
	l := newLab(t, stack.Config{Wait: endpoint.WaitBlock})
	client, server := l.connect(t, false)
	for range 50 {
		l.awaitPath(t, client, server)
		for _, n := range l.ends { // their caretakers sleep
			n.stack.Do(func() {
				if to := n.link.peers[l.ends[1-n.i].id()]; to != nil && to.path != nil {
					n.link.retire(to.path, 0)
				}
			})
		}
		say(t, client, server, "by the port")
		testutil.Eventually(t, "the memory is freed", func() bool {
			left := 0
			for _, n := range l.ends {
				n.stack.Do(func() { n.link.free(); left += len(n.link.gone) })
			}
			return left == 0
		})
	}
	client.Close()
	server.Close()
}
