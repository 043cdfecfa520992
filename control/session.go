package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// session is one connection at unetd's end, and so one lease. The goroutine
// in run reads; each request is worked on in a goroutine of its own.
type session struct {
	conn     *net.UnixConn
	provider Provider
	limits   Limits
	quotas   *quotas // shared by all sessions
	log      *slog.Logger
	peer     Peer

	ctx    context.Context // of all work for this connection
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	opening bool // an open was seen; run's goroutine only

	writing sync.Mutex // held around writeRecord

	mu       sync.Mutex
	requests map[uint64]int // in progress: id to bytes of the record
	pending  int            // sum of requests, bytes
	lease    endpoint.Lease // set before the grant is sent
	endpoint uint64         // what it is the lease of
	tags     int            // taken from the quota: held, or being claimed
}

// Reasons for a session to end that are nobody's violation.
var (
	errOpenFailed = errors.New("the open was answered with an error")
	errWrite      = errors.New("the application does not read its answers")
	errLeaseEnded = errors.New("the endpoint was taken down")
)

func newSession(ctx context.Context, conn *net.UnixConn, peer Peer, p Provider, limits Limits, q *quotas, log *slog.Logger) *session {
	s := &session{conn: conn, provider: p, limits: limits, quotas: q, peer: peer,
		log: log.With("pid", peer.PID, "uid", peer.UID), requests: make(map[uint64]int)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// run serves the connection until it ends, then gives back all it held:
// first the lease, then the connection, so that an application which reads
// the end of the stream knows that its tags are free again.
func (s *session) run() {
	defer hangUp(s.conn)
	defer s.cancel(nil)
	// Whatever ends the session ends the wait for the next record.
	stop := context.AfterFunc(s.ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	err := s.read()
	s.cancel(err)
	s.work.Wait()
	defer s.giveTags(s.tags) // when the lease has let go of them
	if s.lease != nil {
		if cerr := s.lease.Close(); cerr != nil {
			s.log.Error("lease not fully reclaimed", "endpoint", s.endpoint, "err", cerr)
		}
		s.log.Info("lease ended", "endpoint", s.endpoint, "reason", err)
	} else {
		s.log.Debug("connection closed", "reason", err)
	}
}

// read takes records until one of them, the application or unetd ends the
// session, and says why.
func (s *session) read() error {
	if err := s.conn.SetReadDeadline(time.Now().Add(s.limits.OpenTimeout)); err != nil {
		return err
	}
	for s.ctx.Err() == nil {
		record, _, err := readRecord(s.conn, 0)
		if cause := context.Cause(s.ctx); cause != nil {
			return cause
		}
		var id uint64
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = violation("no open within %v", s.limits.OpenTimeout)
		}
		if err == nil {
			id, err = s.handle(record)
		}
		if err != nil {
			if errors.Is(err, ErrProtocol) {
				s.answer(answer{ID: id, Error: newError(err)}, err)
			}
			return err
		}
	}
	return context.Cause(s.ctx)
}

// handle starts the work for one record. An error ends the session; id is
// what to answer it to.
func (s *session) handle(record []byte) (id uint64, err error) {
	r, err := parseRequest(record)
	if err != nil {
		return r.ID, err
	}
	s.mu.Lock()
	_, duplicate := s.requests[r.ID]
	full := len(s.requests) >= MaxRequests || s.pending+len(record) > maxPending
	granted := s.lease != nil
	s.mu.Unlock()

	switch {
	case duplicate:
		// Not answered to the identifier, which belongs to the other one.
		return 0, violation("id %d is in use by a request in progress", r.ID)
	case r.Op == opOpen && s.opening:
		return r.ID, violation("a second open: another endpoint takes another connection")
	case r.Op != opOpen && !granted:
		return r.ID, violation("%s before the answer to open", r.Op)
	case full:
		s.answer(answer{ID: r.ID, Error: newError(
			busy("at most %d requests and %d bytes may be in progress on a connection", MaxRequests, maxPending))}, nil)
		return r.ID, nil
	}
	o, mistake := r.operation()
	if errors.Is(mistake, ErrProtocol) {
		return r.ID, mistake
	}
	if o.op == opOpen {
		s.opening = true
		// From here on the application may be silent.
		if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
			return r.ID, err
		}
	}
	s.mu.Lock()
	s.requests[r.ID] = len(record)
	s.pending += len(record)
	s.mu.Unlock()
	s.work.Go(func() {
		switch {
		case o.op == opOpen:
			s.open(r.ID, o.open, mistake)
		case mistake != nil:
			s.finish(answer{ID: r.ID, Error: newError(mistake)}, nil)
		default:
			s.finish(s.do(r.ID, o), nil)
		}
	})
	return r.ID, nil
}

// do works on an operation of an open lease.
func (s *session) do(id uint64, o operation) answer {
	a := answer{ID: id}
	var err error
	switch o.op {
	case opClaim:
		var tag endpoint.Tag
		tag, err = s.claim(o.tag)
		a.Tag = &tag
	case opUnclaim:
		if err = s.lease.Unclaim(s.ctx, o.tag); err == nil {
			s.giveTags(1)
		}
	case opResolve:
		var route endpoint.Route
		route, err = s.resolve(o.addr)
		a.Route = &route
	default:
		panic("BUG: op " + o.op)
	}
	if err != nil {
		return answer{ID: id, Error: newError(err)}
	}
	return a
}

func (s *session) claim(t endpoint.Tag) (endpoint.Tag, error) {
	if err := s.takeTags(1); err != nil {
		return t, err
	}
	t, err := s.lease.Claim(s.ctx, t)
	if err != nil {
		s.giveTags(1)
	}
	return t, err
}

// resolve may take seconds and descriptors in the provider.
func (s *session) resolve(dst netip.Addr) (endpoint.Route, error) {
	if err := s.quotas.resolves.take(s.peer.UID, 1); err != nil {
		return endpoint.Route{}, err
	}
	defer s.quotas.resolves.give(s.peer.UID, 1)
	return s.lease.Resolve(s.ctx, dst)
}

// takeTags makes room for n tags more, or none.
func (s *session) takeTags(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > s.limits.TagsPerLease-s.tags {
		return busy("the endpoint has %d of at most %d tags: give some back, or open another endpoint", s.tags, s.limits.TagsPerLease)
	}
	if err := s.quotas.tags.take(s.peer.UID, n); err != nil {
		return err
	}
	s.tags += n
	return nil
}

func (s *session) giveTags(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tags -= n
	s.quotas.tags.give(s.peer.UID, n)
}

// open makes the endpoint and sends the grant, unless there is a mistake in the
// request. Every failure ends the session.
func (s *session) open(id uint64, req endpoint.Request, mistake error) {
	var grant *endpoint.Grant
	var lease endpoint.Lease
	err := mistake
	if err == nil {
		err = s.takeTags(len(req.Tags))
	}
	if err == nil {
		if grant, lease, err = s.provider.OpenEndpoint(s.ctx, s.peer, req); err != nil {
			s.giveTags(len(req.Tags))
		}
	}
	if err != nil {
		s.log.Debug("open refused", "err", err)
		s.finish(answer{ID: id, Error: newError(err)}, errOpenFailed)
		return
	}
	// unetd keeps neither the socket nor a way to the segment.
	defer grant.Close()
	s.mu.Lock()
	s.lease, s.endpoint = lease, grant.ID
	s.mu.Unlock()
	s.log.Info("lease granted", "endpoint", grant.ID, "attach", grant.Attach,
		"segment_bytes", grant.Geometry.SegmentSize(), "tags", len(grant.Tags))
	s.finish(answer{ID: id, Grant: grant}, nil, grant.XSK, grant.Segment)
	s.work.Go(func() {
		select {
		case <-lease.Done():
			s.cancel(errLeaseEnded)
		case <-s.ctx.Done():
		}
	})
}

// finish answers a request in progress, which thereby is no longer.
func (s *session) finish(a answer, end error, files ...*os.File) {
	s.mu.Lock()
	s.pending -= s.requests[a.ID]
	delete(s.requests, a.ID)
	s.mu.Unlock()
	s.answer(a, end, files...)
}

// answer sends a record; with end not nil it is the last one, and the session
// ends for that reason. An application that cannot be answered is given up.
func (s *session) answer(a answer, end error, files ...*os.File) {
	a.Version = Version
	record, err := json.Marshal(a)
	if err != nil || len(record) > MaxRecord {
		panic(fmt.Sprintf("BUG: the provider's answer makes no record (%d bytes, %v)", len(record), err))
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	if err := writeRecord(s.conn, record, s.limits.WriteTimeout, files...); err != nil {
		s.log.Debug("answer not sent", "err", err)
		end = errWrite
	}
	if end != nil {
		s.cancel(end)
	}
}
