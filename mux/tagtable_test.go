//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// tagView is an application's view of the tag table.
type tagView struct {
	*tagtable.View
	t *testing.T
}

// view opens the tag table of an endpoint.
func (a *app) view() tagView {
	a.t.Helper()
	v, err := tagtable.Open(testutil.Value(os.Open(fmt.Sprint("/proc/self/fd/", a.grant.Table.Fd()))))
	testutil.Must(a.t, err)
	a.t.Cleanup(func() { testutil.Must(a.t, v.Close()) })
	return tagView{v, a.t}
}

func (v tagView) holder(t endpoint.Tag) uint64 {
	proto := wire.ProtocolUDP
	if t.Kind == endpoint.TagTCP {
		proto = wire.ProtocolTCP
	}
	return v.Holder(wire.AddrFrom(t.Addr), proto, t.LastPort())
}

func (v tagView) want(what string, t endpoint.Tag, id uint64) {
	v.t.Helper()
	if got := v.holder(t); got != id {
		v.t.Errorf("%s: endpoint %d holds %v, want %d", what, got, t, id)
	}
}

// The tag table follows the claim table.
func TestTagTable(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	var (
		port      = udpTag("10.0.0.1:7000")
		block     = tcpBlock("[fd00::1]:40000")
		owned     = endpoint.AddrTag(netip.MustParseAddr("10.0.0.77"))
		portOnIt  = udpTag("10.0.0.77:7000")
		onSecond  = udpTag("10.0.0.3:7000")
		aQueueHas = udpTag("10.0.0.1:7001")
	)
	a := l.open(port, block, endpoint.MessageTag(7), udpTag("224.0.0.99:7000"), onSecond)
	b := l.open()
	q := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{aQueueHas}})
	if q.grant.Table != nil {
		t.Error("an endpoint on a queue has the tag table")
	}
	v := a.view()
	check := func(what string) {
		t.Helper()
		if err := l.mux.CheckTagTable(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("opened")
	v.want("opened", port, a.grant.ID)
	v.want("opened", block, a.grant.ID)
	v.want("opened", aQueueHas, q.grant.ID)

	for _, tag := range []endpoint.Tag{owned, portOnIt} {
		_, err := b.lease.Claim(t.Context(), tag)
		testutil.Must(t, err)
		check("claimed")
	}
	v.want("an owned address", owned, b.grant.ID)
	testutil.Must(t, errors.Join(b.lease.Unclaim(t.Context(), portOnIt)))
	v.want("its port given back", portOnIt, b.grant.ID)
	testutil.Must(t, errors.Join(b.lease.Unclaim(t.Context(), owned)))
	v.want("given back", owned, 0)

	addrOff(t, l.A, l.A.Interface, "10.0.0.3/24")
	testutil.Eventually(t, "the tag is suspended", func() bool { return v.holder(onSecond) == 0 })
	check("suspended")
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	testutil.Eventually(t, "the tag is in effect again", func() bool { return v.holder(onSecond) == a.grant.ID })
	addrOff(t, l.A, l.A.Interface, "10.0.0.3/24")
	testutil.Eventually(t, "the tag is suspended again", func() bool { return v.holder(onSecond) == 0 })
	testutil.Must(t, a.lease.Unclaim(t.Context(), onSecond)) // while it is suspended
	check("a suspended tag given back")
}

// A tag moves from one endpoint to another and back. Meanwhile the tag table never shows another holder.
func TestTagTableWhileTagMoves(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	tags := []endpoint.Tag{udpTag("10.0.0.1:7000"), tcpBlock("10.0.0.1:40000")}
	a, b, other := l.open(tags...), l.open(), l.open(udpTag("10.0.0.1:7001"))
	v := other.view()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, tag := range tags {
				if got := v.holder(tag); got != 0 && got != a.grant.ID && got != b.grant.ID {
					t.Errorf("endpoint %d holds %v", got, tag)
				}
			}
			if got := v.holder(other.grant.Tags[0]); got != other.grant.ID {
				t.Errorf("endpoint %d holds a tag that does not move", got)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	from, to := a, b
	for range 20 {
		for _, tag := range tags {
			testutil.Must(t, from.lease.Unclaim(t.Context(), tag))
			_, err := to.lease.Claim(t.Context(), tag)
			testutil.Must(t, err)
		}
		from, to = to, from
	}
	close(stop)
	<-done
}

// When a lease ends, all paths of its endpoint have ended before the table shows that its tags are free.
func TestEndOfLeaseEndsPathsFirst(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	tag := udpTag("10.0.0.1:7000")
	a, b := l.open(tag), l.open()
	v := b.view()
	mine, others := v.Epoch(a.grant.ID), v.Epoch(b.grant.ID)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for v.holder(tag) != 0 {
		}
		if v.Epoch(a.grant.ID) == mine {
			t.Error("the tag is free, and the paths of its endpoint have not ended")
		}
	}()
	a.close()
	<-watched
	if v.Epoch(b.grant.ID) != others {
		t.Error("the paths of another endpoint have ended, too")
	}
}

// A process takes over a pinned mux, and the tag table.
func TestTakeoverOfTagTable(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	dir := t.TempDir()
	files := func() []string { return testutil.Value(filepath.Glob(filepath.Join(dir, "*"))) }
	l.openConfig(mux.Config{Pin: l.pin, Dir: dir})
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	tag, lost := udpTag("10.0.0.1:7000"), udpTag("10.0.0.3:7000")
	block := tcpBlock("10.0.0.1:40000")
	a := l.open(tag, lost, block)
	v := a.view()
	before := v.Epoch(a.grant.ID)
	if len(files()) != 1 {
		t.Fatalf("the directory has %q, want one file", files())
	}
	testutil.Must(t, l.mux.Abandon())
	v.want("abandoned", tag, a.grant.ID)
	v.want("abandoned", lost, a.grant.ID)
	if v.Epoch(a.grant.ID) != before {
		t.Error("paths have ended with the mux's process")
	}

	// An Open that fails leaves the endpoint.
	_, err := mux.Open(mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Pin: l.pin, Dir: filepath.Join(dir, "missing")})
	if !errors.Is(err, mux.ErrTagTable) || strings.Contains(err.Error(), "\n") {
		t.Errorf("no such directory: %v", err)
	}
	v.want("a failed takeover", tag, a.grant.ID)

	addrOff(t, l.A, l.A.Interface, "10.0.0.3/24")
	l.openConfig(mux.Config{Pin: l.pin, Dir: dir})
	l.present(a)
	v.want("taken over", tag, a.grant.ID)
	v.want("taken over", block, a.grant.ID)
	testutil.Eventually(t, "the tag of the lost address is suspended", func() bool { return v.holder(lost) == 0 })
	testutil.Must(t, l.mux.CheckTagTable())
	if v.Epoch(a.grant.ID) == before {
		t.Error("paths outlive the takeover")
	}
	testutil.Must(t, l.mux.Close())
	v.want("closed", tag, 0)
	if len(files()) != 0 {
		t.Errorf("%q are left", files())
	}
}

// Without a directory a pinned mux has no tag table. A directory that is missing leaves nothing behind.
func TestPinnedMuxWithoutTagTable(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	cfg := mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Pin: l.pin, Dir: filepath.Join(t.TempDir(), "missing")}
	if _, err := mux.Open(cfg); !errors.Is(err, mux.ErrTagTable) || strings.Contains(err.Error(), "\n") {
		t.Errorf("no such directory: %v", err)
	}
	cfg.Dir = ""
	m, err := mux.Open(cfg)
	testutil.Must(t, err)
	g, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	testutil.Must(t, err)
	if g.Table != nil {
		t.Error("the grant has a tag table")
	}
	testutil.Must(t, errors.Join(g.Close(), lease.Close(), m.Close()))
}
