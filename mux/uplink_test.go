package mux

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// What the kernel says of a driver is read rightly: a veth can run XDP and
// redirect, and can be redirected to while its other end receives in NAPI.
func TestXDPFeatures(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	err := p.A.Do(func() error {
		l, err := netlink.LinkByName(p.A.Interface)
		if err != nil {
			return err
		}
		f, known := xdpFeatures(p.A.NS, l.Attrs().Index)
		if !known || f&(xdpBasic|xdpRedirect) != xdpBasic|xdpRedirect || f&xdpNdoXmit != 0 {
			t.Errorf("features %#x, known %v", f, known)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if f, known := xdpFeatures(p.A.NS, lo.Attrs().Index); !known || f&xdpBasic != 0 {
			t.Errorf("features of lo %#x, known %v", f, known)
		}
		if _, known := xdpFeatures(p.A.NS, 9999); known {
			t.Error("features of no interface are known")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Which links leave checksums to their receiver.
func TestPartialChecksums(t *testing.T) {
	for _, c := range []struct {
		up   uplink
		mode Mode
		want bool
	}{
		{uplink{unfinished: true}, ModeGeneric, true},
		{uplink{unfinished: true}, ModeNative, true},
		{uplink{}, ModeGeneric, false},
		{uplink{}, ModeNative, false},
		{uplink{virtual: true, kind: "bond"}, ModeGeneric, false},
		{uplink{virtio: true}, ModeGeneric, true},
		{uplink{virtio: true}, ModeNative, false},
	} {
		if got := c.up.partialChecksums(c.mode); got != c.want {
			t.Errorf("%+v in %v mode: %v", c.up, c.mode, got)
		}
	}
}

// A link that stands on others is as they are: on real hardware checksums are
// finished, whatever is built on it.
func TestUnfinished(t *testing.T) {
	attrs := func(index, parent, master int) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Index, a.ParentIndex, a.MasterIndex = index, parent, master
		return a
	}
	elsewhere := attrs(14, 2, 0) // its parent is interface 2 of another namespace
	elsewhere.NetNsID = 0
	all := []netlink.Link{
		&netlink.Device{LinkAttrs: attrs(1, 0, 3)}, // hardware, in the bond
		&netlink.Veth{LinkAttrs: attrs(2, 99, 0)},
		&netlink.Bond{LinkAttrs: attrs(3, 0, 0)},
		&netlink.Vlan{LinkAttrs: attrs(4, 3, 0)}, // of the bond
		&netlink.Macvlan{LinkAttrs: attrs(5, 1, 0)},
		&netlink.Vlan{LinkAttrs: attrs(6, 2, 0)}, // of the veth
		&netlink.Macvlan{LinkAttrs: attrs(7, 6, 0)},
		&netlink.Bond{LinkAttrs: attrs(8, 0, 0)},
		&netlink.Veth{LinkAttrs: attrs(9, 98, 8)}, // in the second bond
		&netlink.Bridge{LinkAttrs: attrs(10, 0, 0)},
		&netlink.Tuntap{LinkAttrs: attrs(11, 0, 0)},
		&netlink.Vxlan{LinkAttrs: attrs(12, 2, 0)},
		&netlink.Dummy{LinkAttrs: attrs(13, 0, 0)},
		&netlink.Macvlan{LinkAttrs: elsewhere},
	}
	want := map[int]bool{2: true, 6: true, 7: true, 8: true, 9: true, 10: true, 11: true, 13: true}
	for _, l := range all {
		if i := l.Attrs().Index; unfinished(l, all) != want[i] {
			t.Errorf("%s %d: %v", l.Type(), i, !want[i])
		}
	}
}

// So is what the kernel says of such links.
func TestUnfinishedByTheKernel(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	err := p.A.Do(func() error {
		up, err := netlink.LinkByName(p.A.Interface)
		if err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		bond := netlink.NewLinkBond(netlink.LinkAttrs{Name: "empty"})
		for _, l := range []netlink.Link{
			&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "tagged", ParentIndex: up.Attrs().Index}, VlanId: 100},
			bond,
		} {
			if err := h.LinkAdd(l); errors.Is(err, unix.EOPNOTSUPP) {
				t.Logf("this kernel has no %s", l.Type())
				continue
			} else if err != nil {
				return err
			}
			u, err := findUplink(h, l.Attrs().Name)
			if err != nil || u.unfinished != (l.Type() == "vlan") {
				t.Errorf("%s: %+v, %v", l.Type(), u, err)
			}
		}
		u, err := findUplink(h, p.A.Interface)
		if err != nil || !u.unfinished {
			t.Errorf("veth: %+v, %v", u, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
