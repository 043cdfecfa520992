package mux_test

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/mux"
)

// The muxes of a machine have one program that notes VLAN tags between them, and it
// stays when the one that has attached it is closed.
func TestMuxesShareTheNote(t *testing.T) {
	note := func(l *pinLab) link.ID {
		t.Helper()
		n, err := link.LoadPinnedLink(filepath.Join(l.onlyPins(), "link_unet_note_vlan"), nil)
		must(t, err)
		defer n.Close()
		info, err := n.Info()
		must(t, err)
		return info.ID
	}
	first, second := newPinLab(t), newPinLab(t)
	first.openConfig(mux.Config{Mode: mux.ModeGeneric, Pin: first.pin})
	second.openConfig(mux.Config{Mode: mux.ModeGeneric, Pin: second.pin})
	if a, b := note(first), note(second); a != b {
		t.Errorf("links %d and %d", a, b)
	}
	must(t, first.mux.Close())
	must(t, second.mux.Abandon()) // and for its successor too
	second.openConfig(mux.Config{Mode: mux.ModeGeneric, Pin: second.pin})
	a := second.open(udpTag("10.0.0.1:7000"))
	b := kernelUDP(t, second.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.1:7000", "of no VLAN")
	a.recv()
	must(t, second.B.Do(func() error { // ARP would be of the VLAN too
		device, err := netlink.LinkByName(second.B.Interface)
		must(t, err)
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: second.A.Addr.Addr().AsSlice(), HardwareAddr: second.A.LinkAddr[:]})
	}))
	tagEgress(t, second.B)
	passed := second.count()["rx_pass_vlan"]
	sendTo(t, b, "10.0.0.1:7000", "of a VLAN")
	second.await("rx_pass_vlan", passed+1)
	a.nothing("from a VLAN")
}
