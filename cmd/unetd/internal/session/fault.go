//go:build linux

package session

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// A fault is a mistake of unetd's own that a session meets: a panic in one of its goroutines, or a
// record that cannot be sent. It ends this session and its lease, is logged with the stack, and is
// counted (ADR 44). A panic in the provider can leave one of its locks held, which would stop all
// sessions. So after each panic a goroutine calls the provider, and ends unetd if it has no answer
// within stuckAfter.

var errFault = errors.New("a fault of unetd has ended the connection, its log says more")

// stuckAfter is longer than any call that only reads takes.
const stuckAfter = 30 * time.Second

// contain is deferred by each goroutine of the session that handles what came from a peer.
func (s *session) contain() {
	value := recover()
	if value == nil {
		return
	}
	s.fault("a panic in a session, which ends: report it", "panic", truncate(fmt.Sprint(value)), "stack", string(debug.Stack()))
	go s.watchProvider(value)
}

// fault ends the session because of a mistake of unetd's own.
func (s *session) fault(text string, args ...any) {
	s.faults.Add(1)
	if within, _ := s.records.take(s.peer.UID, time.Now()); within {
		s.log.Error(text, args...)
	}
	s.cancel(errFault)
}

// watchProvider ends unetd if a panic has left a lock of the provider held.
func (s *session) watchProvider(value any) {
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.provider.Endpoints()
	}()
	select {
	case <-answered:
	case <-time.After(stuckAfter):
		panic(fmt.Sprintf("no answer of the mux for %v after a panic in a session: %v", stuckAfter, value))
	}
}

// truncate bounds a text that can have come from a peer.
func truncate(text string) string {
	const most = 1024 // bytes
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}
