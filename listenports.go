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
	claiming chan struct{} // of capacity 1: one port is claimed at a time

	mu   sync.Mutex
	held map[uint16]*listenPort
}

// listenPort is one of them.
type listenPort struct {
	of      *listenPorts
	number  uint16
	users   int
	unclaim func() error
	gone    chan struct{} // closed when it has been given back
}

func newListenPorts() listenPorts {
	return listenPorts{claiming: make(chan struct{}, 1), held: make(map[uint16]*listenPort)}
}

// claimListenPort makes a TCP port the host's; 0 is a free one.
func (h *Host) claimListenPort(ctx context.Context, local netip.AddrPort) (*listenPort, error) {
	l := &h.listenPorts
	if h.whole {
		return &listenPort{of: l, number: local.Port(), users: 1, unclaim: func() error { return nil }}, nil
	}
	select {
	case l.claiming <- struct{}{}:
		defer func() { <-l.claiming }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if p, err := l.again(ctx, local.Port()); p != nil || err != nil {
		return p, err
	}
	p := &listenPort{of: l, number: local.Port(), users: 1, gone: make(chan struct{})}
	if own, free := h.tcpPorts.takeThis(p.number); own {
		if !free {
			return nil, syscall.EADDRINUSE
		}
		p.unclaim = func() error { return h.givePort(h.tcpPorts, p.number) }
	} else {
		tag, err := h.lease.Claim(ctx, endpoint.TCPTag(local))
		if err != nil {
			return nil, err
		}
		p.number = tag.Port
		p.unclaim = func() error { return h.unclaim(tag) }
	}
	l.mu.Lock()
	l.held[p.number] = p
	l.mu.Unlock()
	return p, nil
}

// again finds a port that the host has still. One that is about to be given back
// is waited for.
func (l *listenPorts) again(ctx context.Context, number uint16) (*listenPort, error) {
	l.mu.Lock()
	p := l.held[number]
	if p == nil {
		l.mu.Unlock()
		return nil, nil
	}
	if p.users > 0 {
		p.users++
		l.mu.Unlock()
		return p, nil
	}
	l.mu.Unlock()
	select {
	case <-p.gone:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// share is for one more that uses the port. ok is false if it is not the host's any
// more.
func (p *listenPort) share() (ok bool) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.users == 0 {
		return false
	}
	p.users++
	return true
}

// leave is for one less. last says that the caller is to give the port back.
func (p *listenPort) leave() (last bool) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.users--
	return p.users == 0
}

func (p *listenPort) giveBack() error {
	err := p.unclaim()
	if p.gone != nil {
		p.of.mu.Lock()
		delete(p.of.held, p.number)
		p.of.mu.Unlock()
		close(p.gone)
	}
	return err
}
