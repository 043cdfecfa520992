package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

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
	MaxTags     = 1024      // tags claimed with an open
	maxPending  = 128 << 10 // bytes of requests in progress on one connection
)

// Operations.
const (
	opOpen     = "open"
	opPresent  = "present"
	opClaim    = "claim"
	opUnclaim  = "unclaim"
	opResolve  = "resolve"
	opList     = "list"
	opCounters = "counters"
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
	After   *uint64         `json:"after,omitempty"`
}

// operation is a request whose argument was read.
type operation struct {
	op    string
	open  endpoint.Request
	tag   endpoint.Tag
	addr  netip.Addr
	after *uint64    // list, counters; nil: from the start
	files []*os.File // open, present: they ride on the record, which does not keep them
}

// operators reports whether op is one of those that concern no lease.
func operators(op string) bool { return op == opList || op == opCounters }

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
	return r, r.checkArgument()
}

// checkArgument holds the arguments that are there against those of the
// operation.
func (r request) checkArgument() error {
	var has, want string
	for _, a := range []struct {
		name    string
		present bool
	}{{"open", r.Open != nil}, {"tag", r.Tag != ""}, {"addr", r.Addr != ""}, {"after", r.After != nil}} {
		if a.present {
			has += " " + a.name
		}
	}
	switch r.Op {
	case opOpen:
		want = " open"
	case opPresent:
	case opClaim, opUnclaim:
		want = " tag"
	case opResolve:
		want = " addr"
	case opList, opCounters:
		if r.After != nil { // or nothing
			want = " after"
		}
	default:
		return violation("unknown op %q", r.Op)
	}
	switch {
	case has == want:
		return nil
	case want == "":
		return violation("op %s does not take the argument%s", r.Op, has)
	}
	return violation("op %s takes the argument%s and no other", r.Op, want)
}

// operation reads the argument. A tag that is none is the application's user's
// mistake (endpoint.ErrTag); anything else is a violation.
func (r request) operation() (operation, error) {
	o := operation{op: r.Op, after: r.After}
	var err error
	switch r.Op {
	case opOpen:
		if err = decodeStrict(r.Open, &o.open); err == nil {
			err = checkTags(o.open.Tags)
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

func checkTags(tags []endpoint.Tag) error {
	if len(tags) > MaxTags {
		return fmt.Errorf("%d tags: at most %d", len(tags), MaxTags)
	}
	for _, t := range tags {
		if t == (endpoint.Tag{}) {
			return errors.New("a tag that is null")
		}
	}
	return nil
}

// record is the inverse of parseRequest and operation.
func (o operation) record(id uint64) ([]byte, error) {
	r := request{Version: Version, ID: id, Op: o.op, After: o.after}
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
