package udp

import (
	"errors"
	"syscall"
	"testing"
)

// Which of several sockets a datagram is for.
func TestLookupOrder(t *testing.T) {
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
		{"address before wildcard", [][2]AddrPort{{wildcard}, {toA}}, peer, toA, toA, AddrPort{}},
		{"whatever the order", [][2]AddrPort{{toA}, {wildcard}}, peer, toA, toA, AddrPort{}},
		{"wildcard for another address", [][2]AddrPort{{toA}, {wildcard}}, peer, toB, wildcard, AddrPort{}},
		{"another address", [][2]AddrPort{{toA}}, peer, toB, AddrPort{}, AddrPort{}},
		{"connected before address", [][2]AddrPort{{toA, peer}, {toA}, {wildcard}}, peer, toA, toA, peer},
		{"connected to another port", [][2]AddrPort{{toA, other}, {toA}, {wildcard}}, peer, toA, toA, AddrPort{}},
		{"connected only, to another port", [][2]AddrPort{{toA, other}}, peer, toA, AddrPort{}, AddrPort{}},
		{"connected at another address", [][2]AddrPort{{toB, peer}, {wildcard}}, peer, toA, wildcard, AddrPort{}},
		{"two connected, by address", [][2]AddrPort{{toB, peer}, {toA, peer}}, peer, toA, toA, peer},
		{"connected with a wildcard before a bound address", [][2]AddrPort{{wildcard, peer}, {toA}}, peer, toA, wildcard, peer},
		{"connected at the address before connected with a wildcard", [][2]AddrPort{{toA, peer}, {wildcard, peer}}, peer, toA, toA, peer},
		{"two peers", [][2]AddrPort{{toA, other}, {toA, peer}}, peer, toA, toA, peer},
	} {
		tab := NewTable(Config{})
		for _, o := range c.open {
			mustOpen(t, tab, o[0], o[1], Options{Reuse: true})
		}
		s := tab.Lookup(c.src, c.dst)
		switch {
		case s == nil && c.local.IsZero():
		case s == nil || s.Local() != c.local || s.Remote() != c.remote:
			t.Errorf("%s: got %+v", c.name, s)
		}
	}
}

// Random opens, closes and lookups against the rule written as a scan over all
// sockets.
func TestLookupAgainstModel(t *testing.T) {
	seed := uint32(1)
	random := func(n int) int { // an LCG is random enough, and the same each time
		seed = seed*1664525 + 1013904223
		return int(seed>>8) % n
	}
	addrs := [][4]byte{{}, hostA, hostB}
	ports := []uint16{1, 255, 256, 257, 65535}
	tab := NewTable(Config{})
	var open []*Socket
	score := func(s *Socket, src, dst AddrPort) int {
		points := 1
		if s.local.Port != dst.Port {
			return 0
		}
		if s.local.Addr == dst.Addr {
			points++
		} else if s.local.Addr != [4]byte{} {
			return 0
		}
		if s.Connected() {
			if s.remote != src {
				return 0
			}
			points += 4
		}
		return points
	}
	for step := range 20000 {
		local := AddrPort{Addr: addrs[random(3)], Port: ports[random(len(ports))]}
		remote := AddrPort{Addr: [4]byte{10, 1, 0, byte(1 + random(2))}, Port: uint16(1 + random(2))}
		switch random(3) {
		case 0:
			to := remote
			if random(2) == 0 {
				to = AddrPort{}
			}
			taken := false
			for _, s := range open {
				taken = taken || s.local == local && s.remote == to
			}
			s, err := tab.Open(local, to, Options{Reuse: true})
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
			if p := score(s, remote, dst); p > 0 && (want == nil || p > score(want, remote, dst)) {
				want = s
			}
		}
		if got := tab.Lookup(remote, dst); got != want {
			t.Fatalf("step %d: %v to %v: got %+v, want %+v", step, remote, dst, got, want)
		}
		if tab.Len() != len(open) {
			t.Fatalf("step %d: %d open, want %d", step, tab.Len(), len(open))
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
		name           string
		first, second  [2]AddrPort
		reuse1, reuse2 bool
		want           error
	}{
		{"the same", [2]AddrPort{a}, [2]AddrPort{a}, false, false, syscall.EADDRINUSE},
		{"the same, reused", [2]AddrPort{a}, [2]AddrPort{a}, true, true, syscall.EADDRINUSE},
		{"another address", [2]AddrPort{a}, [2]AddrPort{b}, false, false, nil},
		{"wildcard after address", [2]AddrPort{a}, [2]AddrPort{any}, false, false, syscall.EADDRINUSE},
		{"address after wildcard", [2]AddrPort{any}, [2]AddrPort{a}, false, false, syscall.EADDRINUSE},
		{"address after wildcard, reused", [2]AddrPort{any}, [2]AddrPort{a}, true, true, nil},
		{"only one reuses", [2]AddrPort{any}, [2]AddrPort{a}, true, false, syscall.EADDRINUSE},
		{"the other reuses", [2]AddrPort{any}, [2]AddrPort{a}, false, true, syscall.EADDRINUSE},
		{"connected next to bound", [2]AddrPort{a}, [2]AddrPort{a, peer}, false, false, syscall.EADDRINUSE},
		{"connected next to bound, reused", [2]AddrPort{a}, [2]AddrPort{a, peer}, true, true, nil},
		{"two peers, reused", [2]AddrPort{a, other}, [2]AddrPort{a, peer}, true, true, nil},
		{"one peer twice, reused", [2]AddrPort{a, peer}, [2]AddrPort{a, peer}, true, true, syscall.EADDRINUSE},
		{"half a remote", [2]AddrPort{a}, [2]AddrPort{b, {Addr: hostC, Port: 0}}, false, false, syscall.EINVAL},
		{"the other half", [2]AddrPort{a}, [2]AddrPort{b, {Port: 5}}, false, false, syscall.EINVAL},
	} {
		tab := NewTable(Config{})
		first := mustOpen(t, tab, c.first[0], c.first[1], Options{Reuse: c.reuse1})
		if _, err := tab.Open(c.second[0], c.second[1], Options{Reuse: c.reuse2}); err != c.want {
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
	// Draws that collide are drawn again.
	if p, ok := tab.EphemeralPort(hostA); !ok || p != 32768 {
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
	// Another address has ports of its own, the wildcard shares with all.
	next = 1
	if p, _ := tab.EphemeralPort(hostB); p != 32769 {
		t.Errorf("another address: %d", p)
	}
	next = 1
	if p, _ := tab.EphemeralPort([4]byte{}); p < 32775 {
		t.Errorf("wildcard: %d, which another address has", p)
	}
}

// A generator that always draws the same makes every draw but one collide: the
// last free port is still found, and then there is none.
func TestEphemeralPortsRunOut(t *testing.T) {
	tab := NewTable(Config{Rand: func() uint32 { return 12345 }})
	const all = lastEphemeral - firstEphemeral + 1
	seen := make(map[uint16]bool)
	// Opening all of them one by one with such a generator is quadratic, so
	// most are opened by number.
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
		t.Errorf("one too many: %v", err)
	}
	mustOpen(t, tab, AddrPort{Addr: hostB}, AddrPort{}, Options{})
}

func TestEphemeralPortIsRandom(t *testing.T) {
	seen := make(map[uint16]bool)
	for range 32 {
		p, ok := NewTable(Config{}).EphemeralPort(hostA)
		if !ok || p < firstEphemeral || p > lastEphemeral {
			t.Fatalf("%d, %v", p, ok)
		}
		seen[p] = true
	}
	if len(seen) < 16 { // by chance: less than once in 10^30
		t.Errorf("32 tables drew only %d different ports", len(seen))
	}
}
