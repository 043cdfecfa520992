//go:build linux

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/share"
)

// do does an operation of an open lease, or of an operator, and returns the answer.
func (s *session) do(id uint64, o protocol.Operation) protocol.Answer {
	a := protocol.Answer{ID: id}
	if o.Op != protocol.OpResolve && o.Op != protocol.OpRoute { // these wait for neighbours: they have a quota and take no turns
		turns := s.turnsOf(o.Tag)
		if !turns.Wait(s.ctx, s.user) {
			return a // the session has ended: the answer is not sent
		}
		defer turns.Return(s.user, 1)
	}
	if protocol.Operators(o.Op) {
		if err := s.provider.MayAsk(s.peer); err != nil {
			return protocol.Answer{ID: id, Error: protocol.NewError(err)}
		}
	}
	var err error
	switch o.Op {
	case protocol.OpClaim:
		var tag endpoint.Tag
		tag, err = s.lease.Claim(s.ctx, o.Tag)
		a.Tag = &tag
	case protocol.OpUnclaim:
		err = s.lease.Unclaim(s.ctx, o.Tag)
	case protocol.OpResolve:
		var route endpoint.Route
		err = s.asResolve(func() (err error) {
			route, err = s.lease.Resolve(s.ctx, o.Source, o.Addr)
			return err
		})
		a.Route = &route
	case protocol.OpPath:
		err = s.lease.OpenPath(s.ctx, o.Endpoint)
	case protocol.OpUnpath:
		err = s.lease.ClosePath(s.ctx, o.Path)
	case protocol.OpList:
		a.Endpoints, a.More = s.list(o.After)
	case protocol.OpCounters:
		a.Counters, a.More, err = s.counters(o.After)
	case protocol.OpStatus:
		a.Status, a.More, err = s.status(o.After, o.Socket)
	case protocol.OpUplinks:
		var list []endpoint.Uplink
		list, a.Draining = s.provider.Uplinks()
		list = append([]endpoint.Uplink{}, list...) // none: [], not null
		a.Uplinks = &list
	case protocol.OpRevoke:
		err = s.provider.Revoke(s.peer, o.Endpoint, o.Reason)
	case protocol.OpReload:
		a.Reloaded, err = s.provider.Reload()
		if err == nil {
			a.Reloaded = bounded(*a.Reloaded)
		}
	case protocol.OpDrain:
		s.provider.Drain(s.peer, !o.Undo)
	case protocol.OpRoute:
		var list []endpoint.UplinkRoute
		err = s.asResolve(func() (err error) {
			list, err = s.provider.Routes(s.ctx, s.peer, o.Interface, o.Source, o.Addr)
			return err
		})
		a.Routes = boundedRoutes(list)
	case protocol.OpCapture:
		err = s.capture(o.Captured)
	default:
		err = protocol.Violation("unknown op %q", o.Op)
	}
	if err != nil {
		return protocol.Answer{ID: id, Error: protocol.NewError(err)}
	}
	return a
}

// bounded returns a change that fits a record: beyond that, only the number of lines. The paths of
// the policy and of its warning are the operator's, and are cut.
func bounded(c endpoint.PolicyChange) *endpoint.PolicyChange {
	lines := make([]string, len(c.Changes))
	for i, line := range c.Changes {
		lines[i] = protocol.Message(errors.New(line))
	}
	if n := pageOf(lines); n < len(lines) {
		lines = append(lines[:n:n], fmt.Sprintf("and %d more", len(lines)-n))
	}
	c.Changes = lines
	c.Policy = truncate(c.Policy)
	c.Warning = truncate(c.Warning)
	return &c
}

// turnsOf is the kind of turn that a request with these tags takes.
func (s *session) turnsOf(tags ...endpoint.Tag) *share.Shares {
	if slices.ContainsFunc(tags, func(t endpoint.Tag) bool { return t.Kind == endpoint.TagAddr }) {
		return s.quotas.probes
	}
	return s.quotas.work
}

// inTurn calls f when a turn is free. The turn is returned also if f panics.
func (s *session) inTurn(t *share.Shares, f func() error) error {
	if !t.Wait(s.ctx, s.user) {
		return context.Cause(s.ctx)
	}
	defer t.Return(s.user, 1)
	return f()
}

// asResolve calls f within the quota of resolves: these can take seconds, and descriptors.
func (s *session) asResolve(f func() error) error {
	if err := s.quotas.resolves.Take(s.user, 1); err != nil {
		return err
	}
	defer s.quotas.resolves.Return(s.user, 1)
	return f()
}

// boundedRoutes returns routes that fit a record: with as many addresses of each uplink as there is room for.
func boundedRoutes(list []endpoint.UplinkRoute) *[]endpoint.UplinkRoute {
	list = append([]endpoint.UplinkRoute{}, list...) // none: [], not null
	for i := range list {
		r := &list[i]
		r.AddrsTotal = len(r.Addrs)
		r.Addrs = append([]endpoint.UplinkAddr{}, r.Addrs[:min(len(r.Addrs), maxRouteAddrs/len(list))]...)
	}
	return &list
}

// open makes the endpoint and sends the grant, unless there is a mistake in the
// request. Every failure ends the session. It takes fds over.
func (s *session) open(id uint64, req endpoint.Request, fds []int, mistake error) {
	var grant *endpoint.Grant
	var lease endpoint.Lease
	files, err := s.sent(fds)
	defer s.dispose(files)
	if len(files) > 0 {
		req.Connections = files[0]
	}
	if mistake != nil {
		err = mistake
	}
	if err == nil {
		err = s.inTurn(s.turnsOf(req.Tags...), func() (err error) {
			grant, lease, err = s.provider.OpenEndpoint(s.ctx, s.peer, req)
			return err
		})
	}
	if err != nil {
		answer := protocol.NewError(err)
		s.record("endpoint refused", "code", answer.Code, "error", answer.Message)
		s.finish(protocol.Answer{ID: id, Error: answer}, errOpenFailed)
		return
	}
	// The server keeps neither the socket nor the segment. The provider may keep
	// a descriptor of the segment, to find out whether it is in use.
	defer grant.Close()
	s.hold(lease, grant.ID, false, !req.NoMemoryPaths)
	s.record("endpoint granted", "endpoint", grant.ID, "attach", grant.Attach.String(), "interface", grant.Identity.Interface, "mode", grant.Identity.Mode,
		"zero_copy", grant.ZeroCopy, "copy_reason", grant.CopyReason, "segment_bytes", grant.Geometry.SegmentSize(), "tags", len(grant.Tags))
	answer, files := protocol.Answer{ID: id, Grant: grant}, []*os.File{grant.XSK, grant.Segment}
	if grant.Table != nil {
		answer.Table, files = true, append(files, grant.Table)
	}
	if s.finish(answer, nil, files...) {
		s.mu.Lock()
		s.shared = true // the lease itself is read without the lock from now on
		s.mu.Unlock()
	}
	close(s.leased)
}

// notify writes the events of notices, after the answer that gives the lease to the
// application, until the session ends.
func (s *session) notify(changes iter.Seq[[]endpoint.Notice]) {
	defer s.contain()
	select {
	case <-s.leased:
	case <-s.ctx.Done():
	}
	for list := range changes {
		for _, e := range protocol.Events(list) {
			s.send(e, nil)
		}
	}
}

// hold records the lease and reports its notices, and its memory paths if paths is set. shared: the
// application has the XSK, so it can present the endpoint to another unetd.
func (s *session) hold(lease endpoint.Lease, id uint64, shared, paths bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease, s.endpoint, s.shared = lease, id, shared
	changes := lease.Notices(s.ctx)
	s.events.Go(func() { s.notify(changes) })
	if paths {
		granted := lease.Paths(s.ctx)
		s.events.Go(func() { s.handOver(granted) })
	}
}

// finish answers a request, which is then no longer in progress.
func (s *session) finish(a protocol.Answer, end error, files ...*os.File) (sent bool) {
	s.mu.Lock()
	s.pending -= s.requests[a.ID]
	delete(s.requests, a.ID)
	s.mu.Unlock()
	return s.answer(a, end, files...)
}

// answer sends an answer; see send.
func (s *session) answer(a protocol.Answer, end error, files ...*os.File) (sent bool) {
	a.Version = protocol.Version
	return s.send(a, end, files...)
}

// send writes a record, unless the session has ended. If end is not nil, the session ends
// after this record, for that reason. It also ends if the application does not read.
func (s *session) send(record any, end error, files ...*os.File) (sent bool) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	b, err := encode(record)
	if err != nil {
		s.fault("a record cannot be sent", "error", err)
		a, answers := record.(protocol.Answer)
		if !answers {
			return false
		}
		if b, err = encode(protocol.Answer{Version: protocol.Version, ID: a.ID, Error: protocol.NewError(errFault)}); err != nil {
			return false
		}
		files = nil
	}
	if err := protocol.WriteRecord(s.conn, b, s.limits.WriteTimeout, files...); err != nil {
		s.log.Debug("record not sent", "error", err)
		s.cancel(errWrite)
		return false
	}
	if end != nil {
		s.cancel(end)
	}
	return true
}

// encode makes a record. The provider's answers and notices fit one; if one does not, that is a
// fault of unetd.
func encode(record any) ([]byte, error) {
	b, err := json.Marshal(record)
	if err == nil && len(b) > protocol.MaxRecord {
		err = fmt.Errorf("it has %d bytes, at most %d fit", len(b), protocol.MaxRecord)
	}
	return b, err
}

// reasonOf is the message of the event closed for a lease that the session has not ended:
// the reason, without the text of endpoint.ErrLeaseClosed.
func reasonOf(err error) string {
	if err == nil {
		return errLeaseEnded.Error()
	}
	text := strings.TrimPrefix(protocol.Message(err), endpoint.ErrLeaseClosed.Error()+": ")
	if text == endpoint.ErrLeaseClosed.Error() {
		return errLeaseEnded.Error()
	}
	return text
}
