package udp

import (
	"encoding/binary"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// Verdict is what became of a datagram.
type Verdict uint8

const (
	Queued      Verdict = iota // at least one datagram waits on the socket
	NoSocket                   // nobody has the port; the caller may answer with ICMP port unreachable
	QueueFull                  // the socket's queue has reached a bound
	BadLength                  // truncated, or the length field is impossible
	BadChecksum                // wrong, or partial on a link that has no such checksums
)

// Counters count datagrams, except where they say otherwise. Every datagram of
// every call to [Table.Process] is in one of the first five; a payload that is
// not recognisable as a datagram counts as one.
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
	Src, Dst [4]byte // of the IP header
	Data     []byte  // the UDP datagram, and perhaps padding
	Frame    uint64  // handle for the memory of Data, see [Datagram]
	// GSOSize says that Data is a super-frame, one header before the payloads
	// of several datagrams: it is the length in bytes of each but the last. 0:
	// an ordinary datagram.
	GSOSize uint16
	Heap    bool // Data is memory of the Go heap; Frame means nothing
}

// Process takes one IP payload to the socket it is for. n is the number of
// datagrams queued that refer to in.Frame: one, or for a super-frame up to as
// many as it holds. The socket owns them now. If n is 0 the frame stays with
// the caller. The socket is nil only with NoSocket, BadLength and BadChecksum;
// the caller wakes its reader if n > 0.
func (t *Table) Process(in *Inbound) (s *Socket, n int, v Verdict) {
	u, err := wire.ParseUDP(in.Data)
	if err != nil {
		t.count.BadLength++
		return nil, 0, BadLength
	}
	if !(t.cfg.PartialChecksums && u.AcceptPartial(in.Src, in.Dst)) {
		if c := u.Checksum(in.Src, in.Dst); c != wire.ChecksumGood && c != wire.ChecksumNone {
			t.count.BadChecksum += uint64(in.datagrams(u))
			return nil, 0, BadChecksum
		}
	}
	if s = t.lookup(key(&in.Src, u.SrcPort()), binary.BigEndian.Uint32(in.Dst[:]), u.DstPort()); s == nil {
		t.count.NoSocket += uint64(in.datagrams(u))
		return nil, 0, NoSocket
	}
	if in.GSOSize != 0 {
		n = s.enqueueParts(in, u)
	} else if s.enqueue(in, u.SrcPort(), u.Payload()) {
		n = 1
	}
	if n == 0 {
		return s, 0, QueueFull
	}
	return s, n, Queued
}

// datagrams is how many datagrams in holds, of which u is the view.
func (in *Inbound) datagrams(u wire.UDP) int {
	if in.GSOSize == 0 {
		return 1
	}
	return max(1, (len(u.Payload())+int(in.GSOSize)-1)/int(in.GSOSize))
}

func (s *Socket) enqueue(in *Inbound, port uint16, payload []byte) bool {
	slot := s.queue.push(len(payload))
	if slot == nil {
		s.count.QueueFull++
		s.table.count.QueueFull++
		return false
	}
	slot.Payload, slot.Frame = payload, in.Frame
	slot.From.Addr, slot.From.Port = in.Src, port
	slot.Heap = in.Heap
	s.count.Received++
	s.table.count.Received++
	return true
}

// enqueueParts queues the datagrams that a super-frame was made of and returns
// how many the queue took.
func (s *Socket) enqueueParts(in *Inbound, u wire.UDP) (n int) {
	rest := u.Payload()
	for {
		k := min(int(in.GSOSize), len(rest))
		if s.enqueue(in, u.SrcPort(), rest[:k:k]) {
			n++
		}
		if rest = rest[k:]; len(rest) == 0 {
			return n
		}
	}
}

// ProcessICMP takes an ICMP error that quotes a UDP packet of ours to the
// connected socket that sent it, as its pending error, and returns that socket:
// the caller wakes its waiters. It returns nil if there is none, or if the
// error is one that passes (a route that flaps), as the kernel does without
// IP_RECVERR. quoted is what [wire.ICMPv4.Quoted] returned for m.
//
// A fragmentation needed message is EMSGSIZE here; the new MTU is for the
// caller's routes.
func (t *Table) ProcessICMP(m wire.ICMPv4, quoted wire.IPv4) *Socket {
	if quoted.Protocol() != wire.ProtocolUDP {
		return nil
	}
	srcPort, dstPort, ok := wire.QuotedPorts(quoted)
	if !ok {
		return nil
	}
	errno, hard := m.Errno()
	if !hard && errno != syscall.EMSGSIZE {
		return nil
	}
	// The quoted packet is ours: its source is our local end.
	s := t.Lookup(AddrPort{Addr: quoted.Dst(), Port: dstPort}, AddrPort{Addr: quoted.Src(), Port: srcPort})
	if s == nil || !s.Connected() {
		return nil
	}
	s.err = errno
	t.count.Errors++
	return s
}
