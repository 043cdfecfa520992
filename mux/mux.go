package mux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
)

// Config says where a mux works.
type Config struct {
	Interface string       // the uplink, in the network namespace of the thread that calls Open
	Mode      Mode         // how the programs are attached
	Log       *slog.Logger // nil: nothing is logged
}

// Mux is an uplink with the programs on it. Its methods may be called from any
// goroutine, whatever network namespace that is in.
type Mux struct {
	ns       netns.NsHandle // the uplink's namespace
	nl       *netlink.Handle
	up       uplink
	progs    *programs
	routes   *route.Resolver
	identity endpoint.Identity
	log      *slog.Logger
	nextID   atomic.Uint64            // of the endpoint made last
	undo     undoStack                // what Open did
	linkDel  func(netlink.Link) error // nl.LinkDel; a test replaces it
	failed   chan error               // of capacity 1
	probes   chan struct{}            // a slot for each probe on its way

	// Whatever uses the above holds life for reading; Close holds it for
	// writing and ends those that wait by ctx.
	life   sync.RWMutex
	ctx    context.Context
	cancel context.CancelFunc
	closed bool // guarded by life

	mu     sync.Mutex // guards what follows, and the tag table
	tags   map[endpoint.Tag]*claim
	aside  map[netip.Addr]bool // whole addresses that are being claimed
	queues map[uint32]bool     // of the uplink: an endpoint is there
	leases map[*Lease]struct{}
	stuck  []*attachment // with ports that could not be deleted
}

// Open attaches a mux to an interface of the calling thread's network
// namespace. It leaves nothing behind if it fails.
func Open(cfg Config) (_ *Mux, err error) {
	m := &Mux{
		log:    cfg.Log,
		failed: make(chan error, 1),
		probes: make(chan struct{}, probesAtOnce),
		tags:   map[endpoint.Tag]*claim{},
		aside:  map[netip.Addr]bool{},
		queues: map[uint32]bool{},
		leases: map[*Lease]struct{}{},
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			m.cancel()
			err = errors.Join(err, m.undo.run())
		}
	}()
	if m.ns, err = netns.Get(); err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	m.undo.push(func() error { return m.ns.Close() })
	if err := within(m.ns, func() error { return m.open(cfg) }); err != nil {
		return nil, err
	}
	return m, nil
}

// open is Open on a thread that is in the mux's namespace.
func (m *Mux) open(cfg Config) (err error) {
	if m.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	m.undo.push(func() error { m.nl.Close(); return nil })
	m.linkDel = m.nl.LinkDel
	if m.up, err = findUplink(m.nl, cfg.Interface); err != nil {
		return err
	}
	if m.routes, err = route.New(m.ns, m.up.ifindex); err != nil {
		return err
	}
	m.undo.push(m.routes.Close)
	restore, err := m.up.showVLANTags(m.ns, m.log)
	if err != nil {
		return err
	}
	m.undo.push(restore)
	if m.progs, err = attachPrograms(m.ns, &m.up, cfg.Mode, m.log); err != nil {
		return err
	}
	m.undo.push(m.progs.Close)
	own, err := m.addresses()
	if err != nil {
		return err
	}
	var primary netip.Prefix
	if len(own.uplink) > 0 {
		primary = own.uplink[0]
	}
	m.identity = m.up.identity(primary, m.progs.mode)
	if err := m.watchUplink(); err != nil {
		return err
	}
	m.log.Info("mux attached", "interface", m.up.name, "mode", m.progs.mode, "link", m.up.addr, "mtu", m.up.mtu)
	return nil
}

// Mode is how the mux is attached: ModeGeneric or ModeNative.
func (m *Mux) Mode() Mode { return m.progs.mode }

// Identity is what all endpoints of this mux are on the wire.
func (m *Mux) Identity() endpoint.Identity { return m.identity }

// Failed gets an error if endpoints can no longer work and the mux should be
// closed: the uplink was deleted, or its link address is another one, by which
// endpoints cannot be reached and may not send. There is at most one, and the
// channel is never closed. A change of the MTU is logged.
func (m *Mux) Failed() <-chan error { return m.failed }

// enter keeps the mux open until leave.
func (m *Mux) enter() error {
	m.life.RLock()
	if m.closed {
		m.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (m *Mux) leave() { m.life.RUnlock() }

// OpenEndpoint makes an endpoint: segment, socket, port or queue, and its first
// tags, all or nothing. The grant's files belong to the caller, who closes
// them; the lease holds the rest.
func (m *Mux) OpenEndpoint(ctx context.Context, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	if err := m.enter(); err != nil {
		return nil, nil, err
	}
	defer m.leave()
	geometry := req.Geometry.WithDefaults()
	if err := geometry.Validate(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	l := newLease(m)
	grant := &endpoint.Grant{Attach: req.Attach, Geometry: geometry, Identity: m.identity}
	err := m.build(ctx, l, grant, req)
	if err != nil {
		return nil, nil, errors.Join(err, l.close(), grant.Close())
	}
	m.mu.Lock()
	m.leases[l] = struct{}{}
	m.mu.Unlock()
	m.log.Debug("endpoint opened", "endpoint", grant.ID, "attach", grant.Attach, "tags", grant.Tags)
	return grant, l, nil
}

// build fills lease and grant as far as it gets; the caller takes them back
// after an error.
func (m *Mux) build(ctx context.Context, l *Lease, g *endpoint.Grant, req endpoint.Request) (err error) {
	if size := g.Geometry.SegmentSize(); req.Huge && size%xsk.HugePageSize != 0 {
		return fmt.Errorf("%w: a segment of huge pages has a multiple of %d bytes, not %d", endpoint.ErrGeometry, xsk.HugePageSize, size)
	}
	if g.Segment, err = xsk.NewSegment(g.Geometry.SegmentSize(), req.Huge); err != nil {
		return err
	}
	params := xsk.Params{
		FrameSize:      g.Geometry.FrameSize,
		FrameCount:     g.Geometry.FrameCount,
		FillSize:       g.Geometry.FillSize,
		CompletionSize: g.Geometry.CompletionSize,
		RxSize:         g.Geometry.RxSize,
		TxSize:         g.Geometry.TxSize,
		Prefill:        g.Geometry.Prefilled(),
		Mode:           xsk.ModeCopy,
		SG:             true,
		NeedWakeup:     true,
	}
	var sock *os.File
	switch req.Attach {
	case endpoint.AttachPort:
		l.id, l.at, sock, err = m.openPort(params, g.Segment)
	case endpoint.AttachQueue:
		if err := m.holdQueue(l, req.Queue); err != nil {
			return err
		}
		if m.progs.mode == ModeNative {
			params.Mode = xsk.ModeAny
		}
		l.id, l.at, sock, err = m.openQueue(req.Queue, params, g.Segment)
	default:
		return fmt.Errorf("unknown attachment %d", req.Attach)
	}
	if err != nil {
		return err
	}
	g.ID, g.XSK = l.id, sock
	if err := ctx.Err(); err != nil {
		return err
	}
	g.Tags, err = m.claimTags(ctx, l, req.Tags)
	return err
}

// holdQueue reserves a queue of the uplink for a lease: its tags lead to
// whatever socket is there, so there is one lease a queue, even when the
// socket of an earlier one is gone already.
func (m *Mux) holdQueue(l *Lease, queue uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.queues[queue] {
		return fmt.Errorf("%w: queue %d of %s", ErrQueueBusy, queue, m.up.name)
	}
	m.queues[queue] = true
	l.queue, l.holdsQueue = queue, true
	return nil
}

// Counter is one of the programs' counters, summed over processors.
type Counter struct {
	Name  string
	Help  string // what it counts
	Value uint64 // frames
}

// Counters reads all counters, in the order of package bpf.
func (m *Mux) Counters() ([]Counter, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	list := make([]Counter, bpf.NumCounters)
	var perCPU []uint64
	for i := range list {
		if err := m.progs.objs.Counters.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		list[i].Name, list[i].Help = bpf.CounterName(bpf.Counter(i)), bpf.CounterHelp(bpf.Counter(i))
		for _, v := range perCPU {
			list[i].Value += v
		}
	}
	return list, nil
}

// Close takes all endpoints down, detaches and forgets. It may be called again.
func (m *Mux) Close() error {
	m.cancel() // whoever waits in Resolve
	m.life.Lock()
	defer m.life.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	var err error
	m.mu.Lock()
	leases := m.leases
	m.leases = map[*Lease]struct{}{}
	m.mu.Unlock()
	for l := range leases {
		err = errors.Join(err, l.close())
	}
	m.mu.Lock()
	stuck := m.stuck
	m.stuck = nil
	for _, c := range m.tags { // that could not be taken out of the table, which goes now
		err = errors.Join(err, c.closeReserved())
	}
	m.mu.Unlock()
	for _, at := range stuck {
		err = errors.Join(err, m.takeAway(at))
	}
	return errors.Join(err, m.undo.run())
}
