package mux_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// cleanup runs Cleanup on a host and returns its reports.
func cleanup(t *testing.T, h *netlab.Host, dir string, force bool) (reports []string) {
	t.Helper()
	must(t, h.Do(func() error {
		return mux.Cleanup(dir, force, func(what string) { reports = append(reports, what) })
	}))
	return reports
}

func wantReport(t *testing.T, reports []string, path, says string) {
	t.Helper()
	i := slices.IndexFunc(reports, func(r string) bool { return strings.HasPrefix(r, path+": ") })
	if i < 0 || !strings.Contains(reports[i], says) {
		t.Errorf("reports %q, want one of %s that says %q", reports, path, says)
	}
}

// Cleanup removes what nobody serves or uses, and touches nothing else.
func TestCleanup(t *testing.T) {
	l := newPinLab(t)
	if reports := cleanup(t, l.A, l.pin, true); len(reports) != 0 {
		t.Errorf("with nothing there: %q", reports)
	}
	before := look(t, l.A)
	// What is not a mux's.
	must(t, os.MkdirAll(filepath.Join(l.pin, "unet", "somebody"), 0o700))
	must(t, os.MkdirAll(filepath.Join(l.pin, "unet", "1-2-3"), 0o700))
	must(t, l.A.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "unet9"}, PeerName: "end"})
	}))

	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	q := l.openIn(c, endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	path := slices.DeleteFunc(pinnedIn(t, l.pin), func(p string) bool { return strings.HasSuffix(p, "somebody") || strings.HasSuffix(p, "1-2-3") })[0]
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	for _, force := range []bool{false, true} {
		wantReport(t, cleanup(t, l.A, l.pin, force), path, "a process serves it")
	}
	l.echo(b, a, "it is served")
	c.kill()
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "2 of its endpoints are in use")
	wantReport(t, cleanup(t, l.B, l.pin, true), path, "another network namespace")
	l.echo(b, a, "it is used")
	a.leave()
	eventually(t, "the port is gone", func() bool { return len(look(t, l.A).links) == len(before.links)+2 })
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "1 of its endpoints are in use")
	q.leave()
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "removed")
	onDevice(t, l.A, "unet9", netlink.LinkDel) // it is still there

	// By force also what is used.
	c = l.serve(order{})
	l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.kill()
	wantReport(t, cleanup(t, l.A, l.pin, true), path, "removed")
	eventually(t, "all is as before", func() bool {
		now := look(t, l.A)
		return slices.Equal(now.links, before.links) && slices.Equal(now.cutters, before.cutters) && slices.Equal(now.xdp, before.xdp)
	})
	if !offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload stays off")
	}
	// What is left of a process that died while it opened the mux.
	c = l.serve(order{})
	c.kill()
	must(t, os.Remove(filepath.Join(path, "uplink")))
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "removed")

	for _, name := range []string{"somebody", "1-2-3"} {
		must(t, os.Remove(filepath.Join(l.pin, "unet", name)))
	}
	if left := pinnedIn(t, l.pin); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A mux whose interface is gone is removed from any namespace, and from its own with
// its ports.
func TestCleanupOfADeletedUplink(t *testing.T) {
	for _, own := range []bool{false, true} {
		l := newPinLab(t)
		c := l.serve(order{})
		a := l.openIn(c, endpoint.Request{})
		c.kill()
		path := l.onlyPins()
		must(t, l.A.Do(func() error {
			up, err := netlink.LinkByName(l.A.Interface)
			must(t, err)
			return netlink.LinkDel(up)
		}))
		from, ports := l.B, 1
		if own {
			from, ports = l.A, 0
		}
		wantReport(t, cleanup(t, from, l.pin, false), path, "its interface is gone")
		if left := pinnedIn(t, l.pin); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		if now := look(t, l.A); len(now.links) != 1+ports {
			t.Errorf("own namespace %v: %v", own, now.links)
		}
		a.leave()
		must(t, l.Pair.Close())
	}
}

// Cleanup says what it was not given.
func TestCleanupOfNoBPFFS(t *testing.T) {
	netlab.RequireXDP(t)
	dir := t.TempDir()
	if err := mux.Cleanup(dir, false, func(string) { t.Error("a report") }); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}
