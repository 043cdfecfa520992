package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
)

// Version is the version of the protocol, in every record.
const Version = 1

// DefaultSocket is where unetd listens unless it is told otherwise.
const DefaultSocket = "/run/unet/unetd.sock"

// The protocol's own limits; doc.go has their reasons.
const (
	MaxRecord   = 64 << 10  // bytes of one record
	MaxRequests = 32        // requests in progress on one connection
	MaxTags     = 1024      // tags claimed with an open; of a lease at any time, by default
	maxPending  = 128 << 10 // bytes of requests in progress on one connection
)

// Operations.
const (
	opOpen    = "open"
	opClaim   = "claim"
	opUnclaim = "unclaim"
	opResolve = "resolve"
)

// request is a record from the application. Its argument stays text until the
// identifier is known, so that an unusable argument can be answered.
type request struct {
	Version int             `json:"v"`
	ID      uint64          `json:"id"`
	Op      string          `json:"op"`
	Open    json.RawMessage `json:"open,omitempty"`
	Tag     string          `json:"tag,omitempty"`
	Addr    string          `json:"addr,omitempty"`
}

// answer is a record from unetd.
type answer struct {
	Version int             `json:"v"`
	ID      uint64          `json:"id"`
	Grant   *endpoint.Grant `json:"grant,omitempty"`
	Tag     *endpoint.Tag   `json:"tag,omitempty"`
	Route   *endpoint.Route `json:"route,omitempty"`
	Error   *Error          `json:"error,omitempty"`
	Event   string          `json:"event,omitempty"` // read to be skipped: version 1 sends none
}

// operation is a request whose argument was read.
type operation struct {
	op   string
	open endpoint.Request
	tag  endpoint.Tag
	addr netip.Addr
}

// parseRequest reads the envelope of a request. An error is a violation of
// the protocol; the request then has whatever identifier could be read.
func parseRequest(record []byte) (request, error) {
	var r request
	if err := decodeStrict(record, &r); err != nil {
		// Tell a newer version by its number, not by the first field
		// that it added.
		var v struct {
			Version int    `json:"v"`
			ID      uint64 `json:"id"`
		}
		if json.Unmarshal(record, &v) == nil && v.Version != Version {
			return request{ID: v.ID}, versionError(v.Version)
		}
		return request{ID: v.ID}, violation("not a request: %v", err)
	}
	if r.Version != Version {
		return r, versionError(r.Version)
	}
	if r.ID == 0 {
		return r, violation("a request needs an id other than 0")
	}
	var has, want string
	for _, a := range []struct {
		name    string
		present bool
	}{{"open", r.Open != nil}, {"tag", r.Tag != ""}, {"addr", r.Addr != ""}} {
		if a.present {
			has += " " + a.name
		}
	}
	switch r.Op {
	case opOpen:
		want = " open"
	case opClaim, opUnclaim:
		want = " tag"
	case opResolve:
		want = " addr"
	default:
		return r, violation("unknown op %q", r.Op)
	}
	if has != want {
		return r, violation("op %s takes the argument%s and no other", r.Op, want)
	}
	return r, nil
}

// operation reads the argument. A tag that is none is the application's user's
// mistake (endpoint.ErrTag); anything else is a violation.
func (r request) operation() (operation, error) {
	o := operation{op: r.Op}
	var err error
	switch r.Op {
	case opOpen:
		if err = decodeStrict(r.Open, &o.open); err == nil && len(o.open.Tags) > MaxTags {
			err = fmt.Errorf("%d tags: at most %d", len(o.open.Tags), MaxTags)
		}
	case opClaim, opUnclaim:
		o.tag, err = endpoint.ParseTag(r.Tag)
	case opResolve:
		o.addr, err = netip.ParseAddr(r.Addr)
	}
	if err != nil && !errors.Is(err, endpoint.ErrTag) {
		err = violation("%s: %v", r.Op, err)
	}
	return o, err
}

// record is the inverse of parseRequest and operation.
func (o operation) record(id uint64) ([]byte, error) {
	r := request{Version: Version, ID: id, Op: o.op}
	var err error
	switch o.op {
	case opOpen:
		r.Open, err = json.Marshal(o.open)
	case opClaim, opUnclaim:
		var text []byte
		text, err = o.tag.MarshalText()
		r.Tag = string(text)
	case opResolve:
		r.Addr = o.addr.String()
	}
	if err != nil {
		return nil, err
	}
	record, err := json.Marshal(r)
	if err == nil && len(record) > MaxRecord {
		err = violation("a request of %d bytes: at most %d", len(record), MaxRecord)
	}
	return record, err
}

// parseAnswer reads a record from unetd. Descriptors is how many came with it.
func parseAnswer(record []byte, descriptors int) (answer, error) {
	var a answer
	if err := json.Unmarshal(record, &a); err != nil {
		return a, violation("not an answer: %v", err)
	}
	if a.Version != Version {
		return a, versionError(a.Version)
	}
	results := 0
	for _, present := range []bool{a.Grant != nil, a.Tag != nil, a.Route != nil, a.Error != nil} {
		if present {
			results++
		}
	}
	switch {
	case results > 1, results == 1 && a.Event != "":
		return a, violation("a record that is %d answers, event %q", results, a.Event)
	case a.ID == 0 && a.Error == nil && a.Event == "":
		return a, violation("a record that is neither an answer to a request, nor an error, nor an event")
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

// decodeStrict reads one JSON value that fills record and has no unknown field.
func decodeStrict(record []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(record))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}
