package unet

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/endpointlink"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/ports"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// uplink is an endpoint of a host, with its lease.
type uplink struct {
	number   int // in Host.uplinks, and in the stack
	lease    *ports.Lease
	ep       *datapath.Endpoint    // nil if the link is not an endpoint (hoststack.NewOnLink)
	table    *datapath.Connections // nil: connections are not published
	paths    *memoryPaths          // nil: the host has no memory paths
	linkAddr wire.LinkAddr
	zones    [2]string // the name and the number of the interface; empty: there is none (hoststack.NewOnLink)

	watchers *notices.Watchers // get the notices that the host has acted on
	ended    chan struct{}     // closed when the host acts on no more
	lost     atomic.Bool       // the lease has ended, and the host goes on

	// Host.changing guards these.
	unserved bool                 // unetd is gone
	has      map[netip.Addr]uint8 // the addresses of the interface, with the lengths of their subnets' prefixes; see Host.scoped
}

// granted is an endpoint that was opened for a host.
type granted struct {
	grant *endpoint.Grant
	lease endpoint.Lease
	table *datapath.Connections // nil: connections are not published
	addrs []netip.Addr          // to own there
}

func (g *granted) close() error {
	return errors.Join(g.grant.Close(), g.lease.Close(), g.table.Close())
}

// openEndpoint asks unetd for an endpoint on an interface that owns addresses. Without a name unetd chooses.
func openEndpoint(ctx context.Context, cfg *Config, name string, addrs []netip.Addr) (*granted, error) {
	table, err := datapath.NewConnections()
	if err != nil {
		return nil, err
	}
	grant, lease, err := control.Open(ctx, cfg.Socket, endpoint.Request{
		Attach: cfg.Attach, Queue: cfg.Queue, Geometry: cfg.Geometry, Huge: cfg.Huge,
		Interface: name, Tags: tagsOf(addrs), NoMemoryPaths: cfg.NoMemoryPaths, Connections: table.File(),
	})
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	return &granted{grant, lease, table, addrs}, nil
}

// openEndpoints asks unetd for an endpoint on each of several interfaces.
func openEndpoints(ctx context.Context, cfg *Config, on []endpoint.UplinkChoice) (list []*granted, err error) {
	for _, c := range on {
		var addrs []netip.Addr
		for _, t := range c.Tags {
			addrs = append(addrs, t.Addr)
		}
		g, err := openEndpoint(ctx, cfg, c.Interface, addrs)
		if err != nil {
			err = fmt.Errorf("%s: %w", c.Interface, err)
			for _, g := range list {
				err = errors.Join(err, g.close())
			}
			return nil, err
		}
		list = append(list, g)
	}
	return list, nil
}

// tagsOf are those of addresses to own.
func tagsOf(addrs []netip.Addr) (tags []endpoint.Tag) {
	for _, a := range addrs {
		tags = append(tags, endpoint.AddrTag(a))
	}
	return tags
}

// memberLease is the lease of one of several uplinks. When it has ended, its addresses are gone, and the host goes on.
type memberLease struct {
	endpoint.Lease
	name string
}

func (l memberLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	tag, err := l.Lease.Claim(ctx, t)
	if errors.Is(err, endpoint.ErrLeaseClosed) {
		err = fmt.Errorf("%w: %s: %v", endpoint.ErrNoAddr, l.name, err)
	}
	return tag, err
}

// attach attaches endpoints, whose grants they own then, and returns what the stack needs of them. After an error the grants are the caller's.
func attach(list []*granted, cfg *HostConfig) (all []*uplink, links []stack.Uplink, quota int, err error) {
	defer func() {
		for _, u := range slices.Backward(all) {
			if err != nil {
				err = errors.Join(err, u.paths.close(nil), u.ep.Detach())
			}
		}
	}()
	var first *endpointlink.Link
	for i, g := range list {
		id := &g.grant.Identity
		u := &uplink{number: i, table: g.table, linkAddr: id.LinkAddr, zones: [2]string{id.Interface, strconv.Itoa(id.Index)}}
		lease, own := g.lease, *cfg
		if own.Addrs = g.addrs; len(list) > 1 {
			lease = memberLease{lease, id.Interface}
		}
		u.lease = ports.NewLease(lease)
		var ending datapath.Config // a host with several uplinks does not end with one
		if len(list) == 1 {
			ending.Lease = g.lease
		}
		if u.ep, err = datapath.Attach(g.grant, ending); err != nil {
			return all, nil, 0, err
		}
		all = append(all, u)
		socket := endpointlink.New(u.ep, linkError)
		if first == nil {
			first = socket
		} else if err = socket.Join(first); err != nil {
			return all, nil, 0, err
		}
		u.paths = newMemoryPaths(g.grant, socket, cfg.NoMemoryPaths)
		geo := u.ep.Geometry()
		if share := int(geo.FrameCount-geo.Prefilled()) / 2; quota == 0 || share < quota { // one uplink may have lent all of them
			quota = share
		}
		link := stack.Uplink{
			Link: u.paths.link(socket), LinkAddr: id.LinkAddr, Addrs: own.addresses(*id), MTU: int(id.MTU), PartialChecksums: id.PartialChecksums,
			Name: id.Interface, Index: id.Index,
		}
		if u.table != nil {
			link.Connections = u.table.Records()
		}
		links = append(links, link)
	}
	return all, links, quota, nil
}

// scoped is an address of the uplink, or a destination there, as the host knows it: if the host has several uplinks, a link-local one has
// the name of the interface as its zone.
func (h *Host) scoped(u *uplink, a netip.Addr) netip.Addr {
	if len(h.uplinks) > 1 && a.Is6() && a.IsLinkLocalUnicast() {
		return a.WithZone(u.zones[0])
	}
	return a
}

// named is an address of the application with the zone, if it needs one, as scoped has it.
func (h *Host) named(a netip.Addr) netip.Addr {
	if len(h.uplinks) == 1 || a.Zone() == "" {
		return a.WithZone("")
	}
	if i := slices.IndexFunc(h.uplinks, func(u *uplink) bool { return slices.Contains(u.zones[:], a.Zone()) }); i >= 0 {
		return a.WithZone(h.uplinks[i].zones[0])
	}
	return a
}

// zoneError is errno with the reason if the zone of a link-local address is not an interface of the host. An address without a zone is on the
// only one. Where there are several, it is an EINVAL as in the kernel.
func (h *Host) zoneError(errno syscall.Errno, a netip.Addr) error {
	zone := a.Zone()
	switch {
	case !a.IsLinkLocalUnicast() || a.Unmap().Is4():
		return nil
	case zone == "" && len(h.uplinks) > 1:
		return fmt.Errorf("%w: %v needs a zone: the host has several interfaces", syscall.EINVAL, a)
	case zone == "" || slices.ContainsFunc(h.uplinks, func(u *uplink) bool { return slices.Contains(u.zones[:], zone) }):
		return nil
	case len(h.uplinks) > 1:
		return fmt.Errorf("%w: zone %s is not one of the host's interfaces", errno, zone)
	}
	return fmt.Errorf("%w: zone %s is not the host's interface %s", errno, zone, h.uplinks[0].zones[0])
}

// leaseErr is why the host has ended, an [endpoint.ErrLeaseClosed]: all leases have. nil: it has not.
func (h *Host) leaseErr() (err error) {
	for _, u := range h.uplinks {
		why := u.lease.Err()
		if why == nil {
			return nil
		}
		err = why
	}
	return err
}

// act acts on the notices of an uplink until they end, and then on the end of its lease, unless the host is closed first.
func (h *Host) act(u *uplink, changes iter.Seq[[]endpoint.Notice], closed <-chan struct{}) {
	defer close(u.ended)
	for list := range changes {
		h.notice(u, list)
	}
	select {
	case <-u.lease.Done():
	case <-closed:
	}
	switch why := u.lease.Err(); {
	case why == nil:
	case h.leaseErr() != nil:
		h.stack.Fail(&leaseError{why})
	default:
		h.lose(u)
	}
}

// lose takes an uplink away whose lease has ended while others have not.
func (h *Host) lose(u *uplink) {
	h.stack.EndUplink(u.number)
	h.changing.Lock()
	defer h.changing.Unlock()
	for a, at := range h.holders {
		if at == u {
			h.setAddress(u, a, 0, false)
		}
	}
	u.has = nil
	u.lost.Store(true)
	h.setServed()
}

// setAddress takes a notice about an address of an uplink. It reports whether that concerns the host. Of an address that
// several interfaces have, only the first to come counts. Host.changing is held.
func (h *Host) setAddress(u *uplink, a netip.Addr, bits uint8, here bool) bool {
	before, known := h.holders[a], h.locals.At(a) != nil
	if here {
		u.has[a] = bits
	} else {
		delete(u.has, a)
	}
	if before != nil && before != u {
		if _, has := before.has[a]; has || !here {
			return false
		}
		h.locals.Remove(a) // it has moved
	}
	if here { // before the stack sends from there
		h.locals.Add(u.lease, a)
	} else {
		h.locals.Suspend(a)
	}
	forgotten, err := h.stack.SetAddress(u.number, netip.PrefixFrom(a.WithZone(""), int(bits)), here)
	if err != nil {
		forgotten = append(forgotten, a)
	}
	for _, a := range forgotten {
		h.locals.Remove(a)
	}
	if h.locals.At(a) != nil {
		h.holders[a] = u
	} else {
		delete(h.holders, a)
	}
	if here {
		return known || h.locals.At(a) != nil
	}
	for _, o := range h.uplinks {
		if bits, has := o.has[a]; has {
			h.setAddress(o, a, bits, true)
			break
		}
	}
	return known
}

// noticesOfAll is Notices of a host with several uplinks.
func (h *Host) noticesOfAll(ctx context.Context) iter.Seq[endpoint.Notice] {
	ctx, cancel := context.WithCancel(ctx)
	var all []iter.Seq[endpoint.Notice]
	for _, u := range h.uplinks {
		all = append(all, u.watchers.Each(ctx))
	}
	return func(yield func(endpoint.Notice) bool) {
		next := make(chan endpoint.Notice)
		var loops sync.WaitGroup
		for i, u := range h.uplinks {
			tell := func(n endpoint.Notice) bool {
				n.Interface = u.zones[0]
				select {
				case next <- n:
					return true
				case <-ctx.Done():
					return false
				}
			}
			loops.Go(func() {
				for n := range all[i] {
					if !tell(n) {
						return
					}
				}
				if u.lost.Load() {
					tell(endpoint.Notice{Kind: endpoint.NoticeUplinkGone})
				}
			})
		}
		go func() { loops.Wait(); close(next) }()
		defer func() {
			cancel()
			for range next { // the loops have ended when this has
			}
		}()
		for n := range next {
			if ctx.Err() != nil || !yield(n) {
				return
			}
		}
	}
}

// setServed tells the stack whether unetd is there for all uplinks that go on. Host.changing is held.
func (h *Host) setServed() {
	h.stack.SetRouteService(!slices.ContainsFunc(h.uplinks, func(u *uplink) bool { return u.unserved && !u.lost.Load() }))
}
