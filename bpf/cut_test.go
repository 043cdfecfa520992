//go:build linux

package bpf

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/internal/testutil"
)

const (
	rxStalePart  = MuxUnetCounterUNET_RX_STALE_PART
	rxForgedTag  = MuxUnetCounterUNET_RX_FORGED_TAG
	rxForgedRDMA = MuxUnetCounterUNET_RX_FORGED_RDMA
)

// A part of a super-frame goes to the owner of the super-frame, or is dropped.
func TestParts(t *testing.T) {
	inLab(t, true, func(l *lab) {
		l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
		l.claim(Key(TagAddr, owned.As4(), 0), l.port(l.b))
		l.claim(Key(TagUDP, shared.As4(), 7001), Owner{Queue: 0})
		part := func(dst net.HardwareAddr, a netip.Addr, port uint16) []byte {
			return datagram(dst, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(a, port), 64)
		}
		ofA, ofB := partMAC(l.a, 0), partMAC(l.b, 0)
		other := partMAC(l.a, 0)
		other[0] ^= 4
		l.wantReceived([]received{
			{"to its owner", part(ofA, shared, 7000), l.a, rxPort},
			{"its port is gone", part(ofA, shared, 7000), 0, rxPortGone},
			{"another port holds the tag", part(ofB, shared, 7000), l.a, rxStalePart},
			{"an endpoint on a queue holds the tag", part(ofA, shared, 7001), l.a, rxStalePart},
			{"nobody holds the tag", part(ofA, shared, 7002), l.a, rxPass},
			{"an owned address", part(ofB, owned, 7000), l.b, rxPort},
			{"an owned address that another port holds now", part(ofA, owned, 7000), l.b, rxStalePart},
			{"another secret", part(other, shared, 7000), l.a, rxPass},
			{"a wrong length", edit(part(ofA, shared, 7000), atUDPLength, 9), l.a, rxBadLength},
		})
	})
}

// The deliver program restores the destination MAC address of a part. The place in that address is the number of
// parts that were sent to the owner before the super-frame, in units of 16. These count as arrived. A smaller place
// does not decrease the count.
func TestPartsAreDelivered(t *testing.T) {
	inLab(t, true, func(l *lab) {
		frame := func(mac net.HardwareAddr) []byte {
			return datagram(mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 7000), 64)
		}
		l.deliverTo(openSocket(t, l.uplink))
		first := uint32(1<<32 - 4096) // the count wraps
		for _, c := range []struct {
			place      byte
			sent, done uint32
			want       uint32
		}{
			{0, 0, 0, 0},
			{0, 128, 0, 0},
			{8, 256, 0, 128},
			{8, 256 + 15, 0, 128},
			{255, 4096, 3500, 4080},
			{0, 4096, 3500, 4096},
			{1, 4096 + 320, 4000, 4112},
			{250, 4096 + 320, 4080, 4080}, // the frame before
			{255, first + 4096, first + 3500, 1<<32 - 16},
			{0, first + 4096, first + 3500, 0},
			{2, first + 4096 + 128, first + 4000, 32},
		} {
			testutil.Must(t, l.objs.Lines.Put(uint32(l.a), MuxCutLine{Sent: c.sent, Done: c.done}))
			options := &ebpf.RunOptions{Data: frame(partMAC(l.a, c.place)), DataOut: make([]byte, 256), Context: xdpMD{DataEnd: 106, IngressIfindex: uint32(l.uplink)}}
			got, err := l.counted(func() (uint32, error) { return l.objs.UnetDeliverLinear.Run(options) })
			if err != nil || got != delivered || !bytes.Equal(options.DataOut, frame(l.mac)) {
				t.Errorf("%s, %v: %x, want %x", CounterName(got), err, options.DataOut, frame(l.mac))
			}
			var line MuxCutLine
			testutil.Must(t, l.objs.Lines.Lookup(uint32(l.a), &line))
			if line.Done != c.want || line.Sent != c.sent {
				t.Errorf("place %d, %d sent, %d done: %d done now, want %d", c.place, c.sent, c.done, line.Done, c.want)
			}
		}
	})
}

// The MAC address of a part is never the uplink's.
func TestMACOfPartsIsNotTheUplinks(t *testing.T) {
	for head := range 256 {
		own := [6]byte{byte(head), 1, 2, 3, 4, 5}
		for secret := range 256 {
			c := Config(own, 1, 0, testMTU, true, true)
			c.CutBy(1, [5]byte{byte(secret)})
			if c.PartHead == own[0] || c.PartHead&3 != 2 {
				t.Fatalf("uplink %x, secret %#x: %#x", own, secret, c.PartHead)
			}
		}
	}
}
