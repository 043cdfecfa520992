package mux_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// freedLab is a lab whose mux tells what is freed.
func freedLab(t *testing.T) (*lab, chan endpoint.Info) {
	t.Helper()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	freed := make(chan endpoint.Info, 100)
	l.openConfig(mux.Config{Freed: func(e endpoint.Info) { freed <- e }})
	return l, freed
}

// next is what is freed next.
func next(t *testing.T, freed <-chan endpoint.Info) (e endpoint.Info) {
	t.Helper()
	select {
	case e = <-freed:
	case <-time.After(patience):
		t.Fatal("nothing is freed")
	}
	return e
}

// An endpoint is freed when nobody has anything of it any more, in whatever order and form
// that was kept, and not before.
func TestFreed(t *testing.T) {
	l, freed := freedLab(t)
	for name, keep := range map[string]func(a *app) (letGo func() error){
		"nothing": func(a *app) func() error {
			must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.grant.Segment.Close()))
			return nil
		},
		"the socket": func(a *app) func() error {
			fd, err := unix.FcntlInt(a.grant.XSK.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			must(t, errors.Join(err, a.sock.Close(), xsk.UnmapSegment(a.mem), a.grant.Segment.Close()))
			return func() error { return unix.Close(fd) }
		},
		"a ring": func(a *app) func() error {
			must(t, errors.Join(a.grant.XSK.Close(), xsk.UnmapSegment(a.mem), a.grant.Segment.Close()))
			return a.sock.Detach
		},
		"the segment": func(a *app) func() error {
			must(t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem)))
			return a.grant.Segment.Close
		},
		"a mapping of the segment": func(a *app) func() error {
			must(t, errors.Join(a.sock.Close(), a.grant.Segment.Close()))
			return func() error { return xsk.UnmapSegment(a.mem) }
		},
		"a page of it, to read": func(a *app) func() error {
			page, err := unix.Mmap(int(a.grant.Segment.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			must(t, errors.Join(err, a.sock.Close(), xsk.UnmapSegment(a.mem), a.grant.Segment.Close()))
			return func() error { return unix.Munmap(page) }
		},
	} {
		for _, attach := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
			t.Run(name+", "+attach.String(), func(t *testing.T) {
				a := l.openRequest(endpoint.Request{Attach: attach, Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
				before := l.mux.Endpoints()
				if len(before) != 1 {
					t.Fatalf("endpoints %+v", before)
				}
				letGo := keep(a)
				a.sock = nil
				select {
				case e := <-freed:
					t.Errorf("freed with its lease: %+v", e)
				default:
				}
				must(t, a.lease.Close())
				if list := l.mux.Endpoints(); len(list) != 0 {
					t.Errorf("still listed: %+v", list)
				}
				if letGo != nil {
					select {
					case e := <-freed:
						t.Errorf("freed, and somebody holds it: %+v", e)
					case <-time.After(300 * time.Millisecond): // for longer than the mux waits between questions
					}
					must(t, letGo())
				}
				e := next(t, freed)
				if e.ID != a.grant.ID || e.PID != before[0].PID || e.UID != before[0].UID || e.SegmentBytes != small.WithDefaults().SegmentSize() || e.Attach != attach {
					t.Errorf("freed %+v, was %+v", e, before[0])
				}
			})
		}
	}
	if len(freed) != 0 {
		t.Errorf("freed again: %+v", <-freed)
	}
}

// Also what its owner never got is freed, and a request that fails is nobody's.
func TestFreedWithoutAnOwner(t *testing.T) {
	l, freed := freedLab(t)
	g, lease, err := l.mux.OpenEndpointFor(t.Context(), mux.Owner{PID: 42, UID: 1000}, mux.Terms{}, endpoint.Request{Geometry: small})
	must(t, err)
	must(t, errors.Join(lease.Close(), g.Close()))
	if e := next(t, freed); e.ID != g.ID || e.PID != 42 || e.UID != 1000 {
		t.Errorf("freed %+v", e)
	}
	for _, tags := range [][]endpoint.Tag{{endpoint.MessageTag(1), {Kind: 99}}, {{Kind: 99}}} {
		if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: tags}); err == nil {
			t.Error("a request that cannot succeed did")
		}
	}
	g, lease, err = l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
	must(t, err)
	must(t, errors.Join(g.Close(), lease.Close()))
	if e := next(t, freed); e.ID != g.ID {
		t.Errorf("freed %+v, want endpoint %d", e, g.ID)
	}
}

// A queue that another endpoint got is free of the one before.
func TestFreedQueue(t *testing.T) {
	l, freed := freedLab(t)
	ask := endpoint.Request{Attach: endpoint.AttachQueue}
	want := map[uint64]bool{}
	for range 5 {
		a := l.openRequest(ask)
		want[a.grant.ID] = true
		a.close()
	}
	last := l.openRequest(ask)
	for len(want) > 0 {
		e := next(t, freed)
		if !want[e.ID] {
			t.Fatalf("freed %+v, want %v", e, want)
		}
		delete(want, e.ID)
	}
	select {
	case e := <-freed:
		t.Errorf("freed %+v", e)
	case <-time.After(100 * time.Millisecond):
	}
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to nobody"))
	_, err := last.lease.Claim(t.Context(), endpoint.MessageTag(9))
	must(t, err)
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to the last"))
	last.recv() // its entry was not touched by the questions about the others
}
