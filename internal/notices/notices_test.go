package notices

import (
	"context"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/unet-go/unet/endpoint"
)

var (
	allRoutes = endpoint.Notice{Kind: endpoint.NoticeRoute}
	linkDown  = endpoint.Notice{Kind: endpoint.NoticeLinkDown}
	linkUp    = endpoint.Notice{Kind: endpoint.NoticeLinkUp}
	unetdGone = endpoint.Notice{Kind: endpoint.NoticeUnetdGone}
	unetdBack = endpoint.Notice{Kind: endpoint.NoticeUnetdBack}
	here      = netip.MustParseAddr("10.0.0.1")
	there     = netip.MustParseAddr("10.0.0.2")
)

func routeTo(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a}
}

func addrGone(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a}
}

func addrBack(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrBack, Addr: a}
}

// The number of pending notices is limited: each destination is pending once, too many destinations become one
// notice for all, and of the link and of each address only the last state is pending.
func TestPendingAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var p pending
		model := map[netip.Addr]bool{}
		all, link, unetd, back := false, endpoint.NoticeKind(0), endpoint.NoticeKind(0), false
		gone := map[netip.Addr]bool{}
		for range rng.IntN(3 * maxAddrs) {
			addr := netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(2)), byte(rng.IntN(256))})
			switch r := rng.IntN(1000); {
			case r == 0:
				p.add(allRoutes)
				all = true
			case r < 10:
				p.add(linkDown)
				link = endpoint.NoticeLinkDown
			case r < 20:
				p.add(linkUp)
				link = endpoint.NoticeLinkUp
			case r < 25:
				p.add(unetdGone)
				unetd = endpoint.NoticeUnetdGone
			case r < 28:
				p.add(unetdBack)
				unetd = endpoint.NoticeUnetdBack
			case r < 30:
				p.add(endpoint.Notice{Kind: 77})
			case r < 32:
				p.add(addrBack(netip.Addr{}))
				back = true
				clear(gone)
			case r < 50:
				p.add(addrGone(addr))
				gone[addr] = true
			case r < 60:
				p.add(addrBack(addr))
				gone[addr] = false
			default:
				p.add(routeTo(addr))
				model[addr] = true
			}
		}
		all = all || len(model) > maxAddrs
		var want []endpoint.Notice
		if unetd != 0 {
			want = append(want, endpoint.Notice{Kind: unetd})
		}
		if link != 0 {
			want = append(want, endpoint.Notice{Kind: link})
		}
		if back {
			want = append(want, addrBack(netip.Addr{}))
		}
		for _, a := range slices.SortedFunc(maps.Keys(gone), netip.Addr.Compare) {
			if gone[a] {
				want = append(want, addrGone(a))
			} else {
				want = append(want, addrBack(a))
			}
		}
		if all {
			want = append(want, allRoutes)
		} else {
			var addrs []netip.Addr
			for a := range model {
				addrs = append(addrs, a)
			}
			slices.SortFunc(addrs, netip.Addr.Compare)
			for _, a := range addrs {
				want = append(want, routeTo(a))
			}
		}
		if got := p.take(); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if got := p.take(); len(got) != 0 {
			t.Fatalf("again %v", got)
		}
	}
}

// watch begins a loop, of which next is the next turn.
func watch(t *testing.T, w *Watchers) (next func() []endpoint.Notice, stop func()) {
	pull, stop := iter.Pull(w.Notices(t.Context()))
	t.Cleanup(stop)
	return func() []endpoint.Notice { list, _ := pull(); return list }, stop
}

func want(t *testing.T, got []endpoint.Notice, want ...endpoint.Notice) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A state that has not changed is not delivered. A new loop gets the states that are
// not normal: unetd gone, link down, address gone.
func TestUnchangedStatesAreNotDelivered(t *testing.T) {
	w := New(nil)
	w.Tell(unetdBack, linkUp, addrBack(here), addrBack(netip.Addr{}))
	first, _ := watch(t, w)
	w.Tell(linkDown)
	want(t, first(), linkDown)
	w.Tell(linkDown, addrGone(here), addrGone(there), addrGone(here), unetdGone)
	want(t, first(), unetdGone, addrGone(here), addrGone(there))
	w.Tell(unetdGone)
	w.Tell(addrBack(there), routeTo(there))
	want(t, first(), addrBack(there), routeTo(there))
	late, _ := watch(t, w)
	want(t, late(), unetdGone, linkDown, addrGone(here))
	w.Tell(addrBack(netip.Addr{}), linkUp, allRoutes, unetdBack)
	for _, next := range []func() []endpoint.Notice{first, late} {
		want(t, next(), unetdBack, linkUp, addrBack(here), allRoutes)
	}
}

// A loop over the notices of a lease that was presented gets every state, the normal ones too.
func TestLoopOfPresentedLeaseGetsAllStates(t *testing.T) {
	w := New(nil)
	w.Presented()
	usual, _ := watch(t, w)
	want(t, usual(), linkUp, addrBack(netip.Addr{}))
	w.Tell(linkDown, addrGone(there))
	want(t, usual(), linkDown, addrGone(there))
	late, _ := watch(t, w)
	want(t, late(), linkDown, addrBack(netip.Addr{}), addrGone(there))
}

// Tell does not wait for a loop that blocks. The notices meanwhile come in one turn.
func TestTellDoesNotWaitForLoops(t *testing.T) {
	w := New(nil)
	first, _ := watch(t, w)
	second, stop := watch(t, w)
	w.Tell(routeTo(here))
	want(t, first(), routeTo(here))
	want(t, second(), routeTo(here))
	w.Tell(routeTo(there), linkDown)
	want(t, first(), linkDown, routeTo(there))
	for i := range byte(100) {
		w.Tell(routeTo(netip.AddrFrom4([4]byte{10, 0, 1, i})), linkUp, linkDown)
	}
	all := []endpoint.Notice{linkDown}
	for i := range byte(100) {
		all = append(all, routeTo(netip.AddrFrom4([4]byte{10, 0, 1, i})))
	}
	want(t, first(), all...)
	want(t, second(), slices.Insert(all, 1, routeTo(there))...)
	stop()
	w.Tell(allRoutes)
	want(t, first(), allRoutes)
	want(t, second())
}

// A loop gets what was told from the call of Notices on. When it is left, and when ctx or the lease ends, it gets
// nothing more, not even what comes in the same turn, and nothing is kept for it.
func TestEndsOfLoops(t *testing.T) {
	for _, c := range []struct {
		name string
		body func(cancel, end func()) (more bool) // of the loop
	}{
		{"break", func(_, _ func()) bool { return false }},
		{"context", func(cancel, _ func()) bool { cancel(); return true }},
		{"lease", func(_, end func()) bool { end(); return true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				done := make(chan struct{})
				w := New(done)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				changes := w.Each(ctx)
				w.Tell(linkDown, routeTo(here))
				var got []endpoint.Notice
				for n := range changes {
					got = append(got, n)
					if !c.body(cancel, func() { close(done) }) {
						break
					}
				}
				want(t, got, linkDown)
				for n := range changes {
					t.Errorf("the second loop got %v", n)
				}
				kept(t, w, 0)
			})
		})
	}
}

// The end of ctx, or of the lease, ends a loop that waits. What is kept for a loop that never begins ends with ctx.
func TestEndsOfWaitingLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		w := New(done)
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(changes iter.Seq[[]endpoint.Notice]) {
			for list := range changes {
				t.Errorf("got %v", list)
			}
		}
		go wait(w.Notices(ctx))
		w.Notices(ctx)
		go wait(w.Notices(t.Context()))
		kept(t, w, 3)
		cancel()
		kept(t, w, 1)
		close(done)
		kept(t, w, 0)
	})
}

// kept checks for how many loops notices are kept.
func kept(t *testing.T, w *Watchers, loops int) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.list) != loops {
		t.Errorf("notices are kept for %d loops, want %d", len(w.list), loops)
	}
}

// The body of a loop may begin others.
func TestLoopInLoop(t *testing.T) {
	w := New(nil)
	w.Tell(linkDown)
	for outer := range w.Notices(t.Context()) {
		for inner := range w.Notices(t.Context()) {
			want(t, inner, outer...)
			break
		}
		break
	}
}
