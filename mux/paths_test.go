//go:build linux

package mux_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// taker takes the memory paths of an endpoint.
type taker struct {
	*app
	before int64 // memory that counts for its user without paths, bytes
	paths  chan *endpoint.Path
	leave  context.CancelFunc
}

// openTaker opens an endpoint for a user and takes its paths until the test ends.
func (l *lab) openTaker(uid uint32) *taker {
	l.t.Helper()
	g, lease, err := l.openAs(mux.Owner{PID: os.Getpid(), UID: uid}, mux.Terms{}, endpoint.Request{Geometry: small})
	testutil.Must(l.t, err)
	a := attach(l.t, g)
	a.lease = lease
	k := l.take(a)
	k.before = l.memory(uid)
	return k
}

func (l *lab) take(a *app) *taker {
	k := &taker{app: a, paths: make(chan *endpoint.Path, 64)}
	var ctx context.Context
	ctx, k.leave = context.WithCancel(l.t.Context())
	list, ended := a.lease.Paths(ctx), make(chan struct{})
	go func() {
		defer close(ended)
		for p := range list {
			k.paths <- p
		}
		close(k.paths)
	}()
	l.t.Cleanup(func() {
		k.leave()
		<-ended
		for p := range k.paths {
			p.Close()
		}
	})
	return k
}

func (k *taker) id() uint64 { return k.grant.ID }

// path opens a path and returns both ends.
func path(t *testing.T, from, to *taker) (*endpoint.Path, *endpoint.Path) {
	t.Helper()
	testutil.Must(t, from.lease.OpenPath(t.Context(), to.id()))
	a, b := <-from.paths, <-to.paths
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// counts checks how many paths endpoints have, and that the memory of those that by has asked for counts for its user, beside what
// counted when the last endpoint was opened.
func (l *lab) counts(what string, by *taker, want map[*taker]int) {
	l.t.Helper()
	memory := map[uint32]int64{}
	for _, e := range l.mux.Endpoints() {
		for k, n := range want {
			if k.id() != e.ID {
				continue
			}
			memory[e.UID] = max(memory[e.UID], k.before)
			if e.Paths != n {
				l.t.Errorf("%s: endpoint %d has %d paths, want %d", what, e.ID, e.Paths, n)
			}
		}
	}
	for _, e := range l.mux.Endpoints() {
		if e.ID == by.id() {
			memory[e.UID] += int64(e.Paths) * mempath.Size
		}
	}
	for uid, bytes := range memory {
		if got := l.memory(uid); got != bytes {
			l.t.Errorf("%s: %d bytes count for uid %d, want %d", what, got, uid, bytes)
		}
	}
}

// memory is what counts for a user, in bytes.
func (l *lab) memory(uid uint32) int64 {
	l.t.Helper()
	r, err := l.mux.Report()
	testutil.Must(l.t, err)
	return r.Users[uid].Memory
}

func wantNoPath(t *testing.T, what string, err error, text string) {
	t.Helper()
	if !errors.Is(err, endpoint.ErrNoPath) || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want an ErrNoPath with %q", what, err, text)
	}
}

func inode(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Stat_t
	testutil.Must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Ino
}

// Both endpoints get an end of the path; a second request changes nothing. Its memory counts for the user who asked until
// one end is given back, and then there can be another.
func TestPathGoesToBothEndpoints(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b := l.openTaker(4242), l.openTaker(4243)
	for range 3 {
		one, two := path(t, a, b)
		if one.Peer != b.id() || two.Peer != a.id() || one.Epoch != two.PeerEpoch || one.PeerEpoch != two.Epoch || one.ID != two.ID {
			t.Errorf("%+v and %+v", one, two)
		}
		for _, f := range [][2]*os.File{{one.Own, two.Other}, {one.Other, two.Own}, {one.Ring, two.Bell}, {one.Bell, two.Ring}} {
			if inode(t, f[0]) != inode(t, f[1]) {
				t.Error("the ends do not share a file")
			}
		}
		l.counts("with a path", a, map[*taker]int{a: 1, b: 1})
		for _, again := range []error{a.lease.OpenPath(t.Context(), b.id()), b.lease.OpenPath(t.Context(), a.id())} {
			if again != nil {
				t.Errorf("there is one: %v", again)
			}
		}
		l.counts("asked again", a, map[*taker]int{a: 1, b: 1})
		testutil.Must(t, b.lease.ClosePath(t.Context(), two.ID))
		l.counts("given back", a, map[*taker]int{a: 0, b: 0})
	}
	if len(a.paths)+len(b.paths) > 0 {
		t.Error("more paths than were asked for")
	}
}

// The other end of a path may learn of its end late, and closes it when there is another between the same two.
func TestLateClosePathEndsNoNewerPath(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a, b, c := l.openTaker(4242), l.openTaker(4243), l.openTaker(4244)
	first, _ := path(t, a, b)
	testutil.Must(t, a.lease.ClosePath(t.Context(), first.ID))
	second, _ := path(t, a, b)
	testutil.Must(t, b.lease.ClosePath(t.Context(), first.ID))
	testutil.Must(t, c.lease.ClosePath(t.Context(), second.ID)) // not one of its paths
	l.counts("closed late", a, map[*taker]int{a: 1, b: 1})
	testutil.Must(t, b.lease.ClosePath(t.Context(), second.ID))
	l.counts("closed", a, map[*taker]int{a: 0, b: 0})
}

// Why there is no path.
func TestNoPath(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.openTaker(4242)
	wantNoPath(t, "unknown", a.lease.OpenPath(t.Context(), 1<<40), "there is no endpoint 1099511627776")
	wantNoPath(t, "itself", a.lease.OpenPath(t.Context(), a.id()), "is the one that asks")
	silent := l.open()
	wantNoPath(t, "not taken", a.lease.OpenPath(t.Context(), silent.grant.ID), "takes none now")
	wantNoPath(t, "not taken here", silent.lease.OpenPath(t.Context(), a.id()), "takes none now")
	queue := l.take(l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue}))
	if queue.grant.Table != nil {
		t.Error("a table for an endpoint on a queue")
	}
	wantNoPath(t, "a queue", a.lease.OpenPath(t.Context(), queue.id()), "is on a queue")
	limited := l.take(l.openFor(mux.Terms{Rates: endpoint.Rates{User: packets(5)}}, endpoint.Request{}))
	wantNoPath(t, "a rate", a.lease.OpenPath(t.Context(), limited.id()), "is limited in what it sends")
	wantNoPath(t, "a rate here", limited.lease.OpenPath(t.Context(), a.id()), "is limited in what it sends")
	b := l.openTaker(4243)
	l.policy.on(mux.Terms{NoMemoryPaths: true}, func() {
		wantNoPath(t, "the policy", a.lease.OpenPath(t.Context(), b.id()), "the policy permits none")
	})
	l.policy.on(mux.Terms{Memory: a.before + mempath.Size - 1}, func() {
		err := a.lease.OpenPath(t.Context(), b.id())
		if wantNoPath(t, "memory", err, "of at most"); !errors.Is(err, endpoint.ErrBusy) {
			t.Errorf("%v, want an ErrBusy", err)
		}
	})
	l.counts("refused", a, map[*taker]int{a: 0, b: 0})
	ended := l.openTaker(4244)
	ended.close()
	wantNoPath(t, "ended", a.lease.OpenPath(t.Context(), ended.id()), "there is no endpoint")
	if err := ended.lease.OpenPath(t.Context(), a.id()); !errors.Is(err, endpoint.ErrLeaseClosed) {
		t.Errorf("by a lease that has ended: %v", err)
	}
	path(t, a, b)
	b.leave()
	for range b.paths {
	}
	c := l.openTaker(4245)
	wantNoPath(t, "left", c.lease.OpenPath(t.Context(), b.id()), "takes none now")
}

// Whatever ends the paths of an endpoint changes its epoch in the tag table, which the other end sees there, and
// uncounts them.
func TestWhatEndsPaths(t *testing.T) {
	t.Parallel()
	limit := func(l *lab, a *taker) {
		l.policy.on(mux.Terms{Rates: endpoint.Rates{Endpoint: packets(5)}}, l.mux.UpdateRates)
		wantNoPath(l.t, "with a rate", a.lease.OpenPath(l.t.Context(), a.id()+1), "is limited")
	}
	for what, end := range map[string]func(*lab, *taker){
		"a rate":       limit,
		"the policy":   func(l *lab, _ *taker) { l.policy.on(mux.Terms{NoMemoryPaths: true}, l.mux.UpdateRates) },
		"the lease":    func(_ *lab, a *taker) { a.close() },
		"a revocation": func(l *lab, a *taker) { testutil.Must(l.t, l.mux.Revoke(a.id(), "")) },
		"a capture": func(l *lab, a *taker) {
			id := a.id()
			stop, err := l.mux.Capture(&id)
			testutil.Must(l.t, err)
			wantNoPath(l.t, "captured", a.lease.OpenPath(l.t.Context(), a.id()+1), "is captured")
			stop()
			stop()
		},
		"a capture of all": func(l *lab, a *taker) {
			stop, err := l.mux.Capture(nil)
			testutil.Must(l.t, err)
			wantNoPath(l.t, "captured", a.lease.OpenPath(l.t.Context(), a.id()+1), "is captured")
			stop()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			l := openLab(t, mux.ModeAuto)
			a, b := l.openTaker(4242), l.openTaker(4243)
			view := b.view()
			one, _ := path(t, a, b)
			if view.Epoch(a.id()) != one.Epoch || view.Epoch(b.id()) != one.PeerEpoch {
				t.Error("the table has other epochs than the path")
			}
			end(l, a)
			if view.Epoch(a.id()) == one.Epoch {
				t.Error("the epoch is the same")
			}
			l.counts("ended", a, map[*taker]int{a: 0, b: 0})
			if strings.HasPrefix(what, "a capture") {
				path(t, b, a)
			}
		})
	}
	none := uint64(7)
	if _, err := openLab(t, mux.ModeAuto).mux.Capture(&none); !errors.Is(err, endpoint.ErrNoEndpoint) {
		t.Errorf("no endpoint: %v", err)
	}
}

// Paths are asked for, given back and ended at the same time. In the end nothing is counted, and no descriptor
// is open.
func TestPathsAtTheSameTime(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	var apps []*taker
	for range 4 {
		apps = append(apps, l.openTaker(4242))
	}
	want := map[*taker]int{}
	var asking, taking sync.WaitGroup
	for i, a := range apps {
		want[a] = 0
		taking.Go(func() {
			n := 0
			for p := range a.paths {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
				if n++; n%3 != 0 {
					testutil.Must(t, a.lease.ClosePath(t.Context(), p.ID))
				}
			}
		})
		asking.Go(func() {
			for n := range 60 {
				peer := apps[(i+1+n%3)%4].id()
				if err := a.lease.OpenPath(t.Context(), peer); err != nil && !errors.Is(err, endpoint.ErrNoPath) {
					t.Error(err)
				}
				if n%7 == 3 {
					if stop, err := l.mux.Capture(&peer); err == nil {
						stop()
					}
				}
			}
		})
	}
	asking.Wait()
	stop, err := l.mux.Capture(nil) // ends the others
	testutil.Must(t, err)
	stop()
	for _, a := range apps {
		a.leave()
	}
	taking.Wait()
	l.counts("all ended", apps[0], want)
	for _, a := range apps {
		a.close()
	}
	for _, f := range protocoltest.OpenDescriptors(t) {
		if strings.Contains(f, "unet-path") {
			t.Errorf("%s is open", f)
		}
	}
}
