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
// 5.2): the error is noted as [Conn.SoftErr], and is what the connection ends with if
// the peer does not answer in time. A fragmentation needed message may make
// segments smaller, at once or later, see pathmtu.go; source quench does nothing (RFC
// 6633).
func (t *Table) ProcessICMP(now Time, m wire.ICMPv4, quoted wire.IPv4) *Conn {
	b := quoted.Payload
	if quoted.Protocol != wire.ProtocolTCP || quoted.FragmentOffset() != 0 || len(b) < 8 {
		t.counts[IcmpUnmatched]++
		return nil
	}
	c := t.conns[makeTuple(
		AddrPort{Addr: quoted.Src, Port: binary.BigEndian.Uint16(b)},
		AddrPort{Addr: quoted.Dst, Port: binary.BigEndian.Uint16(b[2:])})]
	if c == nil || !seq.New(binary.BigEndian.Uint32(b[4:])).InWindow(c.sndUna, c.sndMax.From(c.sndUna)) {
		t.counts[IcmpUnmatched]++
		return nil
	}
	t.counts[IcmpErrors]++
	if m.Type() == wire.ICMPUnreachable && m.Code() == wire.ICMPFragmentationNeeded {
		c.reportMTU(now, seq.New(binary.BigEndian.Uint32(b[4:])), quoted.TotalLen(), m.NextHopMTU())
	} else if errno, _ := m.Errno(); errno != 0 {
		c.Unreachable(now, errno)
	} else {
		t.counts[IcmpIgnored]++
	}
	return c
}

// mtuPlateaus are MTUs that links have, for a router that tells none (RFC 1191, section
// 7.1).
var mtuPlateaus = [...]int{32000, 17914, 8166, 4352, 2002, 1492, 1006, leastPathMTU}

// PlateauBelow is what a router means that says nothing but that a packet of that size
// was too large.
func PlateauBelow(size int) int {
	for _, mtu := range mtuPlateaus {
		if mtu < size {
			return mtu
		}
	}
	return leastPathMTU
}

// reportMTU takes in what a router says: that the segment with this number, of a packet
// of size bytes, is too large for its next hop.
func (c *Conn) reportMTU(now Time, number seq.Number, size, mtu int) {
	p, counts := &c.path, &c.table.counts
	if mtu == 0 {
		mtu = PlateauBelow(size)
	}
	mtu = max(mtu, leastPathMTU)
	ofProbe := p.mtuProbeInFlight(c.mss) && number.InWindow(p.start, uint32(p.watched))
	largest := p.mtu
	if ofProbe {
		largest = p.mtuProbe
	}
	switch {
	case mtu >= size || size > c.opts.MTU || !c.state.synchronized():
		counts[MTUReportsBad]++
	case mtu >= p.mtu && !ofProbe || size > largest:
		counts[MTUReportsLate]++
	case !ofProbe && c.dataOf(mtu) >= p.proven:
		p.claim, p.claimSeq = mtu, number
		c.acceptClaim(now)
		c.update(now)
	case p.claim == 0:
		p.claim, p.claimSeq = mtu, number
		counts[MTUReportsHeld]++
	default:
		counts[MTUReportsLate]++
	}
}

// claimHeld reports whether there is a claim that would make segments smaller.
func (c *Conn) claimHeld() bool { return c.path.claim != 0 && c.path.claim < c.path.mtu }

// claimLost reports whether the segment that such a claim quotes is known to be lost.
func (c *Conn) claimLost() bool {
	if !c.claimHeld() {
		return false
	}
	for s := c.board.head; s != nil; s = s.next {
		if s.end.After(c.path.claimSeq) {
			return s.marks&lost != 0
		}
	}
	return false
}

// claimExpired is the end of the retransmission timer while there is such a claim: the
// segment that it quotes is not acknowledged in time, which shows that it is true.
func (c *Conn) claimExpired(now Time) {
	c.acceptClaim(now)
	if c.rtxAt <= now { // nothing in flight was larger
		c.retransmitExpired(now)
	}
}

// acceptClaim acts upon it.
func (c *Conn) acceptClaim(now Time) {
	c.table.counts[MTUReportsAccepted]++
	c.lowerMTU(now, c.path.claim)
	c.searchAfter(now, false)
	c.notify(PathChanged)
}

// Unreachable takes what the network says about the way to the peer, by ICMP or
// by what the driver has learnt elsewhere: it ends a connection that is being
// opened, and is noted as [Conn.SoftErr] by every other.
func (c *Conn) Unreachable(now Time, err syscall.Errno) {
	switch {
	case c.state == SynSent, c.state == SynReceived && !c.passive:
		c.fail(err)
	default:
		c.soft, c.softAt = err, now
	}
}

// timeoutError is why a connection ends whose peer has not answered in time: what the
// network has said since the peer was last heard, or ETIMEDOUT (RFC 1122, section
// 4.2.3.9, and Linux).
func (c *Conn) timeoutError() syscall.Errno {
	if c.soft != 0 && c.softAt >= c.heardAt {
		return c.soft
	}
	return syscall.ETIMEDOUT
}
