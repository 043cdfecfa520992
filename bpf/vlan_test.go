//go:build linux

package bpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// A note of unet_note_vlan for a CPU applies to the next frame on this CPU.
func TestVLANNote(t *testing.T) {
	config := func(notes bool) func(mac [6]byte, ifindex int) MuxUnetConfig {
		return func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, notes) }
	}
	note := func(l *lab, v uint32) {
		cpus, err := ebpf.PossibleCPU()
		testutil.Must(t, err)
		values := make([]uint32, cpus)
		for i := range values {
			values[i] = v
		}
		testutil.Must(t, l.objs.VlanNote.Put(uint32(0), values))
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
		l.want("no notes in use", l.objs.UnetUplink, message(l.mac, peerMAC, 7, 1, 64, 64), l.uplink, 0, rxPort)
	})
}

// Frames of a VLAN arrive over a veth pair, with the tag in the skb or in the frame, at the uplink or at a macvlan on
// it. Without the notes an endpoint gets those whose VLAN tag XDP programs cannot see.
func TestVLANTagInSKB(t *testing.T) {
	for _, device := range []string{netlab.Interface, "macvlan0"} {
		for _, notes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, notes %v", device, notes), func(t *testing.T) { testVLANTagInSKB(t, device, notes) })
		}
	}
}

func testVLANTagInSKB(t *testing.T, device string, notes bool) {
	pair := netlab.RequirePair(t, netlab.Config{})
	var l *lab
	testutil.Must(t, pair.A.Do(func() error {
		if device != netlab.Interface {
			testutil.Must(t, addMacvlan(device))
		}
		l = openLab(t, device, func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, notes) })
		l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
		l.reach(l.a)
		xdp, err := link.AttachXDP(link.XDPOptions{Program: l.objs.UnetUplink, Interface: l.uplink, Flags: link.XDPGenericMode})
		testutil.Must(t, err)
		t.Cleanup(func() { xdp.Close() })
		if notes {
			trace, err := link.AttachTracing(link.TracingOptions{Program: l.objs.UnetNoteVlan})
			testutil.Must(t, err)
			t.Cleanup(func() { trace.Close() })
		}
		return nil
	}))
	for _, id := range []uint16{100, 0} {
		t.Run(fmt.Sprint("VLAN ", id), func(t *testing.T) { l.t = t; l.testVLAN(pair.B, id, device, notes) })
	}
}

// testVLAN sends frames of a VLAN with the tag in the skb or in the frame. VLAN 0 is the untagged network.
func (l *lab) testVLAN(from *netlab.Host, id uint16, device string, notes bool) {
	besideFrame := rxVLAN // the counter of a frame with the tag in the skb only
	if !notes {
		besideFrame = rxPort
	}
	inFrame := rxVLAN // the counter of a frame that is sent with the tag in it
	if device != netlab.Interface {
		inFrame = besideFrame // the kernel removes the tag before the programs run
	}
	if id == 0 {
		besideFrame, inFrame = rxPort, rxPort
	}
	hit := datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 7000), 64)
	in := func(t layers.EthernetType) []byte { return tagged(hit, t, id, 3) }
	l.arrives(from, "untagged", hit, rxPort)
	l.arrives(from, "802.1Q in the frame", in(layers.EthernetTypeDot1Q), inFrame)
	l.arrives(from, "untagged", hit, rxPort)
	l.arrives(from, "802.1ad in the frame", in(layers.EthernetTypeQinQ), inFrame)
	for _, protocol := range []int32{0x0081, 0xa888} { // the same two, in network byte order
		undo := pushVLANs(l.t, from, protocol, id)
		l.arrives(from, fmt.Sprintf("%#x beside the frame", protocol), hit, besideFrame)
		within := rxVLAN
		if id == 0 {
			within = rxPort
		}
		l.arrives(from, "priority in the frame, and a tag beside it", tagged(hit, layers.EthernetTypeDot1Q, 0, 3), ifNoted(within, notes))
		l.arrives(from, "a VLAN in the frame, and a tag beside it", tagged(hit, layers.EthernetTypeDot1Q, 7, 3), rxVLAN)
		undo()
		l.arrives(from, "untagged again", hit, rxPort)
	}
}

// ifNoted is the counter of a frame whose tag is in the skb, where programs see it only by notes.
func ifNoted(c Counter, notes bool) Counter {
	if notes {
		return c
	}
	return rxPort
}

// addMacvlan makes a macvlan on the interface.
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

// pushVLANs puts each frame that leaves a host into a VLAN, with a priority. The tag is in the skb.
func pushVLANs(t testing.TB, host *netlab.Host, protocol int32, id uint16) (undo func()) {
	t.Helper()
	testutil.Must(t, host.Do(func() error {
		dev, err := netlink.LinkByName(host.Interface)
		testutil.Must(t, err)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, protocol), asm.Mov.Imm(asm.R3, 5<<13|int32(id)), asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return(),
		}})
		testutil.Must(t, err)
		tcx, err := link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXEgress})
		testutil.Must(t, err)
		undo = func() { tcx.Close(); prog.Close() }
		return nil
	}))
	return undo
}

// arrives sends a frame several times and checks the counter of the uplink program that they move.
func (l *lab) arrives(from *netlab.Host, name string, frame []byte, counter Counter) {
	l.t.Helper()
	const n = 20
	before := readCounters(l.t, l.objs.Counters)
	transmit(l.t, from, frame, n)
	var moved [NumCounters]uint64
	testutil.Eventually(l.t, name, func() bool {
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

// A frame with a priority tag is delivered without the tag, and passed to the kernel with it.
func TestPriorityTagIsRemoved(t *testing.T) {
	for _, generic := range []bool{true, false} {
		inLab(t, generic, func(l *lab) {
			l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
			l.reach(l.a)
			plain := func(port uint16) []byte {
				return datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, port), 64)
			}
			sent := func(port uint16) []byte { return tagged(plain(port), layers.EthernetTypeDot1Q, 0, 5) }
			for _, c := range []struct {
				frame, want []byte
				counter     Counter
			}{
				{sent(7000), plain(7000), rxPort},
				{sent(53), sent(53), rxPass},
			} {
				options := &ebpf.RunOptions{Data: c.frame, DataOut: make([]byte, 256), Context: xdpMD{DataEnd: uint32(len(c.frame)), IngressIfindex: uint32(l.uplink)}}
				got, err := l.counted(func() (uint32, error) { return l.objs.UnetUplink.Run(options) })
				if err != nil || got != c.counter || !bytes.Equal(options.DataOut, c.want) {
					t.Errorf("generic %v: %s, %v: %x, want %x", generic, CounterName(got), err, options.DataOut, c.want)
				}
			}
		})
	}
}
