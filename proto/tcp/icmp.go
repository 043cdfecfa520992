package tcp

import (
	"encoding/binary"
	"syscall"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// ProcessICMP passes an ICMP error to the connection that sent the quoted segment, and
// returns that connection; nil if there is none, or if the segment is not in flight (RFC
// 5927, section 4.1).
//
// A connection that is being opened is ended by any unreachable error, hard or soft
// (RFC 5461, section 4.1, and Linux). An established connection is ended by none, for
// the error may be forged (RFC 5927, section 5.2): it is stored as [Conn.SoftErr], and
// the connection ends with it if the peer does not answer in time. A packet that was too big may
// make segments smaller, at once or later, see pathmtu.go; source quench is ignored (RFC
// 6633).
func (t *Table) ProcessICMP(now Time, e *wire.ICMPError) *Conn {
	b := e.Transport
	if e.Protocol != wire.ProtocolTCP || len(b) < 8 {
		t.counts[IcmpUnmatched]++
		return nil
	}
	c := t.conns[makeTuple(
		AddrPort{Addr: e.Src, Port: binary.BigEndian.Uint16(b)},
		AddrPort{Addr: e.Dst, Port: binary.BigEndian.Uint16(b[2:])})]
	if c == nil || !seq.New(binary.BigEndian.Uint32(b[4:])).InWindow(c.sndUna, c.sndMax.From(c.sndUna)) {
		t.counts[IcmpUnmatched]++
		return nil
	}
	t.counts[IcmpErrors]++
	if e.TooBig {
		c.reportMTU(now, seq.New(binary.BigEndian.Uint32(b[4:])), e.Size, e.MTU)
	} else if e.Errno != 0 {
		c.Unreachable(now, e.Errno)
	} else {
		t.counts[IcmpIgnored]++
	}
	return c
}

// mtuPlateaus are common MTUs, for a router that reports none (RFC 1191, section 7.1).
var mtuPlateaus = [...]int{32000, 17914, 8166, 4352, 2002, 1492, 1006, leastPathMTU}

// PlateauBelow is the MTU that is assumed if a router reports that a packet of size bytes
// was too large, without an MTU.
func PlateauBelow(size int) int {
	for _, mtu := range mtuPlateaus {
		if mtu < size {
			return mtu
		}
	}
	return leastPathMTU
}

// reportMTU processes the report of a router: the segment with this number, in a packet of
// size bytes, is too large for its next hop, which takes mtu bytes; 0: not reported.
func (c *Conn) reportMTU(now Time, number seq.Number, size, mtu int) {
	p, counts := &c.path, &c.table.counts
	reported := mtu
	if mtu == 0 {
		mtu = PlateauBelow(size)
	}
	mtu = max(mtu, c.leastMTU())
	ofProbe := p.mtuProbeInFlight(c.mss) && number.InWindow(p.start, uint32(p.watched))
	largest := p.mtu
	if ofProbe {
		largest = p.mtuProbe
	}
	switch {
	case p.locked || mtu >= size || size > c.opts.MTU || !c.state.synchronized() || reported < wire.MinIPv6MTU && !c.id.local.Is4(): // RFC 8201, section 4
		counts[MTUReportsBad]++
	case p.guessed != 0 && mtu >= p.mtu && size <= p.guessed:
		// The report explains the timeouts, after which the MTU was guessed too low. It must not
		// raise the MTU (RFC 8201, section 4), but the search begins with it.
		p.guessed = mtu
		counts[MTUReportsHeld]++
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

// acceptClaim lowers the path's MTU to the claim.
func (c *Conn) acceptClaim(now Time) {
	c.table.counts[MTUReportsAccepted]++
	c.lowerMTU(now, c.path.claim)
	c.searchAfter(now, false)
	c.notify(PathChanged)
}

// Unreachable reports that the peer cannot be reached, by ICMP or because the driver has no
// route to it. It ends a connection that we are opening; every other one stores err as
// [Conn.SoftErr].
func (c *Conn) Unreachable(now Time, err syscall.Errno) {
	switch {
	case c.state == SynSent, c.state == SynReceived && !c.passive:
		c.fail(err)
	default:
		c.soft, c.softAt = err, now
	}
}

// timeoutError is the error of a connection whose peer has not answered in time: that of
// an ICMP error since its last segment, or ETIMEDOUT (RFC 1122, section 4.2.3.9, and
// Linux).
func (c *Conn) timeoutError() syscall.Errno {
	if c.soft != 0 && c.softAt >= c.heardAt {
		return c.soft
	}
	return syscall.ETIMEDOUT
}
