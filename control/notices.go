package control

import (
	"maps"
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
// destination that changed twice, and of the states of the link and of an address, the
// last counts. Of the endpoint's own addresses there are no more than it has tags.
type notices struct {
	ready chan struct{} // has an element if there may be something to take

	mu    sync.Mutex
	addrs map[netip.Addr]bool
	all   bool
	link  endpoint.NoticeKind // 0: nothing new
	back  bool                // all of the endpoint's addresses are there, but for those in gone
	gone  map[netip.Addr]bool // of the endpoint's addresses that are news; false: one is back
}

func newNotices() *notices { return &notices{ready: make(chan struct{}, 1)} }

func (n *notices) add(what endpoint.Notice) {
	n.mu.Lock()
	switch what.Kind {
	case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
		n.link = what.Kind
	case endpoint.NoticeAddrBack:
		if !what.Addr.IsValid() {
			n.back, n.gone = true, nil
		} else {
			n.isGone(what.Addr, false)
		}
	case endpoint.NoticeAddrGone:
		n.isGone(what.Addr, true)
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

func (n *notices) isGone(a netip.Addr, gone bool) {
	if n.gone == nil {
		n.gone = make(map[netip.Addr]bool)
	}
	n.gone[a] = gone
}

// take returns what was gathered, and forgets it. The state of the link, if it
// is news, comes first: with the link up a route may be asked for again. Then come
// the endpoint's own addresses: one NoticeAddrBack without an address stands for all. One
// NoticeRoute without an address stands for all.
func (n *notices) take() []endpoint.Notice {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []endpoint.Notice
	if n.link != 0 {
		list = append(list, endpoint.Notice{Kind: n.link})
	}
	if n.back {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeAddrBack})
	}
	for _, a := range slices.SortedFunc(maps.Keys(n.gone), netip.Addr.Compare) {
		kind := endpoint.NoticeAddrBack
		if n.gone[a] {
			kind = endpoint.NoticeAddrGone
		}
		list = append(list, endpoint.Notice{Kind: kind, Addr: a})
	}
	if n.all {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute})
	}
	for _, a := range slices.SortedFunc(maps.Keys(n.addrs), netip.Addr.Compare) {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a})
	}
	n.addrs, n.all, n.link, n.back, n.gone = nil, false, 0, false, nil
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
		case endpoint.NoticeAddrGone, endpoint.NoticeAddrBack:
			there := n.Kind == endpoint.NoticeAddrBack
			e := event{Event: eventAddress, Up: &there}
			if n.Addr.IsValid() {
				e.Addrs = []netip.Addr{n.Addr}
			}
			events = append(events, e)
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
	case eventAddress:
		kind := endpoint.NoticeAddrGone
		if *a.Up {
			kind = endpoint.NoticeAddrBack
			if len(a.Addrs) == 0 {
				return []endpoint.Notice{{Kind: kind}}
			}
		}
		return noticesOf(kind, a.Addrs)
	case eventRoutes:
		if len(a.Addrs) == 0 {
			return []endpoint.Notice{{Kind: endpoint.NoticeRoute}}
		}
		return noticesOf(endpoint.NoticeRoute, a.Addrs)
	}
	return nil
}

func noticesOf(kind endpoint.NoticeKind, addrs []netip.Addr) []endpoint.Notice {
	list := make([]endpoint.Notice, len(addrs))
	for i, a := range addrs {
		list[i] = endpoint.Notice{Kind: kind, Addr: a}
	}
	return list
}
