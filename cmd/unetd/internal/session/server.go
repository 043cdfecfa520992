//go:build linux

package session

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Provider makes endpoints. It is called from many goroutines. A context that
// it gets ends when the connection ends or the server is stopped. The code of an error on
// the socket is that of the sentinel that it wraps; docs/control-protocol.md lists these.
type Provider interface {
	// OpenEndpoint makes an endpoint. The descriptors of the grant become the
	// server's, which closes them once they were sent. The lease becomes the
	// server's too. If ctx has ended before the grant can be sent, the server
	// closes the lease at once.
	OpenEndpoint(ctx context.Context, peer mux.Owner, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error)
	// Present leases an endpoint that has no lease, because the unetd that granted it has
	// ended, to the process that has its socket. sock can be any file: the provider uses
	// getsockopt to check what it is, and nothing else, since the peer can make a read, a
	// write, a poll or the close of its file block for any time. It stays the server's. The
	// same applies to connections, which may be nil, and to that of an [endpoint.Request],
	// until xsk.AcceptTable has found that it is a file in memory.
	//
	// The tags in the answer are all that the endpoint has. The first notices of the lease
	// have the whole state, since the last unetd may have reported another one to the
	// application. Errors are endpoint.ErrNotPresentable, os.ErrPermission,
	// endpoint.ErrLeased, or endpoint.ErrBusy if a later attempt may succeed.
	Present(ctx context.Context, peer mux.Owner, sock, connections *os.File) (endpoint.Info, endpoint.Lease, error)

	// HasRule reports whether the policy gives a peer anything.
	HasRule(peer mux.Owner) bool
	// Routes returns how endpoints on an uplink (empty: on each that the policy gives the peer anything
	// on) reach dst from src; dst not valid: only the addresses of the uplinks. The error is
	// os.ErrPermission if the policy gives the peer none, and endpoint.ErrUplink if it is not served.
	Routes(ctx context.Context, peer mux.Owner, uplink string, src, dst netip.Addr) ([]endpoint.UplinkRoute, error)
	// MayAsk returns nil if a peer is an operator, else os.ErrPermission. The server calls what
	// follows for operators only.
	MayAsk(peer mux.Owner) error
	// Endpoints lists all endpoints, Counters all counters.
	Endpoints() []endpoint.Info
	Counters() ([]endpoint.Counter, error)
	// Status describes the endpoints whose identifiers are from or more, by identifier,
	// without their sockets. Sockets reads these: at most n, from the record numbered from on.
	// Without such an endpoint there are none.
	Status(from uint64) ([]endpoint.Status, error)
	Sockets(id uint64, from uint32, n int) (list []endpoint.Socket, more bool, err error)
	// Uplinks lists the interfaces, and whether no endpoints are granted. Revoke ends the
	// lease of an endpoint; its reason may be empty. The error is endpoint.ErrNoEndpoint if
	// there is no such endpoint. Reload reads the policy again; after an error the old one
	// stays. Drain grants no new endpoints from now on, or grants them again.
	Uplinks() (list []endpoint.Uplink, draining bool)
	Revoke(peer mux.Owner, id uint64, reason string) error
	Reload() (*endpoint.PolicyChange, error)
	Drain(peer mux.Owner, on bool)
	// Capture ends the memory paths of an endpoint (nil: of all), and grants it none until stop is
	// called. The error is endpoint.ErrNoEndpoint if there is no such endpoint.
	Capture(id *uint64) (stop func(), err error)
}

// Server is unetd's end of the protocol.
//
// Each lease that is granted, refused or ended is a record of level info, within a limit for each
// user (recordsAtOnce); other requests and violations of applications have level debug. Otherwise
// any application could fill the disk.
type Server struct {
	Provider Provider
	Log      *slog.Logger // nil: no log
	Limits   Limits
	// Keep leaves endpoints to the next server, to which applications present them. When
	// the server stops, connections then end without an event, and granted leases are not
	// closed, except those that have ended by themselves.
	Keep bool
	// Suppressed counts records beyond the limit of a user; may be nil.
	Suppressed *atomic.Uint64
	// Faults counts sessions that a fault of unetd's own has ended; may be nil.
	Faults *atomic.Uint64

	records *records
}

// acceptPause is the pause before the next accept when the process or the system is out
// of descriptors or memory.
const acceptPause = 50 * time.Millisecond

var errStopped = errors.New("unetd was stopped")

// Serve answers on ln until ctx ends, which is no error, or accepting fails.
// It closes ln. When it returns every lease it granted is closed, or, with
// Keep, left alone.
//
// A peer cannot delay the goroutine that accepts. It can delay the return of Serve only for
// a WriteTimeout to write and another to close. The close of a descriptor that a peer has
// sent can block in the kernel (a file on a FUSE file system whose server does not answer, a
// TCP socket with SO_LINGER), and so can the close of a connection with an unread
// descriptor. Each close has a goroutine of its own, which signals interrupt where they can.
// Until it ends it counts as one of the user's connections, or, if the connection is
// refused, as one of the user's ClosingPerUID. Further connections that were refused wait to
// be closed, each with a descriptor of unetd: at most Waiting of all users.
func (s *Server) Serve(parent context.Context, ln *net.UnixListener) error {
	limits := s.Limits.withDefaults()
	log := s.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}

	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	var sessions, disposals sync.WaitGroup
	defer waitFor(&disposals, limits.WriteTimeout)
	defer sessions.Wait()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		ln.Close()
		close(closed)
	})
	stop := context.AfterFunc(parent, func() { cancel(errStopped) })
	defer func() {
		stop()
		cancel(errStopped)
		<-closed
	}()

	s.records = newRecords(s.Suppressed)
	quotas := newQuotas(limits, ctx.Done())
	refusals := &refusals{limits: limits, ln: ln, quotas: quotas, work: &disposals}
	starved := false
	for {
		conn, err := ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !outOfResources(err) {
				return err
			}
			if !starved { // not each time: that would be 20 lines a second
				log.Warn("cannot accept connections", "error", err)
			}
			starved = true
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		starved = false
		peer, err := peerOf(conn)
		user, connects := userOf(s.Provider, peer)
		if err == nil {
			err = quotas.connections.Take(connects, 1)
		}
		if err != nil {
			s.records.add(log, peer.UID, "connection refused", "pid", peer.PID, "uid", peer.UID, "error", err)
			refusals.add(user, conn, err)
			continue
		}
		passRights(conn, true) // the listener may be set to receive none
		session := newSession(ctx, conn, peer, user, s, limits, quotas, log)
		disposals.Add(1)
		sessions.Go(func() {
			session.run()
			go func() {
				defer disposals.Done()
				session.disposal.Wait()
				quotas.connections.Return(connects, 1)
			}()
		})
	}
}

// waitFor waits for wg, at most for timeout.
func waitFor(wg *sync.WaitGroup, timeout time.Duration) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(timeout):
	}
}

func outOfResources(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}
