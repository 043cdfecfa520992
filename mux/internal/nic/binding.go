//go:build linux

package nic

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// The kernel binds a socket with zero copy only in native mode, on a driver that has it, and
// refuses zero copy together with scatter-gather (XDP_USE_SG) where the driver's xdp_zc_max_segs
// is 1 (xp_assign_dev, net/xdp/xsk_buff_pool.c). So a queue gets zero copy without
// scatter-gather where each packet fits one frame.

// Binding is how the socket of an endpoint is bound.
type Binding struct {
	ZeroCopy bool
	SG       bool   // a packet may have several frames
	Why      string // the kernel copies; "" with ZeroCopy
}

// PortBinding is the binding of every port.
var PortBinding = Binding{SG: true, Why: "ports have no zero copy"}

// ChooseBinding chooses the binding of a socket on a queue of the uplink, for frames of frameSize
// bytes.
func ChooseBinding(mode Mode, driver string, can XDPSupport, mtu, frameSize uint32) Binding {
	copies := func(why string, args ...any) Binding { return Binding{SG: true, Why: fmt.Sprintf(why, args...)} }
	longest := LongestPacket(mtu)
	room := ZeroCopyRoom(driver, frameSize)
	switch {
	case mode != ModeNative:
		return copies("%v mode has no zero copy", mode)
	case !can.All(XDPBasic | XDPRedirect | XDPZeroCopy):
		return copies("driver %s has no zero copy", driver)
	case longest <= room:
		return Binding{ZeroCopy: true}
	case can.ZCMaxSegs > 1:
		return Binding{ZeroCopy: true, SG: true}
	}
	return copies("with zero copy driver %s receives %d bytes into a frame of %d, and a packet has up to %d (MTU %d)",
		driver, room, frameSize, longest, mtu)
}

// LongestPacket is the length, in bytes, of the longest packet with two VLAN tags. With this the
// kernel compares the room of a frame (xp_assign_dev).
func LongestPacket(mtu uint32) uint32 { return mtu + wire.EthernetHeaderLen + 2*wire.VLANTagLen }

// ZeroCopyRoom is how many bytes of a packet a driver receives into one frame with zero copy. It
// strips the FCS.
func ZeroCopyRoom(driver string, frameSize uint32) uint32 {
	room := xsk.RxRoom(frameSize)
	switch driver {
	case "igb", "igc", "ixgbe": // the unit of SRRCTL.BSIZEPKT: igb_setup_srrctl, igc_configure_rx_ring, ixgbe_configure_srrctl (82599)
		return room / 1024 * 1024
	}
	return room
}

// LargeFrame is the largest frame size, in bytes.
const LargeFrame = 4096

// ZeroCopyRefused is the reason why the kernel copies after the error of a bind with zero copy.
func (u *Uplink) ZeroCopyRefused(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	why := fmt.Sprintf("driver %s refused zero copy: %v", u.Driver, err)
	if u.Virtio && errno == unix.EINVAL { // virtnet_xsk_pool_enable: virtqueue_dma_dev
		why += ", as without QEMU's iommu_platform=on"
	}
	return why
}
