//go:build linux

package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/steer"
)

// Config describes a mux.
type Config struct {
	Interface string // the uplink
	// NetNS is a descriptor of the network namespace of the uplink. The caller may close it
	// after Open. 0: the namespace of the thread that calls Open.
	NetNS netns.NsHandle
	Mode  Mode         // how the programs are attached
	Log   *slog.Logger // nil: nothing is logged

	// Pin is the mount point of a bpffs (/sys/fs/bpf): the mux is pinned there and
	// outlives the process. Empty: nothing is pinned.
	Pin string
	// Dir is the directory of the tag table of a pinned mux, on a tmpfs. The table is a file that has to outlive the process, as the
	// pins do. Empty: a pinned mux has no tag table, and so no memory paths. A mux that is not pinned needs no directory.
	Dir string
	// Grace is the time within which endpoints taken over from another process must be
	// presented; 0: ten seconds.
	Grace time.Duration
	// UncheckedFillRings permits endpoints of untrusted owners on a kernel on which the
	// programs cannot check fill rings (ErrFillRings).
	UncheckedFillRings bool
	// Policy decides what users may have; nil: every user is trusted and may have everything.
	Policy Policy
	Limits Limits
	// IDs numbers the endpoints. Muxes that share it give no number twice. nil: this mux has
	// its own.
	IDs *IDs
}

// Mux is an uplink with the programs on it. Its methods may be called from any
// goroutine, in any network namespace.
//
// +checklocksalias:announcer.m.mu=mu
// +checklocksalias:lingers.m.mu=mu
type Mux struct {
	ns          netns.NsHandle // the uplink's namespace
	nl          *netlink.Handle
	rt          *nl.SocketHandle // for requests that package netlink does not have
	deleter     *nic.Deleter
	unbound     *os.File // an AF_XDP socket that is never bound (tables.SocketThere)
	sender      sender   // of the frames that the mux sends itself
	up          nic.Uplink
	pins        *attach.Pins // nil: nothing is pinned
	progs       *attach.Programs
	routes      *route.Resolver
	nat         *nat.Reader
	identity    endpoint.Identity
	uplinkMTU   atomic.Uint32                  // present MTU of the uplink, in bytes
	own         atomic.Pointer[[]netip.Prefix] // the uplink's addresses, as last read
	shown       string                         // name of the uplink now; for updateUplink only
	log         *slog.Logger
	policy      Policy
	ids         *IDs
	failed      chan error    // of capacity 1
	probes      *share.Shares // requests that probe the network
	lingers     lingers       // endpoints without a lease whose socket or segment may exist
	announcer   announcer     // of addresses of the host and of endpoints
	fills       fillGuard
	slots       slots // of the sockets of ports
	trustedOnly bool  // untrusted owners get no endpoints (ErrFillRings)

	rates    rates
	queueing queueHold // the uplink's program for endpoints on queues, in tcx mode

	handles    undoStack      // closes the descriptors that Open has opened; pinned and attached objects stay
	background undoStack      // ends goroutines
	running    sync.WaitGroup // goroutines that end with ctx

	// Methods hold life for reading; Close cancels ctx, which ends their waits, and holds
	// life for writing. The mux's own goroutines do not hold it; Close waits for them.
	life   sync.RWMutex
	ctx    context.Context
	cancel context.CancelFunc
	closed bool // +checklocks:life

	mu sync.Mutex // also guards the kernel's tables, what is in the table of tags, and calls of steering
	// tags are the tags that are held by one endpoint.
	// +checklocks:mu
	tags  claimTable
	table *tagtable.Table // shows tags to applications; nil: there is none
	// unshown: that a tag is not in the table was logged.
	// +checklocks:mu
	unshown  bool
	groups   groups // +checklocks:mu
	steering *steer.Steering
	users    *ledger // +checklocks:mu
	// aside are the owned addresses that are being claimed.
	// +checklocks:mu
	aside map[netip.Addr]bool
	// queues are the queues of the uplink that leases hold. The value is true once the lease's socket is bound.
	// +checklocks:mu
	queues map[uint32]bool
	// gaveBack is when reserving sockets were closed last.
	// +checklocks:mu
	gaveBack time.Time
	// letGo is when letOthers let others go on last.
	// +checklocks:mu
	letGo time.Time
	// leases are by endpoint.
	// +checklocks:mu
	leases map[uint64]*Lease
	// captures is the number of captures of the frames of all endpoints.
	// +checklocks:mu
	captures int
	// endings counts the leases that have ended, by reason (Report).
	// +checklocks:mu
	endings map[string]uint64
	// down: the uplink is down.
	// +checklocks:mu
	down bool
	// ended is why no endpoint can work any more.
	// +checklocks:mu
	ended error
}

// Identity describes the uplink to its endpoints, with its present MTU and addresses.
func (m *Mux) Identity() endpoint.Identity {
	id := m.identity
	id.MTU = m.mtu()
	id.Addrs = forIdentity(*m.own.Load())
	return id
}

// forIdentity are those of the addresses of the uplink that an identity has.
func forIdentity(own []netip.Prefix) []netip.Prefix {
	return slices.Clone(own[:min(len(own), endpoint.MaxIdentityAddrs)])
}

// mtu is the longest IP packet that an endpoint may send, in bytes: the uplink's present
// MTU, but at most the MTU that the programs were loaded with.
func (m *Mux) mtu() uint32 { return min(m.uplinkMTU.Load(), m.progs.MTU) }

// Failed receives an error if endpoints can no longer work and the mux should be closed: the
// uplink was deleted or has another MAC address, frames of VLANs would look untagged
// (ErrVLANOffload), or the programs' alarms cannot be read.
// All leases have ended then. There is at most one error, and the channel is never closed.
func (m *Mux) Failed() <-chan error { return m.failed }

// enter keeps the mux open until leave.
//
// +checklocksignore: it returns with life only if it returns no error
func (m *Mux) enter() error {
	m.life.RLock()
	if m.closed {
		m.life.RUnlock()
		return ErrClosed
	}
	return nil
}

// +checklocksignore: see enter
func (m *Mux) leave() { m.life.RUnlock() }

// failure is why no endpoint can work any more.
func (m *Mux) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// all is a copy of the leases.
func (m *Mux) all() []*Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.leases))
}

// Counters reads all counters of frames, summed over processors, in the order of package bpf.
// Then follows a counter for each endpoint whose port has lost frames because a processor's
// backlog was full.
func (m *Mux) Counters() ([]endpoint.Counter, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	list := make([]endpoint.Counter, bpf.NumCounters)
	for i := range list {
		n, err := m.progs.Maps.Counter(bpf.Counter(i))
		if err != nil {
			return nil, err
		}
		list[i].Name, list[i].Help, list[i].Interface = bpf.CounterName(bpf.Counter(i)), bpf.CounterHelp(bpf.Counter(i)), m.up.Name
		list[i].Value = n
	}
	lost, err := attach.CutterLost(m.nl, m.up.Index)
	if err != nil {
		return nil, err
	}
	list[bpf.LostCut].Value += lost
	if list[bpf.LostDeliverBacklog].Value == 0 {
		return list, nil
	}
	byPort, err := m.lostByPort()
	return append(list, byPort...), err
}

// lostByPort counts, by endpoint, the frames that the outer end of its port dropped because
// the backlog of the inner end was full.
func (m *Mux) lostByPort() ([]endpoint.Counter, error) {
	devices, err := m.traffic()
	if err != nil {
		return nil, err
	}
	leases := m.all()
	slices.SortFunc(leases, func(a, b *Lease) int { return cmp.Compare(a.id, b.id) })
	var list []endpoint.Counter
	for _, l := range leases {
		if n := devices[l.at.owner.Port].TxDropped; n > 0 {
			list = append(list, endpoint.Counter{
				Name:  fmt.Sprintf("%s.%d", bpf.CounterName(bpf.LostDeliverBacklog), l.id),
				Help:  fmt.Sprintf("of these, to endpoint %d", l.id),
				Value: n,

				Interface: m.up.Name,
			})
		}
	}
	return list, nil
}

// Close ends all leases, detaches the programs and removes the pins. It may be called again.
func (m *Mux) Close() error {
	return m.end(func() error {
		err := m.endLeases(ErrClosed)
		m.stopBackground()
		return errors.Join(err, m.lingers.end(true), m.letGoOfTags(), m.detach(), m.handles.run())
	})
}

// endLeases closes all leases. why becomes their error.
func (m *Mux) endLeases(why error) error {
	list := m.all()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, l := range list {
		all.Go(func() { errs[i] = l.close(why) }) // concurrently: the deleter deletes many ports by one request
	}
	all.Wait()
	return errors.Join(errs...)
}

// Abandon closes all descriptors of this process. Programs, tables and endpoints go on
// working, and another process can take them over. The leases of this process end without
// effect on their endpoints. A mux that is not pinned cannot be abandoned.
func (m *Mux) Abandon() error {
	if m.pins == nil {
		return errors.New("abandon: the mux is not pinned, and would not outlive this process")
	}
	return m.end(func() error {
		for _, l := range m.all() {
			l.abandon()
		}
		m.stopBackground()
		return errors.Join(m.lingers.end(false), m.letGoOfTags(), m.handles.run())
	})
}

// end waits until no method is in progress, and then calls fn, once.
func (m *Mux) end(fn func() error) error {
	m.cancel() // ends what methods wait for
	m.life.Lock()
	defer m.life.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	return fn()
}

// stopBackground ends the mux's goroutines and waits for them.
func (m *Mux) stopBackground() {
	m.cancel()
	_ = m.background.run() // always nil
	m.running.Wait()
}

// letGoOfTags closes the sockets that reserve ports. The kernel's tag table stays as it is.
func (m *Mux) letGoOfTags() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.tags.close(), m.groups.close())
}

// detach removes from the kernel what Open has put there.
func (m *Mux) detach() error {
	err := errors.Join(route.Within(m.ns, m.progs.Detach), m.pins.Remove())
	if m.table != nil {
		err = errors.Join(err, m.table.Remove())
	}
	return err
}

// Open attaches a mux to an interface, or takes over what another process has pinned for it. If it fails it removes what it has made, and
// leaves a mux that it has taken over as it was.
func Open(cfg Config) (_ *Mux, err error) {
	users := newLedger(cfg.Limits)
	m := &Mux{
		log:     cfg.Log,
		policy:  cfg.Policy,
		users:   users,
		groups:  groups{held: map[endpoint.Tag]*group{}, users: users},
		ids:     cmp.Or(cfg.IDs, new(IDs)),
		failed:  make(chan error, 1),
		probes:  share.New(share.Limits{What: "probes of the network", Total: probesAtOnce, PerUser: probesPerUID}),
		fills:   newFillGuard(),
		aside:   map[netip.Addr]bool{},
		queues:  map[uint32]bool{},
		slots:   newSlots(),
		leases:  map[uint64]*Lease{},
		endings: map[string]uint64{},
		rates:   rates{users: map[uint32]int{}, emptied: map[uint32]struct{}{}, own: map[uint32]*bpf.Limit{}},
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.policy == nil {
		m.policy = Permit(Terms{Trusted: true, Infrastructure: true})
	}
	m.announcer = announcer{m: m, begun: make(chan struct{}, 1), due: map[netip.Addr]announcing{}}
	m.lingers = lingers{m: m, grown: make(chan struct{}, 1)}
	m.sender.log = m.log
	m.rates.log, m.rates.sender = m.log, &m.sender
	m.ctx, m.cancel = context.WithCancel(context.Background())
	var made bool // this call has attached the programs
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
	if m.ns, err = openNetNS(cfg.NetNS); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	m.handles.push(func() error { return m.ns.Close() })
	m.queueing.ns, m.queueing.up = m.ns, &m.up
	err = route.Within(m.ns, func() error {
		if err := m.prepare(cfg); err != nil {
			return err
		}
		types := newTypes()
		if made, err = m.attach(cfg, types); err != nil {
			return err
		}
		return m.start(cfg, types)
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// newTypes makes a cache for the types of the kernel, some MiB. Reading them takes as long as all else that Open does
// in user space. Tests share one cache.
var newTypes = btf.NewCache

// openNetNS returns a descriptor of the mux's own for Config.NetNS.
func openNetNS(of netns.NsHandle) (netns.NsHandle, error) {
	if of == 0 {
		return netns.Get()
	}
	fd, err := unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
	return netns.NsHandle(fd), os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
}

// prepare opens descriptors, and neither attaches nor pins anything. Like attach and start
// it runs on a thread that is in the mux's namespace.
func (m *Mux) prepare(cfg Config) (err error) {
	if m.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	m.handles.push(func() error { m.nl.Close(); return nil })
	if m.up, err = nic.FindUplink(m.nl, cfg.Interface); err != nil {
		return err
	}
	if m.up.PortOf != "" {
		m.log.Warn("the interface is a port of another one, which has the addresses: serve that one, unless applications use owned addresses and message tags only",
			"interface", m.up.Name, "port_of", m.up.PortOf)
	}
	if m.rt, err = nic.OpenRoute(m.ns); err != nil {
		return err
	}
	m.rates.rt = m.rt
	m.handles.push(func() error { m.rt.Close(); return nil })
	if m.deleter, err = nic.NewDeleter(m.nl, m.rt); err != nil {
		return err
	}
	if m.unbound, err = xsk.NewUnbound(); err != nil {
		return err
	}
	m.handles.push(m.unbound.Close)
	// Protocol 0: it receives nothing.
	if m.sender.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return fmt.Errorf("packet socket of the mux: %w", err)
	}
	m.handles.push(func() error { return unix.Close(m.sender.fd) })
	if m.routes, err = route.New(m.ns, m.up.Index, m.hopChanged, func() { m.sender.count(bpf.MuxUplink, 1) }); err != nil {
		return err
	}
	m.handles.push(m.routes.Close)
	rules, err := steer.OpenDriverRules(nic.NameOf(m.nl, m.up.Index))
	if err != nil {
		return err
	}
	m.handles.push(rules.Close)
	m.steering = steer.New(m.up.Name, m.up.Virtual, rules, m.spread)
	m.nat = nat.NewReader(nat.Link{Name: m.up.Name, Index: m.up.Index})
	return nil
}

// attach attaches the programs, or takes over those that are pinned. made: it has attached
// them.
func (m *Mux) attach(cfg Config, types *btf.Cache) (made bool, err error) {
	if cfg.Pin != "" {
		if err := attach.Sweep(m.nl, m.deleter, cfg.Pin, m.up.Netns, m.log); err != nil {
			return false, err
		}
		if m.pins, err = attach.OpenPins(cfg.Pin, m.up.Netns, m.up.Index); err != nil {
			return false, fmt.Errorf("%s: %w", m.up.Name, err)
		}
		m.handles.push(m.pins.Close)
		adopted, err := m.takeOver(cfg)
		if adopted || err != nil {
			return false, err
		}
	}
	progs, err := attach.Attach(m.nl, &m.up, cfg.Mode, m.pins, types, m.log)
	if err != nil {
		return false, errors.Join(err, m.pins.Remove())
	}
	m.use(progs)
	return true, m.openTable(cfg)
}

// use makes attached programs those of the mux.
func (m *Mux) use(progs *attach.Programs) {
	m.progs, m.sender.progs, m.rates.progs, m.queueing.progs = progs, progs, progs, progs
	m.mu.Lock()
	m.groups.maps, m.groups.uplink = &progs.Maps, uint32(m.up.Index)
	m.mu.Unlock()
	m.handles.push(func() error { m.sender.stop(); return progs.Close() })
	m.handles.push(m.queueing.close)
}

// takeOver takes over the pinned mux, or removes it if it cannot be taken over.
func (m *Mux) takeOver(cfg Config) (adopted bool, err error) {
	names, err := m.pins.Names()
	if err != nil || len(names) == 0 {
		return false, err
	}
	progs, err := attach.Adopt(m.nl, m.pins, &m.up, cfg.Mode)
	if errors.Is(err, attach.ErrUnusable) {
		m.log.Warn("the pinned mux cannot be taken over: it is removed, and its endpoints end", "interface", m.up.Name, "why", err)
		return false, attach.Drop(m.nl, m.deleter, m.up.Index, m.pins)
	}
	if err != nil {
		return false, err
	}
	m.use(progs)
	if cfg.Mode == ModeAuto {
		m.log.Info(m.progs.Mode.String()+" mode kept", "interface", m.up.Name, "driver", m.up.Driver, "because", "the mux that is taken over is attached in it")
	}
	if err := m.keepVLANTags(m.up.Name); err != nil {
		return true, err
	}
	if err := m.openTable(cfg); err != nil {
		return true, err
	}
	return true, m.adopt()
}

// start starts the goroutines of a mux whose programs are attached.
func (m *Mux) start(cfg Config, types *btf.Cache) error {
	if m.up.Virtual && m.progs.Mode == ModeNative {
		m.log.Info("in native mode on a virtual link XDP sees no VLAN tags if the other end has txvlan offload: if VLANs are used there, turn it off", "interface", m.up.Name)
	}
	m.uplinkMTU.Store(m.up.MTU)
	m.identity = identityOf(&m.up, m.progs.Mode)
	m.shown = m.up.Name
	m.ids.skip(m.progs.NextID())
	if err := m.holdPrograms(); err != nil {
		return err
	}
	if err := m.checkFillFields(types, cfg.UncheckedFillRings); err != nil {
		return err
	}
	if err := m.followAlarms(); err != nil {
		return err
	}
	m.running.Go(m.lingers.follow)
	m.running.Go(m.guardFillRings)
	m.announcer.beginAll()
	m.running.Go(m.announcer.follow)
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
	m.log.Info("mux attached", "interface", m.up.Name, "mode", m.progs.Mode.String(), "link", m.up.Addr, "mtu", m.up.MTU, "taken_over", waiting)
	return nil
}

// undoStack is a list of functions, each of which undoes one step.
type undoStack []func() error

func (u *undoStack) push(f func() error) { *u = append(*u, f) }

// run calls all, the last one first, also after errors.
func (u *undoStack) run() error {
	var err error
	for i := len(*u) - 1; i >= 0; i-- {
		err = errors.Join(err, (*u)[i]())
	}
	*u = nil
	return err
}
