//go:build linux

package addresses

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

const (
	worlds   = 4
	patience = 10 * time.Second // how long unet may lag behind the kernel
)

func TestMain(m *testing.M) {
	testutil.Parallel(worlds)
	unetd.Main(m)
}

// subnets is in how many subnets host B has an address, of either family. Host A has one in some of them.
const subnets = 4

// family makes addresses and commands of ip(8).
type family struct{ name, prefix, addr, options string }

var (
	four = family{"IPv4", "/24", "10.%d.0.%d", ""}
	six  = family{"IPv6", "/64", "2001:db8:%d::%d", " nodad"}
)

func (f family) own(i int) string   { return fmt.Sprintf(f.addr, 10+i, 1) }  // host A's in subnet i
func (f family) peer(i int) string  { return fmt.Sprintf(f.addr, 10+i, 2) }  // host B's
func (f family) other(i int) string { return fmt.Sprintf(f.addr, 10+i, 77) } // what DHCP gives host A next
func (f family) add(addr string) string {
	return "addr add " + addr + f.prefix + " dev uplink" + f.options
}
func (f family) del(addr string) string { return "addr del " + addr + f.prefix + " dev uplink" }

// side is a pair of hosts. The sockets under test are on host A.
type side struct {
	*netlab.Pair
	daemon *unetd.Daemon // nil if the sockets are the kernel's
	host   sockets       // under test; of unet after open
	peer   sockets       // of host B
	served *service      // on host A

	mu sync.Mutex
	// +checklocks:mu
	others map[string]*service // on host B, by their addresses

	uplink map[*netlab.Host]int // the number of the interface
}

// world is two sides with the same configuration. One row at a time uses it.
type world struct {
	kernel, unet *side
	failed       bool // unet has lagged for longer than patience: later rows have less
}

func openWorld(t *testing.T) *world {
	w := &world{kernel: openSide(t), unet: openSide(t)}
	w.kernel.host = kernelSockets{w.kernel.A, false}
	w.unet.daemon = unetd.Serve(t, w.unet.A, unetd.Options{})
	return w
}

func openSide(t testing.TB) *side {
	d := &side{Pair: netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true}), uplink: make(map[*netlab.Host]int), others: make(map[string]*service)}
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, v := range d.others {
			v.close()
		}
	})
	d.peer = kernelSockets{d.B, true}
	for _, h := range []*netlab.Host{d.A, d.B} {
		testutil.Must(t, h.Do(func() error {
			uplink, err := net.InterfaceByName(h.Interface)
			if err == nil {
				d.uplink[h] = uplink.Index
			}
			return err
		}))
		for _, name := range []string{"ipv4/conf/all/rp_filter", "ipv4/conf/uplink/rp_filter", "ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"} {
			testutil.Must(t, sysctl(h, name, "0"))
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} { // an address that is gone is soon noticed
		testutil.Must(t, sysctl(d.B, family+"/neigh/uplink/retrans_time_ms", "100"))
	}
	for i := range subnets {
		testutil.Must(t, ip(d.B, four.add(four.peer(i))+";"+six.add(six.peer(i))))
	}
	testutil.Must(t, ip(d.B, "route add 10.50.0.0/24 dev uplink src "+four.peer(0)+"; route add 2001:db8:50::/64 dev uplink src "+six.peer(0)))
	return d
}

// ip runs commands of ip(8), with semicolons between them, on a host. -6 before the first is for all.
func ip(h *netlab.Host, commands string) error {
	cmd := exec.Command("ip", "-batch", "-")
	if of6, ok := strings.CutPrefix(commands, "-6 "); ok {
		commands, cmd.Args = of6, []string{"ip", "-6", "-batch", "-"}
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.ReplaceAll(commands, ";", "\n")+"\n"), &out, &out
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("host %s: ip %s: %w: %s", h.Name, commands, err, out.Bytes())
	}
	if !strings.Contains(commands, "nodad") {
		return nil
	}
	return h.Do(func() error { // the kernel adds an IPv6 address a moment after the command
		if !testutil.Until(func() bool {
			all, err := netlink.AddrList(nil, netlink.FAMILY_V6)
			return err == nil && !slices.ContainsFunc(all, func(a netlink.Addr) bool {
				routes, err := netlink.RouteGet(a.IP)
				return err != nil || routes[0].Type != unix.RTN_LOCAL || a.Flags&unix.IFA_F_TENTATIVE != 0
			})
		}) {
			return fmt.Errorf("host %s: an IPv6 address cannot be used after ip %s", h.Name, commands)
		}
		return nil
	})
}

func sysctl(h *netlab.Host, name, value string) error {
	return h.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0) })
}

// at is an address and port as text. A link-local address has the number of the uplink of h as its zone.
func (d *side) at(h *netlab.Host, address string, port int) string {
	if a, err := netip.ParseAddr(address); err == nil && a.IsLinkLocalUnicast() {
		address += fmt.Sprintf("%%%d", d.uplink[h])
	}
	return net.JoinHostPort(address, fmt.Sprint(port))
}

// other is a service on host B at an address that B has, else the port discard of that address.
func (d *side) other(addr string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.others[addr]
	if !ok {
		var err error
		if v, err = serve(d.peer, "", d.at(d.B, addr, 0)); err != nil {
			return d.at(d.A, addr, 9)
		}
		d.others[addr] = v
	}
	return d.at(d.A, addr, v.port)
}

// forget makes host B look for its neighbours again, as what it knows of them may no longer be true.
func (d *side) forget() error {
	return d.B.Do(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			all, err := netlink.NeighList(d.uplink[d.B], family)
			if err != nil {
				return err
			}
			for _, n := range all {
				if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
		return nil
	})
}

// scene is one row in a world.
type scene struct {
	*testing.T
	*world
}

// both does the same on either side.
func (s *scene) both(f func(*side) error) {
	s.Helper()
	testutil.Must(s.T, f(s.kernel))
	testutil.Must(s.T, f(s.unet))
}

// ip configures host A.
func (s *scene) ip(commands string) {
	s.Helper()
	s.both(func(d *side) error { return errors.Join(ip(d.A, commands), d.forget()) })
}

// with configures host A, and peers host B, until the end of the row.
func (s *scene) with(commands, undo string) {
	s.Helper()
	s.ip(commands)
	s.Cleanup(func() { s.ip(undo) })
}

func (s *scene) peers(commands, undo string) {
	s.Helper()
	s.both(func(d *side) error { return ip(d.B, commands) })
	s.Cleanup(func() { s.both(func(d *side) error { return ip(d.B, undo) }) })
}

func (s *scene) sysctl(name, value, undo string) {
	s.Helper()
	s.both(func(d *side) error { return sysctl(d.A, name, value) })
	s.Cleanup(func() { s.both(func(d *side) error { return sysctl(d.A, name, undo) }) })
}

// open opens the host of unet.
func (s *scene) open() {
	s.Helper()
	h, err := unet.Open(s.Context(), unet.Config{Socket: s.unet.daemon.Socket})
	testutil.Must(s.T, err)
	s.unet.host = unetSockets{h}
	s.Cleanup(func() {
		if err := h.Close(); err != nil {
			s.Errorf("close of the host: %v", err)
		}
	})
}

// listen serves TCP and UDP on host A, for a family "", "4" or "6".
func (s *scene) listen(family, address string) {
	s.Helper()
	s.both(func(d *side) (err error) {
		if d.served, err = serve(d.host, family, d.at(d.A, address, port)); err == nil {
			s.Cleanup(d.served.close)
		}
		return err
	})
}

// same compares what both sides see.
func (s *scene) same(probes ...probe) {
	s.Helper()
	want, got := make([]string, len(probes)), make([]string, len(probes))
	see(s.kernel, probes, want, func(i int) bool { return probes[i].unet == "" })
	for i, p := range probes {
		if strings.Contains(want[i], noAnswer) {
			s.Fatalf("%s: the kernel gives %s", p.name, want[i])
		}
		want[i] += p.unet
	}
	s.soon(func() bool {
		see(s.unet, probes, got, func(i int) bool { return got[i] != want[i] })
		return slices.Equal(got, want)
	})
	see(s.unet, probes, got, func(i int) bool { return got[i] == want[i] }) // it stays so
	for i, p := range probes {
		if got[i] != want[i] {
			s.Errorf("%s:\n  unet: %s\nkernel: %s", p.name, got[i], want[i])
		}
	}
}

// see observes some of the probes, all at the same time.
func see(d *side, probes []probe, results []string, which func(int) bool) {
	var all sync.WaitGroup
	for i, p := range probes {
		if which(i) {
			all.Go(func() { results[i] = p.observe(d) })
		}
	}
	all.Wait()
}

// soon waits until f holds, for as long as unet may lag, and reports whether it did.
func (s *scene) soon(f func() bool) bool {
	lag := patience
	if s.failed {
		lag /= 4
	}
	for end := time.Now().Add(lag); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.failed = true
			return false
		}
	}
	return true
}

// probe is something that an application sees.
type probe struct {
	name    string
	observe func(*side) string
	unet    string // what it sees on unet, if that differs from the kernel on purpose
}

// reach is the service on host A at an address, for a client at an address of host B, or at any if from is empty.
func reach(network, from, to string) probe {
	return probe{name: fmt.Sprintf("client %q reaches %s by %s", from, to, network), observe: func(d *side) string {
		if network == "udp" {
			network = datagrams // the sender of the answer may be another address than to
		}
		return talk(d.peer, network, from, d.at(d.B, to, port), d.served)
	}}
}

// dial is what a service on host B sees of a client on host A, from an address or from any if from is empty.
func dial(network, from, to string) probe {
	return probe{name: fmt.Sprintf("dial %s from %q by %s", to, from, network), observe: func(d *side) string {
		return talk(d.host, network, from, d.other(to), nil)
	}}
}

// dials are dial of all kinds.
func dials(from, to string) []probe {
	return []probe{dial("tcp", from, to), dial("udp", from, to), dial(datagrams, from, to)}
}

// reaches are reach of all kinds at all addresses.
func reaches(from string, all ...string) (probes []probe) {
	for _, a := range all {
		probes = append(probes, reach("tcp", from, a), reach("udp", from, a))
	}
	return probes
}

// view is all of the addresses of host A that it has, and B's in all subnets.
func (f family) view(have ...string) []probe {
	probes := reaches("", have...)
	for i := range subnets {
		probes = append(probes, dials("", f.peer(i))...)
	}
	for _, a := range have { // mostly of another subnet
		probes = append(probes, dials(a, f.peer(0))...)
	}
	return probes
}

// connection is a connection on either side that stays open.
type connection struct {
	name string
	ends map[*side]net.Conn
}

// connect connects a client on host B to the service on host A.
func (s *scene) connect(network, to string) *connection {
	s.Helper()
	return s.keep(network+" connection of a client to "+to, func(d *side) (net.Conn, error) {
		return d.peer.dial(network, "", d.at(d.B, to, port))
	})
}

// connectTo connects host A to a service on host B.
func (s *scene) connectTo(network, to string) *connection {
	s.Helper()
	return s.keep(network+" connection to "+to, func(d *side) (net.Conn, error) {
		return d.host.dial(network, "", d.other(to))
	})
}

func (s *scene) keep(name string, connect func(*side) (net.Conn, error)) *connection {
	s.Helper()
	k := &connection{name, make(map[*side]net.Conn)}
	s.both(func(d *side) (err error) {
		c, err := connect(d)
		if err == nil {
			k.ends[d] = c
			s.Cleanup(func() { c.Close() })
		}
		return err
	})
	s.same(k.goesOn())
	return k
}

// goesOn is whether the connection answers.
func (k *connection) goesOn() probe {
	return probe{name: k.name, observe: func(d *side) string { return exchange(k.ends[d], "", nil, 0) }}
}
