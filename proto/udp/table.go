package udp

import (
	"hash/maphash"
	"math/rand/v2"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// AddrPort is an address and port.
type AddrPort = wire.AddrPort

// The range ephemeral ports come from: the kernel's default
// (ip_local_port_range). RFC 6056 recommends a large range; services use lower ports.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// Config of a [Table]. The zero value works.
type Config struct {
	// PartialChecksums accepts checksums that cover the pseudo-header only, as
	// they are on a virtual link. Otherwise they are corruption. One of 65,536
	// complete checksums has such a value, too; damage to such a datagram is not detected.
	PartialChecksums bool
	// Rand is the source of ephemeral ports, uniform over its range. The
	// default is a cryptographically strong generator, as RFC 6056 (section
	// 3.3) would have it.
	Rand func() uint32
}

// Table is all the UDP sockets of one stack. Its methods and those of its
// sockets are not safe for concurrent use.
type Table struct {
	cfg   Config
	pages [256]*page // by the upper half of the local port
	count Counters
	open  int // sockets
	seed  maphash.Seed
}

type page struct {
	ports [256]*Socket // by the lower half: a list of the sockets that have the port
	used  int          // ports that have a socket
}

// NewTable makes an empty table.
func NewTable(cfg Config) *Table {
	if cfg.Rand == nil {
		cfg.Rand = rand.Uint32
	}
	return &Table{cfg: cfg, seed: maphash.MakeSeed()}
}

// Open makes a socket bound to local and, unless remote is zero, connected to
// it. Port 0 in local stands for an ephemeral one. The address in local may be a wildcard, see
// [wire.Addr].
//
// Errors: EADDRINUSE if a socket of an overlapping address (see [wire.Addr.Overlaps]) has the port
// and the two do not share it (Options.Shared), or no ephemeral one is free; EINVAL if remote has
// an address without a port, or a port without an address.
func (t *Table) Open(local, remote AddrPort, o Options) (*Socket, error) {
	if !remote.IsZero() && (remote.Port == 0 || remote.Addr.IsWildcard()) {
		return nil, syscall.EINVAL
	}
	if o.QueueDatagrams <= 0 {
		o.QueueDatagrams = DefaultQueueDatagrams
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	s := &Socket{
		Owner:  o.Owner,
		local:  local,
		remote: remote,
		table:  t,
		queue:  queue{maxCount: min(o.QueueDatagrams, maxQueueDatagrams), maxBytes: o.QueueBytes},
	}
	if local.Port == 0 {
		p, ok := t.ephemeralPort(local.Addr)
		if !ok {
			return nil, syscall.EADDRINUSE
		}
		s.local.Port = p
	} else if s.shared = o.Shared && remote.IsZero(); t.overlaps(local) && !t.mayShare(s) {
		return nil, syscall.EADDRINUSE
	}
	t.insert(s)
	return s, nil
}

// Close takes s out of the table: it receives nothing more. What it has queued
// stays queued, frames and all, until it is popped. Closing twice is harmless.
func (t *Table) Close(s *Socket) {
	if !s.open {
		return
	}
	s.open = false
	t.open--
	pg := t.pages[s.local.Port>>8]
	at := &pg.ports[s.local.Port&0xff]
	first := at
	for *at != s {
		at = &(*at).next
	}
	*at, s.next = s.next, nil
	if *first != nil {
		return
	}
	if pg.used--; pg.used == 0 {
		t.pages[s.local.Port>>8] = nil
	}
}

// ephemeralPort picks a free port for addr at random (RFC 6056, section 3.3.2: another
// random one after each collision), and reports whether there is one. After 64 collisions
// it goes through the range in order.
func (t *Table) ephemeralPort(addr wire.Addr) (uint16, bool) {
	const n = lastEphemeral - firstEphemeral + 1
	for range 64 {
		if p := firstEphemeral + uint16(t.cfg.Rand()%n); !t.overlaps(AddrPort{Addr: addr, Port: p}) {
			return p, true
		}
	}
	start := t.cfg.Rand() % n
	for i := range uint32(n) {
		if p := firstEphemeral + uint16((start+i)%n); !t.overlaps(AddrPort{Addr: addr, Port: p}) {
			return p, true
		}
	}
	return 0, false
}

// Lookup finds the socket that a datagram from src to dst is for: bound to dst's address or
// to a wildcard, and not connected to another than src. nil: there is none.
func (t *Table) Lookup(src, dst AddrPort) *Socket {
	for s := t.first(dst.Port); s != nil; s = s.next {
		if s.local.Addr == dst.Addr || s.local.Addr.Takes(dst.Addr) {
			if s.Connected() && s.remote != src {
				return nil
			}
			if s.shared {
				return s.share(src)
			}
			return s
		}
	}
	return nil
}

// first is the first of the list of sockets that have a port.
func (t *Table) first(port uint16) *Socket {
	if pg := t.pages[port>>8]; pg != nil {
		return pg.ports[port&0xff]
	}
	return nil
}

func (t *Table) insert(s *Socket) {
	pg := t.pages[s.local.Port>>8]
	if pg == nil {
		pg = new(page)
		t.pages[s.local.Port>>8] = pg
	}
	first := &pg.ports[s.local.Port&0xff]
	if *first == nil {
		pg.used++
	}
	s.next, *first = *first, s
	s.open = true
	t.open++
}

// overlaps reports whether any socket could receive what is sent to local.
func (t *Table) overlaps(local AddrPort) bool {
	for s := t.first(local.Port); s != nil; s = s.next {
		if overlap(s.local.Addr, local.Addr) {
			return true
		}
	}
	return false
}

// overlap reports whether sockets with these local addresses exclude each other. Those of groups exclude none:
// each member gets a datagram of its own.
func overlap(a, b wire.Addr) bool {
	return a.Overlaps(b) && !a.IsMulticast() && !b.IsMulticast()
}

// mayShare reports whether all sockets that overlap with s have its address and share it.
func (t *Table) mayShare(s *Socket) bool {
	for o := t.first(s.local.Port); o != nil; o = o.next {
		if overlap(o.local.Addr, s.local.Addr) && !(s.shared && o.shared && o.local == s.local) {
			return false
		}
	}
	return true
}

// share chooses the socket for a sender among s, the first, and those that share its port.
func (s *Socket) share(src AddrPort) *Socket {
	n := 0
	for o := s; o != nil; o = o.next {
		if o.local == s.local {
			n++
		}
	}
	nth := maphash.Comparable(s.table.seed, src) % uint64(n) // keyed: a sender cannot choose the socket
	for o := s; ; o = o.next {
		if o.local != s.local {
			continue
		}
		if nth == 0 {
			return o
		}
		nth--
	}
}

// Verdict is what became of a datagram.
type Verdict uint8

const (
	Queued      Verdict = iota // at least one datagram waits on the socket
	NoSocket                   // no socket has the port; the caller may answer with ICMP port unreachable
	QueueFull                  // the socket's queue has reached a bound
	BadLength                  // truncated, or the length field is impossible
	BadChecksum                // wrong, or partial on a link that has no such checksums
)

// Counters count datagrams, except where stated. Every datagram of
// every call to [Table.Process] is counted by one of the first five; a payload that is
// no datagram counts as one.
type Counters struct {
	Received    uint64 // queued on a socket
	NoSocket    uint64
	QueueFull   uint64
	BadLength   uint64
	BadChecksum uint64
	Sent        uint64 // counted by CountSent
	Errors      uint64 // ICMP errors that became a socket's pending error
}

// Counters returns a copy of the table's counters.
func (t *Table) Counters() Counters { return t.count }

// Inbound is one IP payload for [Table.Process].
type Inbound struct {
	Src, Dst wire.Addr // of the IP header
	Data     []byte    // the UDP datagram, and perhaps padding
	Frame    uint64    // handle for the memory of Data, see [Datagram]
	// GSOSize is not 0 if Data is a super-frame, one header before the payloads
	// of several datagrams: the length in bytes of each payload but the last.
	GSOSize uint16
	Heap    bool  // Data is memory of the Go heap; Frame means nothing
	ECN     uint8 // of the IP header, see [wire.ECNMask]
	// Group is not 0 if Data was sent to a group of To: [Socket.Group].
	Group uint8
	// To is the socket of a datagram to a group: one that [Table.Member] returns. Of other datagrams it is
	// nil: they go to one socket, which is looked up.
	To *Socket
	// Reassembled: Data was in fragments, so that its checksum is complete. It must have no
	// padding, which would be memory that the bound of the queue does not count.
	Reassembled bool
	// Complete: a checksum of the pseudo-header only is not accepted, whatever [Config.PartialChecksums] says.
	Complete bool
}

// Process takes one IP payload to the socket it is for. n is the number of
// datagrams queued that refer to in.Frame: one, or for a super-frame up to as
// many as it holds. The socket owns them now. If n is 0 the frame stays with
// the caller. The socket is nil only with NoSocket, BadLength and BadChecksum;
// the caller wakes its reader if n > 0.
func (t *Table) Process(in *Inbound) (s *Socket, n int, v Verdict) {
	u, err := wire.ParseUDP(in.Data, in.Src, in.Dst, t.cfg.PartialChecksums && !in.Reassembled && !in.Complete)
	if in.Reassembled && err == nil && wire.UDPHeaderLen+len(u.Payload) < len(in.Data) {
		err = wire.ErrLength
	}
	if s = in.To; s == nil && err == nil {
		s = t.Lookup(AddrPort{Addr: in.Src, Port: u.SrcPort}, AddrPort{Addr: in.Dst, Port: u.DstPort})
	}
	datagrams := 1
	if in.GSOSize != 0 {
		datagrams = max(1, (len(u.Payload)+int(in.GSOSize)-1)/int(in.GSOSize))
	}
	switch {
	case err == wire.ErrChecksum:
		t.count.BadChecksum += uint64(datagrams)
		return nil, 0, BadChecksum
	case err != nil:
		t.count.BadLength++
		return nil, 0, BadLength
	case s == nil:
		t.count.NoSocket += uint64(datagrams)
		return nil, 0, NoSocket
	}
	rest := u.Payload
	for range datagrams - 1 {
		k := int(in.GSOSize)
		if s.push(in, u.SrcPort, rest[:k:k]) {
			n++
		}
		rest = rest[k:]
	}
	if s.push(in, u.SrcPort, rest) {
		n++
	}
	s.count.Received += uint64(n)
	t.count.Received += uint64(n)
	if n < datagrams {
		s.count.QueueFull += uint64(datagrams - n)
		t.count.QueueFull += uint64(datagrams - n)
	}
	if n == 0 {
		return s, 0, QueueFull
	}
	return s, n, Queued
}

// ProcessICMP returns the socket that sent the UDP packet which an ICMP error quotes, or nil.
// If that socket is connected, the error becomes its pending error, and pending is true: the
// caller wakes its waiters. pending is false for errors that may be transient (a route that
// flaps), as in the kernel without the IP_RECVERR option.
//
// A packet that was too big is EMSGSIZE here; the new MTU is for the caller's routes.
func (t *Table) ProcessICMP(e *wire.ICMPError) (s *Socket, pending bool) {
	srcPort, dstPort, ok := e.Ports()
	if !ok || e.Protocol != wire.ProtocolUDP {
		return nil, false
	}
	// The source of the quoted packet is the local end.
	s = t.Lookup(AddrPort{Addr: e.Dst, Port: dstPort}, AddrPort{Addr: e.Src, Port: srcPort})
	if s == nil || !s.Connected() {
		return s, false
	}
	if !e.Hard && !e.TooBig || e.Errno == 0 {
		return s, false
	}
	s.err = e.Errno
	t.count.Errors++
	return s, true
}
