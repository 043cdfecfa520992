//go:build linux

package bpf

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// The sockets of untrusted owners get frames of one buffer, and longer ones are dropped and counted. The frames come
// over a link with the MTU of a port, in generic and in native mode.
func TestDeliverToUntrusted(t *testing.T) {
	for _, generic := range []bool{true, false} {
		pair := netlab.RequirePair(t, netlab.Config{MTU: 65535})
		testutil.Must(t, pair.A.Do(func() error {
			l := openLab(t, netlab.Interface, func(mac [6]byte, ifindex int) MuxUnetConfig {
				return Config(mac, ifindex, 0, testMTU, generic, false)
			})
			testDeliverToUntrusted(l, pair.B, generic)
			return nil
		}))
	}
}

func testDeliverToUntrusted(l *lab, from *netlab.Host, generic bool) {
	sock := bindSocket(l.t, l.uplink, false)
	l.deliverTo(sock)
	p, mode := l.objs.UnetDeliverWhole, link.XDPDriverMode
	if generic {
		p, mode = l.objs.UnetDeliverLinear, link.XDPGenericMode
	} else if xdp, err := link.AttachXDP(link.XDPOptions{Program: l.objs.UnetDeliverLinear, Interface: l.uplink, Flags: mode}); err == nil {
		xdp.Close()
		l.t.Error("this kernel takes a program without xdp.frags in native mode: unet_deliver_whole is not needed")
	}
	xdp, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: l.uplink, Flags: mode})
	testutil.Must(l.t, err)
	defer xdp.Close()

	fill, taken := mapFillRing(l.t, sock), uint32(0)
	fill.setEntries(true)
	fill.setProducer(socketFill)
	const header = 14 + 20 + 8
	for _, n := range []int{60, 1500, socketRoom, socketRoom + 1, 3000, 3600, 4096, 9000, 20000, 60000} {
		counter := tooLong
		if n <= socketRoom {
			counter = delivered
			taken++
		}
		frame := datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 1), n-header)
		before := readCounters(l.t, l.objs.Counters)[counter]
		transmit(l.t, from, frame, 1)
		testutil.Eventually(l.t, "a frame", func() bool { return readCounters(l.t, l.objs.Counters)[counter] == before+1 })
	}
	testutil.Eventually(l.t, "the frames of one buffer", func() bool { return fill.consumed() == taken })
}
