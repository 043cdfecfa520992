package mux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
)

// Open attaches a mux to an interface of the calling thread's network
// namespace, or takes over what another process has pinned for it. It leaves
// nothing behind if it fails, and what it found as it was.
func Open(cfg Config) (_ *Mux, err error) {
	m := &Mux{
		log:      cfg.Log,
		policy:   cfg.Policy,
		users:    ledger{limits: cfg.Limits, byUID: map[uint32]use{}, bars: map[uint32]time.Time{}},
		failed:   make(chan error, 1),
		probes:   make(chan struct{}, probesAtOnce),
		lingers:  make(chan struct{}, 1),
		moved:    moved{wake: make(chan struct{}, 1)},
		fills:    newFillGuard(),
		aside:    map[netip.Addr]bool{},
		queues:   map[uint32]bool{},
		slots:    map[uint32]bool{},
		nextSlot: rand.Uint32N(bpf.MaxPorts),
		leases:   map[uint64]*Lease{},
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.policy == nil {
		m.policy = Permit(Terms{Trusted: true, Infrastructure: true})
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var made bool // by this call, and not taken over
	defer func() {
		if err == nil {
			return
		}
		m.stopBackground()
		err = errors.Join(err, m.letGoOfTags())
		if made {
			err = errors.Join(err, m.detach())
		}
		err = errors.Join(err, m.handles.run())
	}()
	if m.ns, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	m.handles.push(func() error { return m.ns.Close() })
	err = within(m.ns, func() error {
		if err := m.prepare(cfg); err != nil {
			return err
		}
		if made, err = m.attach(cfg); err != nil {
			return err
		}
		return m.start(cfg)
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// prepare opens what the mux works with, without effect on the kernel. Like the
// next two it runs on a thread that is in the mux's namespace.
func (m *Mux) prepare(cfg Config) (err error) {
	if m.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	m.handles.push(func() error { m.nl.Close(); return nil })
	if m.rt, err = openRoute(m.ns); err != nil {
		return err
	}
	m.handles.push(func() error { m.rt.Close(); return nil })
	if m.reaper, err = newReaper(m.nl, m.rt); err != nil {
		return err
	}
	if m.up, err = findUplink(m.nl, cfg.Interface); err != nil {
		return err
	}
	if m.unbound, err = xsk.NewUnbound(); err != nil {
		return err
	}
	m.handles.push(m.unbound.Close)
	// Without a protocol it receives nothing.
	if m.sender, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("packet socket to end connections by: %w", err)
	}
	m.handles.push(func() error { return unix.Close(m.sender) })
	if m.routes, err = route.New(m.ns, m.up.ifindex); err != nil {
		return err
	}
	m.handles.push(m.routes.Close)
	m.nat = nat.NewReader(nat.Link{Name: m.up.name, Index: m.up.ifindex})
	return nil
}

// attach attaches the programs, or takes over those that are pinned. made says
// that there is something to detach.
func (m *Mux) attach(cfg Config) (made bool, err error) {
	if cfg.Pin != "" {
		if err := sweep(m.nl, m.reaper, cfg.Pin, m.up.netns, m.log); err != nil {
			return false, err
		}
		if m.pins, err = makePins(cfg.Pin, m.up.netns, m.up.ifindex); err != nil {
			return false, fmt.Errorf("%s: %w", m.up.name, err)
		}
		m.handles.push(m.pins.close)
		adopted, err := m.takeOver(cfg)
		if adopted || err != nil {
			return false, err
		}
	}
	if err := m.up.free(m.nl); err != nil {
		return false, errors.Join(err, m.pins.remove())
	}
	hidden, err := m.up.hidesVLANTags()
	if err != nil {
		return false, errors.Join(err, m.pins.remove())
	}
	m.state = bpf.State{
		Objects: bpf.ObjectsHash(),
		Netns:   m.up.netns,
		NextId:  1,
		Ifindex: uint32(m.up.ifindex),
		Link:    m.up.addr,
	}
	if hidden {
		m.state.RestoreVlan = 1
	}
	m.progs, err = attachPrograms(m.nl, m.ns, &m.up, cfg.Mode, m.state, m.pins, m.log)
	if err != nil {
		return false, errors.Join(err, m.pins.remove())
	}
	m.handles.push(m.progs.release)
	m.state, err = m.progs.readState()
	return true, err
}

// takeOver goes on from what is pinned. What cannot be gone on from it takes down.
func (m *Mux) takeOver(cfg Config) (adopted bool, err error) {
	names, err := m.pins.names()
	if err != nil || len(names) == 0 {
		return false, err
	}
	m.progs, m.state, err = loadPinned(m.nl, m.pins, &m.up, cfg.Mode)
	if errors.Is(err, errUnusable) {
		m.log.Warn("what is pinned is taken down, and its endpoints with it", "interface", m.up.name, "why", err)
		return false, takeDown(m.nl, m.reaper, m.up.ifindex, m.pins)
	}
	if err != nil {
		return false, err
	}
	m.handles.push(m.progs.release)
	if m.state.NextId > 0 {
		m.lastID = m.state.NextId - 1
	}
	return true, m.adopt()
}

// start begins to serve.
func (m *Mux) start(cfg Config) error {
	if err := m.showVLANTags(); err != nil {
		return err
	}
	m.present.Store(m.up.mtu)
	m.identity = m.up.identity(m.progs.mode)
	if err := m.holdPrograms(); err != nil {
		return err
	}
	if err := m.checkFillFields(cfg.UncheckedFillRings); err != nil {
		return err
	}
	if err := m.followAlarms(); err != nil {
		return err
	}
	m.running.Go(m.followLingering)
	m.running.Go(m.guardFillRings)
	m.running.Go(m.followMoved)
	stop := m.routes.Watch(func(c route.Change) { m.hopChanged(c.Hop) })
	m.background.push(func() error { stop(); return nil })
	if err := m.watchUplink(); err != nil {
		return err
	}
	if cfg.Policy != nil && m.log.Enabled(m.ctx, slog.LevelWarn) {
		if err := m.showTranslation(); err != nil {
			return err
		}
	}
	waiting := len(m.all())
	if waiting > 0 {
		grace := cfg.Grace
		if grace == 0 {
			grace = defaultGrace
		}
		m.running.Go(func() { m.reclaimAfterGrace(grace) })
	}
	m.log.Info("mux attached", "interface", m.up.name, "mode", m.progs.mode.String(), "link", m.up.addr, "mtu", m.up.mtu, "taken_over", waiting)
	return nil
}
