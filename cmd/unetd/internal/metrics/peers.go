//go:build linux

package metrics

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/share"
)

// Limits of scrapers, who need no permission. The peers share them: the users of a unix socket, and
// the addresses (of IPv6, the networks of 64 bits) of a TCP socket.
const (
	maxConnections = 64
	maxScrapes     = 4 // at once, others wait
	peerScrapes    = 2 // of them, of one peer
)

// peers is a listener that gives each peer its share of connections. A peer who has all of its
// share and connects again loses a connection that has been idle for longest, so idle
// connections keep nobody away.
type peers struct {
	net.Listener
	shares *share.Shares

	mu    sync.Mutex
	conns map[*peerConn]struct{} // +checklocks:mu
}

type peerConn struct {
	net.Conn
	of   *peers
	peer share.User

	// +checklocks:of.mu
	since time.Time // of the present state
	// +checklocks:of.mu
	busy bool // a request is being read or answered
}

func newPeers(ln net.Listener) *peers {
	return &peers{Listener: ln, shares: share.New(share.Limits{What: "connections", Total: maxConnections}), conns: map[*peerConn]struct{}{}}
}

// Accept implements net.Listener.
func (p *peers) Accept() (net.Conn, error) {
	for {
		conn, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &peerConn{Conn: conn, of: p, peer: peerOf(conn), since: time.Now()}
		if p.admit(c) {
			return c, nil
		}
		conn.Close()
	}
}

// admit makes room for a connection, at the cost of others of the same peer.
func (p *peers) admit(c *peerConn) bool {
	for p.shares.Take(c.peer, 1) != nil {
		idle := p.idlest(c.peer)
		if idle == nil {
			return false
		}
		idle.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = struct{}{}
	return true
}

// idlest is the connection of a peer that has waited longest for a request; if there is none, the one whose
// request takes longest; nil: the peer has none.
func (p *peers) idlest(peer share.User) *peerConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var idlest *peerConn
	for c := range p.conns {
		if c.peer == peer && (idlest == nil || cmp.Or(compareBool(c.busy, idlest.busy), c.since.Compare(idlest.since)) < 0) { // +checklocksignore: the of of both is p
			idlest = c
		}
	}
	return idlest
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// changed is called by the server with each new state of a connection.
func changed(conn net.Conn, state http.ConnState) {
	if c, ok := conn.(*peerConn); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.since, c.busy = time.Now(), state == http.StateActive
	}
}

// Close implements net.Conn. It may be called again.
func (c *peerConn) Close() error {
	c.of.mu.Lock()
	_, open := c.of.conns[c]
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	if open {
		c.of.shares.Return(c.peer, 1)
	}
	return c.Conn.Close()
}

// peerOf is the other end of a connection.
func peerOf(c net.Conn) share.User {
	if c, ok := c.(*net.UnixConn); ok {
		peer := share.User{UID: ^uint32(0)}
		if raw, err := c.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) {
				if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
					peer.UID = cred.Uid
				}
			})
		}
		return peer
	}
	from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
	addr := from.Addr().Unmap().WithZone("")
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return share.User{Addr: addr}
}

// peerKey is the key of the peer in the context of a request.
type peerKey struct{}

func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, c.(*peerConn).peer)
}

// byTurns has a handler make its answers in turns of the peers. The answer is sent after the turn, so that a
// peer who does not read it keeps nobody waiting.
func byTurns(h http.Handler) http.Handler {
	scrapes := share.New(share.Limits{What: "scrapes", Total: maxScrapes, PerUser: peerScrapes})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := r.Context().Value(peerKey{}).(share.User)
		if !scrapes.Wait(r.Context(), peer) {
			return // the peer has gone
		}
		a := answer{header: w.Header(), status: http.StatusOK}
		func() {
			defer scrapes.Return(peer, 1)
			h.ServeHTTP(&a, r)
		}()
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body.Bytes()) // fails if the peer has gone
	})
}

// answer is an http.ResponseWriter that keeps the answer.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }
