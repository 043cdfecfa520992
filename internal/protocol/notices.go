//go:build linux

package protocol

import (
	"net/netip"
	"os"
	"slices"

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
	Addrs   []netip.Addr   `json:"addrs,omitempty"`   // routes: destinations; none: all. address that is not up: those that are gone; none: all that were not listed
	Up      *bool          `json:"up,omitempty"`      // link; address: the host has them
	Message string         `json:"message,omitempty"` // closed
	Path    *endpoint.Path `json:"path,omitempty"`    // path

	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // address that is up: the addresses with their subnets
}

// maxAddresses bounds the addresses in one event, so that it fits a record. Of routes there are
// fewer (package notices).
const maxAddresses = 1024

// PathEvent makes the record of a memory path, and the files that are sent with it.
func PathEvent(p *endpoint.Path) (Event, []*os.File) {
	return Event{Version: Version, Event: eventPath, Path: p}, []*os.File{p.Own, p.Other, p.Ring, p.Bell}
}

// Events makes the records of the notices of one turn, in which each address comes once.
func Events(list []endpoint.Notice) []Event {
	var events []Event
	var routes, gone []netip.Addr
	var here []netip.Prefix
	no, yes, others, changed := false, true, false, false
	for _, n := range list {
		switch n.Kind {
		case endpoint.NoticeLinkDown, endpoint.NoticeLinkUp:
			up := n.Kind == endpoint.NoticeLinkUp
			events = append(events, Event{Version: Version, Event: eventLink, Up: &up})
		case endpoint.NoticeAddrHere:
			here = append(here, netip.PrefixFrom(n.Addr, int(n.Bits)))
		case endpoint.NoticeAddrGone:
			if others = others || !n.Addr.IsValid(); n.Addr.IsValid() {
				gone = append(gone, n.Addr)
			}
		case endpoint.NoticeRoute:
			changed = true
			if n.Addr.IsValid() {
				routes = append(routes, n.Addr)
			}
		}
	}
	for some := range slices.Chunk(here, maxAddresses) {
		events = append(events, Event{Version: Version, Event: eventAddress, Prefixes: some, Up: &yes})
	}
	for some := range slices.Chunk(gone, maxAddresses) {
		events = append(events, Event{Version: Version, Event: eventAddress, Addrs: some, Up: &no})
	}
	if others {
		events = append(events, Event{Version: Version, Event: eventAddress, Up: &no})
	}
	if changed {
		events = append(events, Event{Version: Version, Event: eventRoutes, Addrs: routes})
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
		var list []endpoint.Notice
		for _, p := range a.Prefixes {
			list = append(list, endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: p.Addr(), Bits: uint8(p.Bits())})
		}
		return list
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
