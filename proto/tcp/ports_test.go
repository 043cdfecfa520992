package tcp

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// The choice of a port is held against a search of all pairs, while connections to a few
// destinations come and go, from ports that are chosen or asked for, and to listeners:
// a pair without a past before one in TIME-WAIT, no pair of a connection ever, and none
// only if there is none.
func TestChoosePortModel(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	blocks := []PortBlock{{First: 40000 - 40000%64, Ports: ^uint64(0)}, {First: 0, Ports: 1<<9 | 1<<33}, {First: 65472, Ports: 0xf0f0}}
	tab := NewTable(Config{Secret: testSecret, MaxTimeWaits: 70})
	var listener *Listener
	var conns []*Conn
	now := Time(0)
	taken, reused, none := 0, 0, 0
	for i := range 40_000 {
		now = now.add(time.Millisecond)
		tab.expireWaits(now)
		if i%500 == 0 {
			if listener != nil {
				listener.Close()
			}
			listener, _ = tab.Listen(AddrPort{Addr: hostA, Port: blocks[0].First + uint16(random.IntN(64))}, ListenOptions{})
		}
		remote := AddrPort{Addr: hostB, Port: uint16(80 + random.IntN(3))}
		if random.IntN(5) == 0 {
			remote = AddrPort{Addr: hostA, Port: blocks[0].First + 5} // one of our own
		}
		if grow := i%2000 < 1200; !grow || random.IntN(4) == 0 {
			if len(conns) > 0 {
				n := random.IntN(len(conns))
				c := conns[n]
				conns = slices.Delete(conns, n, n+1)
				if random.IntN(2) == 0 {
					c.finish(Closed)
				} else {
					c.enterTimeWait(now)
				}
			}
			continue
		}
		fresh, old := 0, 0
		eligible := map[uint16]bool{}
		for _, b := range blocks {
			for i := range uint16(64) {
				local := AddrPort{Addr: hostA, Port: b.First + i}
				id := makeTuple(local, remote)
				switch {
				case b.Ports>>i&1 == 0, tab.conns[id] != nil, local == remote, listener.Addr() == local:
				case tab.waits.records[id] == nil:
					fresh++
					eligible[local.Port] = true
				default:
					old++
					eligible[local.Port] = true
				}
			}
		}
		port := tab.ChoosePort(hostA, remote, blocks)
		id := makeTuple(AddrPort{Addr: hostA, Port: port}, remote)
		switch {
		case port == 0 && len(eligible) > 0, port != 0 && !eligible[port]:
			t.Fatalf("chose %d to %v of %v", port, remote, eligible)
		case fresh > 0 && tab.waits.records[id] != nil:
			t.Fatalf("chose %d to %v in TIME-WAIT when %d were fresh", port, remote, fresh)
		case port == 0:
			none++
			continue
		case fresh == 0:
			reused++
		}
		taken++
		c, err := tab.Dial(now, AddrPort{Addr: hostA, Port: port}, remote, Options{})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if taken < 1000 || reused < 100 || none < 100 {
		t.Errorf("%d taken, of which %d from TIME-WAIT, and %d times there was none", taken, reused, none)
	}
	for _, c := range conns {
		c.finish(Closed)
	}
	tab.Close()
	if len(tab.pairs) != 0 || len(tab.full) != 0 {
		t.Errorf("%d blocks of pairs are left, %d destinations have full ones", len(tab.pairs), len(tab.full))
	}
}

// 64,000 connections to one destination come from one address, as many to another, and
// the last ones take no longer to find a port for than a look at each block.
func TestWholeRange(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	const all = 1<<16 - firstUser
	for _, remote := range []AddrPort{{Addr: hostB, Port: 80}, {Addr: hostB, Port: 81}} {
		low := 0
		for i := range all {
			c, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{})
			if err != nil {
				t.Fatalf("dial %d to %v: %v", i, remote, err)
			}
			if p := c.Local().Port; p < firstEphemeral || p > lastEphemeral {
				low++
			} else if low > 0 {
				t.Fatalf("port %d after one beyond the kernel's range", p)
			}
		}
		if _, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{}); err != syscall.EADDRNOTAVAIL {
			t.Errorf("the next: %v", err)
		}
	}
	if n := tab.Len(); n != 2*all {
		t.Errorf("%d connections", n)
	}
}

func BenchmarkChoosePort(b *testing.B) {
	for _, free := range []int{1<<16 - firstUser, 1000, 10, 1, 0} {
		b.Run(fmt.Sprint(free, " free"), func(b *testing.B) {
			tab := NewTable(Config{Secret: testSecret})
			remote := AddrPort{Addr: hostB, Port: 80}
			for range 1<<16 - firstUser - free {
				if _, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if (tab.ephemeralPort(hostA, remote) == 0) != (free == 0) {
					b.Fatal("a wrong answer")
				}
			}
		})
	}
}
