package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"

	"github.com/unet-go/unet/wire"
)

// Attachment is how an endpoint is attached to the mux.
type Attachment uint8

const (
	// AttachPort gives the endpoint a port of the mux: a veth pair of its own. The
	// mux checks everything it sends. This is the default.
	AttachPort Attachment = iota
	// AttachQueue binds the endpoint's socket to a queue of the uplink. The mux
	// cannot check what it sends, so it is for trusted owners only.
	AttachQueue
)

func (a Attachment) String() string {
	if a == AttachQueue {
		return "queue"
	}
	return "port"
}

// ParseAttachment is the inverse of [Attachment.String].
func ParseAttachment(s string) (Attachment, error) {
	switch s {
	case "port":
		return AttachPort, nil
	case "queue":
		return AttachQueue, nil
	}
	return 0, fmt.Errorf("attachment %q: want port or queue", s)
}

// MarshalText and UnmarshalText encode an attachment by its name.
func (a Attachment) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a *Attachment) UnmarshalText(b []byte) (err error) {
	*a, err = ParseAttachment(string(b))
	return err
}

// Geometry is the shape of a communication segment and its four rings.
// The zero value of a field asks for its default.
type Geometry struct {
	FrameSize      uint32 `json:"frame_size,omitempty"`      // bytes; 2048 or 4096; 0 on a queue: 4096 if that gets zero copy and 2048 does not
	FrameCount     uint32 `json:"frame_count,omitempty"`     // frames in the segment
	FillSize       uint32 `json:"fill_size,omitempty"`       // entries, a power of two, as are the next three
	CompletionSize uint32 `json:"completion_size,omitempty"` // entries
	RxSize         uint32 `json:"rx_size,omitempty"`         // entries
	TxSize         uint32 `json:"tx_size,omitempty"`         // entries
}

// Defaults of a Geometry: 8 MiB of segment, rings of 2048.
const (
	DefaultFrameSize  = 2048
	DefaultFrameCount = 4096
	DefaultRingSize   = 2048

	minFrames      = 16 // of 16 the fill queue gets 8, the application at most 4, so 4 are left to send
	maxRingSize    = 1 << 16
	maxSegmentSize = 1 << 30 // bytes
)

// ErrGeometry is wrapped by every error of [Geometry.Validate].
var ErrGeometry = errors.New("unusable segment geometry")

// WithDefaults returns g with its zero fields filled in.
func (g Geometry) WithDefaults() Geometry {
	return Geometry{
		FrameSize:      cmp.Or(g.FrameSize, DefaultFrameSize),
		FrameCount:     cmp.Or(g.FrameCount, DefaultFrameCount),
		FillSize:       cmp.Or(g.FillSize, DefaultRingSize),
		CompletionSize: cmp.Or(g.CompletionSize, DefaultRingSize),
		RxSize:         cmp.Or(g.RxSize, DefaultRingSize),
		TxSize:         cmp.Or(g.TxSize, DefaultRingSize),
	}
}

// SegmentSize is the size of the communication segment in bytes.
func (g Geometry) SegmentSize() int64 { return int64(g.FrameSize) * int64(g.FrameCount) }

// Prefilled is the number of frames that are on the fill queue before the
// endpoint starts: frames 0 to Prefilled-1 belong to the kernel at first,
// the others to the pool.
func (g Geometry) Prefilled() uint32 { return min(g.FillSize, g.FrameCount/2) }

// Validate returns an error for a shape that the kernel
// (Documentation/networking/af_xdp.rst) or the pool cannot use.
func (g Geometry) Validate() error {
	if g.FrameSize != 2048 && g.FrameSize != 4096 {
		return fmt.Errorf("%w: frame size %d: want 2048 or 4096 bytes", ErrGeometry, g.FrameSize)
	}
	if g.FrameCount < minFrames {
		return fmt.Errorf("%w: %d frames: want at least %d", ErrGeometry, g.FrameCount, minFrames)
	}
	if s := g.SegmentSize(); s > maxSegmentSize {
		return fmt.Errorf("%w: a segment of %d bytes is too large: at most %d", ErrGeometry, s, maxSegmentSize)
	}
	for _, r := range []struct {
		name string
		size uint32
	}{{"fill", g.FillSize}, {"completion", g.CompletionSize}, {"rx", g.RxSize}, {"tx", g.TxSize}} {
		if r.size == 0 || r.size&(r.size-1) != 0 || r.size > maxRingSize {
			return fmt.Errorf("%w: %s ring of %d entries: want a power of two up to %d", ErrGeometry, r.name, r.size, maxRingSize)
		}
	}
	return nil
}

// Request is what a process asks for when it opens an endpoint.
type Request struct {
	Attach   Attachment `json:"attach"`
	Queue    uint32     `json:"queue,omitempty"` // of the uplink; for AttachQueue
	Geometry Geometry   `json:"geometry"`
	Tags     []Tag      `json:"tags,omitempty"` // claimed with the endpoint, all or none
	Huge     bool       `json:"huge,omitempty"` // back the segment with huge pages

	// Interface is the uplink, by its name. Empty: the one that has the addresses of Tags,
	// else the only one for this user, else the error is an ErrUplink: an UplinksError if several fit.
	Interface string `json:"interface,omitempty"`

	// NoMemoryPaths: all frames go by the port. Otherwise the grant has the tag table, with which a process can use memory paths.
	NoMemoryPaths bool `json:"-"`

	// Connections is a table of the process's TCP connections (datapath.Connections): if
	// the process dies, a RST is sent to their peers. nil: no RST is sent. The caller closes it.
	Connections *os.File `json:"-"`
}

// Grant is what a process gets for its request: a bound AF_XDP socket, the memory of
// its communication segment, and their description. Package mux makes it, package control
// receives it from unetd, and datapath.Attach takes over its descriptors.
type Grant struct {
	XSK     *os.File `json:"-"` // bound AF_XDP socket
	Segment *os.File `json:"-"` // sealed memfd that backs the UMEM
	Table   *os.File `json:"-"` // which endpoint of the mux holds which tag, read-only; nil: the endpoint has no memory paths

	ID       uint64     `json:"id"` // endpoint number, unique on its mux
	Attach   Attachment `json:"attach"`
	Geometry Geometry   `json:"geometry"`
	Identity Identity   `json:"identity"`
	Tags     []Tag      `json:"tags,omitempty"` // claimed so far, with their wildcards resolved

	ZeroCopy   bool   `json:"zero_copy"`             // the device reads and writes the segment itself
	CopyReason string `json:"copy_reason,omitempty"` // why it does not, and the kernel copies
}

// Close closes the descriptors. datapath.Attach takes them over when it succeeds.
func (g *Grant) Close() error {
	var err error
	for _, f := range [...]*os.File{g.XSK, g.Segment, g.Table} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// Identity is the addresses of an endpoint, and the properties of its uplink.
type Identity struct {
	Interface string        `json:"interface"`      // name of the uplink
	Index     int           `json:"index,omitzero"` // its number, in the network namespace of unetd
	LinkAddr  wire.LinkAddr `json:"link_addr"`      // MAC address: the mux drops what a port sends from another one
	// Addrs are the addresses of the uplink on which ports can be claimed, each with its
	// subnet, in the order in which a wildcard prefers them: primary IPv4 addresses, secondary
	// ones, global IPv6 addresses, temporary ones (RFC 8981), deprecated ones, link-local ones.
	// If there are more than MaxIdentityAddrs, the first notices of the lease report the others.
	Addrs []netip.Prefix `json:"addrs,omitempty"`
	MTU   uint32         `json:"mtu"` // largest IP packet, bytes: that of the uplink, or less so that a packet for an untrusted owner fits one frame
	// PartialChecksums: received frames may have a transport checksum of the pseudo-header
	// only. Programs of the same host and the other end of a virtual link leave it so, and
	// generic receive offload in what it has merged.
	PartialChecksums bool   `json:"partial_checksums"`
	Mode             string `json:"mode"` // "tcx" or "native": how the mux is attached
}

// MaxIdentityAddrs limits the addresses in an Identity.
const MaxIdentityAddrs = 64

// Rate limits what is sent, by token buckets; a rate of 0: no limit. It counts Ethernet frames without
// their checksum.
type Rate struct {
	Packets     int64 `json:"packets_per_second,omitempty"`
	PacketBurst int64 `json:"packet_burst,omitempty"` // packets that may be sent at once
	Bytes       int64 `json:"bytes_per_second,omitempty"`
	ByteBurst   int64 `json:"byte_burst,omitempty"` // bytes that may be sent at once
}

// Rates limits what an endpoint sends, and what all endpoints of its user send together.
type Rates struct {
	Endpoint Rate `json:"endpoint,omitzero"`
	User     Rate `json:"user,omitzero"`
}

// Info describes an endpoint to an operator.
type Info struct {
	ID           uint64     `json:"id"`
	Interface    string     `json:"interface,omitempty"` // name of the uplink
	UID          uint32     `json:"uid"`                 // of the process that opened it, or presented it last
	PID          int        `json:"pid"`                 // of the same, in the PID namespace of the mux's process
	Attach       Attachment `json:"attach"`
	Device       string     `json:"device"` // outer end of the port, or the uplink
	Queue        uint32     `json:"queue"`  // of the uplink, for AttachQueue
	SegmentBytes int64      `json:"segment_bytes"`
	Tags         []Tag      `json:"tags"`                  // a list that unetd sends has at most 256 of them
	TagsTotal    int        `json:"tags_total"`            // how many it has
	Leased       bool       `json:"leased"`                // false: taken over from another unetd, and its application has not presented it yet
	Mode         string     `json:"mode"`                  // how the mux is attached: "tcx" or "native"
	ZeroCopy     bool       `json:"zero_copy"`             // the device reads and writes the segment itself
	CopyReason   string     `json:"copy_reason,omitempty"` // why it does not, and the kernel copies

	// SpreadOver is the number of queues over which the sender spreads the endpoint's frames, of
	// which it gets those that come in on its own; 0: it gets all.
	SpreadOver uint32 `json:"spread_over,omitempty"`

	// Paths is the number of memory paths that it has to other endpoints now.
	Paths int `json:"memory_paths,omitempty"`

	// Rates is what its owner may send. TxRateEndpoint and TxRateUser are the frames of this
	// endpoint that were dropped because they were beyond its rate, or its user's.
	Rates          Rates  `json:"rates,omitzero"`
	TxRateEndpoint uint64 `json:"tx_rate_endpoint,omitempty"`
	TxRateUser     uint64 `json:"tx_rate_user,omitempty"`
}

// Uplink describes an interface that unetd serves to an operator.
type Uplink struct {
	Interface string `json:"interface"` // its name when unetd was started
	Index     int    `json:"index"`     // its number, in the network namespace of unetd; 0 while Unusable
	Mode      string `json:"mode"`      // how the mux is attached: "tcx" or "native"
	Up        bool   `json:"up"`        // the link is up
	Endpoints int    `json:"endpoints"` // with a lease, or waiting to be presented
	// Unusable is why the interface cannot be used now, such as that it was deleted; unetd
	// serves it again when that is over. Empty: it is served.
	Unusable string `json:"unusable,omitempty"`
}

// PolicyChange is what a reload of the policy has changed.
type PolicyChange struct {
	Policy  string   `json:"policy"`            // its file, or "the built-in policy"
	Rules   int      `json:"rules"`             // that it has now
	Changes []string `json:"changes"`           // one line each, such as "rule lab: added"; none: it is as before
	Warning string   `json:"warning,omitempty"` // who else can write to the file
}

// Counter is a counter of a mux or of unetd.
type Counter struct {
	Name  string `json:"name"`
	Help  string `json:"help"` // what it counts, in one line
	Value uint64 `json:"value"`
	// Interface is the uplink that it is about; empty: it is about all.
	Interface string `json:"interface,omitempty"`
}

// Route is how packets from Source reach a destination.
type Route struct {
	Source   netip.Addr    `json:"source"`    // the source that was asked for, or the kernel's choice
	NextHop  netip.Addr    `json:"next_hop"`  // the destination itself, or a gateway
	LinkAddr wire.LinkAddr `json:"link_addr"` // MAC address of the next hop
	MTU      uint32        `json:"mtu"`       // bytes of IP packet
	// MTULocked: routers may fragment what is sent there (ip route, "mtu lock"), so there is no
	// path MTU to find.
	MTULocked bool `json:"mtu_locked,omitempty"`
	// AdvMSS is the MSS that TCP announces at most, in bytes (ip route, "advmss"); 0: that of the MTU.
	AdvMSS uint32 `json:"adv_mss,omitempty"`
}

// UplinkRoute is how endpoints on one uplink reach a destination, and how the kernel does.
type UplinkRoute struct {
	Interface  string       `json:"interface"`
	Addrs      []UplinkAddr `json:"addrs"`           // the first ones, in the order in which a wildcard prefers them
	AddrsTotal int          `json:"addrs_total"`     // how many the uplink has
	Route      *Route       `json:"route,omitempty"` // nil if no destination was asked for, or for the reason in Error
	Error      string       `json:"error,omitempty"`
	Kernel     *KernelRoute `json:"kernel,omitempty"` // nil if no destination was asked for
}

// UplinkAddr is an address of an uplink.
type UplinkAddr struct {
	Prefix netip.Prefix `json:"prefix"`          // the address with the length of its subnet
	Flags  []string     `json:"flags,omitempty"` // as ip-address(8) has them: "secondary", "temporary", "deprecated", "tentative", "dadfailed"
}

// KernelRoute is the kernel's route to a destination: what `ip route get` shows (ip-route(8)).
type KernelRoute struct {
	Interface string     `json:"interface,omitempty"` // empty if there is no route, for the reason in Error
	Type      string     `json:"type,omitempty"`      // "unicast", "local", "broadcast" or "multicast"
	Source    netip.Addr `json:"source,omitzero"`     // the source that was asked for, or the kernel's choice
	NextHop   netip.Addr `json:"next_hop,omitzero"`   // the destination itself, or a gateway
	MTU       uint32     `json:"mtu,omitempty"`       // bytes of IP packet
	Error     string     `json:"error,omitempty"`
}

// Errors of a [Lease] and of the functions that open one, wrapped.
var (
	// ErrTagHeld: another endpoint, or a socket of the kernel, holds the tag.
	ErrTagHeld = errors.New("tag already claimed")
	// ErrTagDenied: the policy forbids the claim, or nobody may claim such a tag.
	ErrTagDenied = errors.New("tag not allowed")
	// ErrNoAddr is an ErrTagDenied: the uplink does not have the tag's address now.
	ErrNoAddr error = noAddr{}
	// ErrUnreachable: there is no route ([ErrNoRoute]), or one without a next hop (of type
	// unreachable, [ErrProhibited], [ErrBlackhole]), or the next hop does not answer ARP or
	// neighbour discovery.
	ErrUnreachable = errors.New("host unreachable")
	// ErrNoRoute is an ErrUnreachable: no route leads to the address by the uplink.
	ErrNoRoute error = unreachable("network unreachable")
	// ErrProhibited is an ErrUnreachable: the route, or a rule, is of type prohibit.
	ErrProhibited error = unreachable("route prohibited")
	// ErrBlackhole is an ErrUnreachable: the route, or a rule, is of type blackhole.
	ErrBlackhole error = unreachable("route into a black hole")
	// ErrLeaseClosed: the lease was closed, or its grantor took it back.
	ErrLeaseClosed = errors.New("lease closed")
	// ErrBusy: a limit is reached, or what was asked for is in use. A later attempt may
	// succeed.
	ErrBusy = errors.New("busy")
	// ErrNotPresentable: what was presented is not the socket of an endpoint of the mux. It
	// is another file, or its endpoint has ended: the endpoint was not presented in time, or
	// its unetd removed it.
	ErrNotPresentable = errors.New("not an endpoint of this unetd")
	// ErrLeased: the endpoint that was presented has a lease already.
	ErrLeased = errors.New("endpoint already leased")
	// ErrNoEndpoint: unetd has no endpoint of that number.
	ErrNoEndpoint = errors.New("no such endpoint")
	// ErrUplink: a request for an endpoint names no interface that unetd serves, or there are
	// several for it and it names none.
	ErrUplink = errors.New("which interface")
	// ErrHugePages: the system has too few huge pages set aside for the segment.
	ErrHugePages = errors.New("huge pages")
)

// UplinksError is the ErrUplink of a request that names no interface, for which there are several: of all of them the
// policy gives the user an endpoint, or they have the addresses of its tags.
type UplinksError struct{ Uplinks []UplinkChoice }

// UplinkChoice is one of the interfaces.
type UplinkChoice struct {
	Interface string `json:"interface"`
	Tags      []Tag  `json:"tags,omitempty"` // those of the request whose addresses are in its subnets
}

func (e *UplinksError) Error() string { return ErrUplink.Error() }
func (e *UplinksError) Unwrap() error { return ErrUplink }

// unreachable is an ErrUnreachable with a text of its own.
type unreachable string

func (u unreachable) Error() string { return string(u) }
func (unreachable) Unwrap() error   { return ErrUnreachable }

// noAddr is ErrNoAddr.
type noAddr struct{}

func (noAddr) Error() string { return "address not available" }
func (noAddr) Unwrap() error { return ErrTagDenied }

// CheckDestination returns an [ErrUnreachable] if dst cannot be the address of a host that an
// endpoint reaches. A zone is refused because every destination is on the uplink, and because a
// zone can be a string of any length, which neither the mux nor unetd keeps.
func CheckDestination(dst netip.Addr) error {
	switch {
	case !dst.IsValid() || dst.IsUnspecified():
		return fmt.Errorf("%w: %v: not the address of a host", ErrUnreachable, dst)
	case dst.Zone() != "":
		return fmt.Errorf("%w: %v with a zone: leave the zone out, it is on the uplink", ErrUnreachable, dst.WithZone(""))
	}
	return nil
}

// CheckSource returns an [ErrNoRoute] if packets to dst cannot have the source src: it has a zone, or
// is of another family. A src that is not valid leaves the choice to the kernel.
func CheckSource(src, dst netip.Addr) error {
	switch {
	case src.Zone() != "":
		return fmt.Errorf("%w: source %v with a zone: leave the zone out, it is on the uplink", ErrNoRoute, src.WithZone(""))
	case src.IsValid() && src.Unmap().Is4() != dst.Unmap().Is4():
		return fmt.Errorf("%w: source %v, destination %v: addresses of different families", ErrNoRoute, src, dst)
	}
	return nil
}

// NoticeKind is what has changed in the network around an endpoint.
type NoticeKind uint8

const (
	// NoticeRoute: the route that Resolve returned for a destination may have changed.
	// Ask again.
	NoticeRoute NoticeKind = iota + 1
	// NoticeLinkDown: the uplink is down; what is sent is lost.
	NoticeLinkDown
	// NoticeLinkUp: the uplink is up again.
	NoticeLinkUp
	// NoticeAddrGone: the host does not have the address now. The endpoint's tags on it are
	// suspended: it keeps them, and neither receives nor sends under them.
	NoticeAddrGone
	// NoticeAddrHere: the host has the address. It is new, or back, or its subnet has changed.
	// The endpoint's tags on it are in effect.
	NoticeAddrHere
	// NoticeUnetdGone: the connection to unetd is lost. The endpoint works; requests wait.
	NoticeUnetdGone
	// NoticeUnetdBack: a unetd has taken the endpoint over.
	NoticeUnetdBack
	// NoticeUplinkGone: a host with several uplinks has lost one for good, since its lease has ended.
	NoticeUplinkGone
)

// Notice is a change in the network around an endpoint.
type Notice struct {
	Kind NoticeKind
	// Interface is the name of the uplink, if the notice is of a host with several. A Lease has one.
	Interface string
	// Addr is the destination (NoticeRoute), or the address that is gone or here. A NoticeRoute
	// without it is about every destination. A NoticeAddrGone without it follows the notices of
	// all addresses that the host has: any other is gone. Only a mux.Lease that was presented has
	// that, since the mux does not know what an earlier one has reported.
	Addr netip.Addr
	// Bits is the length of the prefix of Addr's subnet (NoticeAddrHere).
	Bits uint8
}

// Lease is a process's right to an endpoint and its tags. It ends when it is closed or
// its grantor takes it back. A control.Lease ends with its process too, and it outlives
// unetd if it can connect to the next one in time. At the end tags, port and memory are
// reclaimed. Its methods may be called from any goroutine; none of them is on the data
// path.
type Lease interface {
	// Claim adds a tag and returns it with its wildcards resolved: port 0 becomes a free
	// port, or the first of a free block, the unspecified address becomes the uplink's,
	// message tag 0 becomes a free tag.
	Claim(ctx context.Context, t Tag) (Tag, error)
	// Unclaim releases a tag.
	Unclaim(ctx context.Context, t Tag) error
	// Resolve asks the route service how packets from src reach dst, which can depend on src
	// (ip rule). src is an address of the uplink, or one that the lease holds as a whole. If src is
	// not valid the kernel chooses it, as for a socket that is connected without a bind.
	//
	// The error is ErrNoRoute if dst has no route by the uplink, or src is another address. It is
	// another ErrUnreachable if the next hop does not answer ARP or neighbour discovery, or the
	// route is an unreachable one.
	Resolve(ctx context.Context, src, dst netip.Addr) (Route, error)
	// Notices returns what changes around the endpoint from now on, for one range loop. Each
	// turn of the loop gets what has changed since the last one: whether unetd is there first,
	// then the link, then the addresses of the uplink that are here, then those that are gone,
	// then routes of destinations that this lease has resolved, from any source. For more than 256
	// destinations there is one notice for all. If unetd is gone or the link is down, the first turn
	// reports that at once.
	//
	// Each loop starts from the addresses in the grant's Identity. So its first turn reports at
	// once what has changed since the grant, and the addresses of the uplink are always those
	// of the grant with what the loop has reported.
	//
	// The loop ends when ctx or the lease does. Notices are kept for it from the call on, until
	// then or until the loop is left. A loop delays no other.
	Notices(ctx context.Context) iter.Seq[[]Notice]
	// OpenPath asks for a memory path to another endpoint of the mux, by its ID. Both ends get it
	// by Paths. It returns nil if the path was made or existed. An error that wraps ErrNoPath says
	// why there is none: the policy, a rate, a capture, a limit, an endpoint on a queue, or one
	// whose process does not range over Paths.
	OpenPath(ctx context.Context, peer uint64) error
	// ClosePath ends a path, by its ID, for both ends. Until then its memory counts for the user of
	// the endpoint that asked for it. If the path has ended, ClosePath does nothing.
	ClosePath(ctx context.Context, id uint64) error
	// Paths returns the memory paths that the endpoint gets from now on, for one range loop, which
	// closes them. The endpoint gets none before the call, and none after the loop was left.
	//
	// The loop ends when ctx or the lease does, or with the next call of Paths.
	Paths(ctx context.Context) iter.Seq[*Path]
	// Done is closed when the lease has ended: it was closed, or its grantor took it
	// back. The endpoint has no tags and no port then: it can neither send nor receive.
	Done() <-chan struct{}
	// Err is the reason why Done is closed, an ErrLeaseClosed; nil before.
	Err() error
	// Close ends the lease.
	Close() error
}
