package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
)

// What unet_note_vlan wrote down for a CPU is about the next frame on it.
func TestVLANNote(t *testing.T) {
	config := func(notes bool) func(mac [6]byte, ifindex int) MuxUnetConfig {
		return func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, notes) }
	}
	note := func(l *lab, v uint32) {
		cpus, err := ebpf.PossibleCPU()
		must(t, err)
		values := make([]uint32, cpus)
		for i := range values {
			values[i] = v
		}
		must(t, l.objs.VlanNote.Put(uint32(0), values))
	}
	inLabWith(t, config(true), func(l *lab) {
		l.claim(MessageKey(7), l.port(l.a))
		l.reach(l.a)
		hit := message(l.mac, peerMAC, 7, 1, 64, 64)
		l.want("nothing noted", l.objs.UnetUplink, hit, l.uplink, 0, rxPort)
		note(l, 1)
		l.want("a VLAN noted", l.objs.UnetUplink, hit, l.uplink, 0, rxVLAN)
		l.want("a VLAN noted, truncated", l.objs.UnetUplink, hit[:20], l.uplink, 0, rxVLAN)
		note(l, 0)
		l.want("no VLAN noted", l.objs.UnetUplink, hit, l.uplink, 0, rxPort)
	})
	inLabWith(t, config(false), func(l *lab) {
		l.claim(MessageKey(7), l.port(l.a))
		l.reach(l.a)
		note(l, 1)
		l.want("nobody writes notes", l.objs.UnetUplink, message(l.mac, peerMAC, 7, 1, 64, 64), l.uplink, 0, rxPort)
	})
}

// Frames of a VLAN come over a real veth pair, with the tag beside the frame or
// in it, to the uplink or to a macvlan on it. Without the notes a tag claims those
// that XDP is shown untagged, which is why there are notes.
func TestVLANBesideTheFrame(t *testing.T) {
	for _, device := range []string{netlab.Interface, "macvlan0"} {
		for _, notes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, notes %v", device, notes), func(t *testing.T) { testVLANBesideTheFrame(t, device, notes) })
		}
	}
}

func testVLANBesideTheFrame(t *testing.T, device string, notes bool) {
	pair := netlab.RequirePair(t, netlab.Config{})
	var l *lab
	must(t, pair.A.Do(func() error {
		if device != netlab.Interface {
			must(t, addMacvlan(device))
		}
		l = openLab(t, device, func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, notes) })
		l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
		l.reach(l.a)
		xdp, err := link.AttachXDP(link.XDPOptions{Program: l.objs.UnetUplink, Interface: l.uplink, Flags: link.XDPGenericMode})
		must(t, err)
		t.Cleanup(func() { xdp.Close() })
		if notes {
			trace, err := link.AttachTracing(link.TracingOptions{Program: l.objs.UnetNoteVlan})
			must(t, err)
			t.Cleanup(func() { trace.Close() })
		}
		return nil
	}))
	hidden := rxVLAN // where no program sees the tag
	if !notes {
		hidden = rxPort
	}
	inside := rxVLAN // in the frame as it is sent
	if device != netlab.Interface {
		inside = hidden // the kernel takes it out before it hands the frame up
	}
	const ip = layers.EthernetTypeIPv4
	hit := datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 7000), 64)
	tagged := func(t layers.EthernetType) []byte {
		return build(eth(l.mac, peerMAC, t), vlan(100, ip), gopacket.Payload(hit[14:]))
	}
	l.arrives(pair.B, "untagged", hit, rxPort)
	l.arrives(pair.B, "802.1Q in the frame", tagged(layers.EthernetTypeDot1Q), inside)
	l.arrives(pair.B, "untagged", hit, rxPort)
	l.arrives(pair.B, "802.1ad in the frame", tagged(layers.EthernetTypeQinQ), inside)
	for _, protocol := range []int32{0x0081, 0xa888} { // the same two, in network byte order
		undo := pushVLANs(t, pair.B, protocol)
		l.arrives(pair.B, fmt.Sprintf("%#x beside the frame", protocol), hit, hidden)
		undo()
		l.arrives(pair.B, "untagged again", hit, rxPort)
	}
}

func addMacvlan(name string) error {
	parent, err := netlink.LinkByName(netlab.Interface)
	if err != nil {
		return err
	}
	dev := &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, Mode: netlink.MACVLAN_MODE_BRIDGE}
	if err := netlink.LinkAdd(dev); err != nil {
		return err
	}
	return netlink.LinkSetUp(dev)
}

// pushVLANs makes every frame that leaves a host one of VLAN 100. The tag goes
// beside the frame.
func pushVLANs(t *testing.T, host *netlab.Host, protocol int32) (undo func()) {
	t.Helper()
	must(t, host.Do(func() error {
		dev, err := netlink.LinkByName(host.Interface)
		must(t, err)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, protocol), asm.Mov.Imm(asm.R3, 100), asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}})
		must(t, err)
		tcx, err := link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXEgress})
		must(t, err)
		undo = func() { tcx.Close(); prog.Close() }
		return nil
	}))
	return undo
}

// arrives sends a frame a few times and checks what the uplink program made of it.
func (l *lab) arrives(from *netlab.Host, name string, frame []byte, counter Counter) {
	l.t.Helper()
	const n = 20
	before := readCounters(l.t, l.objs.Counters)
	transmit(l.t, from, frame, n)
	var moved [NumCounters]uint64
	eventually(l.t, name, func() bool {
		moved = readCounters(l.t, l.objs.Counters)
		for i := range moved {
			moved[i] -= before[i]
		}
		return moved[rxPort]+moved[rxVLAN] >= n
	})
	if moved[counter] != n {
		l.t.Errorf("%s: %s moved by %d, %s by %d; want %d of %s", name, CounterName(rxPort), moved[rxPort], CounterName(rxVLAN), moved[rxVLAN], n, CounterName(counter))
	}
}
