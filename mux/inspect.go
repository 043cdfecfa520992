//go:build linux

package mux

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
)

// Inspection is what an interface is and what a mux would do on it.
type Inspection struct {
	Name     string
	Driver   string // as ethtool -i shows it
	Kind     string // of a virtual link (veth, bridge); "device" is hardware
	PortOf   string // the bond, team or bridge that takes its frames, such as "bond bond0"; "": none
	Up       bool   // set up, with a carrier
	MTU      uint32 // bytes of IP packet
	Queues   uint32 // receive queues
	Active   uint32 // of these, in use; equal to Queues if the driver does not say
	Mode     Mode   // that ModeAuto would choose, as far as it shows before the programs are attached
	Because  string // why
	ZeroCopy string // why a queue would have no zero copy; "": it would, unless the driver refuses it

	// Hidden and Merging are receive offloads that are on and that a mux turns off in some modes,
	// in the names of ethtool -k, separated by commas. Fixed are those of them that the driver
	// does not turn off.
	Hidden, Merging, Fixed string

	// Refused is why no mux can be attached now: ErrInUse, ErrForeignProgram, or nil. If this
	// process may not read that, it is os.ErrPermission.
	Refused error
}

// Inspect looks at an interface of the calling thread's network namespace. It changes nothing.
// Errors: ErrNoInterface, ErrNotEthernet.
func Inspect(name string) (Inspection, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Inspection{}, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	u, err := nic.FindUplink(h, name)
	if err != nil {
		return Inspection{}, err
	}
	l, err := h.LinkByIndex(u.Index)
	if err != nil {
		return Inspection{}, fmt.Errorf("interface %q: %w", name, err)
	}
	flags := l.Attrs().RawFlags
	in := Inspection{
		Name: u.Name, Driver: u.Driver, Kind: u.Kind, PortOf: u.PortOf, MTU: u.MTU, Queues: u.Queues,
		Up: flags&unix.IFF_UP != 0 && flags&unix.IFF_RUNNING != 0,
	}
	if in.Active, err = nic.ActiveQueues(name, u.Queues); err != nil {
		return Inspection{}, err
	}
	on, err := nic.OffloadsOn(name, nic.HidesVLAN|nic.MergesFrames)
	if err != nil {
		return Inspection{}, err
	}
	fixed, err := nic.OffloadsFixed(name)
	if err != nil {
		return Inspection{}, err
	}
	in.Hidden, in.Merging, in.Fixed = (on & nic.HidesVLAN).String(), (on & nic.MergesFrames).String(), (on & fixed).String()

	can := nic.XDPFeatures(u.Index)
	in.Mode, in.Because = ModeTCX, u.NotNative(can)
	switch {
	case in.Because != "":
	case on&fixed&nic.HidesVLAN != 0:
		in.Because = fmt.Sprintf("the driver does not turn %v off, so XDP would not see VLAN tags", on&fixed&nic.HidesVLAN)
	case on&fixed&nic.MergesFrames != 0:
		in.Because = fmt.Sprintf("the driver does not turn %v off, and accepts no XDP with it", on&fixed&nic.MergesFrames)
	case can.All(nic.XDPNdoXmit):
		in.Mode, in.Because = ModeNative, "the driver has XDP and accepts redirected frames"
	default: // many drivers accept redirected frames only while a program is attached
		in.Mode, in.Because = ModeNative, "the driver has XDP; if it does not accept redirected frames when the program is attached, it is tcx"
	}
	in.ZeroCopy = nic.ChooseBinding(in.Mode, u.Driver, can, u.MTU, endpoint.DefaultFrameSize).Why
	if large := nic.ChooseBinding(in.Mode, u.Driver, can, u.MTU, nic.LargeFrame); large.ZeroCopy {
		in.ZeroCopy = ""
	}
	in.Refused = attach.CheckFree(h, &u, in.Mode)
	if errors.Is(in.Refused, unix.EPERM) || errors.Is(in.Refused, unix.EACCES) {
		in.Refused = fmt.Errorf("%w: %w", os.ErrPermission, in.Refused)
	}
	return in, nil
}

// PinState is a mux that is pinned in a bpffs.
type PinState struct {
	Path      string
	Here      bool   // it is of the calling thread's network namespace
	Interface string // the uplink; "": it is gone, or of another namespace
	Served    bool   // a process serves it
	Gone      bool   // the uplink is gone
}

// Pins lists the muxes that are pinned in a bpffs.
func Pins(bpffs string) ([]PinState, error) {
	list, cookie, err := pinned(bpffs)
	if err != nil {
		return nil, err
	}
	var states []PinState
	for _, p := range list {
		s := PinState{Path: p.Path, Here: p.Netns == cookie}
		if s.Gone, _, err = p.UplinkGone(); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Path, err)
		}
		if l, err := netlink.LinkByIndex(p.Index); s.Here && err == nil {
			s.Interface = l.Attrs().Name
		}
		keep, err := attach.LockPins(p.Path) // released at once; a process that wants it meanwhile tries again (attach.OpenPins)
		switch {
		case errors.Is(err, attach.ErrInUse):
			s.Served = true
		case errors.Is(err, os.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			return nil, err
		default:
			keep.Close()
		}
		states = append(states, s)
	}
	return states, nil
}

// PinsHere are the directories of the muxes of the calling thread's network namespace that are pinned in a bpffs.
// It touches none of them.
func PinsHere(bpffs string) (paths []string, err error) {
	list, cookie, err := pinned(bpffs)
	for _, p := range list {
		if p.Netns == cookie {
			paths = append(paths, p.Path)
		}
	}
	return paths, err
}

// pinned lists the directories of pins in a bpffs, and returns the number of the calling thread's network namespace.
func pinned(bpffs string) (list []attach.PinnedMux, cookie uint64, err error) {
	if err = attach.CheckBPFFS(bpffs); err != nil {
		return nil, 0, err
	}
	if cookie, err = nic.NetnsCookie(); err != nil {
		return nil, 0, err
	}
	list, err = attach.Pinned(bpffs)
	return list, cookie, err
}

// Cleanup removes the muxes pinned in a bpffs that no process serves: the muxes of the calling
// thread's network namespace, and those of any namespace whose uplink is gone. It keeps a mux
// with endpoints in use, unless force is set: the next Open of its interface takes it over.
// report is called with a line about each mux.
func Cleanup(bpffs string, force bool, report func(what string)) error {
	return attach.Cleanup(bpffs, force, report)
}
