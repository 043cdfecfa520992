package tcp

import (
	"encoding/binary"
	"syscall"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// ProcessICMP takes an ICMP error that quotes a segment of ours to the
// connection that sent it, and returns that connection; nil if there is none, or
// if the quote is of nothing that is in flight (RFC 5927, section 4.1). quoted is
// what [wire.ICMPv4.Quoted] returned for m.
//
// While a connection is being opened any unreachable ends it, hard or soft: a
// user would rather know than wait (RFC 5461, section 4.1, and Linux). Once it
// is established none does, for anybody could have sent it (RFC 5927, section
// 5.2): the error is noted as [Conn.SoftErr]. A fragmentation needed message is
// for the caller's routes, and for [Conn.SetMTU].
func (t *Table) ProcessICMP(now Time, m wire.ICMPv4, quoted wire.IPv4) *Conn {
	b := quoted.Payload()
	if quoted.Protocol() != wire.ProtocolTCP || quoted.FragmentOffset() != 0 || len(b) < 8 {
		t.counts[IcmpUnmatched]++
		return nil
	}
	c := t.conns[makeTuple(
		AddrPort{Addr: quoted.Src(), Port: binary.BigEndian.Uint16(b)},
		AddrPort{Addr: quoted.Dst(), Port: binary.BigEndian.Uint16(b[2:])})]
	if c == nil || !seq.New(binary.BigEndian.Uint32(b[4:])).InWindow(c.sndUna, c.sndMax.From(c.sndUna)) {
		t.counts[IcmpUnmatched]++
		return nil
	}
	t.counts[IcmpErrors]++
	if errno := icmpError(m.Type(), m.Code()); errno != 0 {
		c.Unreachable(errno)
	}
	return c
}

// Unreachable takes what the network says about the way to the peer, by ICMP or
// by what the driver has learnt elsewhere: it ends a connection that is being
// opened, and is noted as [Conn.SoftErr] by every other.
func (c *Conn) Unreachable(err syscall.Errno) {
	switch {
	case c.state == SynSent, c.state == SynReceived && !c.passive:
		c.fail(err)
	default:
		c.soft = err
	}
}

// icmpError is the errno of an ICMP error (Linux: net/ipv4/icmp.c,
// icmp_err_convert). 0: it says nothing about the connection.
func icmpError(typ, code uint8) syscall.Errno {
	switch typ {
	case wire.ICMPParameterProblem:
		return syscall.EPROTO
	case wire.ICMPTimeExceeded:
		return syscall.EHOSTUNREACH
	case wire.ICMPUnreachable:
		switch code {
		case wire.ICMPNetUnreachable, 6, 9, 11: // network: unknown, prohibited, not for this service
			return syscall.ENETUNREACH
		case wire.ICMPProtocolUnreachable:
			return syscall.ENOPROTOOPT
		case wire.ICMPPortUnreachable:
			return syscall.ECONNREFUSED
		case wire.ICMPFragmentationNeeded:
			return 0
		}
		return syscall.EHOSTUNREACH
	}
	return 0
}
