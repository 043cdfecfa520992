package notices

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

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

// watch makes a watcher whose calls arrive on a channel. It blocks until they are taken.
func watch(w *Watchers) (calls chan []endpoint.Notice, stop func()) {
	calls = make(chan []endpoint.Notice)
	return calls, w.Watch(func(list []endpoint.Notice) { calls <- list })
}

func want(t *testing.T, got []endpoint.Notice, want ...endpoint.Notice) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A state that has not changed is not delivered. A new watcher gets the states that are
// not normal: unetd gone, link down, address gone.
func TestUnchangedStatesAreNotDelivered(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	w := New(done)
	w.Tell(unetdBack, linkUp, addrBack(here), addrBack(netip.Addr{}))
	first, _ := watch(w)
	w.Tell(linkDown)
	want(t, <-first, linkDown)
	w.Tell(linkDown, addrGone(here), addrGone(there), addrGone(here), unetdGone)
	want(t, <-first, unetdGone, addrGone(here), addrGone(there))
	w.Tell(unetdGone)
	w.Tell(addrBack(there), routeTo(there))
	want(t, <-first, addrBack(there), routeTo(there))
	late, _ := watch(w)
	want(t, <-late, unetdGone, linkDown, addrGone(here))
	w.Tell(addrBack(netip.Addr{}), linkUp, allRoutes, unetdBack)
	for _, calls := range []chan []endpoint.Notice{first, late} {
		want(t, <-calls, unetdBack, linkUp, addrBack(here), allRoutes)
	}
}

// A watcher of a lease that was presented gets every state, the normal ones too.
func TestWatcherOfPresentedLeaseGetsAllStates(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	w := New(done)
	w.Presented()
	usual, _ := watch(w)
	want(t, <-usual, linkUp, addrBack(netip.Addr{}))
	w.Tell(linkDown, addrGone(there))
	want(t, <-usual, linkDown, addrGone(there))
	late, _ := watch(w)
	want(t, <-late, linkDown, addrBack(netip.Addr{}), addrGone(there))
}

// Tell does not wait for a watcher that blocks. The notices meanwhile come in one call. Watchers are called in the
// order in which they were added.
func TestTellDoesNotWaitForWatchers(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	w := New(done)
	first, _ := watch(w)
	second, stop := watch(w)
	w.Tell(routeTo(here))
	want(t, <-first, routeTo(here))
	w.Tell(routeTo(there), linkDown)
	want(t, <-second, routeTo(here))
	want(t, <-first, linkDown, routeTo(there))
	for i := range byte(100) {
		w.Tell(routeTo(netip.AddrFrom4([4]byte{10, 0, 1, i})), linkUp, linkDown)
	}
	want(t, <-second, linkDown, routeTo(there))
	all := []endpoint.Notice{linkDown}
	for i := range byte(100) {
		all = append(all, routeTo(netip.AddrFrom4([4]byte{10, 0, 1, i})))
	}
	want(t, <-first, all...)
	want(t, <-second, all...)
	stop()
	w.Tell(allRoutes)
	want(t, <-first, allRoutes)
	w.Tell(linkUp)
	select {
	case got := <-first:
		want(t, got, linkUp)
	case got := <-second:
		t.Errorf("called after stop: %v", got)
	}
}

// The function of a watcher may stop the watcher and add others.
func TestWatcherMayStopAndAddWatchers(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	w := New(done)
	got := make(chan endpoint.Notice, 2)
	var stop func()
	ready := make(chan struct{})
	stop = w.Watch(func(list []endpoint.Notice) {
		<-ready
		stop()
		w.Watch(func(list []endpoint.Notice) { got <- list[0] })
		got <- list[0]
	})
	close(ready)
	w.Tell(linkDown)
	for range 2 {
		if n := <-got; n != linkDown {
			t.Errorf("got %v", n)
		}
	}
	w.Tell(linkUp)
	if n := <-got; n != linkUp {
		t.Errorf("got %v", n)
	}
}
