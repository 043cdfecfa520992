package mux

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netns"

	"github.com/unet-go/unet/bpf"
)

// programs is what a mux has loaded, and the uplink's attachment. Everything is
// held by descriptors of this process. (To outlive it, link and maps would be
// pinned here.)
type programs struct {
	mode    Mode // never ModeAuto
	objs    bpf.MuxObjects
	uplink  link.Link
	tracing []link.Link
	deliver *ebpf.CollectionSpec // compiled once, loaded for each port
}

// attachPrograms loads the programs and attaches them to the uplink in the mode that was
// asked for, or the best that works. The calling thread is in the uplink's
// namespace ns.
func attachPrograms(ns netns.NsHandle, u *uplink, want Mode, log *slog.Logger) (*programs, error) {
	if err := rlimit.RemoveMemlock(); err != nil { // does nothing since Linux 5.11
		return nil, fmt.Errorf("memory lock limit: %w", err)
	}
	cookie, err := netnsCookie()
	if err != nil {
		return nil, err
	}
	switch want {
	case ModeGeneric, ModeNative:
		p, err := attachIn(want, u, cookie)
		if err != nil {
			return nil, fmt.Errorf("attach to %s in %v mode: %w", u.name, want, err)
		}
		if f, known := xdpFeatures(ns, u.ifindex); want == ModeNative && known && f&xdpNdoXmit == 0 {
			log.Warn("the driver does not take redirected frames now: what endpoints send is lost and counted (on a veth: until the other end has GRO or an XDP program)", "interface", u.name)
		}
		return p, nil
	}
	if f, known := xdpFeatures(ns, u.ifindex); !u.virtual && known && f&(xdpBasic|xdpRedirect) == xdpBasic|xdpRedirect {
		p, err := attachIn(ModeNative, u, cookie)
		if err == nil {
			// Many drivers say only now that they can be redirected to.
			if f, _ := xdpFeatures(ns, u.ifindex); f&xdpNdoXmit != 0 {
				return p, nil
			}
			err = errors.Join(errors.New("driver does not take redirected frames"), p.Close())
		}
		if errors.Is(err, ErrForeignProgram) {
			return nil, fmt.Errorf("attach to %s: %w", u.name, err)
		}
		log.Info("native mode does not work, trying generic", "interface", u.name, "error", err)
	}
	p, err := attachIn(ModeGeneric, u, cookie)
	if err != nil {
		return nil, fmt.Errorf("attach to %s in generic mode: %w", u.name, err)
	}
	return p, nil
}

func attachIn(m Mode, u *uplink, cookie uint64) (_ *programs, err error) {
	p := &programs{mode: m}
	defer func() {
		if err != nil {
			err = errors.Join(unsupported(err), p.Close())
		}
	}()
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, err
	}
	spec.Maps["sockets"].MaxEntries = u.queues
	err = spec.Variables["config"].Set(bpf.Config(u.addr, u.ifindex, cookie, u.mtu, m == ModeGeneric))
	if err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&p.objs, nil); err != nil {
		return nil, err
	}
	if p.deliver, err = bpf.LoadDeliver(); err != nil {
		return nil, err
	}
	if err := p.deliver.Variables["deliver_generic"].Set(m == ModeGeneric); err != nil {
		return nil, err
	}
	if err := p.traceLosses(); err != nil {
		return nil, fmt.Errorf("tracepoints: %w", err)
	}
	// From here on ports can send, and then frames come in.
	if err := p.objs.Devices.Put(uint32(u.ifindex), uint32(u.ifindex)); err != nil {
		return nil, fmt.Errorf("uplink into the device map: %w", err)
	}
	if p.uplink, err = p.attach(p.objs.UnetUplink, u.ifindex); err != nil {
		return nil, err
	}
	return p, nil
}

// attach attaches an XDP program to a device of the calling thread's
// namespace, in the mux's mode. The kernel refuses if there is one already.
func (p *programs) attach(prog *ebpf.Program, ifindex int) (link.Link, error) {
	flags := link.XDPGenericMode
	if p.mode == ModeNative {
		flags = link.XDPDriverMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: flags})
	return l, foreign(err)
}

// traceLosses starts counting what the kernel drops after the programs.
func (p *programs) traceLosses() error {
	progs := []*ebpf.Program{p.objs.UnetRedirectErr, p.objs.UnetException}
	if p.mode == ModeNative {
		progs = append(progs, p.objs.UnetDevmapXmit)
	}
	for _, prog := range progs {
		l, err := link.AttachTracing(link.TracingOptions{Program: prog})
		if err != nil {
			return err
		}
		p.tracing = append(p.tracing, l)
	}
	return errors.Join(
		p.countLosses(p.objs.UnetUplink, bpf.LostUplinkRedirect),
		p.countLosses(p.objs.UnetPort, bpf.LostPortRedirect),
	)
}

// countLosses names the counter of what prog redirected in vain.
func (p *programs) countLosses(prog *ebpf.Program, c bpf.Counter) error {
	id, err := programID(prog)
	if err != nil {
		return err
	}
	return p.objs.Losses.Put(uint32(id), uint32(c))
}

func programID(prog *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := prog.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("program id: %w", ebpf.ErrNotSupported)
	}
	return id, nil
}

// loadDeliver loads a deliver program of its own for a port. It shares only the counters.
func (p *programs) loadDeliver() (*bpf.DeliverObjects, error) {
	var objs bpf.DeliverObjects
	err := p.deliver.Copy().LoadAndAssign(&objs, &ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{"counters": p.objs.Counters},
	})
	if err != nil {
		return nil, unsupported(err)
	}
	return &objs, nil
}

// Close detaches and unloads. It tolerates a programs that is not complete.
func (p *programs) Close() error {
	var err error
	if p.uplink != nil {
		err = p.uplink.Close()
	}
	for _, l := range p.tracing {
		err = errors.Join(err, l.Close())
	}
	if p.objs.Counters != nil {
		err = errors.Join(err, p.objs.Close())
	}
	return err
}
