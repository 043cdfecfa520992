package control

import (
	"encoding/json"
	"net/netip"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// Events.
const (
	eventRoutes  = "routes"
	eventLink    = "link"
	eventAddress = "address"
	eventClosed  = "closed"
)

// answer is a record from unetd that answers a request.
type answer struct {
	Version   int                 `json:"v"`
	ID        uint64              `json:"id"`
	Grant     *endpoint.Grant     `json:"grant,omitempty"`
	Lease     *presented          `json:"lease,omitempty"`
	Tag       *endpoint.Tag       `json:"tag,omitempty"`
	Route     *endpoint.Route     `json:"route,omitempty"`
	Endpoints *[]endpoint.Info    `json:"endpoints,omitempty"`
	Counters  *[]endpoint.Counter `json:"counters,omitempty"`
	More      bool                `json:"more,omitempty"` // of Endpoints or Counters: ask with after
	Error     *Error              `json:"error,omitempty"`
}

// presented is the answer to present. One with More is continued by another
// answer to the same request.
type presented struct {
	ID   uint64         `json:"id"`   // of the endpoint
	Tags []endpoint.Tag `json:"tags"` // all of them, over all answers
	More bool           `json:"more,omitempty"`
}

// maxPresented is how many tags go into one answer to present: the longest of
// them, IPv6 blocks of 58 characters, fill half a record.
const maxPresented = 512

// event is a record from unetd that answers nothing.
type event struct {
	Version int          `json:"v"`
	Event   string       `json:"event"`
	Addrs   []netip.Addr `json:"addrs,omitempty"`   // routes: destinations; address: the endpoint's own; none: all
	Up      *bool        `json:"up,omitempty"`      // link; address: the host has them
	Message string       `json:"message,omitempty"` // closed
}

// incoming is a record from unetd as it is read: an answer or an event.
type incoming struct {
	answer
	Event   string       `json:"event"`
	Addrs   []netip.Addr `json:"addrs"`
	Up      *bool        `json:"up"`
	Message string       `json:"message"`
}

// parseIncoming reads a record from unetd. Descriptors is how many came with it.
func parseIncoming(record []byte, descriptors int) (incoming, error) {
	var a incoming
	if err := json.Unmarshal(record, &a); err != nil {
		return a, violation("not an answer: %v", err)
	}
	if a.Version != Version {
		return a, versionError(a.Version)
	}
	results := 0
	for _, present := range []bool{a.Grant != nil, a.Lease != nil, a.Tag != nil, a.Route != nil,
		a.Endpoints != nil, a.Counters != nil, a.Error != nil} {
		if present {
			results++
		}
	}
	switch {
	case results > 1, results == 1 && a.Event != "":
		return a, violation("a record that is %d answers, event %q", results, a.Event)
	case a.ID == 0 && a.Error == nil && a.Event == "":
		return a, violation("a record that is neither an answer to a request, nor an error, nor an event")
	case (a.Event == eventLink || a.Event == eventAddress) && a.Up == nil:
		return a, violation("an event %s that does not say which state", a.Event)
	case a.Event == eventAddress && !*a.Up && (len(a.Addrs) == 0 || slices.Contains(a.Addrs, netip.Addr{})):
		return a, violation("an event address that does not say which is gone")
	case a.Grant == nil && descriptors != 0:
		return a, violation("%d descriptors came with a record that is no grant", descriptors)
	case a.Grant != nil && descriptors != grantDescriptors:
		return a, violation("a grant came with %d descriptors: want %d", descriptors, grantDescriptors)
	case a.Grant != nil:
		if err := a.Grant.Geometry.Validate(); err != nil {
			return a, violation("grant: %v", err)
		}
	}
	return a, nil
}

// answers reports whether a is what an answer to op looks like.
func (a answer) answers(op string) bool {
	if a.Error != nil {
		return true
	}
	switch op {
	case opOpen:
		return a.Grant != nil
	case opPresent:
		return a.Lease != nil
	case opClaim:
		return a.Tag != nil
	case opResolve:
		return a.Route != nil
	case opList:
		return a.Endpoints != nil
	case opCounters:
		return a.Counters != nil
	}
	return a.Grant == nil && a.Lease == nil && a.Tag == nil && a.Route == nil && a.Endpoints == nil && a.Counters == nil
}
