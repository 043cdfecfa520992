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

func addrHere(a netip.Addr, bits uint8) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: a, Bits: bits}
}

// noOthers: the addresses before are all.
var noOthers = endpoint.Notice{Kind: endpoint.NoticeAddrGone}

// The number of pending notices is limited: each destination is pending once, too many destinations become one
// notice for all, and of the link and of unetd only the last state is pending.
func TestPendingAgainstModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var p pending
		model := map[netip.Addr]bool{}
		all, link, unetd := false, endpoint.NoticeKind(0), endpoint.NoticeKind(0)
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
		moved := []endpoint.Notice{addrHere(here, 24), addrGone(there)}[:rng.IntN(3)]
		want = append(want, moved...)
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
		if got := p.take(moved); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if got := p.take(nil); len(got) != 0 {
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
// not normal: unetd gone, link down, addresses that are not those of the grant.
func TestUnchangedStatesAreNotDelivered(t *testing.T) {
	w := New(nil)
	w.Granted([]netip.Prefix{netip.PrefixFrom(here, 24)})
	w.Tell(unetdBack, linkUp, addrHere(here, 24), addrGone(there), noOthers)
	first, _ := watch(t, w)
	w.Tell(linkDown)
	want(t, first(), linkDown)
	w.Tell(linkDown, addrGone(here), addrHere(there, 25), addrGone(here), unetdGone)
	want(t, first(), unetdGone, addrHere(there, 25), addrGone(here))
	w.Tell(unetdGone)
	w.Tell(addrHere(there, 16), routeTo(there))
	want(t, first(), addrHere(there, 16), routeTo(there))
	late, _ := watch(t, w)
	want(t, late(), unetdGone, linkDown, addrHere(there, 16), addrGone(here))
	w.Tell(addrHere(here, 24), addrGone(there), linkUp, allRoutes, unetdBack)
	for _, next := range []func() []endpoint.Notice{first, late} {
		want(t, next(), unetdBack, linkUp, addrHere(here, 24), addrGone(there), allRoutes)
	}
	w.Tell(addrHere(there, 25), addrGone(there), linkDown) // in between there is no turn
	want(t, first(), linkDown)
}

// A loop over the notices of a lease that was presented gets every state, the normal ones too.
func TestLoopOfPresentedLeaseGetsAllStates(t *testing.T) {
	w := New(nil)
	w.Presented()
	usual, _ := watch(t, w)
	want(t, usual(), linkUp, noOthers)
	w.Tell(linkDown, addrHere(there, 24))
	want(t, usual(), linkDown, addrHere(there, 24))
	late, _ := watch(t, w)
	want(t, late(), linkDown, addrHere(there, 24), noOthers)
	w.Tell(addrGone(there))
	want(t, late(), addrGone(there))
}

// However addresses come and go while a loop begins and takes its turns, it knows the present ones: those of the grant,
// with what it has got. A list of all addresses, in several calls, says which are gone.
func TestLoopsKnowTheAddresses(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(2)), byte(rng.IntN(200))}) }
	for range 100 {
		w, now, granted := New(nil), map[netip.Addr]uint8{}, []netip.Prefix{}
		for range rng.IntN(5) {
			p := netip.PrefixFrom(addr(), 1+rng.IntN(32))
			if _, has := now[p.Addr()]; !has {
				granted, now[p.Addr()] = append(granted, p), uint8(p.Bits())
			}
		}
		w.Granted(granted)
		type loop struct {
			one   *watcher
			known map[netip.Addr]uint8
		}
		var loops []loop
		begin := func() {
			known := map[netip.Addr]uint8{}
			for _, p := range granted {
				known[p.Addr()] = uint8(p.Bits())
			}
			loops = append(loops, loop{w.add(), known})
		}
		change := func() {
			a := addr()
			if now[a] = uint8(1 + rng.IntN(32)); rng.IntN(2) == 0 {
				delete(now, a)
			}
		}
		turn := func(l loop) {
			for _, n := range w.take(l.one) {
				bits, has := l.known[n.Addr]
				switch {
				case n.Kind == endpoint.NoticeAddrHere && (!has || bits != n.Bits):
					l.known[n.Addr] = n.Bits
				case n.Kind == endpoint.NoticeAddrGone && has:
					delete(l.known, n.Addr)
				default:
					t.Fatalf("%v to a loop that knows %d", n, bits)
				}
			}
			if !maps.Equal(l.known, now) {
				t.Fatalf("a loop knows %v, want %v", l.known, now)
			}
		}
		for range 50 {
			switch rng.IntN(4) {
			case 0:
				begin()
			case 1: // one address
				before := maps.Clone(now)
				change()
				for a := range before {
					if _, has := now[a]; !has {
						w.Tell(addrGone(a))
					}
				}
				for a, bits := range now {
					w.Tell(addrHere(a, bits))
				}
			case 2: // the next unetd
				for range rng.IntN(300) {
					change()
				}
				w.Renew()
				for a, bits := range now {
					w.Tell(addrHere(a, bits))
				}
				w.Tell(noOthers)
			default:
				if len(loops) > 0 {
					turn(loops[rng.IntN(len(loops))])
				}
			}
		}
		for _, l := range loops {
			turn(l)
		}
	}
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
