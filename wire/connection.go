package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// A process publishes its sockets in memory that it shares with unetd (ADR 26): unetd shows
// them, and sends a RST to the peer of each TCP connection when the process has died. The
// memory is a table of records of [ConnectionLen] bytes. The first place has a
// [ConnectionsHeader]. All fields have the byte order of the machine.
//
// The process writes with plain stores while others read, so a record that is read may have
// fields of two moments. Each field is valid by itself, or made so by its reader.

// Connection is what a process publishes about a TCP connection after its handshake, a TCP
// listener or a UDP socket.
type Connection struct {
	Local, Remote         Addr   // Local may be a wildcard, see [Addr]; Remote of a socket that is not connected: zero
	LocalPort, RemotePort uint16 // RemotePort 0: not connected
	Next                  uint32 // TCP: the highest SND.NXT so far (RFC 9293, section 3.3.1), always up to date

	// The fields below are brought up to date within 100 ms after a change, later if there are
	// many active sockets.
	State        uint8  // TCP: the number of its state in package proto/tcp; UDP: 0
	Protocol     uint8  // ProtocolTCP or ProtocolUDP; 0: the record is empty
	MSS          uint16 // bytes, TCP
	Window       uint32 // congestion window in bytes, TCP
	InFlight     uint32 // bytes that were sent and not acknowledged, TCP
	SendQueue    uint32 // bytes that were written and not acknowledged; of a listener: the bound of ReceiveQueue
	ReceiveQueue uint32 // bytes that were received and not read; of a listener: connections not accepted
	Drops        uint32 // UDP: datagrams that found the queue full
	RTT          uint64 // ns, smoothed, TCP; 0: not measured
	RTTVar       uint64 // ns
	RTO          uint64 // ns
	Received     uint64 // segments or datagrams
	Sent         uint64 // segments or datagrams
	BytesIn      uint64 // TCP: received in order
	BytesAcked   uint64 // TCP: sent and acknowledged
	Again        uint64 // TCP: segments sent again
}

// ConnectionLen is the length of a record in memory, in bytes.
const ConnectionLen = 128

// maxPublishedTime is the longest time that a reader believes.
const maxPublishedTime = uint64(time.Hour)

// ParseConnection reads the record at the start of b, which has [ConnectionLen] bytes or more.
// The result is empty (Protocol 0) if it cannot be a record. Impossible times become 0.
func ParseConnection(b []byte) Connection {
	order := binary.NativeEndian
	b = b[:ConnectionLen]
	addr := func(at int) Addr { return Addr{order.Uint64(b[at:]), order.Uint64(b[at+8:])} }
	ns := func(at int) uint64 {
		if t := order.Uint64(b[at:]); t <= maxPublishedTime {
			return t
		}
		return 0
	}
	c := Connection{
		Local: addr(0), Remote: addr(16), LocalPort: order.Uint16(b[32:]), RemotePort: order.Uint16(b[34:]),
		Next: order.Uint32(b[36:]), State: b[40], Protocol: b[41], MSS: order.Uint16(b[42:]),
		Window: order.Uint32(b[44:]), InFlight: order.Uint32(b[48:]),
		SendQueue: order.Uint32(b[52:]), ReceiveQueue: order.Uint32(b[56:]), Drops: order.Uint32(b[60:]),
		RTT: ns(64), RTTVar: ns(72), RTO: ns(80),
		Received: order.Uint64(b[88:]), Sent: order.Uint64(b[96:]),
		BytesIn: order.Uint64(b[104:]), BytesAcked: order.Uint64(b[112:]), Again: order.Uint64(b[120:]),
	}
	if c.Protocol != ProtocolTCP && c.Protocol != ProtocolUDP || c.LocalPort == 0 {
		return Connection{}
	}
	return c
}

// ConnectionsHeader is the first place of a table.
type ConnectionsHeader struct {
	Magic     [8]byte // ConnectionsMagic
	Version   uint32  // ConnectionsVersion
	RecordLen uint32  // ConnectionLen
	Endpoint  EndpointRecord
}

// ConnectionsVersion is the version of the table's format. Version 1 had no header and records
// of 16 bytes, of IPv4 connections: both addresses, both ports, Next. No address of a host
// begins as [ConnectionsMagic] does.
const ConnectionsVersion = 2

// ConnectionsMagic is the start of a table.
var ConnectionsMagic = [8]byte{0xff, 'u', 'n', 'e', 't', 't', 'a', 'b'}

// EndpointRecord is what a process publishes about its endpoint: frames since it was opened,
// and the queues as they were at the last publication.
type EndpointRecord struct {
	Sent, Received   uint64
	QueueFull        uint64 // sends refused: the send queue was full
	NoBuffers        uint64 // allocations refused: no frame was free
	Malformed        uint64 // received and dropped: a header is wrong
	RxRingFull       uint64 // dropped by the kernel: the receive queue was full
	FillRingEmpty    uint64 // dropped by the kernel: the free queue was empty
	RxDropped        uint64 // dropped by the kernel: no memory, or too long
	InvalidRx        uint64 // entries of the free queue outside the segment
	InvalidTx        uint64 // entries of the send queue outside the segment
	RxQueue, TxQueue uint32 // entries that wait

	// Frames by memory paths, which Sent and Received do not count.
	PathSent, PathReceived uint64
	PathDropped            uint64 // the path was full, no frame was free, or a tag belonged to another endpoint
}

// ErrConnectionsVersion: a table has another version.
var ErrConnectionsVersion = errors.New("version of the table of connections")

// ParseConnectionsVersion returns the version of the table that begins with b, which may be
// shorter than a header. The error is ErrConnectionsVersion for one that is neither 1 nor
// ConnectionsVersion.
func ParseConnectionsVersion(b []byte) (version uint32, err error) {
	if len(b) < 16 || [8]byte(b) != ConnectionsMagic {
		return 1, nil
	}
	version, size := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])
	if version != ConnectionsVersion || size != ConnectionLen {
		return 0, fmt.Errorf("%w: %d with records of %d bytes: want %d with %d", ErrConnectionsVersion, version, size, ConnectionsVersion, ConnectionLen)
	}
	return version, nil
}

// ParseEndpointRecord reads the endpoint's record from a header of ConnectionLen bytes or more.
func ParseEndpointRecord(b []byte) (e EndpointRecord) {
	n := binary.NativeEndian
	b = b[16:ConnectionLen]
	for i, v := range []*uint64{&e.Sent, &e.Received, &e.QueueFull, &e.NoBuffers, &e.Malformed, &e.RxRingFull, &e.FillRingEmpty, &e.RxDropped, &e.InvalidRx, &e.InvalidTx} {
		*v = n.Uint64(b[8*i:])
	}
	e.RxQueue, e.TxQueue = n.Uint32(b[80:]), n.Uint32(b[84:])
	e.PathSent, e.PathReceived, e.PathDropped = n.Uint64(b[88:]), n.Uint64(b[96:]), n.Uint64(b[104:])
	return e
}

// Connections hands out the records of a table to the sockets of a process. Its methods are not
// safe for concurrent use. A nil Connections has no records.
type Connections struct {
	unused []Connection  // never used
	freed  []*Connection // used, and free again; the last is used next

	choose func(local Addr) *Connections // of JoinConnections; nil: the records are in the above
	from   map[*Connection]*Connections  // what choose has returned for each record in use
}

// NewConnections takes records that are empty.
func NewConnections(records []Connection) *Connections { return &Connections{unused: records} }

// JoinConnections makes one of several, of which choose returns the one for sockets with a local address; nil: they get no
// record.
func JoinConnections(choose func(local Addr) *Connections) *Connections {
	return &Connections{choose: choose, from: make(map[*Connection]*Connections)}
}

// Get returns an empty record for a socket with that local address; nil if there is none.
func (p *Connections) Get(local Addr) (c *Connection) {
	switch {
	case p == nil:
	case p.choose != nil:
		from := p.choose(local)
		if c = from.Get(local); c != nil {
			p.from[c] = from
		}
	case len(p.freed) > 0:
		c = p.freed[len(p.freed)-1]
		p.freed = p.freed[:len(p.freed)-1]
	case len(p.unused) > 0:
		c = &p.unused[0]
		p.unused = p.unused[1:]
	}
	return c
}

// Put empties a record and takes it back. It may be nil.
func (p *Connections) Put(c *Connection) {
	if c == nil {
		return
	}
	if p.choose != nil {
		p.from[c].Put(c)
		delete(p.from, c)
		return
	}
	c.Protocol = 0 // first, for those who read meanwhile
	*c = Connection{}
	p.freed = append(p.freed, c)
}

// Saturate is n in a field of 32 bits.
func Saturate[T int | uint64](n T) uint32 { return uint32(min(uint64(max(n, 0)), math.MaxUint32)) }
