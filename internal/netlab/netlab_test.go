//go:build linux

package netlab_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
)

func listenUDP(t *testing.T, h *netlab.Host) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.Addr.Addr(), 0)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// TestDatagramsCrossCableBothWays: datagrams of the hosts' kernels arrive with the address of the sender.
func TestDatagramsCrossCableBothWays(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	a, b := listenUDP(t, p.A), listenUDP(t, p.B)
	buf := make([]byte, 64)
	for hop, c := range []struct{ from, to *net.UDPConn }{{a, b}, {b, a}} {
		want := fmt.Sprintf("hop %d", hop)
		to := c.to.LocalAddr().(*net.UDPAddr).AddrPort()
		if _, err := c.from.WriteToUDPAddrPort([]byte(want), to); err != nil {
			t.Fatal(err)
		}
		n, from, err := c.to.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(buf[:n]); got != want || from != c.from.LocalAddr().(*net.UDPAddr).AddrPort() {
			t.Errorf("got %q from %v", got, from)
		}
	}
}

// TestEchoServiceOverBothFamilies: the echo service of one host answers the other over UDP and TCP, over IPv4 and
// IPv6, until it is closed.
func TestEchoServiceOverBothFamilies(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	for _, addr := range []netip.Addr{p.A.Addr.Addr(), p.A.Addr6.Addr()} {
		at := netip.AddrPortFrom(addr, 7).String()
		echo, err := p.A.ServeEcho(at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo.Close() })
		for _, network := range []string{"udp", "tcp"} {
			c, err := p.B.Dial(network, at)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			c.SetDeadline(time.Now().Add(time.Minute))
			buf := make([]byte, 64)
			text := "over " + network
			if _, err := c.Write([]byte(text)); err != nil {
				t.Error(err)
			}
			if n, err := c.Read(buf); err != nil || string(buf[:n]) != text {
				t.Errorf("%s %s: %q, %v", network, at, buf[:n], err)
			}
		}
		if err := echo.Close(); err != nil {
			t.Error(err)
		}
		if c, err := p.B.Dial("tcp", at); err == nil {
			c.Close()
			t.Errorf("%s answers after Close", at)
		}
	}
}

// TestBPFFS: a pin is found by its path, and is removed with the file system.
func TestBPFFS(t *testing.T) {
	netlab.RequireXDP(t)
	dir, err := netlab.OpenBPFFS("0755")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(netlab.PathTo(dir), "some", "folder")
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Type != unix.BPF_FS_MAGIC {
		t.Errorf("file system of type %#x, %v", st.Type, err)
	}
	if info, err := os.Stat(netlab.PathTo(dir)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("root directory: %v, %v", info.Mode(), err)
	}
	other := exec.Command("test", "-d", path) // another process of root
	if err := other.Run(); err != nil {
		t.Errorf("seen from another process: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), path) {
		t.Errorf("it is mounted: %v", err)
	}
	dir.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
}

func TestInterfaceIsAsConfigured(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{MTU: 9000})
	for _, h := range []*netlab.Host{p.A, p.B} {
		err := h.Do(func() error {
			links, err := route.Dump(netlink.LinkList)
			if err != nil {
				return err
			}
			if len(links) != 2 {
				t.Errorf("host %s has %d interfaces, want lo and the cable", h.Name, len(links))
			}
			l, err := netlink.LinkByName(h.Interface)
			if err != nil {
				return err
			}
			at := l.Attrs()
			if at.MTU != 9000 || at.NumRxQueues != 1 || at.NumTxQueues != 1 || at.HardwareAddr.String() != h.LinkAddr.String() {
				t.Errorf("host %s: %+v", h.Name, at)
			}
			addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			if len(addrs) != 1 || addrs[0].IPNet.String() != h.Addr.String() {
				t.Errorf("host %s: addresses %v, want only %v", h.Name, addrs, h.Addr)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// namespaces lists the network namespaces that the threads of this process
// are in.
func namespaces(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, l := range links {
		id, err := os.Readlink(l)
		if err != nil {
			continue // the thread has ended
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// interfaces lists the ends of cables that this process's namespace has: there should
// be none.
func interfaces(t *testing.T) []string {
	t.Helper()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range ifs {
		if slices.Contains([]string{netlab.Interface, netlab.MiddleA, netlab.MiddleB}, i.Name) { // the machine may have other interfaces, which change
			names = append(names, i.Name)
		}
	}
	return names
}

// TestCloseOfPairFreesDescriptorsAndNamespaces: Close kills the processes on the hosts, and leaves no descriptor,
// namespace or interface.
func TestCloseOfPairFreesDescriptorsAndNamespaces(t *testing.T) {
	netlab.RequireXDP(t)
	for _, cfg := range []netlab.Config{{}, {Cut: true}, {Routed: true}} {
		testCloseOfPair(t, cfg)
	}
}

func testCloseOfPair(t *testing.T, cfg netlab.Config) {
	round := func() {
		p, err := netlab.NewPair(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.A.Do(func() error { return p.B.Do(func() error { return nil }) }); err != nil {
			t.Error(err)
		}
		sleeper := exec.Command("sleep", "1000")
		sleeper.SysProcAttr = netlab.Nobody()
		if err := p.A.Start(sleeper); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
		var exit *exec.ExitError
		if err := sleeper.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("process on a closed pair: %v, want killed", err)
		}
		if err := p.A.Do(func() error { return nil }); !errors.Is(err, netlab.ErrClosed) {
			t.Errorf("Do on a closed pair: %v", err)
		}
		if err := p.A.Start(exec.Command("true")); !errors.Is(err, netlab.ErrClosed) {
			t.Errorf("Start on a closed pair: %v", err)
		}
	}
	round() // opens what the runtime keeps open: its poller
	fds, nets, ifs := descriptors(t), namespaces(t), interfaces(t)
	for range 3 {
		round()
	}
	if got := descriptors(t); got != fds {
		t.Errorf("%d descriptors open, %d before", got, fds)
	}
	if got := namespaces(t); !slices.Equal(got, nets) {
		t.Errorf("threads are in namespaces %v, before in %v", got, nets)
	}
	if got := interfaces(t); !slices.Equal(got, ifs) {
		t.Errorf("the machine's interfaces are %v, before %v", got, ifs)
	}
}

// TestDoRestoresNamespaceAfterPanicAndGoexit: if the function of Do panics or ends its goroutine, the thread is in
// its own namespace afterwards.
func TestDoRestoresNamespaceAfterPanicAndGoexit(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := func() string {
		id, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	before := here()
	func() {
		defer func() { recover() }()
		p.A.Do(func() error {
			if here() == before {
				t.Error("Do did not enter the host")
			}
			panic("in the host")
		})
	}()
	if got := here(); got != before {
		t.Errorf("after a panic in namespace %s, before in %s", got, before)
	}
	back := make(chan string, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer func() { back <- here() }()
		p.A.Do(func() error { runtime.Goexit(); return nil })
	}()
	if got := <-back; got != before {
		t.Errorf("after Goexit in namespace %s, before in %s", got, before)
	}
}

// status reads one field of a child's /proc/self/status.
func status(t *testing.T, out []byte, field string) string {
	t.Helper()
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	t.Fatalf("no %s in\n%s", field, out)
	return ""
}

func TestStartOnPinsUnprivilegedProcess(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	cpus, err := netlab.Processors()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) != runtime.NumCPU() {
		t.Errorf("processors %v, the runtime counts %d", cpus, runtime.NumCPU())
	}
	cpu := cpus[len(cpus)-1]
	var out strings.Builder
	cmd := exec.Command("sh", "-c", "cat /proc/self/status; readlink /proc/self/ns/net; cat /proc/net/dev")
	cmd.SysProcAttr = netlab.Nobody()
	cmd.Stdout = &out
	if err := p.B.StartOn(cmd, cpu); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	got := []byte(out.String())
	id := fmt.Sprint(netlab.NobodyID)
	for field, want := range map[string]string{
		"Cpus_allowed_list": fmt.Sprint(cpu),
		"Uid":               strings.Join([]string{id, id, id, id}, " "),
		"Gid":               strings.Join([]string{id, id, id, id}, " "),
		"Groups":            "",
		"CapPrm":            "0000000000000000",
		"CapEff":            "0000000000000000",
		"CapAmb":            "0000000000000000",
	} {
		if v := status(t, got, field); v != want {
			t.Errorf("%s: %q, want %q", field, v, want)
		}
	}
	if !strings.Contains(out.String(), p.B.Interface+":") {
		t.Errorf("child does not see %s:\n%s", p.B.Interface, out.String())
	}
	if home, _ := os.Readlink("/proc/self/ns/net"); strings.Contains(out.String(), home) {
		t.Error("child runs in the machine's own namespace")
	}
	cmd = exec.Command("cat", "/proc/self/status")
	cmd.Stdout = &out
	out.Reset()
	if err := p.B.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := status(t, []byte(out.String()), "Cpus_allowed_list"), status(t, all, "Cpus_allowed_list"); got != want {
		t.Errorf("an unpinned process may run on %s, want %s", got, want)
	}
}

func TestStartOnRefusesMissingProcessor(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	if err := p.A.StartOn(exec.Command("true"), 1000); !errors.Is(err, unix.EINVAL) {
		t.Errorf("got %v, want EINVAL", err)
	}
}

// TestCutCableCarriesNoFrames: the ends of a cut cable exist and are up, and no frame crosses from one to the
// other.
func TestCutCableCarriesNoFrames(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{Cut: true, MTU: 2000, IPv6: true})
	a, b := listenUDP(t, p.A), listenUDP(t, p.B)
	if _, err := a.WriteToUDPAddrPort([]byte("lost"), b.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
		t.Fatal(err)
	}
	err := p.Middle.Do(func() error {
		for _, name := range []string{netlab.MiddleA, netlab.MiddleB} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			at := l.Attrs()
			if at.MTU != 2000 || at.Flags&net.FlagUp == 0 || at.NumTxQueues != 1 {
				t.Errorf("%s: %+v", name, at)
			}
			if at.Statistics.TxPackets != 0 {
				t.Errorf("%s has sent %d frames", name, at.Statistics.TxPackets)
			}
			if name == netlab.MiddleA && at.Statistics.RxPackets == 0 {
				t.Errorf("%s has received nothing", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRouterForwards: what crosses a routed pair was forwarded once by the middle, which has an address
// of its own on A's side.
func TestRouterForwards(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{Routed: true})
	a, b, middle := listenUDP(t, p.A), listenUDP(t, p.B), listenUDP(t, p.Middle)
	for _, to := range []*net.UDPConn{b, middle} {
		if _, err := a.WriteToUDPAddrPort([]byte("there"), to.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
		var buf [16]byte
		n, from, err := to.ReadFromUDPAddrPort(buf[:])
		if err != nil || string(buf[:n]) != "there" || from.Addr().Unmap() != p.A.Addr.Addr() {
			t.Errorf("%q from %v, %v", buf[:n], from, err)
		}
	}
	if n, err := p.Middle.Counted("IpForwDatagrams"); err != nil || n != 1 {
		t.Errorf("forwarded %d datagrams, %v", n, err)
	}
}

// TestPairsHaveSeparateNetworks: hosts of two pairs have the same addresses, and datagrams stay on their pair.
func TestPairsHaveSeparateNetworks(t *testing.T) {
	p, q := netlab.RequirePair(t, netlab.Config{}), netlab.RequirePair(t, netlab.Config{})
	onP := listenUDP(t, p.B)
	at := onP.LocalAddr().(*net.UDPAddr).AddrPort()
	var onQ *net.UDPConn
	err := q.B.Do(func() (err error) {
		onQ, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	if err != nil {
		t.Fatalf("the same address and port on another pair: %v", err)
	}
	defer onQ.Close()
	onQ.SetDeadline(time.Now().Add(time.Minute))
	for _, c := range []struct {
		text     string
		from     *netlab.Host
		received *net.UDPConn
	}{{"on pair q", q.A, onQ}, {"on pair p", p.A, onP}} {
		if _, err := listenUDP(t, c.from).WriteToUDPAddrPort([]byte(c.text), at); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		if n, err := c.received.Read(buf); err != nil || string(buf[:n]) != c.text {
			t.Errorf("received %q, %v; want %q", buf[:n], err, c.text)
		}
	}
}

// TestUseCongestion: connections of both families use the congestion control that was set, and those of the other
// host do not.
func TestUseCongestion(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	algorithm := func(h, to *netlab.Host, at string) string {
		l, err := to.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := h.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var name string
		raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	at4, at6 := net.JoinHostPort(p.B.Addr.Addr().String(), "0"), net.JoinHostPort(p.B.Addr6.Addr().String(), "0")
	before := algorithm(p.A, p.B, at4)
	for _, name := range []string{"reno", "cubic"} {
		if err := p.A.UseCongestion(name); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{at4, at6} {
			if got := algorithm(p.A, p.B, at); got != name {
				t.Errorf("to %s: %s, want %s", at, got, name)
			}
		}
	}
	if got := algorithm(p.B, p.A, net.JoinHostPort(p.A.Addr.Addr().String(), "0")); got != before {
		t.Errorf("the other host's: %s, want %s", got, before)
	}
	if err := p.A.UseCongestion("none such"); err == nil {
		t.Error("an unknown congestion control is accepted")
	}
}
