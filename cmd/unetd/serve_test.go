//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// A unetd with default flags: its socket, the grant of an endpoint, the calls of a lease, refusals, a queue
// attachment, and the end.
func TestServe(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.socket = filepath.Join(s.socket, "..", "made", "s")
	socket := s.socket
	d := s.serve(t)
	d.awaitLine("msg=ready", "interface="+pair.A.Interface, "mode=tcx", "socket="+filepath.Clean(socket))
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}

	ctx := context.Background()
	req := endpoint.Request{Tags: []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 0))}}
	g, l, err := control.Open(ctx, socket, req)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	defer l.Close()
	if g.Identity.LinkAddr != pair.A.LinkAddr || !slices.Equal(g.Identity.Addrs, []netip.Prefix{pair.A.Addr}) || g.Identity.Mode != "tcx" || len(g.Tags) != 1 || g.Tags[0].Port == 0 {
		t.Errorf("grant %+v", g)
	}
	raw, err := g.XSK.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var domain int
	_ = raw.Control(func(fd uintptr) { domain, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	if err != nil || domain != unix.AF_XDP {
		t.Errorf("first descriptor has domain %d, %v", domain, err)
	}
	if info, err := g.Segment.Stat(); err != nil || info.Size() != g.Geometry.SegmentSize() {
		t.Errorf("segment: %v, %v", info, err)
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(5)); err != nil {
		t.Errorf("Claim: %v", err)
	}
	if r, err := l.Resolve(ctx, netip.Addr{}, pair.B.Addr.Addr()); err != nil || r.LinkAddr != pair.B.LinkAddr || r.Source != pair.A.Addr.Addr() || r.MTU != 1500 {
		t.Errorf("Resolve: %+v, %v", r, err)
	}
	if _, err := l.Resolve(ctx, netip.Addr{}, netip.MustParseAddr("192.0.2.1")); !errors.Is(err, endpoint.ErrUnreachable) {
		t.Errorf("Resolve without a route: %v", err)
	}
	// The route from a source is by the rules for it.
	gateway, source := netip.MustParseAddr("10.0.0.22"), netip.MustParseAddr("10.0.0.5")
	at := [6]byte{2, 0, 0, 0, 0, 0x22}
	if err := pair.A.Do(func() error {
		up, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		from := netlink.NewRule()
		from.Src, from.Table, from.Family = &net.IPNet{IP: source.AsSlice(), Mask: net.CIDRMask(32, 32)}, 100, netlink.FAMILY_V4
		return errors.Join(
			netlink.AddrAdd(up, &netlink.Addr{IPNet: &net.IPNet{IP: source.AsSlice(), Mask: net.CIDRMask(24, 32)}}),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: up.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: at[:]}),
			netlink.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: gateway.AsSlice(), LinkIndex: up.Attrs().Index, Table: 100}),
			netlink.RuleAdd(from))
	}); err != nil {
		t.Fatal(err)
	}
	ruled := endpoint.Route{Source: source, NextHop: gateway, LinkAddr: at, MTU: 1500}
	if r, err := l.Resolve(ctx, source, netip.MustParseAddr("192.0.2.1")); err != nil || r != ruled {
		t.Errorf("Resolve from %v: %+v, %v; want %+v", source, r, err, ruled)
	}
	for _, other := range []string{"10.0.0.6", "127.0.0.1", "fd00::1", "fe80::1%uplink"} {
		if _, err := l.Resolve(ctx, netip.MustParseAddr(other), netip.MustParseAddr("192.0.2.1")); !errors.Is(err, endpoint.ErrNoRoute) {
			t.Errorf("Resolve from %s: %v", other, err)
		}
	}
	// A refusal reaches the application with its sentinel error.
	for _, c := range []struct {
		req  endpoint.Request
		want error
	}{
		{endpoint.Request{Tags: g.Tags}, endpoint.ErrTagHeld},
		{endpoint.Request{Tags: []endpoint.Tag{endpoint.UDPTag(netip.MustParseAddrPort("192.0.2.7:9"))}}, endpoint.ErrTagDenied},
		{endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 1 << 31}}, endpoint.ErrGeometry},
		{endpoint.Request{Huge: true, Geometry: endpoint.Geometry{FrameCount: 64}}, endpoint.ErrGeometry},
		{endpoint.Request{Attach: endpoint.AttachQueue, Queue: 99}, errors.ErrUnsupported},
	} {
		if _, _, err := control.Open(ctx, socket, c.req); !errors.Is(err, c.want) {
			t.Errorf("Open(%+v): %v, want %v", c.req, err, c.want)
		}
	}
	q, ql, err := control.Open(ctx, socket, endpoint.Request{Attach: endpoint.AttachQueue})
	if err != nil {
		t.Fatalf("queue attachment: %v", err)
	}
	if _, _, err := control.Open(ctx, socket, endpoint.Request{Attach: endpoint.AttachQueue}); !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("queue attachment twice: %v", err)
	}
	ql.Close()
	q.Close()

	// The endpoint has been reclaimed when Close returns.
	l.Close()
	g2, l2, err := control.Open(ctx, socket, endpoint.Request{Tags: g.Tags})
	if err != nil {
		t.Fatalf("the tag after Close: %v", err)
	}
	defer g2.Close()
	d.stop(syscall.SIGTERM)
	<-l2.Done()
	expectDetached(t, pair.A)
}

// unetd starts again after SIGINT, and SIGINT detaches everything.
func TestRestartAfterInterrupt(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	for range 2 {
		d := s.serve(t, "--log-format", "json", "--mode", "native")
		d.awaitLine(`"msg":"ready"`, `"mode":"native"`)
		d.stop(os.Interrupt)
	}
	expectDetached(t, pair.A)
}

// Two signals at once have the effect of one: everything is detached.
func TestTwoSignals(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, nobodys))
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	// The kernel keeps the signals while the process is stopped, and then delivers both. Two of the same number
	// would be one.
	d.signal(syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCONT)
	if err := d.wait(); err != nil {
		t.Errorf("ended with %v; the last lines of its log:\n%s", err, strings.Join(d.last, "\n"))
	}
	a.expect("ended a", "lease closed: unetd was stopped")
	s.expectNothingLeft(t)
}

// A signal that comes soon after the first does not end a unetd that hangs; a later one does. Here unetd hangs
// because it waits for a service manager that does not read.
func TestLaterSignalEndsHangingUnetd(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	notify := s.socket + ".notify"
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err == nil {
		err = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: notify})
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	cmd := s.command("serve")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+notify)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.A.Start(cmd); err != nil {
		t.Fatal(err)
	}
	d := &process{t: t, cmd: cmd, socket: s.socket, stderr: make(chan string, 1000)}
	d.watch(stderr)
	d.awaitLine("msg=ready")
	d.signal(syscall.SIGTERM)
	d.awaitLine("msg=stopping", "signal=terminated")
	d.signal(syscall.SIGTERM)
	d.awaitLine("level=WARN", "still stopping")
	done := make(chan struct{})
	defer close(done)
	go func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-tick.C:
				cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
			case <-done:
				return
			}
		}
	}()
	d.awaitLine("unetd: terminated again, after ", "unetd cleanup --bpffs "+s.bpffs+" --socket "+s.socket)
	if err := d.wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
}

// unetd does not start, and says why in one line: a wrong interface or socket path, or another unetd. It leaves
// nothing behind.
func TestCannotServe(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	socket := s.socket
	file := socket + ".txt"
	if err := os.WriteFile(file, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", socket+".other")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	fails := func(host *netlab.Host, want string, args ...string) {
		t.Helper()
		code, _, stderr := finish(t, host, command(roleUnetd, append([]string{"serve", "--log-level", "error", "--bpffs", s.bpffs}, args...)...))
		if code != 1 || !strings.HasPrefix(stderr, "unetd: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("unetd %v: exit %d, %q; want %q", args, code, stderr, want)
		}
	}
	fails(pair.A, `no interface "eth9": choose one of lo, `+pair.A.Interface, "--interface", "eth9", "--socket", socket)
	fails(pair.A, "not an Ethernet interface", "--interface", "lo", "--socket", socket)
	fails(pair.A, "is not a socket", "--interface", pair.A.Interface, "--socket", file)
	fails(pair.A, "socket path in use", "--interface", pair.A.Interface, "--socket", socket+".other")
	fails(pair.A, "at most 107", "--interface", pair.A.Interface, "--socket", "/run/"+strings.Repeat("long/", 30))
	expectDetached(t, pair.A)

	fails(pair.A, "make it (mkdir -p /no/such)", "--interface", pair.A.Interface, "--socket", socket, "--bpffs", "/no/such")

	d := s.serve(t)
	fails(pair.B, "socket path in use", "--interface", pair.B.Interface, "--socket", socket)
	// Another unetd for the interface: one that sees the first one's pins, and one that does not.
	fails(pair.A, "another process serves this interface", "--interface", pair.A.Interface, "--socket", socket+".2")
	fails(pair.A, "stop the other unetd, or use another --interface", "--interface", pair.A.Interface, "--socket", socket+".2")
	otherBPFFS := netlab.BPFFS(t)
	fails(pair.A, "another process serves this interface: "+pair.A.Interface+" has program ", "--interface", pair.A.Interface, "--socket", socket+".2", "--bpffs", otherBPFFS)
	d.stop(syscall.SIGTERM)
	if b, err := os.ReadFile(file); err != nil || string(b) != "content" {
		t.Errorf("file: %q, %v", b, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(socket)); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// unetd's error has the command that detaches the program of another process: one that was attached by netlink,
// and one that a link holds, which netlink cannot detach.
func TestErrorHasCommandToDetach(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}) // XDP_PASS
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	uplink := func() (l netlink.Link) {
		t.Helper()
		if err := pair.A.Do(func() (err error) { l, err = netlink.LinkByName(pair.A.Interface); return err }); err != nil {
			t.Fatal(err)
		}
		return l
	}
	set := func(fd int) error {
		return pair.A.Do(func() error { return netlink.LinkSetXdpFdWithFlags(uplink(), fd, unix.XDP_FLAGS_SKB_MODE) })
	}
	refused := func(want string) {
		t.Helper()
		code, _, stderr := finish(t, pair.A, s.command("serve", "--log-level", "error", "--mode", "native"))
		if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("exit %d, %q, want %q", code, stderr, want)
		}
	}
	if err := set(prog.FD()); err != nil {
		t.Fatal(err)
	}
	refused("detach it (ip link set dev " + pair.A.Interface + " xdpgeneric off), or use another")
	if err := set(-1); err != nil {
		t.Error(err)
	}

	hold := func(ifindex int) (held link.Link) {
		t.Helper()
		if err := pair.A.Do(func() (err error) {
			held, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPGenericMode})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return held
	}
	const lo = 1
	elsewhere := hold(lo) // on an interface that unetd does not serve
	defer elsewhere.Close()
	held := hold(uplink().Attrs().Index)
	defer held.Close()
	info, err := held.Info()
	if err != nil {
		t.Fatal(err)
	}
	if err := set(-1); err == nil {
		t.Error("netlink detached the program that a link holds")
	}
	refused(fmt.Sprintf("detach it (bpftool link detach id %d, or stop the process that bpftool link show id %[1]d shows), or use another", info.ID))
	if err := errors.Join(elsewhere.Close(), held.Detach()); err != nil { // BPF_LINK_DETACH, as bpftool does
		t.Error(err)
	}
	s.serve(t).stop(syscall.SIGTERM)
	s.expectNothingLeft(t)
}

// unetd runs as user nobody with the capabilities that its help lists, and its error names
// each that is missing.
func TestCapabilities(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	needed := []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN, unix.CAP_IPC_LOCK, unix.CAP_SETUID}
	names := []string{"CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_IPC_LOCK", "CAP_SETUID"}
	socket := socketPath(t)
	// User nobody cannot open /proc/PID/fd of this process, so it is mounted.
	bpffs := filepath.Join(filepath.Dir(socket), "bpf")
	if err := os.Mkdir(bpffs, 0o700); err != nil {
		t.Fatal(err)
	}
	mountBPFFS(t, bpffs, 0)
	for _, dir := range []string{filepath.Dir(socket), bpffs} {
		if err := os.Chown(dir, netlab.NobodyID, netlab.NobodyID); err != nil {
			t.Fatal(err)
		}
	}
	serveWith := func(capabilities []uintptr, args ...string) *exec.Cmd {
		cmd := command(roleUnetd, append([]string{"serve", "--interface", pair.A.Interface, "--socket", socket, "--bpffs", bpffs}, args...)...)
		cmd.SysProcAttr = netlab.Nobody()
		cmd.SysProcAttr.AmbientCaps = capabilities
		return cmd
	}
	d := serveCommand(t, pair.A, socket, serveWith(needed, "--ready-fd", "3", "--policy", policyFile(t, `
rules:
  - {name: r, users: [root], tags: ["udp:*:*", "msg:*"], endpoints: 3, memory: unlimited}`)))
	for range 2 { // the quota of the second round is free when the endpoints of the first are gone
		var leases []*control.Lease
		var grants []*endpoint.Grant
		for range 3 { // more than RLIMIT_MEMLOCK's default would allow
			var g *endpoint.Grant
			var l *control.Lease
			testutil.Eventually(t, "the quota is free", func() bool {
				var err error
				g, l, err = control.Open(context.Background(), socket, endpoint.Request{Tags: []endpoint.Tag{
					endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 0)), endpoint.MessageTag(0)}})
				if err != nil && !errors.Is(err, endpoint.ErrBusy) {
					t.Fatal(err)
				}
				return err == nil
			})
			grants, leases = append(grants, g), append(leases, l)
		}
		if _, err := leases[0].Resolve(context.Background(), netip.Addr{}, pair.B.Addr.Addr()); err != nil {
			t.Error(err)
		}
		// The policy permits port 53, but this unetd lacks the capability.
		reserved := endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 53))
		if _, err := leases[0].Claim(context.Background(), reserved); policy.FirstUnprivileged() > 53 && (!errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_BIND_SERVICE")) {
			t.Errorf("port 53: %v", err)
		}
		for i := range grants {
			leases[i].Close()
			grants[i].Close()
		}
	}
	d.stop(syscall.SIGTERM)
	expectDetached(t, pair.A)
	for i, name := range names {
		var others []uintptr
		for j, c := range needed {
			if j != i {
				others = append(others, c)
			}
		}
		code, _, stderr := finish(t, pair.A, serveWith(others))
		if code != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, name+" missing: run unetd as root") {
			t.Errorf("without %s: exit %d, %q", name, code, stderr)
		}
	}
}
