//go:build linux

package session

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux"
)

// session is one connection at unetd's end: one lease, or an operator's queries. One
// goroutine reads records. Each request has a goroutine of its own. Another
// writes events. run waits for the goroutines in work. It does
// not wait for those in disposal, which the peer can make block.
type session struct {
	conn     *net.UnixConn
	provider Provider
	keep     bool // Server.Keep
	limits   Limits
	quotas   *quotas // shared by all sessions
	log      *slog.Logger
	records  *records
	faults   *atomic.Uint64 // Server.Faults
	peer     mux.Owner
	user     share.User // the peer

	ctx      context.Context // of all work for this connection
	cancel   context.CancelCauseFunc
	work     sync.WaitGroup
	events   sync.WaitGroup // what writes events
	disposal sync.WaitGroup // the connection counts in its quota until it is done

	first string // op of the first request, which determines what may follow; used by the reader only

	leased chan struct{} // closed when the grant, or the answer to present, was sent

	writing sync.Mutex // held around protocol.WriteRecord

	mu sync.Mutex
	// +checklocks:mu
	ended bool // no new work
	// +checklocks:mu
	requests map[uint64]int // in progress: id to bytes of the record
	// +checklocks:mu
	pending  int            // sum of requests, bytes
	lease    endpoint.Lease // set before the grant is sent
	endpoint uint64         // number of the lease's endpoint
	captured func()         // ends the operator's capture; nil: there is none
	shared   bool           // the peer has the XSK, so it can present the endpoint again
}

// Reasons for a session to end, other than violations of the protocol.
var (
	errOpenFailed = errors.New("the open or present was answered with an error")
	errWrite      = errors.New("the application does not read its connection")
	errLeaseEnded = errors.New("the endpoint was taken down")
	errIdle       = errors.New("no further request without a lease within the timeout")
)

func newSession(ctx context.Context, conn *net.UnixConn, peer mux.Owner, user share.User, server *Server, limits Limits, q *quotas, log *slog.Logger) *session {
	s := &session{conn: conn, provider: server.Provider, records: server.records, faults: cmp.Or(server.Faults, new(atomic.Uint64)), keep: server.Keep, limits: limits, quotas: q, peer: peer, user: user,
		log: log.With("pid", peer.PID, "uid", peer.UID), leased: make(chan struct{}), requests: make(map[uint64]int)}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	return s
}

// run serves the connection until it ends. Then it closes the lease before the connection,
// so the tags are free when the application reads the event closed or the end of the stream.
// disposal closes the connection.
func (s *session) run() {
	read := make(chan struct{}) // closed when the reader has ended
	s.disposal.Go(func() {
		defer close(read)
		defer s.contain()
		s.cancel(s.read())
	})
	select {
	case <-s.ctx.Done():
	case <-s.leased:
		select {
		case <-s.ctx.Done():
		case <-s.lease.Done():
			s.cancel(errLeaseEnded)
		}
	}
	reason := context.Cause(s.ctx)
	// This ends the reader's wait for the next record.
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.work.Wait()
	if s.captured != nil {
		s.captured()
	}
	farewell := s.endLease(reason)
	s.disposal.Go(func() {
		if farewell != "" {
			s.writing.Lock() // notify may be in progress
			if b, err := encode(protocol.Event{Version: protocol.Version, Event: protocol.EventClosed, Message: farewell}); err == nil {
				_ = protocol.WriteRecord(s.conn, b, s.limits.WriteTimeout)
			}
			s.writing.Unlock()
		}
		<-read
		s.events.Wait()
		<-s.quotas.closing.Ask(s.user)
		defer s.quotas.closed(s.user)
		hangUp(s.conn)
	})
}

// record writes a record about the lease to the log, within the limit of the user.
func (s *session) record(text string, args ...any) { s.records.add(s.log, s.peer.UID, text, args...) }

// reasonOfEnd is the reason of a lease that ends with its connection.
func reasonOfEnd(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return "its application has closed it, or has ended"
	}
	return err.Error()
}

// endLease closes the lease, if there is one and it is not to be kept. It returns the
// message of the event closed; empty: there is none to send.
func (s *session) endLease(reason error) (farewell string) {
	defer s.contain()
	if errors.Is(reason, errFault) {
		farewell = reason.Error()
	}
	if s.lease == nil {
		s.log.Debug("connection closed", "reason", reason)
		return farewell
	}
	over := false
	select {
	case <-s.lease.Done():
		over = true
	default:
	}
	switch {
	case over:
		farewell = reasonOf(s.lease.Err())
	case errors.Is(reason, errStopped) && s.keep && s.shared:
		s.log.Debug("lease left to the next unetd", "endpoint", s.endpoint)
		return ""
	case errors.Is(reason, errStopped):
		farewell = reason.Error()
	}
	if !errors.Is(reason, errStopped) { // when the server stops, all leases end at once, without turns
		<-s.quotas.work.Ask(s.user)
		defer s.quotas.work.Return(s.user, 1)
	}
	if err := s.lease.Close(); err != nil {
		s.log.Error("lease not fully reclaimed", "endpoint", s.endpoint, "error", err)
	}
	if over {
		s.record("endpoint ended", "endpoint", s.endpoint, "reason", farewell)
	} else {
		s.record("endpoint ended", "endpoint", s.endpoint, "reason", reasonOfEnd(reason))
	}
	return farewell
}

// read handles records until the session ends, and returns the reason.
func (s *session) read() error {
	for {
		first := s.first == ""
		room := 0
		if first {
			room = protocol.PresentDescriptors
		}
		if err := s.conn.SetReadDeadline(s.deadline()); err != nil {
			return err
		}
		if s.ctx.Err() != nil { // if ctx ends later, run sets a deadline that has passed
			return context.Cause(s.ctx)
		}
		var record []byte
		var fds []int
		size, err := protocol.NextRecord(s.conn)
		if err == nil {
			interruptibly(func() { record, fds, err = protocol.TakeRecord(s.conn, size, room) })
		}
		if cause := context.Cause(s.ctx); cause != nil {
			s.closeLater(fds)
			return cause
		}
		var id uint64
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errIdle
			if first {
				err = protocol.Violation("no request within %v", s.limits.OpenTimeout)
			}
		}
		switch {
		case err != nil:
			s.closeLater(fds)
		case s.quotas.reading.Wait(s.ctx, s.user):
			id, err = s.handle(record, fds)
			s.quotas.reading.Return(s.user, 1)
		default:
			s.closeLater(fds)
			return context.Cause(s.ctx)
		}
		switch {
		case err == nil:
		case errors.Is(err, protocol.ErrNoDescriptors): // what the record has asked is not known
			s.answer(protocol.Answer{Error: protocol.NewError(protocol.Busy("unetd has no free descriptor"))}, err)
			return err
		case errors.Is(err, endpoint.ErrBusy):
			s.answer(protocol.Answer{ID: id, Error: protocol.NewError(err)}, nil)
		case errors.Is(err, protocol.ErrProtocol):
			s.answer(protocol.Answer{ID: id, Error: protocol.NewError(err)}, err)
			return err
		default:
			return err
		}
	}
}

// deadline is when the next record must have arrived; zero: never.
func (s *session) deadline() time.Time {
	switch {
	case s.first == "":
		return time.Now().Add(s.limits.OpenTimeout)
	case s.first == protocol.OpCapture:
		return time.Time{} // the capture lasts as long as the connection
	case protocol.Leaseless(s.first):
		return time.Now().Add(s.limits.IdleTimeout)
	}
	return time.Time{} // no request has to follow on a lease
}

// handle starts the work for one record, and takes the descriptors over. It does not
// block. An error other than endpoint.ErrBusy ends the session; id is the identifier for the
// answer that has the error.
func (s *session) handle(record []byte, fds []int) (id uint64, err error) {
	defer func() { s.closeLater(fds) }()
	r, err := protocol.ParseRequest(record)
	if err != nil {
		return r.ID, err
	}
	switch {
	case r.Op == protocol.OpOpen && len(fds) > protocol.OpenDescriptors:
		return r.ID, protocol.Violation("op open takes %d descriptor at most", protocol.OpenDescriptors)
	case r.Op == protocol.OpPresent && s.first == "" && (len(fds) == 0 || len(fds) > protocol.PresentDescriptors):
		return r.ID, protocol.Violation("op present takes 1 or %d descriptors", protocol.PresentDescriptors)
	case r.Op != protocol.OpOpen && r.Op != protocol.OpPresent && len(fds) != 0:
		return r.ID, protocol.Violation("op %s does not take a descriptor", r.Op)
	}
	s.mu.Lock()
	_, duplicate := s.requests[r.ID]
	full := len(s.requests) >= protocol.MaxRequests || s.pending+len(record) > protocol.MaxPending
	granted := s.lease != nil
	s.mu.Unlock()

	opening := r.Op == protocol.OpOpen || r.Op == protocol.OpPresent
	switch {
	case duplicate:
		// The answer has id 0: this id is that of the other request.
		return 0, protocol.Violation("id %d is in use by a request in progress", r.ID)
	case s.first != "" && (opening || protocol.Leaseless(r.Op) != protocol.Leaseless(s.first)):
		return r.ID, protocol.Violation("%s on a connection that began with %s: it takes another connection", r.Op, s.first)
	case !opening && !protocol.Leaseless(r.Op) && !granted:
		return r.ID, protocol.Violation("%s before the answer to open or present", r.Op)
	case full:
		return r.ID, protocol.Busy("at most %d requests and %d bytes may be in progress on a connection", protocol.MaxRequests, protocol.MaxPending)
	}
	o, mistake := r.Operation()
	if errors.Is(mistake, protocol.ErrProtocol) {
		return r.ID, mistake
	}
	if s.first == "" {
		s.first = r.Op
	}
	files := fds
	begun := s.begin(r.ID, len(record), func() {
		switch {
		case o.Op == protocol.OpOpen:
			s.open(r.ID, o.Open, files, mistake)
		case o.Op == protocol.OpPresent:
			s.present(r.ID, files, o.MemoryPaths)
		case mistake != nil:
			s.finish(protocol.Answer{ID: r.ID, Error: protocol.NewError(mistake)}, nil)
		default:
			s.finish(s.do(r.ID, o), nil)
		}
	})
	if begun {
		fds = nil // open or present has taken them
	}
	return r.ID, nil
}

// begin starts the work for a request, unless the session has ended.
func (s *session) begin(id uint64, size int, work func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.requests[id] = size
	s.pending += size
	s.work.Go(func() {
		defer s.contain()
		work()
	})
	return true
}
