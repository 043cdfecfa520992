//go:build linux

package session

import (
	"cmp"
	"math"
	"time"

	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux"
)

// Limits protect unetd from applications, and applications from one another. The zero
// value of a field stands for its default: the number at the end of its comment. The limits
// per uid do not apply to uid 0, the others do, which are divided among users by package share.
type Limits struct {
	Connections       int // served at once; 1024
	ConnectionsPerUID int // served at once for one user; 256
	Closing           int // connections that are being closed at once, the others wait: each can block a thread; 512
	ClosingPerUID     int // the same for one user; 4
	Waiting           int // refused connections that wait to be closed; 4096
	WorkPerUID        int // requests and ends of leases of one user in progress at once; 1
	ProbesPerUID      int // the same for requests with an owned address, which probe the network; 4
	Resolves          int // in progress at once; 256
	ResolvesPerUID    int // in progress at once for one user; 32

	OpenTimeout  time.Duration // from connecting to the first request; 10 s
	IdleTimeout  time.Duration // from one request of an operator to the next; 30 s
	WriteTimeout time.Duration // for a record that the application does not read; 5 s
	ClosePause   time.Duration // after closing a connection, for each of ClosingPerUID; 10 ms
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 1024)
	l.ConnectionsPerUID = cmp.Or(l.ConnectionsPerUID, 256)
	l.Closing = cmp.Or(l.Closing, 512)
	l.ClosingPerUID = cmp.Or(l.ClosingPerUID, 4)
	l.Waiting = cmp.Or(l.Waiting, 4096)
	l.WorkPerUID = cmp.Or(l.WorkPerUID, 1)
	l.ProbesPerUID = cmp.Or(l.ProbesPerUID, 4)
	l.Resolves = cmp.Or(l.Resolves, 256)
	l.ResolvesPerUID = cmp.Or(l.ResolvesPerUID, protocol.MaxRequests)
	l.OpenTimeout = cmp.Or(l.OpenTimeout, 10*time.Second)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, 30*time.Second)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, 5*time.Second)
	l.ClosePause = cmp.Or(l.ClosePause, 10*time.Millisecond)
	return l
}

// quotas are what the sessions of a server share.
type quotas struct {
	connections, resolves *share.Shares
	reading, work, probes *share.Shares
	closing               *share.Shares // to close connections, which can block

	pause   time.Duration // Limits.ClosePause
	stopped <-chan struct{}
}

// newQuotas makes the quotas of a server that runs until stopped is closed.
func newQuotas(l Limits, stopped <-chan struct{}) *quotas {
	most := func(what string, total, perUID int) *share.Shares {
		return share.New(share.Limits{What: what, Total: int64(total), PerUser: int64(perUID)})
	}
	return &quotas{
		connections: most("connections", l.Connections, l.ConnectionsPerUID),
		resolves:    most("resolve requests in progress", l.Resolves, l.ResolvesPerUID),
		reading:     most("records", 0, 1),
		work:        most("requests", 0, l.WorkPerUID),
		probes:      most("requests with addresses", 0, l.ProbesPerUID),
		closing:     most("connections that end", l.Closing, l.ClosingPerUID),
		pause:       l.ClosePause,
		stopped:     stopped,
	}
}

// closed returns the turn of closing for a connection that has been closed, after a pause.
func (q *quotas) closed(u share.User) {
	if u == share.ByUID(0) {
		q.closing.Return(u, 1)
		return
	}
	go func() {
		select {
		case <-time.After(q.pause):
		case <-q.stopped:
		}
		q.closing.Return(u, 1)
	}()
}

// strangers are all users for whom the policy has no rule: their connections have one share.
var strangers = share.User{UID: math.MaxUint32} // (uid_t)-1 is nobody's

// userOf is a peer as a user, and as one who has connections.
func userOf(p Provider, peer mux.Owner) (user, connects share.User) {
	user = share.User{UID: peer.UID, Operator: p.MayAsk(peer) == nil}
	if !user.Operator && !p.HasRule(peer) {
		return user, strangers
	}
	return user, user
}
