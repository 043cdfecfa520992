package mux

import (
	"testing"

	"github.com/vishvananda/netlink"

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
		{uplink{virtual: true, kind: "veth"}, ModeGeneric, true},
		{uplink{virtual: true, kind: "veth"}, ModeNative, true},
		{uplink{kind: "device"}, ModeGeneric, false},
		{uplink{kind: "device"}, ModeNative, false},
		{uplink{kind: "device", virtio: true}, ModeGeneric, true},
		{uplink{kind: "device", virtio: true}, ModeNative, false},
	} {
		if got := c.up.partialChecksums(c.mode); got != c.want {
			t.Errorf("%+v in %v mode: %v", c.up, c.mode, got)
		}
	}
}
