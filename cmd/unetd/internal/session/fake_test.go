//go:build linux

package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// hooks that are set are called by a fakeProvider and its leases at the beginning of the operation. If a hook returns
// an error the operation ends with it. done is called after a claim or an unclaim has had its effect.
type hooks struct {
	open    func(ctx context.Context, p mux.Owner, req endpoint.Request) error
	present func(ctx context.Context, p mux.Owner, sock *os.File) error
	claim   func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error)
	unclaim func(ctx context.Context, t endpoint.Tag) error
	done    func(ctx context.Context)
	close   func()
	route   func(ctx context.Context, dst netip.Addr) (endpoint.Route, error)
	reload  func() error

	openPath  func(l *fakeLease, peer uint64) error
	closePath func(l *fakeLease, id uint64)

	changes []string // that reload returns; nil: one
}

// fakeProvider grants memfds and sockets. Its endpoints outlive a server that keeps them,
// as those of a mux outlive unetd.
type fakeProvider struct {
	t      testing.TB
	closed chan *fakeLease // gets every lease that is closed

	mu        sync.Mutex
	hooks     hooks
	last      uint64
	newest    *fakeLease
	endpoints map[uint64]*fakeEndpoint
	counters  []endpoint.Counter
	status    []endpoint.Status // by identifier
	tables    []uint64          // inodes of the tables of connections that were received, in order
	down      bool              // the state of the link for new leases
	addrs     []netip.Prefix    // the addresses for new leases
	draining  bool
	captures  int
	uplinks   []endpoint.Uplink // nil: one
	others    []*os.File        // other ends of the granted sockets: end of file when no copy of the socket is open
}

// fakeEndpoint is guarded by its provider's mu.
type fakeEndpoint struct {
	id     uint64
	peer   mux.Owner
	cookie uint64
	tags   map[endpoint.Tag]bool
	lease  *fakeLease
}

type fakeLease struct {
	p        *fakeProvider
	e        *fakeEndpoint
	watchers *notices.Watchers
	watched  atomic.Int32                            // number of loops over the notices
	sent     atomic.Pointer[func([]endpoint.Notice)] // called when the session has sent notices
	resolved notices.Destinations
	paths    notices.Paths

	mu   sync.Mutex
	gone chan struct{} // closed when the lease has ended
	err  error
	done bool // Close was called
}

// strangerID and the next uid are users for whom there is no rule.
const strangerID = 1998

func newFakeProvider(t testing.TB) *fakeProvider {
	p := &fakeProvider{t: t, closed: make(chan *fakeLease, 4096), endpoints: make(map[uint64]*fakeEndpoint), addrs: []netip.Prefix{netip.PrefixFrom(localAddr, 24)}}
	t.Cleanup(func() {
		for _, f := range p.others {
			f.Close()
		}
	})
	return p
}

// hook replaces all hooks.
func (p *fakeProvider) hook(h hooks) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = h
}

func (p *fakeProvider) current() hooks {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hooks
}

// cookieOf is the kernel's identifier of a socket.
func cookieOf(f *os.File) (cookie uint64, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	return cookie, errors.Join(ctlErr, err)
}

// keepTable handles a table of connections as the mux does: it asks the kernel what the
// file is, and keeps a descriptor of its own.
func (p *fakeProvider) keepTable(f *os.File) error {
	if f == nil {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inode unix.Stat_t
	ctlErr := raw.Control(func(fd uintptr) {
		if _, err = unix.FcntlInt(fd, unix.F_GET_SEALS, 0); err == nil {
			err = unix.Fstat(int(fd), &inode)
		}
	})
	if err = errors.Join(ctlErr, err); err != nil {
		return fmt.Errorf("%w: not a table: %w", protocol.ErrProtocol, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tables = append(p.tables, inode.Ino)
	return nil
}

func (p *fakeProvider) OpenEndpoint(ctx context.Context, peer mux.Owner, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	if err := p.keepTable(req.Connections); err != nil {
		return nil, nil, err
	}
	if open := p.current().open; open != nil {
		if err := open(ctx, peer, req); err != nil {
			return nil, nil, err
		}
	}
	g := req.Geometry.WithDefaults()
	if err := g.Validate(); err != nil {
		return nil, nil, err
	}
	memfd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	segment := os.NewFile(uintptr(memfd), "segment")
	if _, err := segment.WriteString("segment"); err != nil {
		return nil, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		segment.Close()
		return nil, nil, err
	}
	// Only the other end is in the runtime's poller; the granted one stays blocking, as an
	// XSK does.
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return nil, nil, err
	}
	xsk := os.NewFile(uintptr(pair[1]), "xsk")
	cookie, err := cookieOf(xsk)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.others = append(p.others, os.NewFile(uintptr(pair[0]), "other"))
	e := &fakeEndpoint{id: p.last, peer: peer, cookie: cookie, tags: make(map[endpoint.Tag]bool)}
	for _, t := range req.Tags {
		e.tags[t] = true
	}
	p.endpoints[e.id] = e
	var table *os.File
	if !req.NoMemoryPaths {
		if table, err = os.Open(os.DevNull); err != nil {
			return nil, nil, err
		}
	}
	return &endpoint.Grant{
		XSK: xsk, Segment: segment, Table: table,
		ID: e.id, Attach: req.Attach, Geometry: g, Tags: req.Tags,
		Identity: endpoint.Identity{Interface: "eth0", LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 1},
			Addrs: p.addrs[:min(len(p.addrs), endpoint.MaxIdentityAddrs)], MTU: 1500, PartialChecksums: true, Mode: "tcx"},
	}, p.lease(e), nil
}

// lease makes a lease; mu is held.
func (p *fakeProvider) lease(e *fakeEndpoint) *fakeLease {
	e.lease = &fakeLease{p: p, e: e, gone: make(chan struct{})}
	e.lease.watchers = notices.New(e.lease.gone)
	e.lease.watchers.Granted(p.addrs[:min(len(p.addrs), endpoint.MaxIdentityAddrs)])
	for _, a := range p.addrs {
		e.lease.notify(endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: a.Addr(), Bits: uint8(a.Bits())})
	}
	if p.down {
		e.lease.notify(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	p.newest = e.lease
	return e.lease
}

func (p *fakeProvider) Present(ctx context.Context, peer mux.Owner, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error) {
	if err := p.keepTable(connections); err != nil {
		return endpoint.Info{}, nil, err
	}
	if present := p.current().present; present != nil {
		if err := present(ctx, peer, sock); err != nil {
			return endpoint.Info{}, nil, err
		}
	}
	cookie, err := cookieOf(sock)
	if err != nil {
		return endpoint.Info{}, nil, errors.Join(endpoint.ErrNotPresentable, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.endpoints {
		switch {
		case e.cookie != cookie:
		case e.peer.UID != peer.UID:
			return endpoint.Info{}, nil, os.ErrPermission
		case e.lease != nil:
			return endpoint.Info{}, nil, endpoint.ErrLeased
		default:
			lease := p.lease(e)
			lease.watchers.Presented()
			return e.info(), lease, nil
		}
	}
	return endpoint.Info{}, nil, endpoint.ErrNotPresentable
}

// info describes e; its provider's mu is held.
func (e *fakeEndpoint) info() endpoint.Info {
	tags := slices.Collect(maps.Keys(e.tags))
	slices.SortFunc(tags, func(a, b endpoint.Tag) int {
		return slices.Compare([]byte(a.String()), []byte(b.String()))
	})
	return endpoint.Info{ID: e.id, UID: e.peer.UID, PID: e.peer.PID, Device: "port", SegmentBytes: 8 << 20,
		Tags: tags, TagsTotal: len(tags), Leased: e.lease != nil}
}

func (p *fakeProvider) HasRule(peer mux.Owner) bool {
	return peer.UID != strangerID && peer.UID != strangerID+1
}

// Routes has an uplink with three hundred addresses.
func (p *fakeProvider) Routes(ctx context.Context, peer mux.Owner, uplink string, src, dst netip.Addr) ([]endpoint.UplinkRoute, error) {
	if !p.HasRule(peer) {
		return nil, os.ErrPermission
	}
	r := endpoint.UplinkRoute{Interface: cmp.Or(uplink, "eth0")}
	for i := range 300 {
		r.Addrs = append(r.Addrs, endpoint.UplinkAddr{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8), Flags: []string{"secondary"}})
	}
	if p.current().route != nil && dst.IsValid() {
		route, err := p.current().route(ctx, dst)
		if err != nil {
			return nil, err
		}
		route.Source = src
		r.Route = &route
	}
	return []endpoint.UplinkRoute{r}, nil
}

func (p *fakeProvider) MayAsk(peer mux.Owner) error {
	if peer.UID != 0 {
		return os.ErrPermission
	}
	return nil
}

func (p *fakeProvider) Endpoints() []endpoint.Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []endpoint.Info
	for _, e := range p.endpoints {
		all = append(all, e.info())
	}
	return all
}

func (p *fakeProvider) Status(from uint64) (list []endpoint.Status, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.status {
		if e.ID >= from {
			e.Sockets = nil
			list = append(list, e)
		}
	}
	return list, nil
}

func (p *fakeProvider) Sockets(id uint64, from uint32, n int) (list []endpoint.Socket, more bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.status {
		for _, s := range e.Sockets {
			if e.ID == id && s.Record >= from {
				list = append(list, s)
			}
		}
	}
	more = len(list) > n
	return list[:min(n, len(list))], more, nil
}

func (p *fakeProvider) Counters() ([]endpoint.Counter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters, nil
}

func (p *fakeProvider) Uplinks() ([]endpoint.Uplink, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplinks != nil {
		return p.uplinks, p.draining
	}
	return []endpoint.Uplink{{Interface: "eth0", Index: 2, Mode: "tcx", Up: !p.down, Endpoints: len(p.endpoints)}}, p.draining
}

func (p *fakeProvider) Revoke(_ mux.Owner, id uint64, reason string) error {
	p.mu.Lock()
	e := p.endpoints[id]
	p.mu.Unlock()
	if e == nil || e.lease == nil {
		return fmt.Errorf("%w: %d", endpoint.ErrNoEndpoint, id)
	}
	e.lease.end(fmt.Errorf("%w: revoked: %s", endpoint.ErrLeaseClosed, reason))
	return nil
}

func (p *fakeProvider) Reload() (*endpoint.PolicyChange, error) {
	if p.current().reload != nil {
		return nil, p.current().reload()
	}
	changes := p.current().changes
	if changes == nil {
		changes = []string{"rule lab: added"}
	}
	return &endpoint.PolicyChange{Policy: "/policy.yaml", Rules: 1, Changes: changes}, nil
}

func (p *fakeProvider) Capture(id *uint64) (stop func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != nil && p.endpoints[*id] == nil {
		return nil, endpoint.ErrNoEndpoint
	}
	p.captures++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.captures--
	}, nil
}

func (p *fakeProvider) Drain(_ mux.Owner, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = on
}

// abandon has the effect of SIGKILL for the provider's process: its leases are gone, the endpoints stay.
func (p *fakeProvider) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.endpoints {
		e.lease = nil
	}
}

// remove removes an endpoint.
func (p *fakeProvider) remove(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.endpoints, id)
}

// tagsOf is the tags of an endpoint, or nil if there is no such endpoint.
func (p *fakeProvider) tagsOf(id uint64) map[endpoint.Tag]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.endpoints[id]; e != nil {
		return maps.Clone(e.tags)
	}
	return nil
}

// setLink sets the state of the link for new leases.
func (p *fakeProvider) setLink(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

// setUplinks sets the list of uplinks; nil: one.
func (p *fakeProvider) setUplinks(list []endpoint.Uplink) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uplinks = list
}

func (p *fakeProvider) newestLease() *fakeLease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest
}

// awaitGrantsClosed waits until all descriptors of all grants so far are closed.
func (p *fakeProvider) awaitGrantsClosed() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range p.others {
		if err := f.SetReadDeadline(time.Now().Add(TestTimeout)); err != nil {
			p.t.Fatal(err)
		}
		for {
			if _, err := f.Read(make([]byte, 16)); errors.Is(err, os.ErrDeadlineExceeded) {
				p.t.Fatalf("a descriptor of grant %d is still open", i+1)
			} else if err != nil {
				break // io.EOF
			}
		}
		f.Close()
	}
	p.others = nil
}

// awaitClosed waits for a lease to be closed.
func (p *fakeProvider) awaitClosed() *fakeLease {
	p.t.Helper()
	select {
	case l := <-p.closed:
		return l
	case <-time.After(TestTimeout):
		p.t.Fatal("the lease was not closed")
		return nil
	}
}

func (l *fakeLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	h := l.p.current()
	if h.claim != nil {
		var err error
		if t, err = h.claim(ctx, t); err != nil {
			return endpoint.Tag{}, err
		}
	}
	t, err := l.claim(t)
	if err == nil && h.done != nil {
		h.done(ctx)
	}
	return t, err
}

func (l *fakeLease) claim(t endpoint.Tag) (endpoint.Tag, error) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.e.tags[t] {
		return endpoint.Tag{}, endpoint.ErrTagHeld
	}
	switch {
	case t.Kind == endpoint.TagMessage && t.Message == 0:
		for t.Message = 1000; l.e.tags[t]; t.Message++ {
		}
	case t.Kind != endpoint.TagMessage && t.Kind != endpoint.TagAddr && t.Port == 0 && t.Block:
		for t.Port = 32768; l.e.tags[t]; t.Port += endpoint.BlockPorts {
		}
	case t.Kind != endpoint.TagMessage && t.Kind != endpoint.TagAddr && t.Port == 0:
		for t.Port = 40001; l.e.tags[t]; t.Port++ {
		}
	}
	l.e.tags[t] = true
	return t, nil
}

func (l *fakeLease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	h := l.p.current()
	if h.unclaim != nil {
		if err := h.unclaim(ctx, t); err != nil {
			return err
		}
	}
	l.p.mu.Lock()
	held := l.e.tags[t]
	delete(l.e.tags, t)
	l.p.mu.Unlock()
	if !held {
		return errors.New("no such tag")
	}
	if h.done != nil {
		h.done(ctx)
	}
	return nil
}

func (l *fakeLease) Resolve(ctx context.Context, src, dst netip.Addr) (endpoint.Route, error) {
	if route := l.p.current().route; route != nil {
		return route(ctx, dst)
	}
	if err := endpoint.CheckDestination(dst); err != nil {
		return endpoint.Route{}, err
	}
	l.resolved.Note(src, dst, dst)
	return endpoint.Route{Source: cmp.Or(src, localAddr), NextHop: dst, LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 2}, MTU: 1500}, nil
}

func (l *fakeLease) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	changes := l.watchers.Notices(ctx)
	l.watched.Add(1)
	return func(yield func([]endpoint.Notice) bool) {
		defer l.watched.Add(-1)
		for list := range changes {
			if !yield(list) {
				return
			}
			if sent := l.sent.Load(); sent != nil {
				(*sent)(list)
			}
		}
	}
}

func (l *fakeLease) OpenPath(ctx context.Context, peer uint64) error {
	if open := l.p.current().openPath; open != nil {
		return open(l, peer)
	}
	return endpoint.ErrNoPath
}

func (l *fakeLease) ClosePath(ctx context.Context, id uint64) error {
	if f := l.p.current().closePath; f != nil {
		f(l, id)
	}
	return nil
}

func (l *fakeLease) Paths(ctx context.Context) iter.Seq[*endpoint.Path] { return l.paths.Paths(ctx) }

// notify reports a change in the provider's network.
func (l *fakeLease) notify(list ...endpoint.Notice) { l.watchers.Tell(list...) }

// hopChanged reports another MAC address of a neighbour, as a mux does when the kernel reports it.
func (l *fakeLease) hopChanged(hop netip.Addr) { l.watchers.Tell(l.resolved.Behind(hop)...) }

func (l *fakeLease) Done() <-chan struct{} { return l.gone }

func (l *fakeLease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// end ends the lease, as when the provider removes its endpoint.
func (l *fakeLease) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		l.paths.End()
		close(l.gone)
	}
}

func (l *fakeLease) Close() error {
	if f := l.p.current().close; f != nil {
		f()
	}
	l.end(endpoint.ErrLeaseClosed)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		panic("BUG: lease closed twice")
	}
	l.done = true
	l.p.remove(l.e.id)
	l.p.closed <- l
	return nil
}
