//go:build linux

package mux

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// The kernel binds a socket with zero copy only in native mode, on a driver that has it, and
// refuses zero copy together with scatter-gather (XDP_USE_SG) where the driver's xdp_zc_max_segs
// is 1 (xp_assign_dev, net/xdp/xsk_buff_pool.c). So a queue gets zero copy without
// scatter-gather where each packet fits one frame.

// binding is how the socket of an endpoint is bound.
type binding struct {
	zeroCopy bool
	sg       bool   // a packet may have several frames
	why      string // the kernel copies; "" with zeroCopy
}

// portBinding is the binding of every port.
var portBinding = binding{sg: true, why: "ports have no zero copy"}

// chooseBinding chooses the binding of a socket on a queue of the uplink, for frames of frameSize
// bytes.
func chooseBinding(mode Mode, driver string, can xdpSupport, mtu, frameSize uint32) binding {
	copies := func(why string, args ...any) binding { return binding{sg: true, why: fmt.Sprintf(why, args...)} }
	longest := longestPacket(mtu)
	room := zeroCopyRoom(driver, frameSize)
	switch {
	case mode != ModeNative:
		return copies("%v mode has no zero copy", mode)
	case !can.all(xdpBasic | xdpRedirect | xdpZeroCopy):
		return copies("driver %s has no zero copy", driver)
	case longest <= room:
		return binding{zeroCopy: true}
	case can.zcMaxSegs > 1:
		return binding{zeroCopy: true, sg: true}
	}
	return copies("with zero copy driver %s receives %d bytes into a frame of %d, and a packet has up to %d (MTU %d)",
		driver, room, frameSize, longest, mtu)
}

// longestPacket is the length, in bytes, of the longest packet with two VLAN tags. With this the
// kernel compares the room of a frame (xp_assign_dev).
func longestPacket(mtu uint32) uint32 { return mtu + wire.EthernetHeaderLen + 2*wire.VLANTagLen }

// zeroCopyRoom is how many bytes of a packet a driver receives into one frame with zero copy. It
// strips the FCS.
func zeroCopyRoom(driver string, frameSize uint32) uint32 {
	room := xsk.RxRoom(frameSize)
	switch driver {
	case "igb", "igc", "ixgbe": // the unit of SRRCTL.BSIZEPKT: igb_setup_srrctl, igc_configure_rx_ring, ixgbe_configure_srrctl (82599)
		return room / 1024 * 1024
	}
	return room
}

// shape completes the geometry that a request leaves open, and chooses how the socket is bound:
// frames of 4096 bytes if those get zero copy and the default does not.
func (m *Mux) shape(req endpoint.Request, terms Terms) (endpoint.Geometry, binding, error) {
	geometry := req.Geometry.WithDefaults()
	if err := terms.boundTx(&geometry, req.Geometry.TxSize); err != nil {
		return geometry, portBinding, err
	}
	if err := geometry.Validate(); err != nil || req.Attach != endpoint.AttachQueue {
		return geometry, portBinding, err
	}
	choose, err := m.bindingChooser()
	if err != nil {
		return geometry, binding{}, err
	}
	b := choose(geometry.FrameSize)
	if large := choose(largeFrame); req.Geometry.FrameSize == 0 && !b.zeroCopy && large.zeroCopy {
		b, geometry.FrameSize = large, largeFrame
	}
	return geometry, b, geometry.Validate()
}

// bindingChooser is chooseBinding on the uplink as it is now.
func (m *Mux) bindingChooser() (func(frameSize uint32) binding, error) {
	var can xdpSupport
	err := route.Within(m.ns, func() error { can = xdpFeatures(m.up.ifindex); return nil })
	return func(frameSize uint32) binding {
		return chooseBinding(m.progs.mode, m.up.driver, can, m.uplinkMTU.Load(), frameSize)
	}, err
}

// presentedBinding is the binding of a socket on a queue that another process has bound.
func (m *Mux) presentedBinding(sock *os.File) (binding, error) {
	zeroCopy, err := xsk.ZeroCopy(sock)
	if err != nil || zeroCopy {
		return binding{zeroCopy: zeroCopy}, err
	}
	choose, err := m.bindingChooser()
	b := choose(endpoint.DefaultFrameSize)
	if b.zeroCopy {
		b = binding{sg: true, why: "an earlier unetd bound it so"}
	}
	return b, err
}

// largeFrame is the largest frame size, in bytes.
const largeFrame = 4096

// bindQueue binds a socket as b says. If the kernel refuses zero copy the socket is bound to copy,
// and the returned binding has the kernel's error. The calling thread is in the uplink's
// namespace.
func (m *Mux) bindQueue(sock *os.File, params xsk.Params, b binding, trusted bool) (binding, error) {
	if b.zeroCopy {
		params.ZeroCopy, params.SG = true, b.sg
		err := xsk.Bind(sock, params)
		if err == nil {
			return b, nil
		}
		b.why = m.up.zeroCopyRefused(err)
		b.zeroCopy = false
	}
	b.sg = trusted
	params.ZeroCopy, params.SG = false, b.sg
	return b, xsk.Bind(sock, params)
}

// zeroCopyRefused is the reason why the kernel copies after the error of a bind with zero copy.
func (u *uplink) zeroCopyRefused(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	why := fmt.Sprintf("driver %s refused zero copy: %v", u.driver, err)
	if u.virtio && errno == unix.EINVAL { // virtnet_xsk_pool_enable: virtqueue_dma_dev
		why += ", as without QEMU's iommu_platform=on"
	}
	return why
}

// warnOfLongPackets logs which endpoints cannot receive the longest packets of a new MTU.
func (m *Mux) warnOfLongPackets(mtu uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.frameSize == 0 { // taken over: not known
			continue
		}
		room := zeroCopyRoom(m.up.driver, l.frameSize)
		if l.bound.zeroCopy && !l.bound.sg && longestPacket(mtu) > room {
			m.log.Warn("the MTU exceeds what an endpoint with zero copy receives: longer frames of its queue are dropped until it is opened again",
				"endpoint", l.id, "queue", l.queue, "mtu", mtu, "frame_bytes", room)
		}
	}
}
