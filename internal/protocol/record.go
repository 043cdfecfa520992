//go:build linux

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/unet-go/unet/endpoint"
)

// Version is the version of the protocol, in every record.
const Version = 1

// Limits of the protocol.
const (
	MaxRecord   = 64 << 10  // bytes of one record
	MaxRequests = 32        // requests in progress on one connection
	MaxTags     = 1024      // tags claimed with an open
	MaxPending  = 128 << 10 // bytes of requests in progress on one connection
	MaxReason   = 256       // bytes of the reason for which an operator revokes an endpoint

	maxAddr      = 64  // bytes of an address with its zone, which is the name of an interface
	maxInterface = 127 // bytes of the name of an interface: ALTIFNAMSIZ without its NUL, linux/if.h
)

// Operations.
const (
	OpOpen     = "open"
	OpPresent  = "present"
	OpClaim    = "claim"
	OpUnclaim  = "unclaim"
	OpResolve  = "resolve"
	OpPath     = "path"
	OpUnpath   = "unpath"
	OpList     = "list"
	OpCounters = "counters"
	OpStatus   = "status"
	OpUplinks  = "uplinks"
	OpRevoke   = "revoke"
	OpReload   = "reload"
	OpDrain    = "drain"
	OpCapture  = "capture"
	OpRoute    = "route"
)

// operations are the operations, and the arguments that they take: needs always, may only if wanted.
var operations = map[string]struct {
	leaseless bool // it needs no lease
	operators bool // it is for operators, and leaseless
	needs     string
	may       []string
}{
	OpOpen: {needs: "open", may: []string{"memory_paths"}}, OpPresent: {may: []string{"memory_paths"}}, OpClaim: {needs: "tag"}, OpUnclaim: {needs: "tag"}, OpResolve: {needs: "addr", may: []string{"source"}},
	OpPath: {needs: "endpoint"}, OpUnpath: {needs: "path"},
	OpList: {leaseless: true, operators: true, may: []string{"after"}}, OpCounters: {leaseless: true, operators: true, may: []string{"after"}},
	OpStatus: {leaseless: true, operators: true, may: []string{"after", "socket"}}, OpUplinks: {leaseless: true, operators: true},
	OpRevoke: {leaseless: true, operators: true, needs: "endpoint", may: []string{"reason"}}, OpReload: {leaseless: true, operators: true}, OpDrain: {leaseless: true, operators: true, may: []string{"undo"}},
	OpRoute:   {leaseless: true, may: []string{"addr", "source", "interface"}},
	OpCapture: {leaseless: true, operators: true, may: []string{"endpoint"}},
}

// Leaseless reports whether op needs no lease.
func Leaseless(op string) bool { return operations[op].leaseless }

// Operators reports whether op is for operators only. Such an operation is leaseless.
func Operators(op string) bool { return operations[op].operators }

// Request is a record from the application. Its argument is parsed later, by Operation: the
// identifier is known then, so the answer to an invalid argument has it.
type Request struct {
	Version int             `json:"v"`
	ID      uint64          `json:"id"`
	Op      string          `json:"op"`
	Open    json.RawMessage `json:"open,omitempty"`
	Tag     string          `json:"tag,omitempty"`
	Addr    string          `json:"addr,omitempty"`
	Source  string          `json:"source,omitempty"`
	After   *uint64         `json:"after,omitempty"`

	Socket *uint32 `json:"socket,omitempty"`

	Endpoint *uint64 `json:"endpoint,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Undo     bool    `json:"undo,omitempty"`

	Path        *uint64 `json:"path,omitempty"`
	MemoryPaths bool    `json:"memory_paths,omitempty"`

	Interface string `json:"interface,omitempty"`
}

// Operation is a request with its argument parsed.
type Operation struct {
	Op   string
	Open endpoint.Request
	Tag  endpoint.Tag
	Addr netip.Addr // resolve; route, not valid: only the addresses of uplinks
	// Source, of resolve and route: of the packets to Addr. If it is not valid the kernel chooses.
	Source    netip.Addr
	Interface string  // route; empty: all uplinks
	After     *uint64 // list, counters, status; nil: from the start
	// Socket, of status with After: the sockets of the endpoint After that follow this record,
	// and then the endpoints after it; nil: only these.
	Socket *uint32

	Endpoint uint64 // revoke, path
	Path     uint64 // unpath
	Reason   string // revoke; may be empty
	Undo     bool   // drain

	Captured *uint64 // capture; nil: all endpoints

	// MemoryPaths, of open and present: the application reads the events of memory paths. Open.NoMemoryPaths is the opposite.
	MemoryPaths bool

	Files []*os.File // open, present: descriptors that are sent with the record
}

// ParseRequest parses a request without its argument. Every error is a violation of the
// protocol; the request then has its identifier, if that could be read.
func ParseRequest(record []byte) (Request, error) {
	var r Request
	if err := decodeStrict(record, &r); err != nil {
		// The error of a newer version names the version, not the first unknown field.
		var v struct {
			Version int    `json:"v"`
			ID      uint64 `json:"id"`
		}
		if json.Unmarshal(record, &v) == nil && v.Version != Version {
			return Request{ID: v.ID}, versionError(v.Version)
		}
		return Request{ID: v.ID}, Violation("not a request: %v", err)
	}
	if r.Version != Version {
		return r, versionError(r.Version)
	}
	if r.ID == 0 {
		return r, Violation("a request needs an id other than 0")
	}
	return r, r.checkArgument()
}

// checkArgument returns an error unless the record has the argument that its operation
// takes, and no other.
func (r Request) checkArgument() error {
	o, known := operations[r.Op]
	if !known {
		return Violation("unknown op %q", r.Op)
	}
	for _, a := range []struct {
		name    string
		present bool
	}{{"open", r.Open != nil}, {"tag", r.Tag != ""}, {"addr", r.Addr != ""}, {"source", r.Source != ""}, {"after", r.After != nil}, {"socket", r.Socket != nil},
		{"endpoint", r.Endpoint != nil}, {"reason", r.Reason != ""}, {"undo", r.Undo}, {"path", r.Path != nil}, {"memory_paths", r.MemoryPaths}, {"interface", r.Interface != ""}} {
		switch {
		case a.name == o.needs && !a.present:
			return Violation("op %s takes the argument %s", r.Op, a.name)
		case a.present && a.name != o.needs && !slices.Contains(o.may, a.name), a.present && a.name == "socket" && r.After == nil, a.present && a.name == "source" && r.Addr == "":
			return Violation("op %s does not take the argument %s", r.Op, a.name)
		}
	}
	return nil
}

// Operation parses the argument. endpoint.ErrTag, endpoint.ErrUnreachable (an address of no host)
// and endpoint.ErrUplink (a name of no interface) may be mistakes of the application's user. Every
// other error is a violation. No text of an Operation is longer than its limit.
func (r Request) Operation() (Operation, error) {
	o := Operation{Op: r.Op, After: r.After, Socket: r.Socket, MemoryPaths: r.MemoryPaths}
	var err error
	switch r.Op {
	case OpOpen:
		if err = decodeStrict(r.Open, &o.Open); err == nil {
			err = checkTags(o.Open.Tags)
		}
		o.Open.NoMemoryPaths = !r.MemoryPaths
		if err == nil {
			err = checkInterface(o.Open.Interface)
		}
	case OpClaim, OpUnclaim:
		o.Tag, err = endpoint.ParseTag(r.Tag)
	case OpResolve:
		err = o.parseEnds(r)
	case OpRoute:
		o.Interface = r.Interface
		if err = checkInterface(r.Interface); err == nil && r.Addr != "" {
			err = o.parseEnds(r)
		}
	case OpRevoke:
		switch {
		case len(r.Reason) > MaxReason:
			err = fmt.Errorf("a reason of %d bytes: at most %d", len(r.Reason), MaxReason)
		case strings.ContainsFunc(r.Reason, unicode.IsControl):
			err = errors.New("a reason of several lines, or with control characters")
		}
		o.Endpoint, o.Reason = *r.Endpoint, r.Reason
	case OpPath:
		o.Endpoint = *r.Endpoint
	case OpUnpath:
		o.Path = *r.Path
	case OpCapture:
		o.Captured = r.Endpoint
	case OpDrain:
		o.Undo = r.Undo
	}
	if err != nil && !slices.ContainsFunc(mistakes, func(m error) bool { return errors.Is(err, m) }) {
		err = Violation("%s: %v", r.Op, err)
	}
	return o, err
}

// parseEnds parses Addr and Source.
func (o *Operation) parseEnds(r Request) (err error) {
	if o.Addr, err = parseAddr(r.Addr); err == nil && r.Source != "" {
		o.Source, err = parseAddr(r.Source)
	}
	if err == nil {
		err = endpoint.CheckDestination(o.Addr)
	}
	if err == nil {
		err = endpoint.CheckSource(o.Source, o.Addr)
	}
	return err
}

func checkInterface(name string) error {
	if n := len(name); n > maxInterface {
		return fmt.Errorf("%w: the name of an interface has at most %d bytes, not %d", endpoint.ErrUplink, maxInterface, n)
	}
	return nil
}

func parseAddr(text string) (netip.Addr, error) {
	if len(text) > maxAddr {
		return netip.Addr{}, fmt.Errorf("an address of %d bytes: at most %d", len(text), maxAddr)
	}
	return netip.ParseAddr(text)
}

// mistakes are the errors of Operation that are not violations.
var mistakes = []error{endpoint.ErrTag, endpoint.ErrUnreachable, endpoint.ErrUplink}

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

// Record makes the record of a request: the inverse of ParseRequest and Operation.
func (o Operation) Record(id uint64) ([]byte, error) {
	r := Request{Version: Version, ID: id, Op: o.Op, After: o.After, Socket: o.Socket, MemoryPaths: o.MemoryPaths}
	var err error
	switch o.Op {
	case OpOpen:
		r.Open, err = json.Marshal(o.Open)
	case OpClaim, OpUnclaim:
		var text []byte
		text, err = o.Tag.MarshalText()
		r.Tag = string(text)
	case OpResolve, OpRoute:
		r.Interface = o.Interface
		if o.Addr.IsValid() {
			r.Addr = o.Addr.String()
		}
		if o.Source.IsValid() {
			r.Source = o.Source.String()
		}
	case OpRevoke:
		r.Endpoint, r.Reason = &o.Endpoint, o.Reason
	case OpPath:
		r.Endpoint = &o.Endpoint
	case OpUnpath:
		r.Path = &o.Path
	case OpCapture:
		r.Endpoint = o.Captured
	case OpDrain:
		r.Undo = o.Undo
	}
	if err != nil {
		return nil, err
	}
	record, err := json.Marshal(r)
	if err == nil && len(record) > MaxRecord {
		err = Violation("a request of %d bytes: at most %d", len(record), MaxRecord)
	}
	return record, err
}
