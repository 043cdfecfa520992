package udp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/unet-go/unet/wire"
)

var (
	hostA = [4]byte{10, 0, 0, 1}
	hostB = [4]byte{10, 0, 0, 2}
	hostC = [4]byte{10, 0, 0, 3}
)

// datagram is the IP payload that src sends to dst.
func datagram(src, dst AddrPort, payload string) []byte {
	b := make([]byte, wire.UDPHeaderLen+len(payload))
	wire.PutUDPCopy(b, &wire.UDPFlow{Src: src.Addr, Dst: dst.Addr, SrcPort: src.Port, DstPort: dst.Port}, []byte(payload))
	return b
}

// send hands a datagram to the table.
func send(t *Table, src, dst AddrPort, payload string, frame uint64) (*Socket, int, Verdict) {
	return t.Process(&Inbound{Src: src.Addr, Dst: dst.Addr, Data: datagram(src, dst, payload), Frame: frame})
}

func mustOpen(t *testing.T, tab *Table, local, remote AddrPort, o Options) *Socket {
	t.Helper()
	s, err := tab.Open(local, remote, o)
	if err != nil {
		t.Fatalf("open %v to %v: %v", local, remote, err)
	}
	return s
}

func mustPop(t *testing.T, s *Socket, payload string, from AddrPort, frame uint64) {
	t.Helper()
	var d Datagram
	if !s.Pop(&d) {
		t.Fatalf("nothing queued, want %q", payload)
	}
	if string(d.Payload) != payload || d.From != from || d.Frame != frame {
		t.Errorf("got %q from %v in frame %d, want %q from %v in frame %d", d.Payload, d.From, d.Frame, payload, from, frame)
	}
}

func TestDeliver(t *testing.T) {
	tab := NewTable(Config{})
	owner := new(int)
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	s := mustOpen(t, tab, local, AddrPort{}, Options{Owner: owner})
	for i, p := range []string{"one", "", "three"} {
		got, n, v := send(tab, peer, local, p, uint64(i))
		if got != s || n != 1 || v != Queued || got.Owner != owner {
			t.Fatalf("%q: %v, %d, %v", p, got, n, v)
		}
	}
	if s.Len() != 3 || s.QueuedBytes() != 8 {
		t.Errorf("%d datagrams, %d bytes queued", s.Len(), s.QueuedBytes())
	}
	mustPop(t, s, "one", peer, 0)
	mustPop(t, s, "", peer, 1)
	mustPop(t, s, "three", peer, 2)
	if s.Len() != 0 || s.QueuedBytes() != 0 || s.Pop(new(Datagram)) {
		t.Error("the queue is not empty")
	}
}

// The payload in the queue is the frame's own memory, without the padding.
func TestDeliverBorrows(t *testing.T) {
	tab := NewTable(Config{})
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	s := mustOpen(t, tab, local, AddrPort{}, Options{})
	b := append(datagram(peer, local, "payload"), "padding"...)
	if _, n, v := tab.Process(&Inbound{Src: peer.Addr, Dst: local.Addr, Data: b, Heap: true}); n != 1 || v != Queued {
		t.Fatalf("%d, %v", n, v)
	}
	b[8] = 'P'
	var d Datagram
	if !s.Pop(&d) || string(d.Payload) != "Payload" || !d.Heap || cap(d.Payload) != 7 {
		t.Errorf("%q, heap %v, capacity %d", d.Payload, d.Heap, cap(d.Payload))
	}
}

func TestDropReasons(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	good := datagram(peer, local, "payload")
	changed := func(f func(b []byte)) []byte { b := bytes.Clone(good); f(b); return b }
	partial := changed(func(b []byte) {
		binary.BigEndian.PutUint16(b[6:], wire.Fold(wire.PseudoHeader4(peer.Addr, local.Addr, wire.ProtocolUDP, uint16(len(b)))))
	})
	for _, c := range []struct {
		name    string
		data    []byte
		partial bool // the link has partial checksums
		want    Verdict
		count   func(Counters) uint64
	}{
		{"good", good, false, Queued, func(c Counters) uint64 { return c.Received }},
		{"good on a virtual link", good, true, Queued, func(c Counters) uint64 { return c.Received }},
		{"no checksum", changed(func(b []byte) { b[6], b[7] = 0, 0 }), false, Queued, func(c Counters) uint64 { return c.Received }},
		{"partial on a wire", partial, false, BadChecksum, func(c Counters) uint64 { return c.BadChecksum }},
		{"partial on a virtual link", partial, true, Queued, func(c Counters) uint64 { return c.Received }},
		{"changed", changed(func(b []byte) { b[10] ^= 4 }), false, BadChecksum, func(c Counters) uint64 { return c.BadChecksum }},
		{"changed on a virtual link", changed(func(b []byte) { b[10] ^= 4 }), true, BadChecksum, func(c Counters) uint64 { return c.BadChecksum }},
		{"short", good[:7], false, BadLength, func(c Counters) uint64 { return c.BadLength }},
		{"cut", good[:len(good)-1], false, BadLength, func(c Counters) uint64 { return c.BadLength }},
		{"length 7", changed(func(b []byte) { b[5] = 7 }), false, BadLength, func(c Counters) uint64 { return c.BadLength }},
		{"another port", datagram(peer, AddrPort{Addr: hostA, Port: 7001}, "x"), false, NoSocket, func(c Counters) uint64 { return c.NoSocket }},
	} {
		tab := NewTable(Config{PartialChecksums: c.partial})
		mustOpen(t, tab, local, AddrPort{}, Options{})
		s, n, v := tab.Process(&Inbound{Src: peer.Addr, Dst: local.Addr, Data: c.data})
		if v != c.want || (n == 1) != (v == Queued) || (s != nil) != (v == Queued) {
			t.Errorf("%s: %v, %d queued, want %v", c.name, v, n, c.want)
		}
		k := tab.Counters()
		if c.count(k) != 1 || k.Received+k.NoSocket+k.QueueFull+k.BadLength+k.BadChecksum != 1 {
			t.Errorf("%s: counted %+v", c.name, k)
		}
	}
}

func TestQueueBounds(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	tab := NewTable(Config{})
	s := mustOpen(t, tab, local, AddrPort{}, Options{QueueDatagrams: 3, QueueBytes: 100})
	fill := func(size int) Verdict {
		_, _, v := send(tab, peer, local, string(make([]byte, size)), 0)
		return v
	}
	drain := func() {
		for s.Pop(new(Datagram)) {
		}
	}
	want := func(what string, got, want Verdict) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for range 3 {
		want("datagrams below the bound", fill(0), Queued)
	}
	want("one datagram too many", fill(0), QueueFull)
	drain()
	want("first of 60", fill(60), Queued)
	want("up to the bound in bytes", fill(40), Queued)
	want("beyond the bound in bytes", fill(1), QueueFull)
	want("beyond the bound, but empty", fill(0), Queued)
	drain()
	want("larger than the bound, alone", fill(500), Queued)
	want("after it", fill(1), QueueFull)
	drain()
	want("room again", fill(1), Queued)
	if c := s.Counters(); c.QueueFull != 3 || c.Received != 8 {
		t.Errorf("%+v", c)
	}
	if c := tab.Counters(); c.QueueFull != 3 || c.Received != 8 {
		t.Errorf("%+v", c)
	}
}

func TestSuperFrame(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	for _, c := range []struct {
		payload string
		gso     uint16
		want    []string
	}{
		{"aaaabbbbcc", 4, []string{"aaaa", "bbbb", "cc"}},
		{"aaaabbbb", 4, []string{"aaaa", "bbbb"}},
		{"aaaa", 4, []string{"aaaa"}},
		{"aa", 4, []string{"aa"}},
		{"", 4, []string{""}},
		{"abc", 1, []string{"a", "b", "c"}},
	} {
		tab := NewTable(Config{})
		s := mustOpen(t, tab, local, AddrPort{}, Options{})
		_, n, v := tab.Process(&Inbound{Src: peer.Addr, Dst: local.Addr, Data: datagram(peer, local, c.payload), GSOSize: c.gso, Frame: 5})
		if n != len(c.want) || v != Queued || tab.Counters().Received != uint64(n) {
			t.Errorf("%q by %d: %d datagrams, %v", c.payload, c.gso, n, v)
		}
		for _, p := range c.want {
			mustPop(t, s, p, peer, 5)
		}
	}
	// One part of a super-frame that does not fit is dropped and counted, and
	// so are all of one that nobody wants.
	tab := NewTable(Config{})
	s := mustOpen(t, tab, local, AddrPort{}, Options{QueueDatagrams: 2})
	in := &Inbound{Src: peer.Addr, Dst: local.Addr, Data: datagram(peer, local, "aaaabbbbcccc"), GSOSize: 4}
	if _, n, v := tab.Process(in); n != 2 || v != Queued {
		t.Errorf("%d, %v", n, v)
	}
	if got, n, v := tab.Process(in); got != s || n != 0 || v != QueueFull {
		t.Errorf("%v, %d, %v", got, n, v)
	}
	tab.Close(s)
	if _, n, v := tab.Process(in); n != 0 || v != NoSocket {
		t.Errorf("%d, %v", n, v)
	}
	in.Data[9] ^= 1
	tab.Process(in)
	if c := tab.Counters(); c != (Counters{Received: 2, QueueFull: 4, NoSocket: 3, BadChecksum: 3}) {
		t.Errorf("%+v", c)
	}
}

func TestCloseKeepsQueue(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	tab := NewTable(Config{})
	s := mustOpen(t, tab, local, AddrPort{}, Options{})
	send(tab, peer, local, "left", 42)
	tab.Close(s)
	if _, _, v := send(tab, peer, local, "late", 43); v != NoSocket {
		t.Errorf("after Close: %v", v)
	}
	mustPop(t, s, "left", peer, 42)
}

// What was sent is counted by socket and in all.
func TestCountSent(t *testing.T) {
	tab := NewTable(Config{})
	a := mustOpen(t, tab, AddrPort{Addr: hostA, Port: 1}, AddrPort{}, Options{})
	b := mustOpen(t, tab, AddrPort{Addr: hostA, Port: 2}, AddrPort{}, Options{})
	for _, s := range []*Socket{a, b, b, a, b} {
		s.CountSent()
	}
	if a.Counters().Sent != 2 || b.Counters().Sent != 3 || tab.Counters().Sent != 5 {
		t.Errorf("counted %d, %d, %d", a.Counters().Sent, b.Counters().Sent, tab.Counters().Sent)
	}
}
