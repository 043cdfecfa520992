package unet

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// notices passes on what the lease tells of the network: to the stack, then to
// those who watch the host.
type notices struct {
	stack *stack.Stack
	addr  netip.Addr // the host's

	telling sync.Mutex // held around the calls of watchers, so that there is one at a time

	mu       sync.Mutex
	watchers []*watcher
	down     bool // the link is
	gone     bool // the address is
}

// watcher is one function that is told.
type watcher struct{ f func(endpoint.Notice) }

// take takes a notice of the lease.
func (s *notices) take(n endpoint.Notice) {
	s.telling.Lock()
	defer s.telling.Unlock()
	switch n.Kind {
	case endpoint.NoticeRoute:
		s.stack.Invalidate(n.Addr)
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		s.stack.SetLink(n.Kind == endpoint.NoticeLinkUp)
	case endpoint.NoticeAddrGone, endpoint.NoticeAddrBack:
		if n.Addr != s.addr {
			return
		}
		s.stack.SetAddress(n.Kind == endpoint.NoticeAddrBack)
	}
	s.mu.Lock()
	switch n.Kind {
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		s.down = n.Kind == endpoint.NoticeLinkDown
	case endpoint.NoticeAddrGone, endpoint.NoticeAddrBack:
		s.gone = n.Kind == endpoint.NoticeAddrGone
	}
	watchers := s.watchers
	s.mu.Unlock()
	for _, w := range watchers {
		w.f(n)
	}
}

// Watch calls f with each notice about the network around the host until stop is
// called: routes that have changed, the link going down and coming up, the machine losing
// the host's address and having it again. The host itself has heard it by then: it asks for
// the routes again, and its sends fail with ENETDOWN while the link is down, and with
// EADDRNOTAVAIL while the address is gone. f is called by one goroutine at a time,
// possibly before Watch returns, and must neither block nor call Watch. That the
// link is down already, or the address gone, is told at once.
func (h *Host) Watch(f func(endpoint.Notice)) (stop func()) {
	s := &h.notices
	w := &watcher{f}
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	s.watchers = append(s.watchers, w)
	down, gone := s.down, s.gone
	s.mu.Unlock()
	if down {
		f(endpoint.Notice{Kind: endpoint.NoticeLinkDown})
	}
	if gone {
		f(endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: s.addr})
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watchers = slices.DeleteFunc(slices.Clone(s.watchers), func(o *watcher) bool { return o == w })
	}
}
