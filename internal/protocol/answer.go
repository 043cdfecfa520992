//go:build linux

package protocol

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"

	"github.com/unet-go/unet/endpoint"
)

// Answer is a record from unetd that answers a request.
type Answer struct {
	Version   int                 `json:"v"`
	ID        uint64              `json:"id"`
	Grant     *endpoint.Grant     `json:"grant,omitempty"`
	Table     bool                `json:"table,omitempty"` // with Grant: the tag table comes too
	Lease     *Presented          `json:"lease,omitempty"`
	Tag       *endpoint.Tag       `json:"tag,omitempty"`
	Route     *endpoint.Route     `json:"route,omitempty"`
	Endpoints *[]endpoint.Info    `json:"endpoints,omitempty"`
	Counters  *[]endpoint.Counter `json:"counters,omitempty"`
	Status    *[]endpoint.Status  `json:"status,omitempty"`
	More      bool                `json:"more,omitempty"` // of Endpoints, Counters or Status: ask with after

	Uplinks  *[]endpoint.Uplink     `json:"uplinks,omitempty"`
	Draining bool                   `json:"draining,omitempty"` // with Uplinks: no endpoints are granted
	Reloaded *endpoint.PolicyChange `json:"reloaded,omitempty"`

	Routes *[]endpoint.UplinkRoute `json:"routes,omitempty"`

	Error *Error `json:"error,omitempty"`
}

// Presented is the answer to present. One with More is continued by another
// answer to the same request.
type Presented struct {
	ID   uint64         `json:"id"`   // of the endpoint
	Tags []endpoint.Tag `json:"tags"` // all of them, over all answers
	More bool           `json:"more,omitempty"`
}

// Incoming is a record from unetd as it is parsed: an answer or an event.
type Incoming struct {
	Answer
	Event   string         `json:"event"`
	Addrs   []netip.Addr   `json:"addrs"`
	Up      *bool          `json:"up"`
	Message string         `json:"message"`
	Path    *endpoint.Path `json:"path"`

	Prefixes []netip.Prefix `json:"prefixes"`
}

// ParseIncoming parses a record from unetd. descriptors is the number of those that came
// with it.
func ParseIncoming(record []byte, descriptors int) (Incoming, error) {
	var a Incoming
	if err := json.Unmarshal(record, &a); err != nil {
		return a, Violation("not an answer: %v", err)
	}
	if a.Version != Version {
		return a, versionError(a.Version)
	}
	results := len(a.results())
	if a.Error != nil {
		results++
	}
	switch {
	case results > 1, results == 1 && a.Event != "":
		return a, Violation("a record with %d results and event %q: want one of them", results, a.Event)
	case a.ID == 0 && a.Error == nil && a.Event == "":
		return a, Violation("a record that is neither an answer to a request, nor an error, nor an event")
	case (a.Event == eventLink || a.Event == eventAddress) && a.Up == nil:
		return a, Violation("an event %s without up", a.Event)
	case a.Event == eventAddress && !*a.Up && slices.Contains(a.Addrs, netip.Addr{}):
		return a, Violation("an event address with an empty address")
	case a.Event == eventAddress && *a.Up && (len(a.Prefixes) == 0 || slices.Contains(a.Prefixes, netip.Prefix{})):
		return a, Violation("an event address that is up without its prefixes, or with an empty one")
	case (a.Path != nil) != (a.Event == eventPath):
		return a, Violation("an event %q, with a path: %v", a.Event, a.Path != nil)
	case a.Table && a.Grant == nil:
		return a, Violation("a table without a grant")
	case descriptors != a.descriptors():
		return a, Violation("%d descriptors came with a record that has %d", descriptors, a.descriptors())
	case a.Grant != nil:
		if err := a.Grant.Geometry.Validate(); err != nil {
			return a, Violation("grant: %v", err)
		}
	}
	return a, nil
}

// descriptors is the number of descriptors that come with a.
func (a *Incoming) descriptors() int {
	switch {
	case a.Grant != nil && a.Table:
		return GrantDescriptors + 1
	case a.Grant != nil:
		return GrantDescriptors
	case a.Path != nil:
		return PathDescriptors
	}
	return 0
}

// Adopt puts the descriptors that came with a into its grant or path, which owns them then.
func (a *Incoming) Adopt(fds []int) {
	switch {
	case a.Grant != nil:
		a.Grant.XSK = os.NewFile(uintptr(fds[0]), "unet-xsk")
		a.Grant.Segment = os.NewFile(uintptr(fds[1]), "unet-segment")
		if a.Table {
			a.Grant.Table = os.NewFile(uintptr(fds[2]), "unet-table")
		}
	case a.Path != nil:
		a.Path.Own = os.NewFile(uintptr(fds[0]), "unet-path-own")
		a.Path.Other = os.NewFile(uintptr(fds[1]), "unet-path-other")
		a.Path.Ring = os.NewFile(uintptr(fds[2]), "unet-path-ring")
		a.Path.Bell = os.NewFile(uintptr(fds[3]), "unet-path-bell")
	}
}

// results are the operations of whose results a has one.
func (a *Answer) results() (ops []string) {
	for _, r := range []struct {
		op  string
		has bool
	}{
		{OpOpen, a.Grant != nil}, {OpPresent, a.Lease != nil}, {OpClaim, a.Tag != nil}, {OpResolve, a.Route != nil}, {OpList, a.Endpoints != nil},
		{OpCounters, a.Counters != nil}, {OpStatus, a.Status != nil}, {OpUplinks, a.Uplinks != nil}, {OpReload, a.Reloaded != nil},
		{OpRoute, a.Routes != nil},
	} {
		if r.has {
			ops = append(ops, r.op)
		}
	}
	return ops
}

// Answers reports whether a can be an answer to op.
func (a *Answer) Answers(op string) bool {
	ops := a.results()
	switch {
	case a.Error != nil:
		return true
	case op == OpUnclaim, op == OpPath, op == OpUnpath, op == OpRevoke, op == OpDrain, op == OpCapture:
		return ops == nil
	}
	return slices.Equal(ops, []string{op})
}
