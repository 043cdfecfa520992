package udp

import (
	"testing"
)

func TestNoAllocations(t *testing.T) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	tab := NewTable(Config{})
	conn, err := tab.Open(local, peer, Options{})
	if err != nil {
		t.Fatal(err)
	}
	data := datagram(peer, local, string(make([]byte, 64)))
	e := unreachable(t, 3, 3, 17, local, peer)
	// in is a local variable of each run, as in a caller. AllocsPerRun calls f once before it counts, so the first
	// ring of the queue is not counted.
	for name, f := range map[string]func(){
		"in": func() {
			in := Inbound{Src: hostB, Dst: hostA, Data: data, Frame: 3}
			if _, n, _ := tab.Process(&in); n != 1 {
				t.Error("not queued")
			}
			var d Datagram
			conn.Pop(&d)
		},
		"errors": func() {
			tab.ProcessICMP(e)
			if conn.TakeError() == nil {
				t.Error("no error")
			}
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	for _, c := range []struct {
		name   string
		remote AddrPort
	}{{"bound", AddrPort{}}, {"connected", peer}} {
		b.Run(c.name, func(b *testing.B) {
			tab := NewTable(Config{})
			tab.Open(local, c.remote, Options{})
			for b.Loop() {
				if tab.Lookup(peer, local) == nil {
					b.Fatal("not found")
				}
			}
		})
	}
}

func BenchmarkProcessPop(b *testing.B) {
	local, peer := AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: 1234}
	for _, connected := range []bool{false, true} {
		name, remote := "bound", AddrPort{}
		if connected {
			name, remote = "connected", peer
		}
		b.Run(name, func(b *testing.B) {
			tab := NewTable(Config{})
			s, err := tab.Open(local, remote, Options{})
			if err != nil {
				b.Fatal(err)
			}
			in := Inbound{Src: hostB, Dst: hostA, Data: datagram(peer, local, string(make([]byte, 64)))}
			var d Datagram
			for b.Loop() {
				if _, n, _ := tab.Process(&in); n != 1 || !s.Pop(&d) {
					b.Fatal("lost")
				}
			}
		})
	}
}
