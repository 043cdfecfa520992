//go:build linux

package mux

import "github.com/unet-go/unet/mux/internal/nic"

// Mode is how the programs of a mux are attached: auto, tcx or native.
type Mode = nic.Mode

const (
	// ModeAuto is native if the interface is hardware whose driver supports XDP, redirects
	// and redirected frames, shows VLAN tags, and is not vmxnet3; otherwise tcx. On a veth native is
	// slower: it copies each skb into an XDP frame first.
	ModeAuto = nic.ModeAuto
	// ModeNative runs the programs in the driver. On a veth the other end then needs GRO or
	// an XDP program, else frames sent there are lost.
	ModeNative = nic.ModeNative
	// ModeTCX runs the uplink's program at its traffic control ingress, and those of ports on
	// skbs, with any driver.
	ModeTCX = nic.ModeTCX
)

// ParseMode is the inverse of Mode.String.
func ParseMode(s string) (Mode, error) { return nic.ParseMode(s) }
