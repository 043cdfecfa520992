package control

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// maxNoticeAddrs bounds the destinations that wait to be told of. Beyond it one
// word stands for them: all.
const maxNoticeAddrs = 256

// notices gathers what has happened around an endpoint until somebody has the
// time to hear it. Who adds never waits, and what is kept is bounded: of a
// destination that changed twice, and of the link's states, the last counts.
type notices struct {
	ready chan struct{} // has an element if there may be something to take

	mu    sync.Mutex
	addrs map[netip.Addr]bool
	all   bool
	link  endpoint.NoticeKind // 0: nothing new
}

func newNotices() *notices { return &notices{ready: make(chan struct{}, 1)} }

func (n *notices) add(what endpoint.Notice) {
	n.mu.Lock()
	switch what.Kind {
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		n.link = what.Kind
	case endpoint.NoticeRoute:
		switch {
		case n.all:
		case !what.Addr.IsValid(), len(n.addrs) == maxNoticeAddrs && !n.addrs[what.Addr]:
			n.addrs, n.all = nil, true
		default:
			if n.addrs == nil {
				n.addrs = make(map[netip.Addr]bool)
			}
			n.addrs[what.Addr] = true
		}
	}
	n.mu.Unlock()
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

// take returns what was gathered, and forgets it. The state of the link, if it
// is news, comes first: with the link up a route may be asked for again. One
// NoticeRoute without an address stands for all.
func (n *notices) take() []endpoint.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []endpoint.Notice
	if n.link != 0 {
		list = append(list, endpoint.Notice{Kind: n.link})
	}
	if n.all {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute})
	}
	addrs := make([]netip.Addr, 0, len(n.addrs))
	for a := range n.addrs {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, a := range addrs {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a})
	}
	n.addrs, n.all, n.link = nil, false, 0
	return list
}

// eventsOf makes the records that tell of notices.
func eventsOf(list []endpoint.Notice) []event {
	var events []event
	var addrs []netip.Addr
	routes := false
	for _, n := range list {
		switch n.Kind {
		case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
			up := n.Kind == endpoint.NoticeLinkUp
			events = append(events, event{Event: eventLink, Up: &up})
		case endpoint.NoticeRoute:
			routes = true
			if n.Addr.IsValid() {
				addrs = append(addrs, n.Addr)
			}
		}
	}
	if routes {
		events = append(events, event{Event: eventRoutes, Addrs: addrs})
	}
	return events
}

// notices is the inverse of eventsOf. Events of later versions are none.
func (a incoming) notices() []endpoint.Notice {
	switch a.Event {
	case eventLink:
		if *a.Up {
			return []endpoint.Notice{{Kind: endpoint.NoticeLinkUp}}
		}
		return []endpoint.Notice{{Kind: endpoint.NoticeLinkDown}}
	case eventRoutes:
		if len(a.Addrs) == 0 {
			return []endpoint.Notice{{Kind: endpoint.NoticeRoute}}
		}
		list := make([]endpoint.Notice, len(a.Addrs))
		for i, addr := range a.Addrs {
			list[i] = endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: addr}
		}
		return list
	}
	return nil
}
