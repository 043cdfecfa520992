package udp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

// A datagram goes to the socket of its port and address that is not connected to another peer.
func TestLookup(t *testing.T) {
	peer, other := AddrPort{Addr: hostC, Port: 9}, AddrPort{Addr: hostC, Port: 10}
	toA, toB := AddrPort{Addr: hostA, Port: 53}, AddrPort{Addr: hostB, Port: 53}
	wildcard := AddrPort{Port: 53}
	for _, c := range []struct {
		name          string
		open          [][2]AddrPort
		src, dst      AddrPort
		local, remote AddrPort // of the socket wanted; both zero: none
	}{
		{"nothing open", nil, peer, toA, AddrPort{}, AddrPort{}},
		{"wildcard only", [][2]AddrPort{{wildcard}}, peer, toA, wildcard, AddrPort{}},
		{"another address", [][2]AddrPort{{toA}}, peer, toB, AddrPort{}, AddrPort{}},
		{"one of two addresses", [][2]AddrPort{{toA}, {toB}}, peer, toA, toA, AddrPort{}},
		{"the other of two addresses", [][2]AddrPort{{toA}, {toB}}, peer, toB, toB, AddrPort{}},
		{"connected", [][2]AddrPort{{toA, peer}}, peer, toA, toA, peer},
		{"connected to another port", [][2]AddrPort{{toA, other}}, peer, toA, AddrPort{}, AddrPort{}},
		{"connected at another address", [][2]AddrPort{{toB, peer}}, peer, toA, AddrPort{}, AddrPort{}},
		{"two connected, by address", [][2]AddrPort{{toB, peer}, {toA, peer}}, peer, toA, toA, peer},
		{"connected with a wildcard", [][2]AddrPort{{wildcard, peer}}, peer, toA, wildcard, peer},
	} {
		tab := NewTable(Config{})
		for _, o := range c.open {
			mustOpen(t, tab, o[0], o[1], Options{})
		}
		s := tab.Lookup(c.src, c.dst)
		switch {
		case s == nil && c.local.IsZero():
		case s == nil || s.Local() != c.local || s.Remote() != c.remote:
			t.Errorf("%s: got %+v", c.name, s)
		}
	}
}

// Random opens, closes and lookups, compared with a model that looks at all sockets.
func TestLookupAgainstModel(t *testing.T) {
	seed := uint32(1)
	random := func(n int) int { // the same numbers in each run
		seed = seed*1664525 + 1013904223
		return int(seed>>8) % n
	}
	addrs := []wire.Addr{{}, hostA, hostB}
	ports := []uint16{1, 255, 256, 257, 65535}
	tab := NewTable(Config{})
	var open []*Socket
	any := wire.Addr{}
	for step := range 20000 {
		local := AddrPort{Addr: addrs[random(3)], Port: ports[random(len(ports))]}
		remote := AddrPort{Addr: wire.AddrFrom4([4]byte{10, 1, 0, byte(1 + random(2))}), Port: uint16(1 + random(2))}
		switch random(3) {
		case 0:
			to := remote
			if random(2) == 0 {
				to = AddrPort{}
			}
			taken := false
			for _, s := range open {
				taken = taken || s.local.Port == local.Port && (s.local.Addr == local.Addr || s.local.Addr == any || local.Addr == any)
			}
			s, err := tab.Open(local, to, Options{})
			if taken != errors.Is(err, syscall.EADDRINUSE) || taken != (s == nil) {
				t.Fatalf("step %d: open %v to %v: %v, taken %v", step, local, to, err, taken)
			}
			if s != nil {
				open = append(open, s)
			}
		case 1:
			if len(open) > 0 {
				i := random(len(open))
				tab.Close(open[i])
				tab.Close(open[i])
				open = append(open[:i], open[i+1:]...)
			}
		}
		dst := AddrPort{Addr: addrs[1+random(2)], Port: ports[random(len(ports))]}
		var want *Socket
		for _, s := range open {
			if s.local.Port == dst.Port && (s.local.Addr == dst.Addr || s.local.Addr == any) && (s.remote.IsZero() || s.remote == remote) {
				want = s
			}
		}
		if got := tab.Lookup(remote, dst); got != want {
			t.Fatalf("step %d: %v to %v: got %+v, want %+v", step, remote, dst, got, want)
		}
		if tab.open != len(open) {
			t.Fatalf("step %d: %d open, want %d", step, tab.open, len(open))
		}
	}
	for _, s := range open {
		tab.Close(s)
	}
	for i, pg := range tab.pages {
		if pg != nil {
			t.Errorf("page %d is left", i)
		}
	}
}

func TestOpenConflicts(t *testing.T) {
	peer, other := AddrPort{Addr: hostC, Port: 9}, AddrPort{Addr: hostC, Port: 10}
	a, b, any := AddrPort{Addr: hostA, Port: 80}, AddrPort{Addr: hostB, Port: 80}, AddrPort{Port: 80}
	for _, c := range []struct {
		name          string
		first, second [2]AddrPort
		want          error
	}{
		{"same address and port", [2]AddrPort{a}, [2]AddrPort{a}, syscall.EADDRINUSE},
		{"another address", [2]AddrPort{a}, [2]AddrPort{b}, nil},
		{"wildcard after address", [2]AddrPort{a}, [2]AddrPort{any}, syscall.EADDRINUSE},
		{"address after wildcard", [2]AddrPort{any}, [2]AddrPort{a}, syscall.EADDRINUSE},
		{"connected next to bound", [2]AddrPort{a}, [2]AddrPort{a, peer}, syscall.EADDRINUSE},
		{"connected to two peers", [2]AddrPort{a, other}, [2]AddrPort{a, peer}, syscall.EADDRINUSE},
		{"a remote address without a port", [2]AddrPort{a}, [2]AddrPort{b, {Addr: hostC, Port: 0}}, syscall.EINVAL},
		{"a remote port without an address", [2]AddrPort{a}, [2]AddrPort{b, {Port: 5}}, syscall.EINVAL},
	} {
		tab := NewTable(Config{})
		first := mustOpen(t, tab, c.first[0], c.first[1], Options{})
		if _, err := tab.Open(c.second[0], c.second[1], Options{}); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		tab.Close(first)
		if c.want == syscall.EADDRINUSE {
			mustOpen(t, tab, c.second[0], c.second[1], Options{})
		}
	}
}

func TestEphemeralPort(t *testing.T) {
	next := uint32(0)
	tab := NewTable(Config{Rand: func() uint32 { next++; return next - 1 }})
	// After a collision another port is drawn.
	if p, ok := tab.ephemeralPort(hostA); !ok || p != 32768 {
		t.Fatalf("%d, %v", p, ok)
	}
	for range 5 {
		mustOpen(t, tab, AddrPort{Addr: hostA}, AddrPort{}, Options{})
	}
	next = 1 // the five ports 32769 and on are taken
	s := mustOpen(t, tab, AddrPort{Addr: hostA}, AddrPort{}, Options{})
	if s.Local().Port != 32774 {
		t.Errorf("port %d, want the first that is free", s.Local().Port)
	}
	// Another address has ports of its own; the wildcard shares those of all addresses.
	next = 1
	if p, _ := tab.ephemeralPort(hostB); p != 32769 {
		t.Errorf("another address: %d", p)
	}
	next = 1
	if p, _ := tab.ephemeralPort(wire.Addr{}); p < 32775 {
		t.Errorf("wildcard: %d, which another address has", p)
	}
}

// With a generator that always returns the same number the last free port is found too, and then there is
// none.
func TestEphemeralPortsRunOut(t *testing.T) {
	tab := NewTable(Config{Rand: func() uint32 { return 12345 }})
	const all = lastEphemeral - firstEphemeral + 1
	seen := make(map[uint16]bool)
	// Most ports are opened by number: to choose all of them takes quadratic time.
	for p := firstEphemeral; p <= lastEphemeral; p++ {
		if p%1000 != 0 {
			mustOpen(t, tab, AddrPort{Addr: hostA, Port: uint16(p)}, AddrPort{}, Options{})
			seen[uint16(p)] = true
		}
	}
	for len(seen) < all {
		s := mustOpen(t, tab, AddrPort{Addr: hostA}, AddrPort{}, Options{})
		p := s.Local().Port
		if seen[p] || p < firstEphemeral || p > lastEphemeral {
			t.Fatalf("port %d", p)
		}
		seen[p] = true
	}
	if _, err := tab.Open(AddrPort{Addr: hostA}, AddrPort{}, Options{}); err != syscall.EADDRINUSE {
		t.Errorf("one socket more: %v, want EADDRINUSE", err)
	}
	mustOpen(t, tab, AddrPort{Addr: hostB}, AddrPort{}, Options{})
}

func TestEphemeralPortIsRandom(t *testing.T) {
	seen := make(map[uint16]bool)
	for range 32 {
		p, ok := NewTable(Config{}).ephemeralPort(hostA)
		if !ok || p < firstEphemeral || p > lastEphemeral {
			t.Fatalf("%d, %v", p, ok)
		}
		seen[p] = true
	}
	if len(seen) < 16 { // by chance: less than once in 10^30
		t.Errorf("32 tables drew only %d different ports", len(seen))
	}
}

var (
	hostA = wire.AddrFrom4([4]byte{10, 0, 0, 1})
	hostB = wire.AddrFrom4([4]byte{10, 0, 0, 2})
	hostC = wire.AddrFrom4([4]byte{10, 0, 0, 3})
)

// datagram is the IP payload that src sends to dst.
func datagram(src, dst AddrPort, payload string) []byte {
	b := make([]byte, wire.UDPHeaderLen+len(payload))
	wire.PutUDPCopy(b, &wire.UDPFlow{Src: src.Addr, Dst: dst.Addr, SrcPort: src.Port, DstPort: dst.Port}, []byte(payload))
	return b
}

// send gives the table a datagram.
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
	if s.Len() != 3 || s.bytes != 8 {
		t.Errorf("%d datagrams, %d bytes queued", s.Len(), s.bytes)
	}
	mustPop(t, s, "one", peer, 0)
	mustPop(t, s, "", peer, 1)
	mustPop(t, s, "three", peer, 2)
	if s.Len() != 0 || s.bytes != 0 || s.Pop(new(Datagram)) {
		t.Error("the queue is not empty")
	}
}

// The payload in the queue is the memory of the frame, without the padding.
func TestDeliverDoesNotCopy(t *testing.T) {
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
		binary.BigEndian.PutUint16(b[6:], wire.Fold(wire.PseudoHeader(peer.Addr, local.Addr, wire.ProtocolUDP, uint16(len(b)))))
	})
	padded := append(bytes.Clone(good), 0)
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
		{"padded", padded, false, Queued, func(c Counters) uint64 { return c.Received }},
		{"reassembled", good, true, Queued, func(c Counters) uint64 { return c.Received }},
		{"reassembled: partial", partial, true, BadChecksum, func(c Counters) uint64 { return c.BadChecksum }},
		{"reassembled: padded", padded, false, BadLength, func(c Counters) uint64 { return c.BadLength }},
	} {
		tab := NewTable(Config{PartialChecksums: c.partial})
		mustOpen(t, tab, local, AddrPort{}, Options{})
		s, n, v := tab.Process(&Inbound{Src: peer.Addr, Dst: local.Addr, Data: c.data, Reassembled: strings.HasPrefix(c.name, "reassembled")})
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
	check := func(what string, got, want Verdict) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for range 3 {
		check("datagrams below the bound", fill(0), Queued)
	}
	check("one datagram too many", fill(0), QueueFull)
	drain()
	check("first of 60", fill(60), Queued)
	check("up to the bound in bytes", fill(40), Queued)
	check("beyond the bound in bytes", fill(1), QueueFull)
	check("beyond the bound, but empty", fill(0), Queued)
	drain()
	check("larger than the bound, alone", fill(500), Queued)
	check("after it", fill(1), QueueFull)
	drain()
	check("room again", fill(1), Queued)
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
	// A part of a super-frame for which there is no room is dropped and counted, and so are all parts of one for
	// which there is no socket.
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

// Datagrams that are queued can be read after Close.
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

// Sent datagrams are counted by the socket and by the table.
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

// unreachable is an ICMP error about a datagram from src to dst, as a router or
// the peer sends it: the quote is only the header and 8 bytes.
func unreachable(t *testing.T, typ, code uint8, proto uint8, src, dst AddrPort) *wire.ICMPError {
	t.Helper()
	packet := make([]byte, 20+100)
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: 120, TTL: 3, Protocol: proto, Src: src.Addr.As4(), Dst: dst.Addr.As4()})
	copy(packet[20:], datagram(src, dst, string(make([]byte, 92))))
	quote := packet[:28]
	out := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true, FixLengths: true},
		&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code)}, gopacket.Payload(quote))
	if err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseICMPv4(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	e, err := m.Report()
	if err != nil {
		t.Fatal(err)
	}
	return &e
}

func TestICMPErrors(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	for _, c := range []struct {
		name      string
		remote    AddrPort // of the socket
		typ, code uint8
		proto     uint8
		quoted    AddrPort // the destination of the quoted datagram
		want      error
	}{
		{"port unreachable", peer, 3, 3, 17, peer, syscall.ECONNREFUSED},
		{"protocol unreachable", peer, 3, 2, 17, peer, syscall.ENOPROTOOPT},
		{"fragmentation needed", peer, 3, 4, 17, peer, syscall.EMSGSIZE},
		{"prohibited", peer, 3, 13, 17, peer, syscall.EHOSTUNREACH},
		{"network unknown", peer, 3, 6, 17, peer, syscall.ENETUNREACH},
		{"host unknown", peer, 3, 7, 17, peer, syscall.EHOSTDOWN},
		{"source route failed", peer, 3, 5, 17, peer, nil},
		{"an unknown code", peer, 3, 16, 17, peer, nil},
		{"parameter problem", peer, 12, 0, 17, peer, syscall.EPROTO},
		{"host unreachable", peer, 3, 1, 17, peer, nil},
		{"time exceeded", peer, 11, 0, 17, peer, nil},
		{"about TCP", peer, 3, 3, 6, peer, nil},
		{"about another peer", peer, 3, 3, 17, AddrPort{Addr: hostC, Port: 1234}, nil},
		{"about another port", peer, 3, 3, 17, AddrPort{Addr: hostB, Port: 1235}, nil},
		{"not connected", AddrPort{}, 3, 3, 17, peer, nil},
	} {
		tab := NewTable(Config{})
		s := mustOpen(t, tab, local, c.remote, Options{})
		e := unreachable(t, c.typ, c.code, c.proto, local, c.quoted)
		got, pending := tab.ProcessICMP(e)
		if pending != (c.want != nil) || s.HasError() != pending || pending && got != s {
			t.Errorf("%s: socket %v, pending %v and %v", c.name, got, pending, s.HasError())
		}
		if sent := c.proto == 17 && (c.quoted == c.remote || c.remote == AddrPort{}); sent != (got == s) {
			t.Errorf("%s: socket %v", c.name, got)
		}
		if err := s.TakeError(); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err := s.TakeError(); err != nil {
			t.Errorf("%s: %v a second time", c.name, err)
		}
		if n := tab.Counters().Errors; (n == 1) != (c.want != nil) {
			t.Errorf("%s: %d errors counted", c.name, n)
		}
	}
}

// A quote that is too short for the ports matches no socket.
func TestICMPShortQuote(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	tab := NewTable(Config{})
	mustOpen(t, tab, local, peer, Options{})
	e := unreachable(t, 3, 3, 17, local, peer)
	e.Transport = e.Transport[:3]
	if s, _ := tab.ProcessICMP(e); s != nil {
		t.Error("a quote of three bytes matches a socket")
	}
}
