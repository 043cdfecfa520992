//go:build linux

package drivers_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/guest"
	"github.com/unet-go/unet/test/internal/guest/agent"
	"github.com/unet-go/unet/test/internal/unetd"
)

var (
	folder = flag.String("guest", "", "`folder` for the packages and the images of the guests; without it the tests are skipped")
	only   = flag.String("kernel", "", "run the tests with one kernel only: old or new")
	accel  = flag.String("accel", "", "QEMU's -accel, such as kvm (default tcg)")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if !slices.Contains([]string{"", "old", "new"}, *only) {
		fmt.Fprintf(os.Stderr, "-kernel is %q, and can be old or new\n", *only)
		os.Exit(2)
	}
	code := m.Run()
	for _, k := range kernels {
		if k.running != nil {
			k.running.close()
		}
	}
	os.Exit(code)
}

const packagePath = "github.com/unet-go/unet/test/drivers/guest/"

// spec describes the guests. Their programs and QEMU are Debian 13's: older QEMUs have no igb.
var spec = guest.Spec{
	Suite:    "trixie",
	Packages: []string{"busybox-static", "ethtool", "iproute2", "ibverbs-providers", "perftest"},
	Kernels:  []string{"trixie", "trixie-backports"},
	Programs: []string{"usr/bin/busybox", "usr/sbin/ethtool", "usr/bin/ip", "usr/bin/ss", "usr/sbin/tc", "usr/bin/rdma",
		"usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so", "usr/bin/ib_read_lat"},
	Libraries: []string{"libgcc_s.so.1"}, // which pthread_exit loads when it is called
	Files:     []string{"etc/libibverbs.d/rxe.driver"},
	Links: func() map[string]string {
		links := map[string]string{"bin": "usr/bin"}
		for _, applet := range []string{"sh", "cat", "echo", "ls", "grep", "dmesg", "kill", "mount", "sleep", "ping", "readlink", "basename", "sysctl", "test", "true", "nsenter"} {
			links["usr/bin/"+applet] = "busybox"
		}
		return links
	}(),
	// unetd needs ifb for the devices that cut super-frames, and nf_tables to read the rules of address translation. nf_tables needs crc32c of the crypto API.
	Modules: []string{"crc32c_generic", "virtio_pci", "virtio_net", "igb", "e1000e", "e1000", "vmxnet3", "veth", "ifb", "8021q", "dummy", "nf_tables",
		"bonding", "bridge", "macvlan", "ipvlan", "vrf", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"},
	Init: packagePath + "init",
	// The frames of a segment are checked as they change owners.
	Commands: []string{packagePath + "echo", "github.com/unet-go/unet/test/rdmapeers/perftest", "github.com/unet-go/unet/cmd/unetd"},
	Tags:     "unetdebug",
}

// card is a network card of the guests. Its number is its index in cards.
type card struct {
	name     string // of its interface in the guest
	queues   int    // of its tap
	device   string // QEMU's -device
	onPort   bool   // on a PCI Express port of its own
	native   bool   // the driver runs XDP programs
	channels int    // queues in use that `ethtool -L` can change; 0: it cannot
}

var cards = []card{
	{name: "mgmt", queues: 1, device: "virtio-net-pci"},
	{name: "virtio", queues: 4, device: "virtio-net-pci,mq=on,vectors=10,iommu_platform=on,disable-legacy=on", onPort: true, native: true, channels: 2},
	{name: "igb", queues: 1, device: "igb", onPort: true, native: true, channels: 2},
	{name: "vmxnet3", queues: 1, device: "vmxnet3", onPort: true, native: true},
	{name: "e1000e", queues: 1, device: "e1000e", onPort: true},
	{name: "e1000", queues: 1, device: "e1000"},
	{name: "virtio1", queues: 1, device: "virtio-net-pci", onPort: true, native: true},         // with one queue
	{name: "fixed", queues: 1, device: "virtio-net-pci,ctrl_guest_offloads=off", onPort: true}, // hardware GRO is always on
}

// cardIndex is that of a card by its name.
func cardIndex(nic string) int {
	for i, c := range cards {
		if c.name == nic {
			return i
		}
	}
	panic("no card " + nic)
}

// addrOf is the guest's address at an interface, peerOf that of the test's kernel.
func addrOf(nic string) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(cardIndex(nic)), 1}) }
func peerOf(nic string) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, byte(cardIndex(nic)), 2}) }

// tapOf is the interface of the test's kernel.
func tapOf(nic string) string { return "to-" + nic }

// kernel is one of the guests, which boots when the first test needs it.
type kernel struct {
	name    string // "old" or "new"
	index   int    // in spec.Kernels
	running *machine
}

var kernels = []*kernel{{name: "old", index: 0}, {name: "new", index: 1}}

// image is made once.
var image = sync.OnceValues(func() (*guest.Image, error) {
	spec.Dir = filepath.Join(*folder, "drivers")
	return guest.Open(spec)
})

// machine is a running guest, and the namespace with the other ends of its interfaces.
type machine struct {
	*guest.Guest
	Kernel string // "old" or "new"
	Host   *netlab.Host
}

func (g *machine) close() {
	g.Guest.Close()
	g.Host.Close()
}

// withShort says with which kernels a test runs under -short, as continuous integration runs it.
type withShort bool

const (
	newKernel   withShort = false
	bothKernels withShort = true // traffic, adoption and zero copy
)

// each runs a test with each kernel, as subtests named after it. A kernel that the options leave out is skipped.
func each(t *testing.T, short withShort, f func(t *testing.T, g *machine)) {
	t.Helper()
	if *folder == "" {
		t.Skip("skipped: the guests are made of packages from the network: make test-vm")
	}
	runs := false
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			if *only != "" && *only != k.name {
				t.Skipf("skipped: -kernel=%s", *only)
			}
			if testing.Short() && k.name == "old" && short != bothKernels {
				t.Skip("skipped: -short leaves this test to the new kernel")
			}
			runs = true
			f(t, k.boot(t))
		})
	}
	if !runs && !t.Failed() {
		t.Skip("skipped with every kernel")
	}
}

// eachCard runs a test with each kernel and with each of some interfaces, as subtests named after
// both.
func eachCard(t *testing.T, short withShort, nics []string, f func(t *testing.T, g *machine, nic string)) {
	t.Helper()
	each(t, short, func(t *testing.T, g *machine) {
		for _, nic := range nics {
			t.Run(nic, func(t *testing.T) { f(t, kernelOf(g).boot(t), nic) })
		}
	})
}

func kernelOf(g *machine) *kernel {
	if g.Kernel == kernels[0].name {
		return kernels[0]
	}
	return kernels[1]
}

// boot returns the guest of a kernel for a test, and boots it if it does not run. When the test
// ends it fails if the guest has ended or its kernel has reported an error.
func (k *kernel) boot(t *testing.T) *machine {
	t.Helper()
	if k.running == nil {
		for _, other := range kernels { // two guests would share the processors
			if other.running != nil {
				other.running.close()
				other.running = nil
			}
		}
		g, err := k.start()
		for range 2 {
			if errors.Is(err, guest.ErrAborted) {
				g, err = k.start()
			}
		}
		if err != nil {
			t.Fatalf("no guest: %v", err)
		}
		t.Logf("the guest's kernel %s has booted in %.1f s", g.Release, g.Booted.Seconds())
		k.running = g
	}
	g := k.running
	from := g.Lines()
	t.Cleanup(func() {
		ended := false
		select {
		case <-g.Done:
			ended = true
		default:
		}
		switch said := g.Trouble(from); {
		case said != "":
			t.Errorf("the guest's kernel reports an error:\n%s", said)
		case ended:
			t.Errorf("the guest has ended:\n%s", g.Console(from))
		case t.Failed():
			t.Logf("the guest's console:\n%s", g.Console(from))
			return
		default:
			return
		}
		if k.running == g {
			g.close()
			k.running = nil
		}
	})
	return g
}

// start boots the guest.
func (k *kernel) start() (_ *machine, err error) {
	im, err := image()
	if err != nil {
		return nil, err
	}
	host, err := netlab.NewHost("peer")
	if err != nil {
		return nil, err
	}
	m := guest.Machine{Kernel: k.index, CPUs: 2, Memory: 1024, Accel: *accel, Addr: netip.PrefixFrom(addrOf("mgmt"), 24)}
	var names []string
	for n, c := range cards {
		fds, err := tap(host, c)
		if err != nil {
			for _, f := range m.Files {
				f.Close()
			}
			host.Close()
			return nil, fmt.Errorf("%s: %w", tapOf(c.name), err)
		}
		var numbers []string
		for _, f := range fds {
			numbers = append(numbers, fmt.Sprint(3+len(m.Files)))
			m.Files = append(m.Files, f)
		}
		names = append(names, c.name)
		key := "fd"
		if len(fds) > 1 {
			key = "fds"
		}
		m.Devices = append(m.Devices, "-netdev", fmt.Sprintf("tap,id=net%d,%s=%s", n, key, strings.Join(numbers, ":")))
		bus := ""
		if c.onPort {
			m.Devices = append(m.Devices, "-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d", n, n))
			bus = fmt.Sprintf(",bus=port%d", n)
		}
		m.Devices = append(m.Devices, "-device", fmt.Sprintf("%s,id=card%d,netdev=net%d,romfile=,mac=02:00:00:00:09:%02x%s", c.device, n, n, n, bus))
	}
	m.Append = "panic_on_warn=1 GUEST_NICS=" + strings.Join(names, ",")
	g, err := im.Boot(host, m)
	if err != nil {
		host.Close()
		return nil, err
	}
	return &machine{g, k.name, host}, nil
}

// tap makes the test's end of a card, and returns QEMU's descriptors of it.
func tap(h *netlab.Host, c card) (fds []*os.File, err error) {
	err = h.Do(func() error {
		link := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: tapOf(c.name), TxQLen: 1000}, Mode: netlink.TUNTAP_MODE_TAP,
			NonPersist: true, Queues: c.queues, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		}
		if c.queues > 1 {
			link.Flags |= netlink.TUNTAP_MULTI_QUEUE
		}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		fds = link.Fds
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: peerOf(c.name).AsSlice(), Mask: net.CIDRMask(24, 32)}}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		for _, f := range fds {
			f.Close()
		}
	}
	return fds, err
}

// Start starts a program in the guest, of user uid. It is killed at the end of the test.
func (g *machine) Start(t testing.TB, uid uint32, args ...string) *guest.Process {
	t.Helper()
	p, err := g.Guest.Start(agent.Command{Args: args, User: uid})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() && p.Lines() > 0 {
			t.Logf("in the guest, %s printed:\n%s", strings.Join(args, " "), p.Output())
		}
	})
	return p
}

// Try runs a program in the guest as root, and returns its output and how it has ended.
func (g *machine) Try(t testing.TB, args ...string) (string, error) {
	t.Helper()
	p := g.Start(t, 0, args...)
	select {
	case <-p.Done:
		return p.Output(), p.Err
	case <-time.After(unetd.TestTimeout):
		t.Fatalf("in the guest, %s does not end", strings.Join(args, " "))
		return "", nil
	}
}

// Run runs a program in the guest as root, and returns its output.
func (g *machine) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := g.Try(t, args...)
	if err != nil {
		t.Fatalf("in the guest, %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Restore runs a program in the guest at the end of the test.
func (g *machine) Restore(t testing.TB, args ...string) {
	t.Cleanup(func() {
		if out, err := g.Try(t, args...); err != nil {
			t.Errorf("in the guest, %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	})
}

// daemon is unetd on an interface of the guest.
type daemon struct {
	*guest.Process
	g      *machine
	nic    string
	mode   string
	Socket string // in the guest
}

// Unetd starts unetd on an interface, and returns when it is ready and the link is up: igb takes the link down
// while an XDP program is attached. At the end of the test unetd is stopped, and what it has left is removed.
func (g *machine) Unetd(t testing.TB, nic, mode string, flags ...string) *daemon {
	t.Helper()
	g.Restore(t, "unetd", "cleanup", "--socket", "/run/"+nic+".sock") // after unetd has ended
	d := g.startUnetd(t, nic, mode, flags...)
	if _, err := d.Await("msg=ready", 0, unetd.TestTimeout); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(unetd.TestTimeout); ; time.Sleep(10 * time.Millisecond) {
		link, err := g.Try(t, "cat", "/sys/class/net/"+nic+"/carrier", "/sys/class/net/"+nic+"/operstate")
		if err == nil && strings.HasPrefix(link, "1\n") && !strings.Contains(link, "down") {
			return d
		}
		if time.Now().After(deadline) {
			t.Fatalf("the link of %s does not come up: %q, %v", nic, link, err)
		}
	}
}

func (g *machine) startUnetd(t testing.TB, nic, mode string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{g: g, nic: nic, mode: mode, Socket: "/run/" + nic + ".sock"}
	d.Process = g.Start(t, 0, append([]string{"unetd", "serve", "--interface", nic, "--mode", mode, "--socket", d.Socket, "--socket-mode", "0666"}, flags...)...)
	t.Cleanup(func() {
		d.Signal(syscall.SIGTERM)
		select {
		case <-d.Done:
		case <-time.After(unetd.TestTimeout):
			t.Errorf("unetd does not end")
		}
	})
	return d
}

// Counters are unetd's, without those that are 0.
func (d *daemon) Counters(t testing.TB) map[string]uint64 {
	t.Helper()
	counters := map[string]uint64{}
	for line := range strings.Lines(d.g.Run(t, "unetd", "counters", "--socket", d.Socket)) {
		var n uint64
		var name string
		if k, _ := fmt.Sscan(line, &n, &name); k == 2 {
			counters[name] = n
		}
	}
	return counters
}

// echo is a program with an endpoint in the guest (guest/echo).
type echo struct {
	*guest.Process
	addr  netip.AddrPort // where it answers
	Ready struct {       // as in guest/echo
		Mode       string
		ZeroCopy   bool
		MTU        uint32
		FrameSize  uint32 `json:"frame_size"`
		FrameCount uint32 `json:"frame_count"`
	}
}

// Echo starts the program at a port, and returns when it answers. It is of user nobody, or of root
// if it attaches to a queue ("-queue", "0").
func (d *daemon) Echo(t testing.TB, port uint16, flags ...string) *echo {
	t.Helper()
	e := d.startEcho(t, port, flags...)
	e.await(t)
	return e
}

func (d *daemon) startEcho(t testing.TB, port uint16, flags ...string) *echo {
	t.Helper()
	uid := uint32(netlab.NobodyID)
	if len(flags) > 0 && flags[0] == "-queue" {
		uid = 0
	}
	p := d.g.Start(t, uid, append([]string{"echo", "-socket", d.Socket, "-listen", fmt.Sprint(":", port)}, flags...)...)
	return &echo{Process: p, addr: netip.AddrPortFrom(addrOf(d.nic), port)}
}

func (e *echo) await(t testing.TB) {
	t.Helper()
	line, err := e.Await("ready", 0, unetd.TestTimeout)
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimPrefix(line, "ready")), &e.Ready)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Ask sends the program a line, and returns its answer without the first word.
func (e *echo) Ask(t testing.TB, question string) string {
	t.Helper()
	from := e.Lines()
	err := e.Input(question)
	if err == nil {
		var line string
		if line, err = e.Await(question+" ", from, unetd.TestTimeout); err == nil {
			return strings.TrimPrefix(line, question+" ")
		}
	}
	t.Fatal(err)
	return ""
}
