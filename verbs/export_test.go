package verbs

import (
	"net/netip"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// Waiting is how many requests wait for Accept.
func (l *Listener) Waiting() int {
	l.ctx.port.Lock()
	defer l.ctx.port.Unlock()
	return len(l.requests)
}

// OpenOn is Open on a stack that has no host.
func OpenOn(s *stack.Stack, addr netip.Addr, cfg Config) (*Context, error) {
	return open(cfg, func(handler stack.UDPHandler) (*stack.UDPPort, error) {
		return s.OpenUDPPort(netip.AddrPortFrom(addr, wire.RoCEPort), handler, nil)
	})
}
