package unet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/endpointlink"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/ports"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// DefaultSocket is the default path of unetd's socket.
const DefaultSocket = control.DefaultSocket

// HostConfig is the part of the configuration of a Host that does not come with its endpoint. Its
// zero value works: the host shares the interface's addresses.
type HostConfig struct {
	// Addrs are the addresses to own: an IPv4 one, an IPv6 one, or both. They must be free and in
	// subnets of the interface. New claims by the lease those that the grant does not have. A host
	// has no other addresses. Empty: share all addresses of the interface, port by port. They can change:
	// sockets at no address follow, as those of the kernel do.
	Addrs []netip.Addr

	Wait       endpoint.WaitMode // how blocked calls wait; adaptive by default
	SpinBudget time.Duration     // how long adaptive waiting spins before it sleeps

	// NoMemoryPaths: frames to endpoints of the same host go by the port like all others. Otherwise they go through
	// shared memory where unetd permits it, which sockets do not notice but by its speed.
	NoMemoryPaths bool

	TCP TCPConfig // of all connections; the zero value is right in a LAN
}

// Config is the configuration of a Host and of the endpoint that unetd makes for it. Its zero value
// works: the unetd at [DefaultSocket] attaches the host by a port.
type Config struct {
	HostConfig

	Socket   string              // of unetd
	Attach   endpoint.Attachment // by a port (a veth pair of its own) or a queue
	Queue    uint32              // of the interface, with endpoint.AttachQueue
	Geometry endpoint.Geometry   // of the segment
	Huge     bool                // back the segment with huge pages

	// Interface is the interface, by its name, where unetd serves several. Empty: the one in
	// whose subnet the addresses to own are, else the only one of which this user may have an
	// endpoint, else the error of Open is endpoint.ErrUplink.
	Interface string
}

// TCPConfig are the settings of TCP for all connections: the least retransmission
// timeout, the duration of TIME-WAIT, the memory of all connections, the largest buffers
// of one, ECN, and congestion control.
type TCPConfig = stack.TCPConfig

// Host is an endpoint and the stack that runs on it. Its methods may be called
// from any goroutine.
//
// unetd may end and be started again: sockets go on, and the host connects to the new
// unetd by itself. Until then two kinds of calls wait: those that open a socket on a port
// that the host has not claimed, and those that need the route to a new destination.
// Peers whose route is not known are answered at the MAC address that their packets come
// from (docs/protection.md). Closing a socket does not wait. A host ends with its lease, when unetd takes that back
// or the interface is deleted. Then all calls of the host and its sockets return an
// [endpoint.ErrLeaseClosed] with the reason, which is a net.ErrClosed too, also those that
// are ended by a Close that follows. Close the host and open another. Between the deletion of
// the interface and the end of the lease, sends can fail with ENXIO or ENETDOWN.
//
// Close the host before the process ends. Otherwise, at os.Exit, a panic or a signal,
// data that was written and not acknowledged is lost, where the kernel would still send
// it, and unetd sends a RST to the peers of all connections: they read ECONNRESET, not
// io.EOF. If no unetd runs at that moment, the peer of a host on a shared address gets
// a RST when it next sends something, and the peer of a host with [HostConfig.Addrs] finds the
// connection dead when its keepalive or its user timeout expires. The same is true for a
// host made by [New].
type Host struct {
	lease  *ports.Lease
	ep     *datapath.Endpoint    // nil if the link is not an endpoint (hoststack.NewOnLink)
	table  *datapath.Connections // nil: connections are not published
	paths  *memoryPaths          // nil: the host has no memory paths
	stack  *stack.Stack
	locals *ports.Locals
	groups *groups
	names  *net.Resolver // of hoststack.NewOnLink; nil: the default

	watchers    *notices.Watchers // get the notices that the host has acted on
	stopNotices func()            // ends the goroutine that acts on notices, and waits for it

	linkAddr wire.LinkAddr
	zones    [2]string // the name and the number of the interface; empty: there is none (hoststack.NewOnLink)

	closed chan struct{}
	close  func() error
}

// Open asks unetd for an endpoint and starts a host on it. It needs no
// privilege but the permission to connect to the daemon's socket. Errors:
// [endpoint.ErrTagHeld], [endpoint.ErrTagDenied], [endpoint.ErrGeometry],
// [endpoint.ErrBusy], and those of the connection to unetd. On a system other than Linux
// the error wraps [errors.ErrUnsupported].
func Open(ctx context.Context, cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if runtime.GOOS != "linux" {
		return nil, errSystem
	}
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	req := endpoint.Request{Attach: cfg.Attach, Queue: cfg.Queue, Geometry: cfg.Geometry, Huge: cfg.Huge, Interface: cfg.Interface, Tags: cfg.tags(), NoMemoryPaths: cfg.NoMemoryPaths}
	table, err := datapath.NewConnections()
	if err != nil {
		return nil, err
	}
	req.Connections = table.File()
	grant, lease, err := control.Open(ctx, cfg.Socket, req)
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	h, err := start(ctx, grant, lease, cfg.HostConfig, table)
	if err != nil {
		return nil, errors.Join(err, grant.Close(), lease.Close(), table.Close())
	}
	return h, nil
}

// errSystem is the error of Open where there are no endpoints.
var errSystem = fmt.Errorf("unet: endpoints need Linux, this is %s (OpenNetwork can fall back; tests can use package unettest): %w", runtime.GOOS, errors.ErrUnsupported)

// New starts a host on a grant, and takes grant and lease over when it
// succeeds. ctx limits the claim of the addresses in cfg.Addrs that the grant does not have. If New
// fails after that claim, it gives them back, for which it waits up to two seconds each. The
// host's connections are not published: if this process dies, no RST is sent to their
// peers.
func New(ctx context.Context, grant *endpoint.Grant, lease endpoint.Lease, cfg HostConfig) (*Host, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return start(ctx, grant, lease, cfg, nil)
}

// start is New with a table to publish connections in, which may be nil.
func start(ctx context.Context, grant *endpoint.Grant, lease endpoint.Lease, cfg HostConfig, table *datapath.Connections) (_ *Host, err error) {
	for _, tag := range cfg.tags() {
		if slices.Contains(grant.Tags, tag) {
			continue
		}
		if _, err := lease.Claim(ctx, tag); err != nil {
			return nil, fmt.Errorf("claim %v: %w", tag.Addr, err)
		}
		defer func() {
			if err != nil {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
				defer cancel()
				err = errors.Join(err, lease.Unclaim(ctx, tag))
			}
		}()
	}
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		return nil, err
	}
	geo := ep.Geometry()
	socket := endpointlink.New(ep, linkError)
	paths := newMemoryPaths(grant, socket, cfg.NoMemoryPaths)
	var records []wire.Connection
	var published func()
	if table != nil {
		records = table.Records()
		published = func() {
			table.Publish(ep)
			paths.publish(table.Endpoint())
		}
	}
	h, err := newHost(lease, stack.Config{
		Link:             paths.link(socket),
		LinkAddr:         grant.Identity.LinkAddr,
		Addrs:            cfg.addresses(grant.Identity),
		OwnedAddress:     len(cfg.Addrs) > 0,
		MTU:              int(grant.Identity.MTU),
		PartialChecksums: grant.Identity.PartialChecksums,
		Wait:             cfg.Wait,
		SpinBudget:       cfg.SpinBudget,
		FrameQuota:       int(geo.FrameCount-geo.Prefilled()) / 2,
		TCP:              cfg.TCP,
		Connections:      records,
		Published:        published,
	})
	if err != nil {
		// The grant stays the caller's, so its descriptors stay open.
		return nil, errors.Join(err, paths.close(nil), ep.Detach())
	}
	h.ep, h.table, h.paths = ep, table, paths
	paths.start(lease, h.stack)
	h.zones = [2]string{grant.Identity.Interface, strconv.Itoa(grant.Identity.Index)}
	return h, nil
}

// tags are those of the addresses to own.
func (cfg *HostConfig) tags() (tags []endpoint.Tag) {
	for _, a := range cfg.Addrs {
		tags = append(tags, endpoint.AddrTag(a))
	}
	return tags
}

// addresses are the addresses of a host and their subnets: those to own, or those of
// the interface, without IPv6 ones if its MTU is too small for IPv6.
func (cfg *HostConfig) addresses(id endpoint.Identity) (addrs []netip.Prefix) {
	if len(cfg.Addrs) == 0 {
		return slices.DeleteFunc(slices.Clone(id.Addrs), func(p netip.Prefix) bool { return p.Addr().Is6() && id.MTU < wire.MinIPv6MTU })
	}
	for _, t := range cfg.tags() {
		own := netip.PrefixFrom(t.Addr, t.Addr.BitLen())
		for _, p := range id.Addrs {
			if p.Contains(t.Addr) && (own.IsSingleIP() || p.Bits() > own.Bits()) {
				own = netip.PrefixFrom(t.Addr, p.Bits())
			}
		}
		addrs = append(addrs, own)
	}
	return addrs
}

// newHost makes a host on a lease and a link.
func newHost(lease endpoint.Lease, cfg stack.Config) (*Host, error) {
	releasing := ports.NewLease(lease)
	var addrs []netip.Addr
	for _, p := range cfg.Addrs {
		addrs = append(addrs, p.Addr())
	}
	h := &Host{
		lease:  releasing,
		locals: ports.NewLocals(releasing, cfg.OwnedAddress, addrs...),
		closed: make(chan struct{}),

		linkAddr: cfg.LinkAddr,
	}
	h.groups = newGroups(releasing, &h.zones)
	if !cfg.OwnedAddress { // otherwise all ports are the host's
		cfg.TCPPorts = h.locals
	}
	cfg.Resolver = resolver{lease}
	s, err := stack.New(cfg)
	if err != nil {
		return nil, err
	}
	h.stack = s
	h.close = sync.OnceValue(h.shut)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	h.watchers = notices.New(ended)
	h.watchers.Granted(cfg.Addrs)
	h.stopNotices = func() { cancel(); <-ended }
	changes := lease.Notices(ctx)
	go func() {
		defer close(ended)
		for list := range changes {
			h.notice(list)
		}
		select {
		case <-lease.Done():
		case <-ctx.Done():
		}
		if why := lease.Err(); why != nil {
			s.Fail(&leaseError{why})
		}
	}()
	return h, nil
}

// Close closes the host's sockets and gives everything back. Connections are closed as
// by [TCPConn.Close]: what was written has up to a second to reach the peers, each of
// which then gets a FIN. Data that a peer has not acknowledged after that second is lost,
// and the peer gets a RST. Blocked calls return net.ErrClosed. Datagrams and buffers that
// the application still holds stay readable until they are returned.
//
// When Close returns, the host's address and ports can be claimed again, unless unetd is
// stopped or overloaded: Close waits for unetd for 2 seconds at most, and unetd reclaims
// them when it continues. If no unetd runs Close does not wait, and the next unetd
// reclaims them.
func (h *Host) Close() error { return h.close() }

func (h *Host) shut() error {
	if why := h.lease.Err(); why != nil { // the goroutine that waits for this may not have run yet
		h.stack.Fail(&leaseError{why})
	}
	err := h.stack.Close()
	h.stopNotices()
	h.stack.Do(func() { close(h.closed) }) // under the stack's lock, so that no Stats is in progress
	err = errors.Join(err, h.paths.close(h.stack))
	if h.ep != nil {
		closeEndpoint := h.ep.Close
		if h.stack.Lent() > 0 {
			closeEndpoint = h.ep.CloseLater
		}
		err = errors.Join(err, closeEndpoint())
	}
	err = errors.Join(err, h.lease.Close())
	if h.table != nil {
		err = errors.Join(err, h.table.Close())
	}
	return err
}

// Stats are the counters of the host's endpoint, with the kernel's counters of its
// queues, which count the frames that were dropped because a queue was full. The counters
// of the protocols are in [Host.Counters]. The error after Close is net.ErrClosed, that of
// a host without an endpoint, as in package unettest, errors.ErrUnsupported.
func (h *Host) Stats() (st datapath.Stats, err error) {
	if h.ep == nil {
		return st, errors.ErrUnsupported
	}
	h.stack.Do(func() {
		select {
		case <-h.closed:
			err = net.ErrClosed
		default:
			st, err = h.ep.Stats()
		}
	})
	return st, err
}

// Addr is the first of the host's IPv4 addresses, or, if it has none, of all its addresses. It is not valid
// while the interface has no address.
func (h *Host) Addr() netip.Addr {
	all := h.Addrs()
	if i := slices.IndexFunc(all, netip.Addr.Is4); i >= 0 {
		return all[i]
	}
	return append(all, netip.Addr{})[0]
}

// Addrs are the addresses that the host owns, or those that it shares and the interface has now. Those that
// have come since the host was opened are the last.
func (h *Host) Addrs() (addrs []netip.Addr) {
	for _, l := range h.locals.List() {
		addrs = append(addrs, l.Addr)
	}
	return addrs
}

// LinkAddr is the source MAC address of everything the host sends.
func (h *Host) LinkAddr() wire.LinkAddr { return h.linkAddr }

// Counters are the counters of the host's protocols and of its memory paths, since the host was opened.
func (h *Host) Counters() []stack.Counter {
	return append(h.stack.Counters(), h.paths.counters(h.stack)...)
}

// resolver is the lease's route service as a [stack.Resolver].
type resolver struct{ lease endpoint.Lease }

func (r resolver) Resolve(ctx context.Context, src, dst netip.Addr) (stack.Route, error) {
	e, err := r.lease.Resolve(ctx, src, dst)
	switch { // other errors do not mean this
	case errors.Is(err, endpoint.ErrNoRoute):
		err = &unreachable{err, syscall.ENETUNREACH}
	case errors.Is(err, endpoint.ErrUnreachable):
		err = &unreachable{err, syscall.EHOSTUNREACH}
	}
	return stack.Route{Source: e.Source, LinkAddr: e.LinkAddr, MTU: int(e.MTU)}, err
}

// unreachable is an ENETUNREACH or EHOSTUNREACH with its reason.
type unreachable struct {
	error
	errno syscall.Errno
}

func (u *unreachable) Unwrap() []error { return []error{u.errno, u.error} }

// notice reports the lease's notices to the stack, then those that concern the host to its watchers.
func (h *Host) notice(list []endpoint.Notice) {
	for _, n := range list {
		switch n.Kind {
		case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
			h.stack.SetRouteService(n.Kind == endpoint.NoticeUnetdBack)
		case endpoint.NoticeRoute:
			h.stack.Invalidate(n.Addr)
		case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
			h.stack.SetLink(n.Kind == endpoint.NoticeLinkUp)
		case endpoint.NoticeAddrGone, endpoint.NoticeAddrHere:
			if !h.setAddress(n) {
				continue
			}
		}
		h.watchers.Tell(n)
	}
}

// setAddress takes a notice about an address. It reports whether that concerns the host.
func (h *Host) setAddress(n endpoint.Notice) bool {
	here, known := n.Kind == endpoint.NoticeAddrHere, h.locals.At(n.Addr) != nil
	if here { // before the stack sends from there
		h.locals.Add(n.Addr)
	} else {
		h.locals.Suspend(n.Addr)
	}
	forgotten, err := h.stack.SetAddress(netip.PrefixFrom(n.Addr, int(n.Bits)), here)
	if err != nil {
		forgotten = append(forgotten, n.Addr)
	}
	for _, a := range forgotten {
		h.locals.Remove(a)
	}
	return known || h.locals.At(n.Addr) != nil
}

// Notices returns what changes around the host from now on, for one range loop: a route has
// changed, the link is down or up, the machine has lost an address of the host, has it again, or
// has a new one that the host shares, unetd is gone or back. When the loop gets a notice the host
// has acted on it: it asks for the route again, and its sends fail with ENETDOWN while the link is
// down; those from an address that is gone fail with EADDRNOTAVAIL. If unetd is gone already, the
// link down, or an address gone, the loop gets that first.
//
// The loop ends when ctx or the host does, or its lease. It may be slow: of the notices that it
// has not got yet, the last one about unetd, about the link and about each address is kept, and
// one for each of up to 256 destinations, beyond which there is one for all. They are kept from
// the call on, until the end or until the loop is left.
func (h *Host) Notices(ctx context.Context) iter.Seq[endpoint.Notice] { return h.watchers.Each(ctx) }
