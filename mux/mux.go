package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// Config says where a mux works.
type Config struct {
	Interface string       // the uplink, in the network namespace of the thread that calls Open
	Mode      Mode         // how the programs are attached
	Log       *slog.Logger // nil: nothing is logged

	// Pin is where a bpffs is mounted (/sys/fs/bpf): the mux is pinned there and
	// outlives the process. If it is empty nothing is pinned.
	Pin string
	// Grace is how long endpoints that were taken over from another process wait
	// to be presented; 0: ten seconds.
	Grace time.Duration
	// UncheckedFillRings permits ports to owners who are not trusted also where the
	// kernel's types do not let the programs check fill rings (ErrFillRings).
	UncheckedFillRings bool
	// Policy says who may have what; nil: everybody everything, as trusted owners.
	Policy Policy
	Limits Limits
}

// Mux is an uplink with the programs on it. Its methods may be called from any
// goroutine, whatever network namespace that is in.
type Mux struct {
	ns          netns.NsHandle // the uplink's namespace
	nl          *netlink.Handle
	rt          *nl.SocketHandle // for what the library has no call for
	reaper      *reaper
	unbound     *os.File // an AF_XDP socket, to ask maps of sockets by
	sender      int      // a packet socket that only sends
	up          uplink
	pins        *pins // nil: nothing is pinned
	progs       *programs
	routes      *route.Resolver
	nat         *nat.Reader
	identity    endpoint.Identity
	present     atomic.Uint32                // the uplink's MTU
	primary     atomic.Pointer[netip.Prefix] // the uplink's primary IPv4 address
	log         *slog.Logger
	policy      Policy
	failed      chan error    // of capacity 1
	probes      chan struct{} // a slot for each probe on its way
	lingers     chan struct{} // of capacity 1: something new lingers
	moved       moved
	fills       fillGuard
	trustedOnly bool // ports for others cannot be made safe on this kernel

	handles    undoStack      // lets go of what Open has opened, without effect on the kernel
	background undoStack      // ends goroutines
	running    sync.WaitGroup // goroutines that end with ctx

	// Whatever uses the above holds life for reading; Close holds it for
	// writing and ends those that wait by ctx. The mux's own goroutines do not
	// hold it; Close waits for them.
	life   sync.RWMutex
	ctx    context.Context
	cancel context.CancelFunc
	closed bool // guarded by life

	mu        sync.Mutex // guards what follows, and the kernel's tables
	tags      claimTable
	users     ledger
	aside     map[netip.Addr]bool // whole addresses that are being claimed
	queues    map[uint32]bool     // of the uplink, that are a lease's; true: its socket is bound
	slots     map[uint32]bool     // of ports' sockets: taken
	nextSlot  uint32
	leases    map[uint64]*Lease // by endpoint
	lingering []*lingering      // what may be left of endpoints
	lastID    uint64            // of an endpoint
	state     bpf.State         // as the kernel has it
	down      bool              // the uplink is
	ended     error             // why no endpoint can work any more
}

// Mode is how the mux is attached: ModeGeneric or ModeNative.
func (m *Mux) Mode() Mode { return m.progs.mode }

// Identity is what all endpoints of this mux are on the wire, with the MTU and the
// address as they are now.
func (m *Mux) Identity() endpoint.Identity {
	id := m.identity
	id.MTU = m.mtu()
	id.Addr = *m.primary.Load()
	return id
}

// mtu is what an endpoint may send: the uplink's MTU now, as far as the programs
// let it out.
func (m *Mux) mtu() uint32 { return min(m.present.Load(), m.progs.mtu) }

// Failed gets an error if endpoints can no longer work and the mux should be
// closed: the uplink was deleted, or its link address is another one, by which
// endpoints cannot be reached and may not send, or what the programs have to say can
// no longer be heard. All leases have ended then. There is at most one, and the channel
// is never closed.
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

// OpenEndpoint is [Mux.OpenEndpointFor] this process itself.
func (m *Mux) OpenEndpoint(ctx context.Context, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	return m.OpenEndpointFor(ctx, Owner{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, req)
}

// OpenEndpointFor makes an endpoint, if the policy permits it: segment, socket, port or
// queue, and its first tags, all or nothing. The grant's files belong to the caller, who
// closes them; the lease holds the rest.
func (m *Mux) OpenEndpointFor(ctx context.Context, o Owner, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	g, l, err := m.open(ctx, o, req)
	return g, l, known(err)
}

func (m *Mux) open(ctx context.Context, o Owner, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	if err := m.enter(); err != nil {
		return nil, nil, err
	}
	defer m.leave()
	terms, err := m.policy.Open(o, req)
	if err != nil {
		return nil, nil, err
	}
	geometry := req.Geometry.WithDefaults()
	if err := geometry.Validate(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := m.failure(); err != nil {
		return nil, nil, err
	}
	if m.trustedOnly && !terms.Trusted {
		return nil, nil, ErrFillRings
	}
	l := newLease(m)
	l.owner, l.terms, l.attach, l.segmentBytes, l.leased = o, terms, req.Attach, geometry.SegmentSize(), true
	l.frameSize, l.fillSize = geometry.FrameSize, geometry.FillSize
	grant := &endpoint.Grant{Attach: req.Attach, Geometry: geometry, Identity: m.Identity()}
	if !terms.Trusted { // it receives nothing that needs a second frame
		grant.Identity.MTU = min(grant.Identity.MTU, xsk.RxRoom(geometry.FrameSize)-wire.EthernetHeaderLen)
	}
	tags, err := m.ask(l, req.Tags)
	if err == nil {
		m.mu.Lock()
		err = m.users.open(o.UID, l.segmentBytes, terms)
		m.mu.Unlock()
	}
	if err != nil {
		l.cancel()
		return nil, nil, err
	}
	if err = m.build(ctx, l, grant, req); err == nil {
		grant.Tags, err = m.claimTags(ctx, tags)
	}
	if err == nil {
		err = m.enlist(l)
	}
	if err != nil {
		cerr := l.close(nil)
		if errors.Is(err, endpoint.ErrLeaseClosed) {
			err = l.Err() // it has the reason
		}
		m.mu.Lock()
		m.users.uncount(o.UID, use{endpoints: 1, bytes: l.segmentBytes})
		m.mu.Unlock()
		return nil, nil, errors.Join(err, cerr, grant.Close())
	}
	m.log.Debug("endpoint opened", "endpoint", grant.ID, "attach", grant.Attach, "tags", grant.Tags)
	return grant, l, nil
}

// build fills lease and grant as far as it gets; the caller takes them back
// after an error.
func (m *Mux) build(ctx context.Context, l *Lease, g *endpoint.Grant, req endpoint.Request) (err error) {
	if req.Huge && l.segmentBytes%xsk.HugePageSize != 0 {
		return fmt.Errorf("%w: a segment of huge pages has a multiple of %d bytes, not %d", endpoint.ErrGeometry, xsk.HugePageSize, l.segmentBytes)
	}
	if req.Connections != nil {
		if l.connections, err = xsk.AcceptTable(req.Connections); err != nil {
			return err
		}
	}
	if l.memory, err = xsk.NewSegment(l.segmentBytes, req.Huge); err != nil {
		return err
	}
	if g.Segment, err = xsk.ShareSegment(l.memory); err != nil {
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
		SG:             l.terms.Trusted,
		NeedWakeup:     true,
	}
	if l.terms.Registered > 0 {
		params.Charge = &xsk.Charge{UID: l.owner.UID, Limit: uint64(l.terms.Registered), Command: l.terms.Register}
	}
	switch req.Attach {
	case endpoint.AttachPort:
		g.XSK, err = m.openPort(l, params)
	case endpoint.AttachQueue:
		if m.progs.mode == ModeNative {
			params.Mode = xsk.ModeAny
		}
		g.XSK, err = m.openQueue(l, req.Queue, params)
	default:
		return fmt.Errorf("unknown attachment %d", req.Attach)
	}
	if err != nil {
		return err
	}
	g.ID = l.id
	return ctx.Err()
}

// failure is why no endpoint can work any more.
func (m *Mux) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// enlist makes a lease that is complete one of the mux's.
func (m *Mux) enlist(l *Lease) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return m.ended
	}
	if l.closed { // the host has taken its address meanwhile
		return endpoint.ErrLeaseClosed
	}
	l.granted = true
	l.notices.down = m.down
	m.leases[l.id] = l
	return nil
}

// all is a copy of the leases.
func (m *Mux) all() []*Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Lease, 0, len(m.leases))
	for _, l := range m.leases {
		list = append(list, l)
	}
	return list
}

// Counters reads all counters of frames, summed over processors, in the order of package bpf, and behind them what the
// backlog had no room for by endpoint, of those that have a port now and lost something.
func (m *Mux) Counters() ([]endpoint.Counter, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	list := make([]endpoint.Counter, bpf.NumCounters)
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
	lost, err := cutterLost(m.nl, m.up.ifindex)
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

// lostByPort is what the outer ends of ports had to drop because the backlog of the inner
// ends was full, by endpoint.
func (m *Mux) lostByPort() ([]endpoint.Counter, error) {
	links, err := route.Dump(m.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("counters of ports: %w", err)
	}
	dropped := map[uint32]uint64{}
	for _, l := range links {
		dropped[uint32(l.Attrs().Index)] = l.Attrs().Statistics.TxDropped
	}
	leases := m.all()
	slices.SortFunc(leases, func(a, b *Lease) int { return cmp.Compare(a.id, b.id) })
	var list []endpoint.Counter
	for _, l := range leases {
		if n := dropped[l.at.owner.Port]; n > 0 && l.at.owner.Port != 0 {
			list = append(list, endpoint.Counter{
				Name:  fmt.Sprintf("%s.%d", bpf.CounterName(bpf.LostDeliverBacklog), l.id),
				Help:  fmt.Sprintf("of these, to endpoint %d", l.id),
				Value: n,
			})
		}
	}
	return list, nil
}

// Close takes all endpoints down, detaches, unpins and forgets. It may be called
// again.
func (m *Mux) Close() error {
	return m.end(func() error {
		err := m.endLeases(ErrClosed)
		m.stopBackground()
		return errors.Join(err, m.letLinger(true), m.letGoOfTags(), m.detach(), m.handles.run())
	})
}

// endLeases closes all leases, for a reason that is not their owners'.
func (m *Mux) endLeases(why error) error {
	list := m.all()
	errs := make([]error, len(list))
	var all sync.WaitGroup
	for i, l := range list {
		all.Go(func() { errs[i] = l.close(why) }) // together, for the reaper
	}
	all.Wait()
	return errors.Join(errs...)
}

// Abandon lets go of everything and leaves it working, for another process to take
// over. Leases end in this process, and closing them has no effect any more. A mux that
// is not pinned cannot be left.
func (m *Mux) Abandon() error {
	if m.pins == nil {
		return errors.New("abandon: the mux is not pinned, and would not outlive this process")
	}
	return m.end(func() error {
		for _, l := range m.all() {
			l.abandon()
		}
		m.stopBackground()
		return errors.Join(m.letLinger(false), m.letGoOfTags(), m.handles.run())
	})
}

// end runs the last of the mux's deeds, when nobody uses it any more.
func (m *Mux) end(fn func() error) error {
	m.cancel() // whoever waits in Resolve
	m.life.Lock()
	defer m.life.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	return fn()
}

// stopBackground returns when the mux's goroutines have ended.
func (m *Mux) stopBackground() {
	m.cancel()
	_ = m.background.run() // it ends goroutines, which does not fail
	m.running.Wait()
}

// letGoOfTags gives back to the kernel what is reserved for tags there. What
// could not be taken out of the table stays in it.
func (m *Mux) letGoOfTags() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tags.letGo()
}

// detach takes off the kernel what Open has put there.
func (m *Mux) detach() error {
	return errors.Join(m.progs.uncouple(), m.restoreVLANTags(), m.pins.remove())
}
