//go:build linux

package mux

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// programs is the maps and programs of a mux, and the links that attach them. They exist as
// long as this process has descriptors of them, or as they are pinned.
type programs struct {
	nl        *netlink.Handle // of the uplink's namespace
	ifindex   int             // of the uplink
	mode      Mode            // never ModeAuto
	mtu       uint32          // the uplink's MTU when they were loaded: the limit of what endpoints send
	stateMu   sync.Mutex      // guards state, while goroutines run
	state     bpf.State       // as in the kernel's table
	maps      tables.Tables
	loaded    map[string]*ebpf.Program // by name: programsOf(mode), or portPrograms(mode) if they were taken over, and refuseProgram
	uplink    link.Link
	sideLinks []link.Link // of the programs named by sidePrograms
	pins      *pins
	types     *btf.Cache // of the kernel; nil as soon as the mux is open
}

// attachPrograms loads the programs and attaches them to the uplink in the mode want, or with
// ModeAuto in the best mode that works. The calling thread is in the uplink's namespace, which
// is h's.
func attachPrograms(h *netlink.Handle, u *nic.Uplink, want Mode, keep *pins, log *slog.Logger) (*programs, error) {
	switch want {
	case ModeNative, ModeTCX:
		p, err := attachIn(h, want, u, keep, log)
		if err != nil {
			return nil, fmt.Errorf("attach to %s in %v mode: %w", u.Name, want, err)
		}
		if can := nic.XDPFeatures(u.Index); want == ModeNative && can.Known && !can.All(nic.XDPNdoXmit) {
			log.Warn("the driver does not accept redirected frames now: what endpoints send is lost and counted (on a veth: until the other end has GRO or an XDP program)", "interface", u.Name)
		}
		return p, nil
	}
	why := u.NotNative(nic.XDPFeatures(u.Index))
	if why == "" {
		p, err := attachIn(h, ModeNative, u, keep, log)
		if err == nil {
			// Many drivers report only after the attachment that they accept redirected frames.
			if nic.XDPFeatures(u.Index).All(nic.XDPNdoXmit) {
				log.Info("native mode chosen", "interface", u.Name, "driver", u.Driver, "because", "the driver has XDP and accepts redirected frames")
				return p, nil
			}
			err = errors.Join(errors.New("the driver does not accept redirected frames"), p.detach())
		}
		if errors.Is(err, ErrForeignProgram) {
			return nil, fmt.Errorf("attach to %s: %w", u.Name, err)
		}
		why = err.Error()
	}
	log.Info("tcx mode chosen", "interface", u.Name, "driver", u.Driver, "because", why)
	p, err := attachIn(h, ModeTCX, u, keep, log)
	if err != nil {
		return nil, fmt.Errorf("attach to %s in tcx mode: %w", u.Name, err)
	}
	return p, nil
}

// newTypes makes a cache for the types of the kernel. Reading them takes as long as all else that Open does in
// user space. Tests share one cache.
var newTypes = btf.NewCache

// attachIn loads and attaches the programs in one mode. The uplink's link is pinned last, so
// pins with it are complete.
func attachIn(h *netlink.Handle, m Mode, u *nic.Uplink, keep *pins, log *slog.Logger) (_ *programs, err error) {
	if err := checkFree(h, u, m); err != nil {
		return nil, err
	}
	p := &programs{mode: m, mtu: u.MTU, nl: h, ifindex: u.Index, pins: keep}
	defer func() {
		if err != nil {
			err = errors.Join(unsupported(err), p.detach())
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	spec.Maps["sockets"].MaxEntries = u.Queues
	config := bpf.Config(u.Addr, u.Index, u.Netns, u.MTU, m != ModeNative, false)
	if m != ModeNative {
		cutter, err := makeCutter(h, u.Index)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			log.Warn("super-frames to untrusted endpoints are dropped: this kernel has no ifb devices (modprobe ifb)", "interface", u.Name)
		case err != nil:
			return nil, err
		}
		var secret [5]byte
		rand.Read(secret[:])
		config.CutBy(cutter, secret)
	}
	up, top, err := makeUp(h, u.Index)
	if err != nil {
		return nil, err
	}
	config.Up, config.Top = uint32(up.Attrs().Index), uint32(top.Attrs().Index)
	if err := spec.Variables["config"].Set(config); err != nil {
		return nil, err
	}
	p.types = newTypes()
	opts := pinMaps(spec, keep)
	opts.Cache = p.types
	needed := programsOf(m)
	for name := range spec.Programs {
		if !slices.Contains(needed, name) {
			delete(spec.Programs, name)
		}
	}
	objects, err := ebpf.NewCollectionWithOptions(spec, *opts)
	if err != nil {
		return nil, err
	}
	defer objects.Close()
	p.loaded, objects.Programs = objects.Programs, nil
	if err := objects.Assign(&p.maps.MuxMaps); err != nil {
		return nil, err
	}
	if p.loaded[refuseProgram], err = loadRefuse(p.maps.Counters); err != nil {
		return nil, err
	}
	err = p.changeState(func(s *bpf.State) {
		*s = bpf.State{
			Objects: bpf.ObjectsHash(),
			Netns:   u.Netns,
			NextId:  1,
			Ifindex: uint32(u.Index),
			Mtu:     u.MTU,
			Link:    u.Addr,
			Mode:    uint16(m),
		}
	})
	if err != nil {
		return nil, err
	}
	shown, err := p.showVLANTags(u.Name)
	if err != nil {
		return nil, err
	}
	if shown {
		log.Info("receive VLAN offload turned off, so that XDP sees VLAN tags", "interface", u.Name)
	}
	if m == ModeNative {
		// What is left on the driver ignores, or it refuses the program.
		if _, err := p.stopMerging(u.Name); err != nil {
			return nil, err
		}
	}
	if err := p.attachSidePrograms(); err != nil {
		return nil, err
	}
	if err := p.attachUp(up, top); err != nil {
		return nil, err
	}
	if config.Cutter != 0 {
		if err := p.attachCutter(int(config.Cutter)); err != nil {
			return nil, err
		}
	}
	if keep != nil {
		for _, name := range portPrograms(m) {
			if err := p.loaded[name].Pin(keep.at(name)); err != nil {
				return nil, err
			}
		}
	}
	// From here on ports can send by the uplink. They receive when its program is attached, below.
	if err := p.maps.Devices.Put(uint32(u.Index), uint32(u.Index)); err != nil {
		return nil, fmt.Errorf("uplink into the device map: %w", err)
	}
	if m == ModeTCX { // before other programs, which can end the chain
		p.uplink, err = link.AttachTCX(link.TCXOptions{Program: p.loaded[bpf.MuxProgUnetUplinkTcx], Attach: ebpf.AttachTCXIngress, Interface: u.Index, Anchor: link.Head()})
	} else {
		flags := link.XDPAttachFlags(p.attachFlag())
		p.uplink, err = link.AttachXDP(link.XDPOptions{Program: p.loaded[bpf.MuxProgUnetUplink], Interface: u.Index, Flags: flags})
	}
	if err = foreign(err); err != nil && m == ModeNative && !errors.Is(err, ErrForeignProgram) {
		err = u.NativeRefused(p.loaded[bpf.MuxProgUnetUplink].FD(), err)
	}
	if err != nil {
		return nil, err
	}
	if keep != nil {
		if err := p.uplink.Pin(keep.at(pinUplink)); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pinMaps returns the options by which the maps of a collection are pinned when they are made,
// or opened if they are pinned already.
func pinMaps(spec *ebpf.CollectionSpec, keep *pins) *ebpf.CollectionOptions {
	if keep == nil {
		return &ebpf.CollectionOptions{}
	}
	for _, name := range mapNames(spec) {
		spec.Maps[name].Pinning = ebpf.PinByName
	}
	return &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: keep.path}}
}

// mapNames are the names of all maps, except the compiler's sections of constants.
func mapNames(spec *ebpf.CollectionSpec) []string {
	var names []string
	for name := range spec.Maps {
		if name[0] != '.' {
			names = append(names, name)
		}
	}
	return names
}

// programsOf are the names of the programs of a mux, without those that it has for endpoints on queues only. In
// tcx mode unet_uplink and unet_cut are for the cutter.
func programsOf(m Mode) []string {
	names := slices.Concat(portPrograms(m), sidePrograms(m), []string{bpf.MuxProgUnetUplink, bpf.MuxProgUnetUp, bpf.MuxProgUnetGroup})
	if m == ModeTCX {
		names = append(names, bpf.MuxProgUnetUplinkTcx, bpf.MuxProgUnetCut)
	}
	return names
}

// portPrograms are the names of the programs that are attached to ports, and of their pins: two for the outer
// end, and two for the inner end.
func portPrograms(m Mode) []string {
	return []string{bpf.MuxProgUnetPort, bpf.MuxProgUnetPortLimited, deliverProgram(m, true), deliverProgram(m, false)}
}

// deliverProgram is the name of the program of a port's inner end. Untrusted owners get no frame of several
// buffers: the kernel makes frames linear before it runs unet_deliver_linear; in native mode
// unet_deliver_whole drops those that are not.
func deliverProgram(m Mode, trusted bool) string {
	switch {
	case trusted:
		return bpf.MuxProgUnetDeliver
	case m == ModeNative:
		return bpf.MuxProgUnetDeliverWhole
	}
	return bpf.MuxProgUnetDeliverLinear
}

// attachFlag is the kernel's flag for XDP programs in this mode.
func (p *programs) attachFlag() int {
	if p.mode == ModeNative {
		return unix.XDP_FLAGS_DRV_MODE
	}
	return unix.XDP_FLAGS_SKB_MODE
}

// sidePrograms are the names of the programs that are not XDP programs: they count frames that the
// kernel drops after XDP, and take what the kernel of this host sends to endpoints, and copies of what it
// receives for groups.
func sidePrograms(m Mode) []string {
	names := []string{bpf.MuxProgUnetRedirectErr, bpf.MuxProgUnetException, bpf.MuxProgUnetLo, bpf.MuxProgUnetEgress, bpf.MuxProgUnetGroupIn}
	if m == ModeNative {
		return append(names, bpf.MuxProgUnetDevmapXmit)
	}
	return append(names, bpf.MuxProgUnetBacklogFull)
}

// attachSidePrograms attaches the side programs to traffic control or to tracepoints.
func (p *programs) attachSidePrograms() error {
	// Traffic control. unet_lo is put before other programs, which can end the chain.
	controls := map[string]link.TCXOptions{
		bpf.MuxProgUnetLo:      {Attach: ebpf.AttachTCXIngress, Interface: loIndex, Anchor: link.Head()},
		bpf.MuxProgUnetEgress:  {Attach: ebpf.AttachTCXEgress, Interface: p.ifindex},
		bpf.MuxProgUnetGroupIn: {Attach: ebpf.AttachTCXIngress, Interface: p.ifindex},
	}
	for _, name := range sidePrograms(p.mode) {
		var l link.Link
		var err error
		if at, is := controls[name]; is {
			at.Program = p.loaded[name]
			l, err = link.AttachTCX(at)
		} else {
			l, err = link.AttachTracing(link.TracingOptions{Program: p.loaded[name]})
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		p.sideLinks = append(p.sideLinks, l)
		if err := p.pinLink(l, name); err != nil {
			return err
		}
	}
	for name, counter := range map[string]bpf.Counter{
		bpf.MuxProgUnetUplink:         bpf.LostUplinkRedirect,
		bpf.MuxProgUnetGroup:          bpf.LostUplinkRedirect,
		bpf.MuxProgUnetPort:           bpf.LostPortRedirect,
		bpf.MuxProgUnetPortLimited:    bpf.LostPortRedirect,
		deliverProgram(p.mode, true):  bpf.LostDeliverRedirect,
		deliverProgram(p.mode, false): bpf.LostDeliverRedirect,
	} {
		if err := p.countLosses(p.loaded[name], counter); err != nil {
			return err
		}
	}
	return nil
}

// countLosses sets the counter of the frames that prog redirected and the kernel dropped.
func (p *programs) countLosses(prog *ebpf.Program, c bpf.Counter) error {
	id, err := programID(prog)
	if err != nil {
		return err
	}
	return p.maps.Losses.Put(id, uint32(c))
}

func programID(prog *ebpf.Program) (uint32, error) {
	info, err := prog.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("program id: %w", ebpf.ErrNotSupported)
	}
	return uint32(id), nil
}

// changeState changes the state of the mux in the kernel, for the next process.
func (p *programs) changeState(change func(*bpf.State)) error {
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	s := p.state
	change(&s)
	if err := p.maps.State.Put(uint32(0), s); err != nil {
		return fmt.Errorf("state of the mux: %w", err)
	}
	p.state = s
	return nil
}

// detach undoes attachIn, also an incomplete one.
func (p *programs) detach() error {
	return errors.Join(p.uncouple(), p.pins.clear(), p.release())
}

// uncouple detaches the programs from the uplink and lo, deletes the mux's devices and restores the settings.
// The calling thread is in the uplink's namespace.
func (p *programs) uncouple() error {
	for _, l := range append([]link.Link{p.uplink}, p.sideLinks...) {
		if l == nil { // attaching failed
			continue
		}
		if err := detachLink(l); err != nil {
			return fmt.Errorf("detach from the uplink: %w", err)
		}
	}
	return errors.Join(refuseLocal(p.state), deleteUp(p.nl, p.ifindex), deleteCutter(p.nl, p.ifindex), p.restoreOffloads(nic.HidesVLAN|nic.MergesFrames))
}

// detachLink detaches the program of a link from its device at once; by closing the last descriptor of
// the link it would be detached later. Links to tracepoints cannot be detached otherwise.
func detachLink(l link.Link) error {
	info, err := l.Info()
	if err != nil || info.TCX() == nil && info.XDP() == nil {
		return err
	}
	return l.Detach()
}

// release closes descriptors. Pinned programs stay attached.
func (p *programs) release() error {
	var err error
	if p.uplink != nil {
		err = p.uplink.Close()
	}
	for _, prog := range p.loaded {
		err = errors.Join(err, prog.Close())
	}
	return errors.Join(err, closeLinks(p.sideLinks), p.maps.Close())
}
