package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// Provider makes endpoints. It is called from many goroutines. Its context
// ends when the application goes away or the server is stopped; a Provider
// that then still succeeds has its lease closed at once.
//
// The descriptors of the grant become the server's, which closes them once
// they were sent. The lease becomes the server's too. Errors cross the socket
// by the sentinel that they wrap; doc.go lists those.
type Provider interface {
	OpenEndpoint(ctx context.Context, peer Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error)
}

// Server is unetd's end of the protocol.
//
// What applications do wrong is logged at level debug only: a line for each
// would let any of them fill the disk.
type Server struct {
	Provider Provider
	Log      *slog.Logger // nil: no log
	Limits   Limits
}

// acceptPause is how long Serve waits when the process or the system is out
// of descriptors or memory, which ends when connections do.
const acceptPause = 50 * time.Millisecond

// Serve answers on ln until ctx ends, which is no error, or accepting fails.
// It closes ln. When it returns every lease it granted is closed.
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	limits := s.Limits.withDefaults()
	log := s.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}

	ctx, cancel := context.WithCancel(ctx)
	var sessions sync.WaitGroup
	defer sessions.Wait()
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		ln.Close()
		close(closed)
	})
	defer func() {
		cancel()
		<-closed
	}()

	quotas := newQuotas(limits)
	for {
		conn, err := ln.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if !outOfResources(err) {
				return err
			}
			log.Warn("cannot accept a connection", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		peer, err := peerOf(conn)
		if err != nil {
			log.Warn("connection without credentials", "err", err)
			conn.Close()
			continue
		}
		if err := quotas.connections.take(peer.UID, 1); err != nil {
			log.Debug("connection refused", "pid", peer.PID, "uid", peer.UID, "err", err)
			refuse(conn, limits, err)
			continue
		}
		sessions.Go(func() {
			defer quotas.connections.give(peer.UID, 1)
			newSession(ctx, conn, peer, s.Provider, limits, quotas, log).run()
		})
	}
}

// refuse tells a connection that is one too many so.
func refuse(conn *net.UnixConn, limits Limits, why error) {
	record, err := json.Marshal(answer{Version: Version, Error: newError(why)})
	if err == nil {
		// Nothing was sent on this connection before, so this fits its buffer.
		_ = writeRecord(conn, record, limits.WriteTimeout)
	}
	hangUp(conn)
}

func outOfResources(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
