//go:build linux

package attach

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/nic"
)

// ErrUnusable: the pins cannot be taken over.
var ErrUnusable = errors.New("the pins cannot be taken over")

func unusable(why string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnusable, fmt.Sprintf(why, args...))
}

// Adopt opens what another process has pinned, if it is complete and equal to what this
// process would make for the uplink.
func Adopt(h *netlink.Handle, keep *Pins, u *nic.Uplink, want nic.Mode) (_ *Programs, err error) {
	p := &Programs{nl: h, ifindex: u.Index, Pins: keep}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	state, err := readState(keep)
	if err != nil {
		return nil, err
	}
	p.state = state
	p.Mode, p.MTU = nic.Mode(state.Mode), state.Mtu
	switch {
	case state.Objects != bpf.ObjectsHash():
		return nil, unusable("it was made by another version of unet")
	case state.Netns != u.Netns || int(state.Ifindex) != u.Index:
		return nil, unusable("it belongs to another interface")
	case state.Link != u.Addr:
		return nil, unusable("the MAC address of %s was %x and is %v now", u.Name, state.Link, u.Addr)
	case p.Mode != nic.ModeNative && p.Mode != nic.ModeTCX:
		return nil, unusable("it is attached in generic mode, which there is no more")
	case want != nic.ModeAuto && want != p.Mode:
		return nil, unusable("it is attached in %v mode", p.Mode)
	}
	there, err := keep.Names()
	if err != nil {
		return nil, err
	}
	needed := append(mapNames(spec), pinUplink)
	needed = append(needed, PortPrograms(p.Mode)...)
	for _, name := range sidePrograms(p.Mode) {
		needed = append(needed, pinLink+name)
	}
	for _, name := range needed {
		if !slices.Contains(there, name) {
			return nil, unusable("%s is missing", name)
		}
	}
	return p, p.load(spec, u)
}

// load opens complete pins.
func (p *Programs) load(spec *ebpf.CollectionSpec, u *nic.Uplink) (err error) {
	if p.uplink, err = link.LoadPinnedLink(p.Pins.at(pinUplink), nil); err != nil {
		return fmt.Errorf("pinned link of the uplink: %w", err)
	}
	at, err := attachedTo(p.uplink)
	if err != nil {
		return fmt.Errorf("pinned link of the uplink: %w", err)
	}
	if at != u.Index {
		return unusable("its link is not attached to %s", u.Name)
	}
	for _, name := range sidePrograms(p.Mode) {
		l, err := link.LoadPinnedLink(p.Pins.at(pinLink+name), nil)
		if err != nil {
			return fmt.Errorf("pinned link of %s: %w", name, err)
		}
		p.sideLinks = append(p.sideLinks, l)
	}
	if _, err := net.InterfaceByName(UpName(u.Index)); err != nil {
		return unusable("%s is missing", UpName(u.Index))
	}
	// The number of queues of the uplink may have changed.
	queues, err := ebpf.LoadPinnedMap(p.Pins.at(bpf.MuxMapSockets), nil)
	if err != nil {
		return fmt.Errorf("pinned map: %w", err)
	}
	spec.Maps[bpf.MuxMapSockets].MaxEntries = queues.MaxEntries()
	queues.Close()
	if err := spec.LoadAndAssign(&p.Maps.MuxMaps, pinMaps(spec, p.Pins)); err != nil {
		return fmt.Errorf("pinned maps: %w", err)
	}
	refuse, err := loadRefuse(p.Maps.Counters)
	if err != nil {
		return err
	}
	p.Loaded = map[string]*ebpf.Program{RefuseProgram: refuse}
	for _, name := range PortPrograms(p.Mode) {
		if p.Loaded[name], err = ebpf.LoadPinnedProgram(p.Pins.at(name), nil); err != nil {
			return fmt.Errorf("pinned program: %w", err)
		}
	}
	return p.acceptLocal() // it may have been changed meanwhile
}

// readState reads the pinned state.
func readState(keep *Pins) (s bpf.State, err error) {
	spec, err := bpf.LoadMux()
	if err != nil {
		return s, err
	}
	m, err := ebpf.LoadPinnedMap(keep.at(pinState), nil)
	if errors.Is(err, os.ErrNotExist) {
		return s, unusable("%s is missing", pinState)
	}
	if err != nil {
		return s, fmt.Errorf("pinned state: %w", err)
	}
	defer m.Close()
	if m.ValueSize() != spec.Maps[bpf.MuxMapState].ValueSize {
		return s, unusable("it was made by another version of unet")
	}
	if err := m.Lookup(uint32(0), &s); err != nil {
		return s, fmt.Errorf("pinned state: %w", err)
	}
	return s, nil
}

// PortsOf are the names of the ports of a mux by ifindex: the devices in the namespace of h
// that have one of its port programs.
func PortsOf(h *netlink.Handle, progs ...*ebpf.Program) (map[uint32]string, error) {
	var ids []uint32
	for _, prog := range progs {
		id, err := programID(prog)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	links, err := route.Dump(h.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	ports := map[uint32]string{}
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "veth" && a.Xdp != nil && a.Xdp.Attached && slices.Contains(ids, a.Xdp.ProgId) {
			ports[uint32(a.Index)] = a.Name
		}
	}
	return ports, nil
}

// pinnedPorts is PortsOf for pins; os.ErrNotExist: the port program is not there.
func pinnedPorts(h *netlink.Handle, keep *Pins) (map[uint32]string, error) {
	var progs []*ebpf.Program
	for _, name := range []string{bpf.MuxProgUnetPort, bpf.MuxProgUnetPortLimited} {
		prog, err := ebpf.LoadPinnedProgram(keep.at(name), nil)
		if errors.Is(err, os.ErrNotExist) && name == bpf.MuxProgUnetPortLimited {
			continue // a version without it
		}
		if err != nil {
			return nil, fmt.Errorf("pinned program: %w", err)
		}
		defer prog.Close()
		progs = append(progs, prog)
	}
	return PortsOf(h, progs...)
}
