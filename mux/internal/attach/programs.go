//go:build linux

package attach

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

// Errors of attaching.
var (
	ErrForeignProgram = errors.New("interface already carries an XDP program")
	ErrVLANOffload    = errors.New("receive VLAN offload cannot be turned off")
	ErrInUse          = errors.New("another process serves this interface")
)

// Programs is the maps and programs of a mux, and the links that attach them. They exist as
// long as this process has descriptors of them, or as they are pinned.
type Programs struct {
	nl        *netlink.Handle // of the uplink's namespace
	ifindex   int             // of the uplink
	Mode      nic.Mode        // never nic.ModeAuto
	MTU       uint32          // the uplink's MTU when they were loaded: the limit of what endpoints send
	stateMu   sync.Mutex      // guards state, while goroutines run
	state     bpf.State       // as in the kernel's table
	Maps      tables.Tables
	Loaded    map[string]*ebpf.Program // by name: programsOf(mode), or PortPrograms(mode) if they were taken over, and RefuseProgram
	uplink    link.Link
	sideLinks []link.Link // of the programs named by sidePrograms
	Pins      *Pins
}

// Attach loads the programs and attaches them to the uplink in the mode want, or with
// nic.ModeAuto in the best mode that works. The calling thread is in the uplink's namespace, which
// is h's.
// types are those of the kernel, as far as they have been read.
func Attach(h *netlink.Handle, u *nic.Uplink, want nic.Mode, keep *Pins, types *btf.Cache, log *slog.Logger) (*Programs, error) {
	switch want {
	case nic.ModeNative, nic.ModeTCX:
		p, err := attachIn(h, want, u, keep, types, log)
		if err != nil {
			return nil, fmt.Errorf("attach to %s in %v mode: %w", u.Name, want, err)
		}
		if can := nic.XDPFeatures(u.Index); want == nic.ModeNative && can.Known && !can.All(nic.XDPNdoXmit) {
			log.Warn("the driver does not accept redirected frames now: what endpoints send is lost and counted (on a veth: until the other end has GRO or an XDP program)", "interface", u.Name)
		}
		return p, nil
	}
	why := u.NotNative(nic.XDPFeatures(u.Index))
	if why == "" {
		p, err := attachIn(h, nic.ModeNative, u, keep, types, log)
		if err == nil {
			// Many drivers report only after the attachment that they accept redirected frames.
			if nic.XDPFeatures(u.Index).All(nic.XDPNdoXmit) {
				log.Info("native mode chosen", "interface", u.Name, "driver", u.Driver, "because", "the driver has XDP and accepts redirected frames")
				return p, nil
			}
			err = errors.Join(errors.New("the driver does not accept redirected frames"), p.undo())
		}
		if errors.Is(err, ErrForeignProgram) {
			return nil, fmt.Errorf("attach to %s: %w", u.Name, err)
		}
		why = err.Error()
	}
	log.Info("tcx mode chosen", "interface", u.Name, "driver", u.Driver, "because", why)
	p, err := attachIn(h, nic.ModeTCX, u, keep, types, log)
	if err != nil {
		return nil, fmt.Errorf("attach to %s in tcx mode: %w", u.Name, err)
	}
	return p, nil
}

// attachIn loads and attaches the programs in one mode. The uplink's link is pinned last, so
// pins with it are complete.
func attachIn(h *netlink.Handle, m nic.Mode, u *nic.Uplink, keep *Pins, types *btf.Cache, log *slog.Logger) (_ *Programs, err error) {
	if err := CheckFree(h, u, m); err != nil {
		return nil, err
	}
	p := &Programs{Mode: m, MTU: u.MTU, nl: h, ifindex: u.Index, Pins: keep}
	defer func() {
		if err != nil {
			err = errors.Join(unsupported(err), p.undo())
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	spec.Maps["sockets"].MaxEntries = u.Queues
	config := bpf.Config(u.Addr, u.Index, u.Netns, u.MTU, m != nic.ModeNative, false)
	if m != nic.ModeNative {
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
	opts := pinMaps(spec, keep)
	opts.Cache = types
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
	p.Loaded, objects.Programs = objects.Programs, nil
	if err := objects.Assign(&p.Maps.MuxMaps); err != nil {
		return nil, err
	}
	if p.Loaded[RefuseProgram], err = loadRefuse(p.Maps.Counters); err != nil {
		return nil, err
	}
	err = p.ChangeState(func(s *bpf.State) {
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
	shown, err := p.ShowVLANTags(u.Name)
	if err != nil {
		return nil, err
	}
	if shown {
		log.Info("receive VLAN offload turned off, so that XDP sees VLAN tags", "interface", u.Name)
	}
	if m == nic.ModeNative {
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
		for _, name := range PortPrograms(m) {
			if err := p.Loaded[name].Pin(keep.at(name)); err != nil {
				return nil, err
			}
		}
	}
	// From here on ports can send by the uplink. They receive when its program is attached, below.
	if err := p.Maps.Devices.Put(uint32(u.Index), uint32(u.Index)); err != nil {
		return nil, fmt.Errorf("uplink into the device map: %w", err)
	}
	if m == nic.ModeTCX { // before other programs, which can end the chain
		p.uplink, err = link.AttachTCX(link.TCXOptions{Program: p.Loaded[bpf.MuxProgUnetUplinkTcx], Attach: ebpf.AttachTCXIngress, Interface: u.Index, Anchor: link.Head()})
	} else {
		flags := link.XDPAttachFlags(p.AttachFlag())
		p.uplink, err = link.AttachXDP(link.XDPOptions{Program: p.Loaded[bpf.MuxProgUnetUplink], Interface: u.Index, Flags: flags})
	}
	if err = foreign(err); err != nil && m == nic.ModeNative && !errors.Is(err, ErrForeignProgram) {
		err = u.NativeRefused(p.Loaded[bpf.MuxProgUnetUplink].FD(), err)
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
func pinMaps(spec *ebpf.CollectionSpec, keep *Pins) *ebpf.CollectionOptions {
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
func programsOf(m nic.Mode) []string {
	names := slices.Concat(PortPrograms(m), sidePrograms(m), []string{bpf.MuxProgUnetUplink, bpf.MuxProgUnetUp, bpf.MuxProgUnetGroup})
	if m == nic.ModeTCX {
		names = append(names, bpf.MuxProgUnetUplinkTcx, bpf.MuxProgUnetCut)
	}
	return names
}

// PortPrograms are the names of the programs that are attached to ports, and of their pins: two for the outer
// end, and two for the inner end.
func PortPrograms(m nic.Mode) []string {
	return []string{bpf.MuxProgUnetPort, bpf.MuxProgUnetPortLimited, DeliverProgram(m, true), DeliverProgram(m, false)}
}

// DeliverProgram is the name of the program of a port's inner end. Untrusted owners get no frame of several
// buffers: the kernel makes frames linear before it runs unet_deliver_linear; in native mode
// unet_deliver_whole drops those that are not.
func DeliverProgram(m nic.Mode, trusted bool) string {
	switch {
	case trusted:
		return bpf.MuxProgUnetDeliver
	case m == nic.ModeNative:
		return bpf.MuxProgUnetDeliverWhole
	}
	return bpf.MuxProgUnetDeliverLinear
}

// AttachFlag is the kernel's flag for XDP programs in this mode.
func (p *Programs) AttachFlag() int {
	if p.Mode == nic.ModeNative {
		return unix.XDP_FLAGS_DRV_MODE
	}
	return unix.XDP_FLAGS_SKB_MODE
}

// sidePrograms are the names of the programs that are not XDP programs: they count frames that the
// kernel drops after XDP, and take what the kernel of this host sends to endpoints, and copies of what it
// receives for groups.
func sidePrograms(m nic.Mode) []string {
	names := []string{bpf.MuxProgUnetRedirectErr, bpf.MuxProgUnetException, bpf.MuxProgUnetLo, bpf.MuxProgUnetEgress, bpf.MuxProgUnetGroupIn}
	if m == nic.ModeNative {
		return append(names, bpf.MuxProgUnetDevmapXmit)
	}
	return append(names, bpf.MuxProgUnetBacklogFull)
}

// attachSidePrograms attaches the side programs to traffic control or to tracepoints.
func (p *Programs) attachSidePrograms() error {
	// Traffic control. unet_lo is put before other programs, which can end the chain.
	controls := map[string]link.TCXOptions{
		bpf.MuxProgUnetLo:      {Attach: ebpf.AttachTCXIngress, Interface: LoIndex, Anchor: link.Head()},
		bpf.MuxProgUnetEgress:  {Attach: ebpf.AttachTCXEgress, Interface: p.ifindex},
		bpf.MuxProgUnetGroupIn: {Attach: ebpf.AttachTCXIngress, Interface: p.ifindex},
	}
	for _, name := range sidePrograms(p.Mode) {
		var l link.Link
		var err error
		if at, is := controls[name]; is {
			at.Program = p.Loaded[name]
			l, err = link.AttachTCX(at)
		} else {
			l, err = link.AttachTracing(link.TracingOptions{Program: p.Loaded[name]})
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
		DeliverProgram(p.Mode, true):  bpf.LostDeliverRedirect,
		DeliverProgram(p.Mode, false): bpf.LostDeliverRedirect,
	} {
		if err := p.countLosses(p.Loaded[name], counter); err != nil {
			return err
		}
	}
	return nil
}

// countLosses sets the counter of the frames that prog redirected and the kernel dropped.
func (p *Programs) countLosses(prog *ebpf.Program, c bpf.Counter) error {
	id, err := programID(prog)
	if err != nil {
		return err
	}
	return p.Maps.Losses.Put(id, uint32(c))
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

// ChangeState changes the state of the mux in the kernel, for the next process.
func (p *Programs) ChangeState(change func(*bpf.State)) error {
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	s := p.state
	change(&s)
	if err := p.Maps.State.Put(uint32(0), s); err != nil {
		return fmt.Errorf("state of the mux: %w", err)
	}
	p.state = s
	return nil
}

// NextID is the number after that of the last endpoint.
func (p *Programs) NextID() uint64 {
	p.stateMu.Lock()
	defer p.stateMu.Unlock()
	return p.state.NextId
}

// undo undoes attachIn, also an incomplete one.
func (p *Programs) undo() error {
	return errors.Join(p.Detach(), p.Pins.clear(), p.Close())
}

// Detach detaches the programs from the uplink and lo, deletes the mux's devices and restores the settings.
// The calling thread is in the uplink's namespace.
func (p *Programs) Detach() error {
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

// Close closes descriptors. Pinned programs stay attached.
func (p *Programs) Close() error {
	var err error
	if p.uplink != nil {
		err = p.uplink.Close()
	}
	for _, prog := range p.Loaded {
		err = errors.Join(err, prog.Close())
	}
	return errors.Join(err, CloseLinks(p.sideLinks), p.Maps.Close())
}

// CheckFree returns ErrInUse if another mux in tcx mode is attached to the uplink, and
// ErrForeignProgram if the uplink has an XDP program; in tcx mode the latter only if it is that of another mux.
// The calling thread is in the uplink's namespace.
func CheckFree(h *netlink.Handle, u *nic.Uplink, m nic.Mode) error {
	l, err := h.LinkByIndex(u.Index)
	if err != nil {
		return fmt.Errorf("interface %q: %w", u.Name, err)
	}
	chain, err := link.QueryPrograms(link.QueryOptions{Target: u.Index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("traffic control of %s: %w", u.Name, err)
	}
	for _, p := range chain.Programs {
		if ProgramName(p.ID) == bpf.MuxProgUnetUplinkTcx {
			return fmt.Errorf("%w: %s has program %d (bpftool net show dev %s)", ErrInUse, u.Name, p.ID, u.Name)
		}
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached || m == nic.ModeTCX && ProgramName(ebpf.ProgramID(x.ProgId)) != bpf.MuxProgUnetUplink {
		return nil
	}
	return fmt.Errorf("%w: %s has program %d (ip link show dev %s)", ErrForeignProgram, u.Name, x.ProgId, u.Name)
}

// ProgramName is the name of a program, at most 15 bytes; empty: it is gone, or cannot be read.
func ProgramName(id ebpf.ProgramID) string {
	prog, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
