//go:build linux

package rdmapeers_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/guest"
	"github.com/unet-go/unet/test/internal/guest/agent"
	"github.com/unet-go/unet/test/internal/unetd"
)

var (
	guestAddr = netip.MustParsePrefix("10.0.0.3/24")
	guestMAC  = "02:00:00:00:00:0c"
)

// spec describes the guest. rdma_rxe of older kernels asks the crypto API for crc32.
var spec = guest.Spec{
	Packages: []string{"ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest"},
	Programs: []string{
		"usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so",
		"usr/bin/ibv_rc_pingpong", "usr/bin/ibv_uc_pingpong", "usr/bin/ibv_ud_pingpong", "usr/bin/ibv_srq_pingpong", "usr/bin/rping",
		"usr/bin/ib_write_lat", "usr/bin/ib_read_lat", "usr/bin/ib_atomic_lat", "usr/bin/ib_send_bw", "usr/bin/ib_write_bw",
	},
	Libraries: []string{"libgcc_s.so.1"}, // which pthread_exit loads when it is called
	Files:     []string{"etc/libibverbs.d/rxe.driver"},
	Modules:   []string{"virtio_pci", "virtio_net", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"},
	Init:      "github.com/unet-go/unet/test/rdmapeers/guest",
}

// boot boots the guest on host B, whose interface becomes a port of a bridge.
func boot(t *testing.T, im *guest.Image, h *netlab.Host) *guest.Guest {
	t.Helper()
	tap, err := bridge(h)
	testutil.Must(t, err)
	g, err := im.Boot(h, guest.Machine{
		Memory: 512, Addr: guestAddr, Files: []*os.File{tap},
		Devices: []string{
			"-netdev", "tap,id=n,fd=3",
			// Without offloads: frames have their checksums and are as long as the MTU at most.
			"-device", "virtio-net-pci,netdev=n,romfile=,mac=" + guestMAC + ",csum=off,guest_csum=off,gso=off," +
				"guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off",
		},
	})
	testutil.Must(t, err)
	t.Cleanup(func() {
		if said := g.Trouble(0); said != "" {
			t.Errorf("the guest's kernel reports an error:\n%s", said)
		}
		g.Close()
	})
	t.Logf("the guest's kernel %s has booted in %.1f s", g.Release, g.Booted.Seconds())
	return g
}

// bridge makes a bridge on h with h's interface and a tap, whose descriptor it returns. The
// address of the interface moves to the bridge. The kernel removes both with the namespace.
func bridge(h *netlab.Host) (tap *os.File, err error) {
	err = h.Do(func() error {
		uplink, err := netlink.LinkByName(h.Interface)
		if err != nil {
			return err
		}
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "guests", MTU: uplink.Attrs().MTU, TxQLen: -1}}
		if err := netlink.LinkAdd(br); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		t := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: "guest", TxQLen: 1000}, Mode: netlink.TUNTAP_MODE_TAP,
			NonPersist: true, Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		}
		if err := netlink.LinkAdd(t); err != nil {
			return fmt.Errorf("tap: %w", err)
		}
		tap = t.Fds[0]
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: h.Addr.Addr().AsSlice(), Mask: net.CIDRMask(h.Addr.Bits(), 32)}}
		if err := netlink.AddrDel(uplink, addr); err != nil {
			return fmt.Errorf("address of %s: %w", h.Interface, err)
		}
		for _, l := range []netlink.Link{uplink, t} {
			if err := netlink.LinkSetMaster(l, br); err != nil {
				return fmt.Errorf("port of the bridge: %w", err)
			}
		}
		for _, l := range []netlink.Link{t, br} {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		return netlink.AddrAdd(br, addr)
	})
	if err != nil && tap != nil {
		tap.Close()
	}
	return tap, err
}

// guestProgram is a program in the guest.
type guestProgram struct{ *guest.Process }

func (p guestProgram) ended() <-chan struct{} { return p.Done }
func (p guestProgram) failure() error         { return p.Err }
func (p guestProgram) kill(testing.TB)        { p.Kill() }

// inGuest starts a program in the guest. It is killed at the end of the test.
func inGuest(t *testing.T, g *guest.Guest, args ...string) guestProgram {
	t.Helper()
	p, err := g.Start(agent.Command{Args: args})
	testutil.Must(t, err)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("in the guest, %s printed:\n%s", strings.Join(args, " "), p.Output())
		}
	})
	return guestProgram{p}
}

// ownProgram is a program on unet's host.
type ownProgram struct{ *unetd.Process }

func (p ownProgram) ended() <-chan struct{} { return p.Done }
func (p ownProgram) failure() error         { return p.Err }
func (p ownProgram) kill(t testing.TB)      { p.Kill(t) }

// program runs in the guest or on unet's host.
type program interface {
	ended() <-chan struct{}
	failure() error // how it has ended
	kill(testing.TB)
	Output() string
}

// endTimeout is how long a program may take to end after its peer has.
const endTimeout = 10 * time.Second

// end waits until a program has ended by itself, and returns how. It kills one that does not.
func end(t *testing.T, p program, within time.Duration) error {
	t.Helper()
	select {
	case <-p.ended():
		return p.failure()
	case <-time.After(within):
		p.kill(t)
		return errors.New("it does not end")
	}
}

// refusals are what clients print whose server does not listen yet: those of the guest, and ours.
var refusals = []string{"Couldn't connect to", "RDMA_CM_EVENT_REJECTED, error 8", "connection refused", "invalid service ID"}

func refused(output string) bool {
	return slices.ContainsFunc(refusals, func(s string) bool { return strings.Contains(output, s) })
}

// dial runs a client, again and again until its server listens, and returns when it has ended.
// The guest's servers do not print when they listen.
func dial(t *testing.T, server program, start func() program) (client program, err error) {
	t.Helper()
	if !testutil.Until(func() bool {
		client = start()
		select {
		case <-client.ended():
		case <-server.ended():
		case <-time.After(unetd.TestTimeout):
		}
		err = end(t, client, endTimeout)
		return err == nil || !refused(client.Output())
	}) {
		t.Fatalf("the server does not listen; it printed\n%s", server.Output())
	}
	return client, err
}
