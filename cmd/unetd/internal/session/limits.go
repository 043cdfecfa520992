//go:build linux

package session

import (
	"cmp"
	"sync"
	"time"

	"github.com/unet-go/unet/internal/protocol"
)

// Limits protect unetd from applications, and applications from one another. The zero
// value of a field stands for its default: the number at the end of its comment. The limits
// per uid do not apply to uid 0, the others do.
type Limits struct {
	Connections       int // served at once; 1024
	ConnectionsPerUID int // served at once for one user; 256
	ClosingPerUID     int // connections of one user that are being closed at once, the others wait; 4
	Waiting           int // refused connections that wait to be closed; 4096
	WorkPerUID        int // requests and ends of leases of one user in progress at once; 1
	ProbesPerUID      int // the same for requests with an owned address, which probe the network; 4
	Resolves          int // in progress at once; 64
	ResolvesPerUID    int // in progress at once for one user; 32

	OpenTimeout  time.Duration // from connecting to the first request; 10 s
	IdleTimeout  time.Duration // from one request of an operator to the next; 30 s
	WriteTimeout time.Duration // for a record that the application does not read; 5 s
	ClosePause   time.Duration // after closing a connection, for each of ClosingPerUID; 10 ms
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 1024)
	l.ConnectionsPerUID = cmp.Or(l.ConnectionsPerUID, 256)
	l.ClosingPerUID = cmp.Or(l.ClosingPerUID, 4)
	l.Waiting = cmp.Or(l.Waiting, 4096)
	l.WorkPerUID = cmp.Or(l.WorkPerUID, 1)
	l.ProbesPerUID = cmp.Or(l.ProbesPerUID, 4)
	l.Resolves = cmp.Or(l.Resolves, 64)
	l.ResolvesPerUID = cmp.Or(l.ResolvesPerUID, protocol.MaxRequests)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, 10*time.Second)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, 30*time.Second)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, 5*time.Second)
	l.ClosePause = cmp.Or(l.ClosePause, 10*time.Millisecond)
	return l
}

// quota limits how many of one thing all users and each user may have in use.
type quota struct {
	what          string // plural
	total, perUID int

	mu    sync.Mutex
	used  int
	byUID map[uint32]int // users with none have no entry
}

func newQuota(what string, total, perUID int) *quota {
	return &quota{what: what, total: total, perUID: perUID, byUID: make(map[uint32]int)}
}

// take reserves one, or returns an error that is endpoint.ErrBusy.
func (q *quota) take(uid uint32) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case uid != 0 && q.byUID[uid] >= q.perUID:
		return protocol.Busy("uid %d has %d of at most %d %s: give some back, or try later", uid, q.byUID[uid], q.perUID, q.what)
	case q.used >= q.total:
		return protocol.Busy("all applications have %d of at most %d %s: try later", q.used, q.total, q.what)
	}
	q.used++
	q.byUID[uid]++
	return nil
}

// give returns one that was taken. Only a mistake of this package can make it panic: no input
// decides who calls it.
func (q *quota) give(uid uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byUID[uid] == 0 {
		panic("BUG: more " + q.what + " given back than taken")
	}
	q.used--
	if q.byUID[uid]--; q.byUID[uid] == 0 {
		delete(q.byUID, uid)
	}
}

// quotas limits the connections and the work in progress of a server.
type quotas struct {
	connections, resolves *quota
	reading, work, probes *turns
	closing               *turns // to close connections, which can block
}

// newQuotas makes the quotas of a server that runs until stopped is closed.
func newQuotas(l Limits, stopped <-chan struct{}) *quotas {
	q := &quotas{
		connections: newQuota("connections", l.Connections, l.ConnectionsPerUID),
		resolves:    newQuota("resolve requests in progress", l.Resolves, l.ResolvesPerUID),
		reading:     newTurns(1),
		work:        newTurns(l.WorkPerUID),
		probes:      newTurns(l.ProbesPerUID),
		closing:     newTurns(l.ClosingPerUID),
	}
	q.closing.pause, q.closing.stopped = l.ClosePause, stopped
	return q
}
