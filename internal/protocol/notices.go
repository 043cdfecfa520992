//go:build linux

package protocol

import (
	"net/netip"
	"os"

	"github.com/unet-go/unet/endpoint"
)

// Events.
const (
	eventRoutes  = "routes"
	eventLink    = "link"
	eventAddress = "address"
	eventPath    = "path"
	EventClosed  = "closed"
)

// Event is a record from unetd that is not an answer.
type Event struct {
	Version int            `json:"v"`
	Event   string         `json:"event"`
	Addrs   []netip.Addr   `json:"addrs,omitempty"`   // routes: destinations; address: the endpoint's own; none: all
	Up      *bool          `json:"up,omitempty"`      // link; address: the host has them
	Message string         `json:"message,omitempty"` // closed
	Path    *endpoint.Path `json:"path,omitempty"`    // path
}

// PathEvent makes the record of a memory path, and the files that are sent with it.
func PathEvent(p *endpoint.Path) (Event, []*os.File) {
	return Event{Version: Version, Event: eventPath, Path: p}, []*os.File{p.Own, p.Other, p.Ring, p.Bell}
}

// Events makes the records of notices. All routes are in one record.
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

// Notices is the inverse of Events. Unknown events give no notices.
func (a Incoming) Notices() []endpoint.Notice {
	var kind endpoint.NoticeKind
	switch {
	case a.Event == eventLink && *a.Up:
		kind = endpoint.NoticeLinkUp
	case a.Event == eventLink:
		kind = endpoint.NoticeLinkDown
	case a.Event == eventAddress && *a.Up:
		kind = endpoint.NoticeAddrBack
	case a.Event == eventAddress:
		kind = endpoint.NoticeAddrGone
	case a.Event == eventRoutes:
		kind = endpoint.NoticeRoute
	default:
		return nil
	}
	if len(a.Addrs) == 0 || a.Event == eventLink {
		return []endpoint.Notice{{Kind: kind}}
	}
	list := make([]endpoint.Notice, len(a.Addrs))
	for i, addr := range a.Addrs {
		list[i] = endpoint.Notice{Kind: kind, Addr: addr}
	}
	return list
}
