package protocol

import (
	"net/netip"

	"github.com/unet-go/unet/endpoint"
)

// Events.
const (
	eventRoutes  = "routes"
	eventLink    = "link"
	eventAddress = "address"
	EventClosed  = "closed"
)

// event is a record from unetd that answers nothing.
type Event struct {
	Version int          `json:"v"`
	Event   string       `json:"event"`
	Addrs   []netip.Addr `json:"addrs,omitempty"`   // routes: destinations; address: the endpoint's own; none: all
	Up      *bool        `json:"up,omitempty"`      // link; address: the host has them
	Message string       `json:"message,omitempty"` // closed
}

// eventsOf makes the records that tell of notices.
func Events(list []endpoint.Notice) []Event {
	var events []Event
	var addrs []netip.Addr
	routes := false
	for _, n := range list {
		switch n.Kind {
		case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
			up := n.Kind == endpoint.NoticeLinkUp
			events = append(events, Event{Version: Version, Event: eventLink, Up: &up})
		case endpoint.NoticeAddrGone, endpoint.NoticeAddrBack:
			there := n.Kind == endpoint.NoticeAddrBack
			e := Event{Version: Version, Event: eventAddress, Up: &there}
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
		events = append(events, Event{Version: Version, Event: eventRoutes, Addrs: addrs})
	}
	return events
}

// notices is the inverse of eventsOf. Events of later versions are none.
func (a Incoming) Notices() []endpoint.Notice {
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
