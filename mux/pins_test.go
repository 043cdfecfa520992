//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// bpffs mounts a bpffs until the end of a test.
func bpffs(t *testing.T) string {
	t.Helper()
	netlab.RequireXDP(t)
	dir := t.TempDir()
	testutil.Must(t, unix.Mount("bpf", dir, "bpf", 0, "mode=0700"))
	t.Cleanup(func() {
		// A process that another test starts has a copy of all descriptors until its exec.
		var err error
		for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
			if err = unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			t.Errorf("unmount: %v", err)
			unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// pinnedIn lists the muxes that are pinned.
func pinnedIn(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "unet", "*"))
	testutil.Must(t, err)
	return list
}

// onlyPins is the directory of the one mux that is pinned.
func (l *pinLab) onlyPins() string {
	l.t.Helper()
	list := pinnedIn(l.t, l.pin)
	if len(list) != 1 {
		l.t.Fatalf("pinned: %v", list)
	}
	return list[0]
}

// One process at a time serves a pinned mux and its interface.
func TestOneProcessServesPinnedMux(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	st, err := os.Stat(l.onlyPins())
	testutil.Must(t, err)
	if st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v", st.Mode())
	}
	open := func(pin string, want error) {
		t.Helper()
		if m, err := mux.Open(mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Pin: pin}); !errors.Is(err, want) {
			t.Errorf("open: %v, %v; want %v", m, err, want)
		}
	}
	open(l.pin, mux.ErrInUse)
	open("", mux.ErrInUse)
	open(bpffs(t), mux.ErrInUse)
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin})
	open(l.pin, mux.ErrInUse)
	testutil.Must(t, l.mux.Close())
	if left := pinnedIn(t, l.pin); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	l.openMux(mux.ModeAuto)
	open(l.pin, mux.ErrInUse)
	if left := pinnedIn(t, l.pin); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Pins need a bpffs.
func TestPinNeedsBPFFS(t *testing.T) {
	t.Parallel()
	p := netlab.RequirePair(t, netlab.Config{})
	for _, dir := range []string{t.TempDir(), "/nonesuch"} {
		if _, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Pin: dir}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("pin to %s: %v", dir, err)
		}
	}
}

// Pins that cannot be taken over are removed, and their endpoints end.
func TestUnusablePins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, says string
		mode       mux.Mode
		change     func(*pinLab, netlink.Link) error
	}{
		{"another mode is asked for", "tcx mode", mux.ModeNative, nil},
		{"another MAC address", "MAC address", mux.ModeAuto, func(_ *pinLab, up netlink.Link) error {
			return netlink.LinkSetHardwareAddr(up, net.HardwareAddr{2, 0, 0, 0, 0, 0x99})
		}},
		{"another version", "another version", mux.ModeAuto, func(l *pinLab, _ netlink.Link) error {
			m, err := ebpf.LoadPinnedMap(filepath.Join(l.onlyPins(), "state"), nil)
			if err != nil {
				return err
			}
			defer m.Close()
			var s bpf.State
			return errors.Join(m.Lookup(uint32(0), &s), func() error { s.Objects[0]++; return m.Put(uint32(0), s) }())
		}},
		{"generic mode, which was removed", "mode", mux.ModeAuto, func(l *pinLab, up netlink.Link) error {
			// Generic mode had the value 1, XDP and unet_cut on the uplink, and turned receive VLAN offload off.
			m, err := ebpf.LoadPinnedMap(filepath.Join(l.onlyPins(), "state"), nil)
			testutil.Must(l.t, err)
			defer m.Close()
			var s bpf.State
			testutil.Must(l.t, m.Lookup(uint32(0), &s))
			s.Mode, s.RestoreOffloads = 1, 1
			testutil.Must(l.t, m.Put(uint32(0), s))
			spec, err := bpf.LoadMux()
			testutil.Must(l.t, err)
			var old struct {
				Uplink *ebpf.Program `ebpf:"unet_uplink"`
				Cut    *ebpf.Program `ebpf:"unet_cut"`
			}
			testutil.Must(l.t, spec.LoadAndAssign(&old, nil))
			defer old.Uplink.Close()
			defer old.Cut.Close()
			testutil.Must(l.t, os.Remove(filepath.Join(l.onlyPins(), "uplink")))
			xdp, err := link.AttachXDP(link.XDPOptions{Program: old.Uplink, Interface: up.Attrs().Index, Flags: link.XDPGenericMode})
			testutil.Must(l.t, err)
			defer xdp.Close()
			testutil.Must(l.t, xdp.Pin(filepath.Join(l.onlyPins(), "uplink")))
			cut, err := link.AttachTCX(link.TCXOptions{Program: old.Cut, Attach: ebpf.AttachTCXIngress, Interface: up.Attrs().Index})
			testutil.Must(l.t, err)
			defer cut.Close()
			setOffload(l.t, l.A, "rxvlan", false)
			return cut.Pin(filepath.Join(l.onlyPins(), "link_unet_cut"))
		}},
		{"a version with another state", "another version", mux.ModeAuto, func(l *pinLab, _ netlink.Link) error {
			path := filepath.Join(l.onlyPins(), "state")
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
			if err != nil {
				return err
			}
			defer m.Close()
			return errors.Join(os.Remove(path), m.Pin(path))
		}},
		{"the uplink's link is missing", "uplink is missing", mux.ModeAuto, func(l *pinLab, _ netlink.Link) error {
			return os.Remove(filepath.Join(l.onlyPins(), "uplink"))
		}},
		{"a map is missing", "tags is missing", mux.ModeAuto, func(l *pinLab, _ netlink.Link) error {
			return os.Remove(filepath.Join(l.onlyPins(), "tags"))
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			l := newPinLab(t)
			child := l.serve(order{})
			a := l.openIn(child, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
			child.kill()
			if c.change != nil {
				testutil.Must(t, l.A.Do(func() error {
					up, err := netlink.LinkByName(l.A.Interface)
					testutil.Must(t, err)
					return c.change(l, up)
				}))
			}
			// The kernel removes a link without a pin asynchronously.
			testutil.Eventually(t, "the program can be replaced", func() bool {
				_, err := os.Stat(filepath.Join(l.onlyPins(), "uplink"))
				return err == nil || len(listObjects(t, l.A).programs) == 1
			})
			var log logBuffer
			l.openConfig(mux.Config{Pin: l.pin, Mode: c.mode, Log: slog.New(slog.NewTextHandler(&log, nil))})
			if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, c.says) {
				t.Errorf("log: %s", s)
			}
			if list := l.mux.Endpoints(); len(list) != 0 {
				t.Errorf("taken over: %+v", list)
			}
			if now := listObjects(t, l.A); len(now.links) != 2 {
				t.Errorf("ports are left: %v", now.links)
			}
			if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
				t.Errorf("present: %v", err)
			}
			l.open(udpTag("10.0.0.1:7000"))
			if c.mode != mux.ModeNative {
				onDevice(t, l.A, l.A.Interface, func(up netlink.Link) error {
					if x := up.Attrs().Xdp; x != nil && x.Attached || !offload(t, l.A, "rxvlan") {
						t.Errorf("XDP on the uplink %+v, receive VLAN offload is on %v", x, offload(t, l.A, "rxvlan"))
					}
					return nil
				})
			}
		})
	}
}

// A mux that is opened again uses the MTU and the name that the uplink has got while no process served it.
func TestUplinkChangesWhileNoProcessServes(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.kill()
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	change := func(fn func(netlink.Link) error) {
		t.Helper()
		testutil.Must(t, l.A.Do(func() error {
			up, err := netlink.LinkByName(l.A.Interface)
			testutil.Must(t, err)
			return fn(up)
		}))
	}
	change(func(up netlink.Link) error { return netlink.LinkSetMTU(up, 1400) })
	c = l.serve(order{})
	change(func(up netlink.Link) error { return netlink.LinkSetMTU(up, 1600) })
	c.kill()
	change(func(up netlink.Link) error {
		return errors.Join(netlink.LinkSetDown(up), netlink.LinkSetName(up, "renamed"), netlink.LinkSetUp(up))
	})
	l.A.Interface = "renamed"
	l.openConfig(mux.Config{Pin: l.pin})
	l.present(a)
	if id := l.mux.Identity(); id.MTU != 1500 || id.Interface != "renamed" { // the limit of the programs
		t.Errorf("identity %+v", id)
	}
	r, err := a.lease.Resolve(t.Context(), netip.Addr{}, l.B.Addr.Addr())
	testutil.Must(t, err)
	if r.MTU != 1500 {
		t.Errorf("route %+v", r)
	}
	l.echo(b, a, "hello")
}

// Open waits for the lock of a dying process.
func TestOpenWaitsForLockOfDyingProcess(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	opens, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	testutil.Must(t, err)
	events := os.NewFile(uintptr(opens), "inotify")
	defer events.Close()
	_, err = unix.InotifyAddWatch(opens, l.onlyPins(), unix.IN_OPEN)
	testutil.Must(t, err)
	opened := make(chan error, 1)
	go func() {
		m, err := mux.Open(mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Pin: l.pin})
		if err == nil {
			err = m.Close()
		}
		opened <- err
		events.Close() // ends the Read below, also if Open did not wait
	}()
	for range 2 { // Open tries again
		_, err := events.Read(make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1))
		if err != nil {
			t.Fatalf("Open did not wait: %v", <-opened)
		}
	}
	c.kill()
	testutil.Must(t, <-opened)
}

// The process that closes the mux restores receive VLAN offload, which another process turned off.
func TestVLANOffloadIsRestoredAfterTakeover(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	if !offload(t, l.A, "rxvlan") {
		t.Fatal("receive VLAN offload is off before")
	}
	l.serve(order{Mode: mux.ModeNative}).kill()
	if offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload is on while no process serves the mux")
	}
	c := l.serve(order{Mode: mux.ModeNative})
	setOffload(t, l.A, "rxvlan", true)
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin})
	if offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload is on while the mux is open")
	}
	testutil.Must(t, l.mux.Close())
	if !offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload is off after Close")
	}
}

// Open removes the pins of any uplink that is gone.
func TestOpenRemovesPinsOfDeletedUplink(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	c.kill()
	gone := l.onlyPins()
	testutil.Must(t, l.A.Do(func() error {
		up, err := netlink.LinkByName(l.A.Interface)
		testutil.Must(t, err)
		return netlink.LinkDel(up)
	}))
	elsewhere := netlab.RequirePair(t, netlab.Config{}) // of another namespace
	m, err := mux.Open(mux.Config{Interface: elsewhere.A.Interface, NetNS: elsewhere.A.NS, Pin: l.pin})
	testutil.Must(t, err)
	defer m.Close()
	if list := pinnedIn(t, l.pin); len(list) != 1 || slices.Contains(list, gone) {
		t.Errorf("pinned: %v, and %s is of an interface that is gone", list, gone)
	}
	a.closeDescriptors()
}

// After Abandon another mux takes over, also one of the same process.
func TestAbandon(t *testing.T) {
	netlab.RequireXDP(t)
	openLastingDescriptors(t)
	l := newPinLab(t)
	before := listObjects(t, l.A)
	l.openConfig(mux.Config{Pin: l.pin})
	a := l.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, l.B, "10.0.0.2:0")
	b.SetReadDeadline(time.Time{})
	l.echo(b, a, "before")
	for n := range 3 {
		testutil.Must(t, l.mux.Abandon())
		testutil.Must(t, errors.Join(l.mux.Abandon(), l.mux.Close(), a.lease.Close(), a.lease.Close()))
		select {
		case <-a.lease.Done():
		default:
			t.Error("the lease has not ended")
		}
		if err := a.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrClosed) {
			t.Errorf("ended by %v", err)
		}
		if _, err := a.lease.Claim(t.Context(), endpoint.MessageTag(0)); !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("claim: %v", err)
		}
		l.echo(b, a, fmt.Sprint("abandoned ", n))
		l.openConfig(mux.Config{Pin: l.pin})
		l.present(a)
		l.echo(b, a, fmt.Sprint("taken over ", n))
	}
	testutil.Must(t, l.mux.Close())
	a.close()
	b.Close()
	wantObjects(t, l.A, before)
	l.openMux(mux.ModeAuto)
	if err := l.mux.Abandon(); err == nil {
		t.Error("a mux without pins was abandoned")
	}
	l.open()
}

// cleanup runs Cleanup on a host and returns its reports.
func cleanup(t *testing.T, h *netlab.Host, dir string, force bool) (reports []string) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
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

// Cleanup removes muxes that are neither served nor used, and nothing else.
func TestCleanup(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	if reports := cleanup(t, l.A, l.pin, true); len(reports) != 0 {
		t.Errorf("with nothing there: %q", reports)
	}
	before := listObjects(t, l.A)
	// Directories of other programs.
	testutil.Must(t, os.MkdirAll(filepath.Join(l.pin, "unet", "somebody"), 0o700))
	testutil.Must(t, os.MkdirAll(filepath.Join(l.pin, "unet", "1-2-3"), 0o700))
	testutil.Must(t, l.A.Do(func() error {
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
	l.echo(b, a, "while a process serves the mux")
	c.kill()
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "2 of its endpoints are in use")
	wantReport(t, cleanup(t, l.B, l.pin, true), path, "another network namespace")
	l.echo(b, a, "while no process serves the mux")
	a.closeDescriptors()
	testutil.Eventually(t, "the port is gone", func() bool { return len(listObjects(t, l.A).links) == len(before.links)+2 })
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "1 of its endpoints are in use")
	q.closeDescriptors()
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "removed")
	onDevice(t, l.A, "unet9", netlink.LinkDel) // Cleanup has not deleted it

	// With force also muxes in use.
	c = l.serve(order{})
	l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.kill()
	wantReport(t, cleanup(t, l.A, l.pin, true), path, "removed")
	testutil.Eventually(t, "the devices and programs are as before", func() bool { return listObjects(t, l.A).sameDevices(before) })
	if !offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload stays off")
	}
	// The pins of a process that died while it opened the mux.
	c = l.serve(order{})
	c.kill()
	testutil.Must(t, os.Remove(filepath.Join(path, "uplink")))
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "removed")

	for _, name := range []string{"somebody", "1-2-3"} {
		testutil.Must(t, os.Remove(filepath.Join(l.pin, "unet", name)))
	}
	if left := pinnedIn(t, l.pin); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// If Cleanup cannot read the tags, and so cannot remove their classification rules, its error says so. It
// restores receive VLAN offload and removes the pins all the same.
func TestCleanupWithUnreadableTags(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	l.serve(order{Mode: mux.ModeNative}).kill()
	path := l.onlyPins()
	testutil.Must(t, os.Remove(filepath.Join(path, bpf.MuxMapTags)))
	testutil.Must(t, os.Mkdir(filepath.Join(path, bpf.MuxMapTags), 0o700)) // it cannot be opened as a map
	err := l.A.Do(func() error { return mux.Cleanup(l.pin, true, func(string) {}) })
	if err == nil || !strings.Contains(err.Error(), "classification rules may be left") {
		t.Errorf("got %v", err)
	}
	if !offload(t, l.A, "rxvlan") {
		t.Error("receive VLAN offload stays off")
	}
	if left, err := os.ReadDir(path); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	wantReport(t, cleanup(t, l.A, l.pin, false), path, "removed")
}

// Cleanup in any network namespace removes a mux whose interface is gone. Its ports are removed only by Cleanup in
// its own namespace.
func TestCleanupOfDeletedUplink(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		l := newPinLab(t)
		c := l.serve(order{})
		a := l.openIn(c, endpoint.Request{})
		c.kill()
		path := l.onlyPins()
		testutil.Must(t, l.A.Do(func() error {
			up, err := netlink.LinkByName(l.A.Interface)
			testutil.Must(t, err)
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
		if now := listObjects(t, l.A); len(now.links) != 1+ports {
			t.Errorf("own namespace %v: %v", own, now.links)
		}
		a.closeDescriptors()
		testutil.Must(t, l.Pair.Close())
	}
}

// Cleanup of a directory that is not a bpffs returns an error.
func TestCleanupNeedsBPFFS(t *testing.T) {
	netlab.RequireXDP(t)
	dir := t.TempDir()
	if err := mux.Cleanup(dir, false, func(string) { t.Error("a report") }); err == nil || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}
