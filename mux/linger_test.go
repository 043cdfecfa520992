package mux_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// wantCounted waits until the mux counts n endpoints of a user, and their segments.
func (l *lab) wantCounted(uid uint32, n int64) {
	l.t.Helper()
	var endpoints, bytes int64
	for deadline := time.Now().Add(patience); ; {
		endpoints, bytes = l.mux.Counted(uid)
		if endpoints == n && bytes == n*small.WithDefaults().SegmentSize() {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("of uid %d %d endpoints and %d bytes are counted, want %d endpoints", uid, endpoints, bytes, n)
		}
	}
}

// wantStillCounted waits for longer than the mux waits between questions.
func (l *lab) wantStillCounted(n int64) {
	l.t.Helper()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if endpoints, _ := l.mux.Counted(0); endpoints != n {
			l.t.Errorf("%d endpoints are counted, want %d", endpoints, n)
			return
		}
	}
}

// An endpoint counts until nobody has anything of it any more, in whatever order and form
// that was kept.
func TestFreed(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
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
				l.wantCounted(0, 1)
				must(t, a.lease.Close())
				if list := l.mux.Endpoints(); len(list) != 0 {
					t.Errorf("still listed: %+v", list)
				}
				if letGo != nil {
					l.wantStillCounted(1)
					must(t, letGo())
				}
				l.wantCounted(0, 0)
			})
		}
	}
}

// What its owner never got counts no more either, nor does a request that failed.
func TestFreedWithoutAnOwner(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	g, lease, err := l.openAs(mux.Owner{PID: 42, UID: 1000}, mux.Terms{}, endpoint.Request{Geometry: small})
	must(t, err)
	l.wantCounted(1000, 1)
	must(t, errors.Join(lease.Close(), g.Close()))
	l.wantCounted(1000, 0)
	l.open(endpoint.MessageTag(7))
	for _, tags := range [][]endpoint.Tag{{endpoint.MessageTag(1), {Kind: 99}}, {{Kind: 99}}, {endpoint.MessageTag(1), endpoint.MessageTag(7)}} {
		if _, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: tags}); err == nil {
			t.Error("a request that cannot succeed did")
		}
		l.wantCounted(0, 1)
	}
	g, lease, err = l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small})
	must(t, err)
	must(t, errors.Join(g.Close(), lease.Close()))
	l.wantCounted(0, 1)
}

// A queue that another endpoint got is free of the one before.
func TestFreedQueue(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	ask := endpoint.Request{Attach: endpoint.AttachQueue}
	for range 5 {
		l.openRequest(ask).close()
	}
	last := l.openRequest(ask)
	l.wantCounted(0, 1)
	l.wantStillCounted(1)
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to nobody"))
	_, err := last.lease.Claim(t.Context(), endpoint.MessageTag(9))
	must(t, err)
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 9, 1, "to the last"))
	last.recv() // its entry was not touched by the questions about the others
}
