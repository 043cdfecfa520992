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
	"sync"
	"syscall"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
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

	// Interface is the interface, by its name, where unetd serves several. Empty: those in
	// whose subnets the addresses to own are, else all of which this user may have an endpoint. With
	// several the host has an endpoint on each, of this geometry. A queue is of one interface: then the error of Open
	// is an endpoint.ErrUplink.
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
//
// A host can have several uplinks, with an endpoint and a lease each ([Config].Interface). A packet leaves by the uplink that has its
// source address. The source of a socket that has none is the kernel's choice, which knows by what interface the destination is reached.
// If the link of one is down or it has lost its addresses, or its lease ends, then that is so for its addresses only.
// The host ends with its last lease.
type Host struct {
	uplinks []*uplink
	stack   *stack.Stack
	locals  *ports.Locals
	groups  *groups
	names   *net.Resolver // of hoststack.NewOnLink; nil: the default

	changing sync.Mutex             // held while the host acts on notices about addresses and unetd
	holders  map[netip.Addr]*uplink // of the addresses; changing guards it; see scoped

	stopNotices func() // ends the goroutines that act on notices, and waits for them

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
	one, err := openEndpoint(ctx, &cfg, cfg.Interface, cfg.Addrs)
	list := []*granted{one}
	var several *endpoint.UplinksError
	if cfg.Attach == endpoint.AttachPort && errors.As(err, &several) {
		list, err = openEndpoints(ctx, &cfg, several.Uplinks)
	}
	if err != nil {
		return nil, err
	}
	h, err := start(&cfg.HostConfig, list)
	if err != nil {
		for _, g := range list {
			err = errors.Join(err, g.close())
		}
		return nil, err
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
	return startOn(ctx, grant, lease, &cfg)
}

// startOn claims the addresses to own that the grant does not have, and starts a host.
func startOn(ctx context.Context, grant *endpoint.Grant, lease endpoint.Lease, cfg *HostConfig) (_ *Host, err error) {
	for _, tag := range tagsOf(cfg.Addrs) {
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
	return start(cfg, []*granted{{grant: grant, lease: lease, addrs: cfg.Addrs}})
}

// start starts a host on endpoints that have the addresses to own. After an error they are the caller's.
func start(cfg *HostConfig, list []*granted) (*Host, error) {
	uplinks, links, quota, err := attach(list, cfg)
	if err != nil {
		return nil, err
	}
	var published func()
	if list[0].table != nil {
		published = func() {
			for _, u := range uplinks {
				u.table.Publish(u.ep)
				u.paths.publish(u.table.Endpoint())
			}
		}
	}
	h, err := newHostOn(uplinks, stack.Config{
		Uplinks:      links,
		OwnedAddress: len(cfg.Addrs) > 0,
		Wait:         cfg.Wait,
		SpinBudget:   cfg.SpinBudget,
		FrameQuota:   quota,
		TCP:          cfg.TCP,
		Published:    published,
	})
	if err != nil {
		// The grants stay the caller's, so their descriptors stay open.
		for _, u := range slices.Backward(uplinks) {
			err = errors.Join(err, u.paths.close(nil), u.ep.Detach())
		}
		return nil, err
	}
	for _, u := range uplinks {
		u.paths.start(u.lease, h.stack)
	}
	return h, nil
}

// addresses are the addresses of a host and their subnets: those to own, or those of
// the interface, without IPv6 ones if its MTU is too small for IPv6.
func (cfg *HostConfig) addresses(id endpoint.Identity) (addrs []netip.Prefix) {
	if len(cfg.Addrs) == 0 {
		return slices.DeleteFunc(slices.Clone(id.Addrs), func(p netip.Prefix) bool { return p.Addr().Is6() && id.MTU < wire.MinIPv6MTU })
	}
	for _, t := range tagsOf(cfg.Addrs) {
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
	cfg.Uplinks = []stack.Uplink{{Link: cfg.Link, LinkAddr: cfg.LinkAddr, Addrs: cfg.Addrs, MTU: cfg.MTU, PartialChecksums: cfg.PartialChecksums}}
	return newHostOn([]*uplink{{lease: ports.NewLease(lease), linkAddr: cfg.LinkAddr}}, cfg)
}

// newHostOn makes a host on uplinks, which the configuration has, too.
func newHostOn(uplinks []*uplink, cfg stack.Config) (*Host, error) {
	h := &Host{uplinks: uplinks, locals: ports.NewLocals(nil, cfg.OwnedAddress), holders: make(map[netip.Addr]*uplink), closed: make(chan struct{})}
	for i, u := range uplinks {
		u.has, u.ended = make(map[netip.Addr]uint8), make(chan struct{})
		u.watchers = notices.New(u.ended)
		u.watchers.Granted(cfg.Uplinks[i].Addrs)
		for _, p := range cfg.Uplinks[i].Addrs {
			a := h.scoped(u, p.Addr())
			if h.holders[a] == nil {
				h.holders[a] = u
			}
			if !cfg.OwnedAddress {
				u.has[a] = uint8(p.Bits())
			}
			h.locals.Grant(u.lease, a)
		}
		cfg.Uplinks[i].Resolver = resolver{u.lease}
	}
	h.groups = newGroups(uplinks)
	if !cfg.OwnedAddress { // otherwise all ports are the host's
		cfg.TCPPorts = h.locals
	}
	s, err := stack.New(cfg)
	if err != nil {
		return nil, err
	}
	h.stack = s
	h.close = sync.OnceValue(h.shut)
	ctx, cancel := context.WithCancel(context.Background())
	h.stopNotices = func() {
		cancel()
		for _, u := range uplinks {
			<-u.ended
		}
	}
	for _, u := range uplinks {
		go h.act(u, u.lease.Notices(ctx), ctx.Done())
	}
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
	if why := h.leaseErr(); why != nil { // the goroutine that waits for this may not have run yet
		h.stack.Fail(&leaseError{why})
	}
	err := h.stack.Close()
	h.stopNotices()
	h.stack.Do(func() { close(h.closed) }) // under the stack's lock, so that no Stats is in progress
	lent := h.stack.Lent() > 0
	for _, u := range slices.Backward(h.uplinks) { // the others sleep with the first
		err = errors.Join(err, u.paths.close(h.stack))
		if u.ep != nil {
			closeEndpoint := u.ep.Close
			if lent {
				closeEndpoint = u.ep.CloseLater
			}
			err = errors.Join(err, closeEndpoint())
		}
		err = errors.Join(err, u.lease.Close())
		if u.table != nil {
			err = errors.Join(err, u.table.Close())
		}
	}
	return err
}

// Stats are the counters of the host's endpoint, with the kernel's counters of its
// queues, which count the frames that were dropped because a queue was full. Of several uplinks they are the sums. The counters
// of the protocols are in [Host.Counters]. The error after Close is net.ErrClosed, that of
// a host without an endpoint, as in package unettest, errors.ErrUnsupported.
func (h *Host) Stats() (sum datapath.Stats, err error) {
	if h.uplinks[0].ep == nil {
		return sum, errors.ErrUnsupported
	}
	h.stack.Do(func() {
		select {
		case <-h.closed:
			err = net.ErrClosed
			return
		default:
		}
		for _, u := range h.uplinks {
			st, e := u.ep.Stats()
			sum.Add(&st)
			err = errors.Join(err, e)
		}
	})
	return sum, err
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

// Addrs are the addresses that the host owns, or those that it shares and its interfaces have now. Those that
// have come since the host was opened are the last. Link-local ones have a zone if the host has several uplinks.
func (h *Host) Addrs() (addrs []netip.Addr) {
	for _, l := range h.locals.List() {
		addrs = append(addrs, l.Addr)
	}
	return addrs
}

// LinkAddr is the source MAC address of everything the host sends, by the first uplink if it has several.
func (h *Host) LinkAddr() wire.LinkAddr { return h.uplinks[0].linkAddr }

// Uplink is an interface by which a host sends and receives.
type Uplink struct {
	Interface string        // its name; empty for a host in memory (package unettest)
	LinkAddr  wire.LinkAddr // the source MAC address of what the host sends there
	Err       error         // why its lease has ended, an endpoint.ErrLeaseClosed; nil: it has not
}

// Uplinks are the interfaces of the host, in a fixed order.
func (h *Host) Uplinks() (list []Uplink) {
	for _, u := range h.uplinks {
		list = append(list, Uplink{u.zones[0], u.linkAddr, u.lease.Err()})
	}
	return list
}

// Counters are the counters of the host's protocols and of its memory paths, since the host was opened.
func (h *Host) Counters() []stack.Counter {
	list := h.stack.Counters()
	var paths []stack.Counter
	for _, u := range h.uplinks {
		for i, c := range u.paths.counters(h.stack) {
			if i == len(paths) {
				paths = append(paths, stack.Counter{Name: c.Name})
			}
			paths[i].Value += c.Value
		}
	}
	return append(list, paths...)
}

// resolver is the lease's route service as a [stack.Resolver].
type resolver struct{ lease endpoint.Lease }

func (r resolver) Resolve(ctx context.Context, src, dst netip.Addr) (stack.Route, error) {
	e, err := r.lease.Resolve(ctx, src, dst)
	switch { // other errors do not mean this
	case errors.Is(err, endpoint.ErrNoRoute):
		err = &unreachable{err, syscall.ENETUNREACH}
	case errors.Is(err, endpoint.ErrProhibited):
		err = &unreachable{err, syscall.EACCES}
	case errors.Is(err, endpoint.ErrBlackhole):
		err = &unreachable{err, syscall.EINVAL}
	case errors.Is(err, endpoint.ErrUnreachable):
		err = &unreachable{err, syscall.EHOSTUNREACH}
	}
	return stack.Route{Source: e.Source, LinkAddr: e.LinkAddr, MTU: int(e.MTU), MTULocked: e.MTULocked, AdvMSS: int(e.AdvMSS)}, err
}

// unreachable is the kernel's errno for a destination that cannot be reached, with the reason.
type unreachable struct {
	error
	errno syscall.Errno
}

func (u *unreachable) Unwrap() []error { return []error{u.errno, u.error} }

// notice reports the notices of an uplink's lease to the stack, then those that concern the host to its watchers.
func (h *Host) notice(u *uplink, list []endpoint.Notice) {
	h.changing.Lock()
	defer h.changing.Unlock()
	for _, n := range list {
		switch n.Kind {
		case endpoint.NoticeUnetdGone, endpoint.NoticeUnetdBack:
			u.unserved = n.Kind == endpoint.NoticeUnetdGone
			h.setServed()
		case endpoint.NoticeRoute:
			h.stack.Invalidate(h.scoped(u, n.Addr))
		case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
			h.stack.SetLink(u.number, n.Kind == endpoint.NoticeLinkUp)
		case endpoint.NoticeAddrGone, endpoint.NoticeAddrHere:
			if !h.setAddress(u, h.scoped(u, n.Addr), n.Bits, n.Kind == endpoint.NoticeAddrHere) {
				continue
			}
		}
		u.watchers.Tell(n)
	}
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
//
// All this is so for each uplink of a host with several. The notices name its interface, and NoticeUplinkGone is its last.
func (h *Host) Notices(ctx context.Context) iter.Seq[endpoint.Notice] {
	if len(h.uplinks) == 1 {
		return h.uplinks[0].watchers.Each(ctx)
	}
	return h.noticesOfAll(ctx)
}
