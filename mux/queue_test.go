//go:build linux

package mux_test

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// uplinkHasXDP reports whether there is an XDP program on the uplink.
func (l *lab) uplinkHasXDP() (has bool) {
	l.t.Helper()
	onDevice(l.t, l.A, l.A.Interface, func(up netlink.Link) error {
		x := up.Attrs().Xdp
		has = x != nil && x.Attached
		return nil
	})
	return has
}

var onQueue = endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}}

// In tcx mode the uplink has an XDP program only while there are endpoints on queues. Their frames
// go to their sockets, and frames of ports take the same way as without it.
func TestXDPOnlyForQueues(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	p := l.open(udpTag("10.0.0.1:7001"))
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	for range 2 {
		if l.uplinkHasXDP() {
			t.Error("XDP without an endpoint on a queue")
		}
		q := l.openRequest(onQueue)
		if !l.uplinkHasXDP() {
			t.Error("no XDP with an endpoint on a queue")
		}
		l.wantIncrements("to the queue", "rx_queue", func() { l.echo(b, q, "to the queue") }, "rx_queue")
		l.wantIncrements("to the port", "rx_port", func() { l.echo(b, p, "to the port") }, "rx_port")
		ping(t, l.B, "10.0.0.1")
		q.close()
	}
	if l.uplinkHasXDP() {
		t.Error("XDP after the last endpoint on a queue")
	}
	l.echo(b, p, "to the port")
}

// A process that takes over a mux with an endpoint on a queue takes over its XDP program, and
// detaches it when the endpoint ends. One that finds a program without an endpoint detaches it.
func TestQueueIsTakenOver(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{Mode: mux.ModeTCX})
	q := l.openIn(c, onQueue)
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	c.kill()
	l.echo(b, q, "nobody serves the mux")
	l.openConfig(mux.Config{Pin: l.pin})
	l.present(q)
	l.echo(b, q, "taken over")
	q.close()
	if l.uplinkHasXDP() {
		t.Error("XDP after the last endpoint on a queue")
	}
	testutil.Must(t, l.mux.Close())

	c = l.serve(order{Mode: mux.ModeTCX})
	q = l.openIn(c, onQueue)
	c.kill()
	q.closeDescriptors()
	testutil.Eventually(t, "the socket is closed", func() bool {
		l.openConfig(mux.Config{Pin: l.pin})
		gone := len(l.mux.Endpoints()) == 0
		if gone && l.uplinkHasXDP() {
			t.Error("XDP without an endpoint on a queue")
		}
		testutil.Must(t, l.mux.Abandon())
		return gone
	})
	l.openConfig(mux.Config{Pin: l.pin})
	testutil.Must(t, l.mux.Close())
	if left := listObjects(t, l.A).programs; len(left) != 0 || !slices.Equal(pinnedIn(t, l.pin), nil) {
		t.Errorf("left: programs on %v, pins %v", left, pinnedIn(t, l.pin))
	}
}

// In tcx mode, too, the XDP program gets the VLAN tags of skbs: a frame of a VLAN does not go to an endpoint
// on a queue.
func TestQueueGetsNoFramesOfAVLAN(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	setOffload(t, l.B, "txvlan", true)
	q := l.openRequest(onQueue)
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	l.echo(b, q, "of no VLAN")
	frames := openCapture(t, l.A)
	tagEgress(t, l.B)
	sendRaw(t, l.B, datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9000", "10.0.0.1:7000", "of VLAN 100"))
	if v := frames.vlanOf("of VLAN 100"); v != 100 {
		t.Errorf("the kernel got it with VLAN %d", v)
	}
	l.await("rx_pass_vlan", 1)
	q.wantNothing("from a VLAN")
}
