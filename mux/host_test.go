package mux_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
)

// patience is how long to wait for what must come. The kernel removes the namespaces of
// a whole machine one after another.
const patience = 30 * time.Second

// onDevice does something with a network device of a host.
func onDevice(t *testing.T, h *netlab.Host, name string, fn func(netlink.Link) error) {
	t.Helper()
	must(t, h.Do(func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return fn(device)
	}))
}

func mtu(n int) func(netlink.Link) error {
	return func(device netlink.Link) error { return netlink.LinkSetMTU(device, n) }
}

func linkAddress(addr string) func(netlink.Link) error {
	return func(device netlink.Link) error {
		mac, err := net.ParseMAC(addr)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(device, mac)
	}
}

// addAddress and deleteAddress change the addresses of a device, given with their
// prefix lengths.
func addAddress(prefix string) func(netlink.Link) error {
	return func(device netlink.Link) error { return changeAddress(device, prefix, netlink.AddrAdd) }
}

func deleteAddress(prefix string) func(netlink.Link) error {
	return func(device netlink.Link) error { return changeAddress(device, prefix, netlink.AddrDel) }
}

func changeAddress(device netlink.Link, prefix string, change func(netlink.Link, *netlink.Addr) error) error {
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return change(device, addr)
}

// neighbours lists what a host's kernel knows of the others behind its interface.
func neighbours(t *testing.T, h *netlab.Host) (all []netlink.Neigh) {
	t.Helper()
	onDevice(t, h, h.Interface, func(device netlink.Link) (err error) {
		all, err = route.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(device.Attrs().Index, netlink.FAMILY_ALL) })
		return err
	})
	return all
}

// setNeighbour tells a host where an address is.
func setNeighbour(t *testing.T, h *netlab.Host, addr string, at [6]byte) {
	t.Helper()
	onDevice(t, h, h.Interface, func(device netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(addr), HardwareAddr: at[:]})
	})
}

func setOffload(t *testing.T, h *netlab.Host, name string, on bool) {
	t.Helper()
	must(t, h.Do(func() error { return netlab.SetOffload(h.Interface, name, on) }))
}

func offload(t *testing.T, h *netlab.Host, name string) (on bool) {
	t.Helper()
	must(t, h.Do(func() (err error) { on, err = netlab.Offload(h.Interface, name); return err }))
	return on
}

func ping(t *testing.T, from *netlab.Host, to string) {
	t.Helper()
	must(t, from.Ping(netip.MustParseAddr(to)))
}
