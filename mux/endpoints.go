//go:build linux

package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// OpenEndpoint is [Mux.OpenEndpointFor] for this process.
func (m *Mux) OpenEndpoint(ctx context.Context, req endpoint.Request) (*endpoint.Grant, *Lease, error) {
	return m.OpenEndpointFor(ctx, Owner{PID: os.Getpid(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, req)
}

// OpenEndpointFor makes an endpoint, if the policy permits it: segment, socket, port or
// queue, and its first tags. After an error nothing of it is left. The caller closes the
// grant's files.
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
	geometry, bound, err := m.shape(req, terms)
	if err != nil {
		return nil, nil, err
	}
	if req.Attach == endpoint.AttachQueue && terms.Rates != (endpoint.Rates{}) {
		return nil, nil, fmt.Errorf("%w: %s limits what endpoints send, which nothing does on a queue: attach to a port", os.ErrPermission, terms.Rule)
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
	l := newLease(m, o)
	l.terms, l.attach, l.segmentBytes = terms, req.Attach, geometry.SegmentSize()
	l.frameSize, l.fillSize, l.bound = geometry.FrameSize, geometry.FillSize, bound
	params := paramsOf(geometry, terms)
	l.counted = countedMemory(&params)
	grant := &endpoint.Grant{Attach: req.Attach, Geometry: geometry, Identity: m.Identity()}
	if !terms.Trusted { // a received packet must fit one frame of the segment
		grant.Identity.MTU = min(grant.Identity.MTU, xsk.RxRoom(geometry.FrameSize)-wire.EthernetHeaderLen)
	}
	tags, err := m.ask(l, req.Tags)
	if err == nil {
		defer tags.end()
		m.mu.Lock()
		err = m.users.open(o.UID, l.counted, terms)
		m.mu.Unlock()
	}
	if err != nil {
		l.cancel()
		return nil, nil, err
	}
	if err = l.build(ctx, grant, req, params); err == nil {
		grant.Tags, err = tags.claim(ctx)
	}
	if err == nil {
		err = l.enlist(&grant.Identity)
	}
	if err != nil {
		cerr := l.close(nil)
		if errors.Is(err, endpoint.ErrLeaseClosed) {
			err = l.Err() // with the reason
		}
		m.mu.Lock()
		m.users.uncount(o.UID, Usage{Endpoints: 1, Memory: l.counted})
		m.mu.Unlock()
		return nil, nil, errors.Join(err, cerr, grant.Close())
	}
	level := slog.LevelDebug
	if req.Attach == endpoint.AttachQueue { // of a trusted owner, who does not fill the log
		level = slog.LevelInfo
	}
	m.log.Log(ctx, level, "endpoint opened", "endpoint", grant.ID, "attach", grant.Attach.String(), "device", l.at.device, "queue", l.queue,
		"mode", m.progs.Mode.String(), "zero_copy", grant.ZeroCopy, "copy_reason", grant.CopyReason, "frame_size", geometry.FrameSize, "tags", len(grant.Tags))
	return grant, l, nil
}

// build makes the segment, the socket and the port or queue of an endpoint, and notes them in
// lease and grant. After an error the caller closes both.
func (l *Lease) build(ctx context.Context, g *endpoint.Grant, req endpoint.Request, params xsk.Params) (err error) {
	if req.Huge && l.segmentBytes%xsk.HugePageSize != 0 {
		return fmt.Errorf("%w: a segment of huge pages has a multiple of %d bytes, not %d", endpoint.ErrGeometry, xsk.HugePageSize, l.segmentBytes)
	}
	if req.Connections != nil {
		if l.connections, err = acceptPublished(req.Connections); err != nil { // +checklocksignore: nobody else has the lease yet
			return err
		}
	}
	if l.memory, err = xsk.NewSegment(l.segmentBytes, req.Huge); err != nil {
		return err
	}
	if g.Segment, err = xsk.ShareSegment(l.memory); err != nil {
		return err
	}
	if l.terms.Registered > 0 {
		params.Charge = &xsk.Charge{UID: l.uid, Limit: uint64(l.terms.Registered), Command: l.terms.Register}
	}
	switch req.Attach {
	case endpoint.AttachPort:
		g.XSK, err = l.openPort(params)
	case endpoint.AttachQueue:
		g.XSK, err = l.openQueue(req.Queue, params)
	default:
		return fmt.Errorf("unknown attachment %d", req.Attach)
	}
	if err != nil {
		return err
	}
	g.ID, g.ZeroCopy, g.CopyReason = l.id, l.bound.ZeroCopy, l.bound.Why
	if l.m.table != nil && !req.NoMemoryPaths && req.Attach == endpoint.AttachPort {
		if g.Table, err = l.m.table.Reader(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// paramsOf describes the socket of an endpoint, without its device and its user.
func paramsOf(g endpoint.Geometry, t Terms) xsk.Params {
	return xsk.Params{
		FrameSize:      g.FrameSize,
		FrameCount:     g.FrameCount,
		FillSize:       g.FillSize,
		CompletionSize: g.CompletionSize,
		RxSize:         g.RxSize,
		TxSize:         g.TxSize,
		Prefill:        g.Prefilled(),
		SG:             t.Trusted,
		NeedWakeup:     true,
	}
}

// enlist adds a complete lease to the mux, and sets the addresses in its identity. They are read
// here, since updateAddresses may not have seen those of its tags yet; it tells each later change.
func (l *Lease) enlist(id *endpoint.Identity) error {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return m.ended
	}
	if l.closed { // by updateAddresses: the host has taken its owned address
		return endpoint.ErrLeaseClosed
	}
	own, err := m.addresses()
	if err != nil {
		return err
	}
	l.granted, l.leased = true, true
	l.tellLink(m.down)
	id.Addrs = forIdentity(own.known())
	l.watchers.Granted(id.Addrs)
	l.tellAddresses(own.known())
	m.leases[l.id] = l
	return nil
}

// info describes the endpoint without its tags. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) info() endpoint.Info {
	return endpoint.Info{
		ID:           l.id,
		Interface:    l.m.up.Name,
		UID:          l.uid,
		PID:          l.owner.PID,
		Attach:       l.attach,
		Device:       l.at.device,
		Queue:        l.queue,
		SegmentBytes: l.segmentBytes,
		Leased:       l.leased,
		Mode:         l.m.progs.Mode.String(),
		ZeroCopy:     l.bound.ZeroCopy,
		CopyReason:   l.bound.Why,
		SpreadOver:   l.spreadOver,
		Paths:        len(l.paths),
	}
}

// infoWithTags is info with the tags. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) infoWithTags() endpoint.Info {
	info := l.info()
	info.Tags = sorted(l.tags)
	info.TagsTotal = len(info.Tags)
	l.m.rates.tell(l, &info)
	return info
}

// Endpoints lists all endpoints by ID.
func (m *Mux) Endpoints() []endpoint.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]endpoint.Info, 0, len(m.leases))
	for _, l := range m.leases {
		list = append(list, l.infoWithTags()) // +checklocksignore: a lease of this mux
	}
	slices.SortFunc(list, func(a, b endpoint.Info) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Uplink describes the uplink to an operator.
func (m *Mux) Uplink() endpoint.Uplink {
	m.mu.Lock()
	defer m.mu.Unlock()
	return endpoint.Uplink{Interface: m.up.Name, Index: m.up.Index, Mode: m.progs.Mode.String(), Up: !m.down, Endpoints: len(m.leases)}
}

// Present returns the lease of an endpoint that was taken over. The cookie of its socket
// identifies the endpoint. connections is as in [endpoint.Request]; the caller closes both
// files. Errors: endpoint.ErrNotPresentable if there is no such endpoint, endpoint.ErrLeased
// if it has a lease already, os.ErrPermission if it belongs to another user. It gets the rates that the
// policy permits now.
func (m *Mux) Present(ctx context.Context, o Owner, sock, connections *os.File) (endpoint.Info, *Lease, error) {
	if err := m.enter(); err != nil {
		return endpoint.Info{}, nil, known(err)
	}
	defer m.leave()
	info, l, err := m.present(ctx, o, sock, connections)
	if err == nil {
		l.updateRates()
	}
	return info, l, err
}

func (m *Mux) present(ctx context.Context, o Owner, sock, connections *os.File) (_ endpoint.Info, _ *Lease, err error) {
	if err := ctx.Err(); err != nil {
		return endpoint.Info{}, nil, err
	}
	cookie, err := xsk.Cookie(sock)
	if err != nil {
		return endpoint.Info{}, nil, fmt.Errorf("%w: %w", endpoint.ErrNotPresentable, err)
	}
	var table *published
	if connections != nil {
		if table, err = acceptPublished(connections); err != nil {
			return endpoint.Info{}, nil, err
		}
		defer func() {
			if err != nil {
				table.Close()
			}
		}()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.cookie == cookie && !l.closed { // +checklocksignore: a lease of this mux
			info, err := l.presented(o, sock, table) // +checklocksignore: a lease of this mux
			if err != nil {
				return endpoint.Info{}, nil, fmt.Errorf("endpoint %d: %w", l.id, err)
			}
			return info, l, nil
		}
	}
	return endpoint.Info{}, nil, fmt.Errorf("%w: it may have been reclaimed; open another", endpoint.ErrNotPresentable)
}

// presented gives the lease to the process that has presented it. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) presented(o Owner, sock *os.File, table *published) (_ endpoint.Info, err error) {
	m := l.m
	switch {
	case l.uid != o.UID:
		return endpoint.Info{}, fmt.Errorf("%w: it belongs to another user", os.ErrPermission)
	case l.leased:
		return endpoint.Info{}, endpoint.ErrLeased
	}
	if l.at.owner.Port != 0 {
		if err := m.fills.add(l, sock); err != nil {
			return endpoint.Info{}, err
		}
	}
	if l.attach == endpoint.AttachQueue {
		if l.bound, err = m.presentedBinding(sock); err != nil {
			return endpoint.Info{}, err
		}
	}
	before := l.owner
	l.owner = o
	if err := l.putEndpoint(); err != nil {
		l.owner = before
		return endpoint.Info{}, errors.Join(err, m.fills.remove(l))
	}
	l.leased, l.connections = true, table
	l.watchers.Presented()
	m.log.Info("endpoint presented", "endpoint", l.id, "uid", o.UID, "pid", o.PID)
	return l.infoWithTags(), nil
}

// putEndpoint puts an endpoint into the kernel's table, for the next process. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) putEndpoint() error {
	m := l.m
	return m.progs.Maps.PutEndpoint(l.at.owner, bpf.Endpoint{
		Id:           l.id,
		Cookie:       l.cookie,
		SegmentBytes: uint64(l.segmentBytes),
		CountedBytes: uint64(l.counted),
		Uid:          l.uid,
		Pid:          uint32(l.owner.PID),
		Slot:         l.at.slot,
		FillSize:     l.fillSize,
	})
}

// IDs makes the numbers of endpoints unique over the muxes of a process that share it
// (Config.IDs). The zero value is ready to use.
type IDs struct {
	mu   sync.Mutex
	next uint64 // +checklocks:mu
}

// skip makes the next number greater than those that a mux of an earlier process has used.
func (i *IDs) skip(next uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next = max(i.next, next)
}

// newID returns a number for an endpoint. No later process of the mux uses it again.
func (m *Mux) newID() (id uint64, err error) {
	m.ids.mu.Lock()
	defer m.ids.mu.Unlock()
	next := m.ids.next
	err = m.progs.ChangeState(func(s *bpf.State) {
		id = max(s.NextId, next)
		s.NextId = id + 1
	})
	m.ids.next = id + 1
	return id, err
}
