//go:build linux

package pathlink

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
)

// idle parks all paths of an endpoint that have no frame.
func (n *node) idle() {
	n.stack.Do(func() {
		for range 2 {
			n.link.set.Load().park()
		}
	})
}

// A frame in a parked path arrives, whether its reader spins, sleeps, or does both in turn, and nothing else wakes the reader.
func TestParkedPathsWakeTheirReader(t *testing.T) {
	for _, mode := range []endpoint.WaitMode{endpoint.WaitSpin, endpoint.WaitBlock, endpoint.WaitAdaptive} {
		l := newLab(t, stack.Config{Wait: mode})
		peers := l.crowd(t, 1000)
		u, err := l.ends[1].stack.ListenUDP(l.at(1, 7, false), stack.UDPOptions{})
		testutil.Must(t, err)
		for round := range 3 {
			if round > 0 {
				l.ends[1].idle()
			}
			for i, p := range peers {
				p.send(t)
				testutil.Renew(u)
				var b [20]byte
				n, from, err := u.ReadFromUDPAddrPort(b[:])
				if err != nil || string(b[:n]) != "message" || from != p.addr {
					t.Fatalf("%v, round %d, path %d: %q from %v, %v", mode, round, i, b[:n], from, err)
				}
			}
		}
		u.Close()
	}
}

// Datagrams from parked paths and from one that always has more arrive all.
func TestParkedPathsHaveTheirTurn(t *testing.T) {
	l := newLab(t, stack.Config{})
	peers := l.crowd(t, 300)
	n := l.ends[1]
	var frames [64]stack.Frame
	n.stack.Do(func() {
		busy, got := peers[0], map[netip.Addr]bool{}
		fill := func() {
			for room := busy.ring.Reserve(len(busy.frame)); room != nil; room = busy.ring.Reserve(len(busy.frame)) {
				copy(room, busy.frame)
				busy.ring.Publish(len(busy.frame))
			}
			busy.ring.Flush()
		}
		borrow := func() {
			fill()
			k := n.link.Borrow(frames[:])
			for _, f := range frames[:k] {
				got[netip.AddrFrom4([4]byte(f.Data[26:30]))] = true
				n.link.Return(f)
			}
		}
		for !got[busy.addr.Addr()] { // the socket is found empty
			borrow()
		}
		for range 2 {
			n.link.set.Load().park()
		}
		for _, p := range peers[1:] {
			p.send(t)
		}
		for range 3 * len(peers) {
			borrow()
		}
		if len(got) != len(peers) {
			t.Errorf("frames of %d paths of %d", len(got), len(peers))
		}
	})
}

// Paths end while they are parked, and others go on.
func TestParkedPathsEnd(t *testing.T) {
	l := newLab(t, stack.Config{})
	peers := l.crowd(t, 130)
	n := l.ends[1]
	u, err := n.stack.ListenUDP(l.at(1, 7, false), stack.UDPOptions{})
	testutil.Must(t, err)
	defer u.Close()
	say := func(p *peerEnd) {
		t.Helper()
		p.send(t)
		testutil.Renew(u)
		var b [20]byte
		if k, from, err := u.ReadFromUDPAddrPort(b[:]); err != nil || string(b[:k]) != "message" || from != p.addr {
			t.Fatalf("%q from %v, %v", b[:k], from, err)
		}
	}
	for _, p := range peers {
		say(p)
	}
	for len(peers) > 1 {
		n.idle()
		var rest []*peerEnd
		for i, p := range peers {
			if i%2 == 0 {
				rest = append(rest, p)
			} else {
				l.table.Bump(p.id)
			}
		}
		n.stack.Do(func() {
			s := n.link.set.Load()
			for _, p := range s.paths {
				if !p.valid(n.link.table, n.link.id) {
					n.link.retire(p, 0)
				}
			}
		})
		for peers = rest; len(rest) > 0; rest = rest[1:] {
			say(rest[0])
		}
	}
}

// A set that replaces another has the same active paths, and parks those that had no frame.
func TestSetOfPaths(t *testing.T) {
	l := newLab(t, stack.Config{})
	peers := l.crowd(t, 200)
	n := l.ends[1]
	n.stack.Do(func() {
		active := func() (list []uint64) {
			s := n.link.set.Load()
			for i := s.active.from(0); i >= 0; i = s.active.from(i + 1) {
				list = append(list, s.paths[i].id)
			}
			return list
		}
		for _, i := range []int{3, 64, 127, 199} {
			peers[i].send(t)
		}
		s := n.link.set.Load()
		s.visit(0, len(s.paths)) // some are parked already
		s.park()
		s.park()
		want := []uint64{peers[3].id, peers[64].id, peers[127].id, peers[199].id}
		check := func(what string) {
			t.Helper()
			if got := active(); !slices.Equal(got, want) {
				t.Errorf("%s: active %v, want %v", what, got, want)
			}
		}
		check("parked")
		n.link.retire(n.link.peers[peers[0].id].path, 0)
		n.link.retire(n.link.peers[peers[64].id].path, 0)
		want = []uint64{peers[3].id, peers[127].id, peers[199].id}
		check("after ends")
		s = n.link.set.Load()
		peers[150].send(t)
		if s.visit(0, len(s.paths)); !s.look() {
			t.Error("no frame was seen")
		}
		want = []uint64{peers[3].id, peers[127].id, peers[150].id, peers[199].id}
		check("after a frame")
	})
}
