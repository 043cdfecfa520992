//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/testutil"
)

// attached lists what unetd has on a host: the program on its uplink, and the devices that it has made.
func attached(t *testing.T, h *netlab.Host) string {
	t.Helper()
	var all []string
	forLinks(t, h, func(a *netlink.LinkAttrs) {
		if len(programsOf(t, a)) > 0 {
			all = append(all, fmt.Sprintf("%s:program", a.Name))
		}
		if a.Name != "lo" && a.Name != h.Interface {
			all = append(all, a.Name)
		}
	})
	return strings.Join(all, " ")
}

// forLinks calls f for each device of a host.
func forLinks(t *testing.T, h *netlab.Host, f func(*netlink.LinkAttrs)) {
	t.Helper()
	err := h.Do(func() error {
		links, err := route.Dump(netlink.LinkList)
		for _, l := range links {
			f(l.Attrs())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pins are the files that unetd keeps in the BPF file system of a site.
func (s *site) pins(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(s.bpffs+"/unet", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return names
}

// holdLinks opens the pinned links until the test ends, so that a program which is not detached
// explicitly stays attached.
func (s *site) holdLinks(t *testing.T) {
	t.Helper()
	for _, name := range s.pins(t) {
		if !strings.HasPrefix(filepath.Base(name), "link") && filepath.Base(name) != "uplink" {
			continue
		}
		l, err := link.LoadPinnedLink(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
}

// expectDetached expects that nothing of unetd is on a host.
func expectDetached(t *testing.T, h *netlab.Host) {
	t.Helper()
	if left := attached(t, h); left != "" {
		t.Errorf("left behind: %s", left)
	}
}

// expectNothingLeft expects that nothing of unetd is on the host or at the site.
func (s *site) expectNothingLeft(t *testing.T) {
	t.Helper()
	expectDetached(t, s.host)
	if left := s.pins(t); len(left) > 0 {
		t.Errorf("left pinned: %v", left)
	}
	if _, err := os.Lstat(s.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
	if tables := s.tagTables(t); len(tables) > 0 {
		t.Errorf("left: %q", tables)
	}
}

// tagTables are the files of tag tables in the folder of the socket.
func (s *site) tagTables(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(filepath.Dir(s.socket), "tags-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// programs are the programs on a host's devices.
func programs(t *testing.T, h *netlab.Host) (ids []ebpf.ProgramID) {
	t.Helper()
	forLinks(t, h, func(a *netlink.LinkAttrs) { ids = append(ids, programsOf(t, a)...) })
	return ids
}

// programsOf are the XDP program of a device and those at its traffic control ingress.
func programsOf(t *testing.T, a *netlink.LinkAttrs) (ids []ebpf.ProgramID) {
	t.Helper()
	if a.Xdp != nil && a.Xdp.Attached {
		ids = append(ids, ebpf.ProgramID(a.Xdp.ProgId))
	}
	chain, err := link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, syscall.ENODEV) {
		return nil // deleted since it was listed
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range chain.Programs {
		ids = append(ids, p.ID)
	}
	return ids
}

// SIGTERM detaches everything and ends leases with a reason.
func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, nobodys))
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	loaded := programs(t, pair.A)
	if len(loaded) < 6 || len(s.pins(t)) == 0 {
		t.Errorf("programs %v, pins %v: the uplink's, the port's, the cutter's two, and those of lo and unettop should be there", loaded, s.pins(t))
	}
	d.stop(syscall.SIGTERM)
	a.expect("ended a", "lease closed: unetd was stopped")
	s.expectNothingLeft(t)
	awaitUnloaded(t, loaded)
}

// awaitUnloaded waits until the kernel has none of these programs any more.
func awaitUnloaded(t *testing.T, ids []ebpf.ProgramID) {
	t.Helper()
	for _, id := range ids {
		testutil.Eventually(t, fmt.Sprint("program ", id, " is gone"), func() bool {
			p, err := ebpf.NewProgramFromID(id)
			if err == nil {
				p.Close()
			}
			return errors.Is(err, fs.ErrNotExist)
		})
	}
}

// The endpoints of a unetd that was killed go on. The next unetd takes over their
// leases, and counts the endpoints.
func TestRestartAfterKill(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	serve := func() *process {
		return s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, nobodys), "--grace", "20s")
	}
	d := serve()
	a, b := startApp(t, s.socket), startApp(t, s.socket)
	a.expect("open a frames=64 udp:10.0.0.1:7000 addr:10.0.0.130", "[udp:10.0.0.1:7000 addr:10.0.0.130]")
	programsOfOne := len(programs(t, pair.A))
	b.expect("open b frames=64 msg:1", "[msg:1]")
	before := attached(t, pair.A)
	d.kill()
	if after := attached(t, pair.A); after != before || !strings.Contains(after, "uplink:program") {
		t.Errorf("%q became %q", before, after)
	}
	if _, err := os.Lstat(s.socket); err != nil {
		t.Error(err)
	}
	// One ends while no unetd runs. The kernel removes its port a moment later.
	b.kill()
	testutil.Eventually(t, "its port is gone", func() bool { return len(programs(t, pair.A)) == programsOfOne })

	d = serve()
	d.awaitLine("endpoint presented", "endpoint=1", "uid=65534")
	list := s.run(t, "list")
	for _, want := range []string{" 65534(nobody) ", fmt.Sprint(" ", a.cmd.Process.Pid, " "), " 128KiB ", " leased ", "udp:10.0.0.1:7000", "addr:10.0.0.130"} {
		if !strings.Contains(list, want) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
	if strings.Count(list, "\n") != 2 {
		t.Errorf("more than one endpoint:\n%s", list)
	}
	a.expect("claim a msg:1", "msg:1")            // was b's
	a.expect("claim a udp:10.0.0.130:9", "udp:")  // on the address that it brought with it
	a.expect("open x frames=512", "busy: unetd ") // 128 KiB and 1 MiB
	a.expect("open x frames=64", "[]")
	a.expect("open y frames=64", "[]")
	a.expect("open z frames=64", "busy: unetd at "+s.socket+": busy: uid 65534 has 3 of at most 3 endpoints")
	// The endpoint that the earlier unetd granted is freed too.
	a.expect("close a", "ok")
	a.expect("drop a", "ok")
	testutil.Eventually(t, "the endpoint of the earlier unetd is freed", func() bool { return a.ask("open z frames=64") == "[]" })
	d.stop(syscall.SIGTERM)
	s.expectNothingLeft(t)
}

// Addresses come and go between the grant and the first notice, while unetd serves, and while none does. A lease learns
// of all, and of nothing else.
func TestAddressesChangeWhileNoUnetdServes(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	s := newSite(t, pair.A)
	change := func(change func(netlink.Link, *netlink.Addr) error, prefix string) {
		t.Helper()
		if err := pair.A.Do(func() error {
			up, err := netlink.LinkByName(pair.A.Interface)
			if err != nil {
				return err
			}
			addr, err := netlink.ParseAddr(prefix)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			return change(up, addr)
		}); err != nil {
			t.Fatal(err)
		}
	}
	d := s.serve(t)
	g, l, err := control.Open(t.Context(), s.socket, endpoint.Request{Geometry: smallGeometry(64), Tags: []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 7000))}})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	defer l.Close()
	known := map[netip.Prefix]bool{}
	for _, p := range g.Identity.Addrs {
		known[p] = true
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var next func() ([]endpoint.Notice, bool)
	await := func(what string, want ...string) {
		t.Helper()
		for {
			var has []string
			for p := range known {
				has = append(has, p.String())
			}
			slices.Sort(has)
			if slices.Equal(has, want) {
				return
			}
			list, more := next()
			if !more {
				t.Fatalf("%s: the lease knows %v, want %v", what, has, want)
			}
			for _, n := range list {
				switch n.Kind {
				case endpoint.NoticeAddrHere:
					maps.DeleteFunc(known, func(p netip.Prefix, _ bool) bool { return p.Addr() == n.Addr }) // another subnet
					known[netip.PrefixFrom(n.Addr, int(n.Bits))] = true
				case endpoint.NoticeAddrGone:
					before := len(known)
					maps.DeleteFunc(known, func(p netip.Prefix, _ bool) bool { return p.Addr() == n.Addr })
					if len(known) == before {
						t.Errorf("%s: %v is gone, and the lease knows %v", what, n.Addr, has)
					}
				}
			}
		}
	}
	change(netlink.AddrAdd, "10.0.0.3/24")
	change(netlink.AddrDel, "fd00::1/64")
	next, stop := iter.Pull(l.Notices(ctx))
	defer stop()
	await("before the first notice", "10.0.0.1/24", "10.0.0.3/24")
	change(netlink.AddrAdd, "fd00::5/64")
	await("while unetd serves", "10.0.0.1/24", "10.0.0.3/24", "fd00::5/64")
	d.kill()
	change(netlink.AddrDel, "10.0.0.3/24")
	change(netlink.AddrDel, "fd00::5/64")
	change(netlink.AddrAdd, "fd00::5/80")
	change(netlink.AddrAdd, "fd00::6/64")
	d = s.serve(t)
	await("while none served", "10.0.0.1/24", "fd00::5/80", "fd00::6/64")
	d.stop(syscall.SIGTERM)
}

// Endpoints whose applications do not connect in time are reclaimed, and a late application
// gets an error with the reason.
func TestReclaimAfterGrace(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.kill()
	d = s.serve(t, "--socket-mode", "0666", "--policy", file, "--grace", "1s")
	if list := s.run(t, "list"); !strings.Contains(list, " waiting ") {
		t.Errorf("%s", list)
	}
	d.awaitLine("endpoint reclaimed", "not presented within 1s")
	if list := s.run(t, "list"); list != "no endpoints\n" {
		t.Errorf("%s", list)
	}
	if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	a.expect("ended a", "lease closed: ")
	a.expect("open b frames=64 msg:1", "[msg:1]")
	d.stop(syscall.SIGTERM)
	s.expectNothingLeft(t)
}

// With --keep unetd ends and another one takes over, without an effect on applications.
func TestStopWithKeep(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file, "--keep")
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	before := attached(t, pair.A)
	d.stop(syscall.SIGTERM)
	if after := attached(t, pair.A); after != before || len(s.pins(t)) == 0 {
		t.Errorf("%q became %q, pins %v", before, after, s.pins(t))
	}
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	a.expect("claim a msg:2", "msg:2")
	if list := s.run(t, "list"); !strings.Contains(list, " leased  msg:1 msg:2\n") {
		t.Errorf("%s", list)
	}
	s.holdLinks(t)
	d.stop(syscall.SIGTERM)
	a.expect("ended a", "lease closed: unetd was stopped")
	s.expectNothingLeft(t)
}

// cleanup removes what is left when all processes have been killed, and keeps what is in use.
func TestCleanup(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	if out := s.run(t, "cleanup"); out != "nothing to clean up\n" {
		t.Errorf("%s", out)
	}
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	idle := attached(t, pair.A)
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	served := s.run(t, "cleanup", "--force")
	if !strings.Contains(served, ": kept, a process serves it\n") || !strings.Contains(served, s.socket+": kept, a unetd serves it\n") {
		t.Errorf("%s", served)
	}
	a.expect("claim a msg:2", "msg:2")

	d.kill()
	before := attached(t, pair.A)
	used := s.run(t, "cleanup")
	if !strings.Contains(used, ": kept, 1 of its endpoints are in use\n") || !strings.Contains(used, s.socket+": removed, no process serves it\n") {
		t.Errorf("%s", used)
	}
	if after := attached(t, pair.A); after != before {
		t.Errorf("%q became %q", before, after)
	}
	if tables := s.tagTables(t); len(tables) != 1 {
		t.Errorf("%q are there, want the tag table of the mux", tables)
	}
	a.kill()
	testutil.Eventually(t, "the port is gone", func() bool { return attached(t, pair.A) == idle })
	s.holdLinks(t)
	if out := s.run(t, "cleanup"); !strings.Contains(out, ": removed, no process serves it\n") {
		t.Errorf("%s", out)
	}
	s.expectNothingLeft(t)
	if out := s.run(t, "cleanup"); out != "nothing to clean up\n" {
		t.Errorf("%s", out)
	}

	// With --force also what is in use.
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	a = startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	d.kill()
	if out := s.run(t, "cleanup", "--force"); strings.Count(out, ": removed, ") != 3 {
		t.Errorf("%s", out)
	}
	s.expectNothingLeft(t)
}
