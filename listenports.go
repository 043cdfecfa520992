package unet

import (
	"context"
	"net/netip"
	"sync"
	"syscall"

	"github.com/unet-go/unet/endpoint"
)

// listenPorts is the TCP ports that the host listens on. A port is the host's as
// long as its listener is open or a connection that was accepted there lives: a
// listener may come and go meanwhile.
type listenPorts struct {
	mu   sync.Mutex
	held map[uint16]*listenPort
}

// listenPort is one of them, or one that is being claimed.
type listenPort struct {
	of       *listenPorts
	number   uint16
	users    int
	giveBack func()
	claimed  chan struct{} // closed when it is the host's, or will not be
}

func newListenPorts() listenPorts {
	return listenPorts{held: make(map[uint16]*listenPort)}
}

// claimListenPort makes a TCP port the host's; 0 is a free one. It waits for no claim
// of another port.
func (h *Host) claimListenPort(ctx context.Context, local netip.AddrPort) (*listenPort, error) {
	l := &h.listenPorts
	fresh := &listenPort{of: l, number: local.Port(), users: 1, claimed: make(chan struct{})}
	if h.whole {
		fresh.giveBack = func() {}
		return fresh, nil
	}
	for {
		l.mu.Lock()
		p := l.held[fresh.number]
		switch {
		case p == nil:
			if fresh.number != 0 {
				l.held[fresh.number] = fresh
			}
			l.mu.Unlock()
			if err := h.claimFresh(ctx, local, fresh); err != nil {
				return nil, err
			}
			return fresh, nil
		case p.giveBack != nil:
			p.users++
			l.mu.Unlock()
			return p, nil
		}
		l.mu.Unlock()
		select {
		case <-p.claimed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// claimFresh claims a port, and tells those who wait for it.
func (h *Host) claimFresh(ctx context.Context, local netip.AddrPort, p *listenPort) error {
	number := p.number
	var giveBack func()
	var err error
	if own, free := h.tcpPorts.takeThis(number); own {
		if giveBack = func() { h.givePort(h.tcpPorts, number) }; !free {
			err = syscall.EADDRINUSE
		}
	} else {
		var tag endpoint.Tag
		tag, err = h.lease.Claim(ctx, endpoint.TCPTag(local))
		number, giveBack = tag.Port, func() { h.unclaim(tag) }
	}
	l := p.of
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(p.claimed)
	if err != nil {
		if l.held[p.number] == p {
			delete(l.held, p.number)
		}
		return err
	}
	p.number, p.giveBack = number, giveBack
	l.held[number] = p
	return nil
}

// leave is for one user less. The last gives the port back.
func (p *listenPort) leave() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.of.held[p.number] == p {
		delete(p.of.held, p.number)
	}
	p.giveBack()
}
