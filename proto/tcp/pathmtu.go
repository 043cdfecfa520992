package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// The MTU of the path. Nothing is fragmented, so a segment that is too large for a hop is
// lost. Only an acknowledgment proves that a size passes. The MTU in an ICMP error is a claim:
// it takes effect at once if nothing larger has been acknowledged, and otherwise when the
// segment that it quotes is lost (RFC 5927, section 7.2). It is verified later by an MTU
// probe (below). The MTU that another connection has found is used only in the first case.
//
//	            segments of mtu lost, and a claim, or timeouts in a row
//	         ┌───────────────────────────────────────────────────────┐
//	┌────────┴─┐                                                 ┌───▼───────┐
//	│ mtu good │◀── nothing between what passes and what does ───┤ searching ├─┐ an MTU probe is acknowledged:
//	└────────┬─┘    not that is worth a probe                    └───▲───▲───┘ │ mtu is its size
//	         └───────────────────────────────────────────────────────┘   └─────┘
//	                              after ten minutes

const (
	// leastPathMTU is a size that every host accepts over IPv4, bytes (RFC 9293, section
	// 3.7.1). A lower claim counts as this. That of IPv6 is wire.MinIPv6MTU.
	leastPathMTU = 576
	// basePathMTU passes nearly everywhere (RFC 4821, section 7.2).
	basePathMTU = 1024
	// Timeouts in a row of full segments after which the path's MTU is assumed to be smaller: if
	// no segment of the present size has been acknowledged, and if one has. RFC 4821, section
	// 7.7, wants R1, at least three (RFC 9293, section 3.8.3).
	blackHoleTimeouts       = 3
	blackHoleTimeoutsProven = 4
	// blackHoleSilence is how long nothing was acknowledged. In a LAN a few timeouts are over in
	// milliseconds, in which a busy peer does not answer either. Linux counts its three timeouts
	// as 200 ms and doubled, which is as long.
	blackHoleSilence = 3 * time.Second
)

// pathMTU is the path-MTU state of a connection. Sizes are bytes of IP packet, unless a
// comment has "data".
type pathMTU struct {
	search
	proven int // data of the largest segment that was acknowledged, mss at most
	// One segment is watched until it is acknowledged, or anything is sent again: one with
	// more data than proven, or, with more than mss, an MTU probe.
	watched int // its data; 0: none is
	claim   int // the MTU in an ICMP error that is held; 0: none
	mtu     int // of the segments sent; Options.MTU at most

	start, end seq.Number // of the watched segment
	claimSeq   seq.Number
	timeouts   uint8  // in a row of full segments, without a change of mtu
	locked     bool   // routers may fragment: mtu is that of the route
	advMSS     uint16 // see SetAdvMSS
	loweredAt  Time   // when mtu was last made less
	// If mtu was made less because of timeouts, and no search has begun since: what it was, or
	// what a router has reported since. Otherwise 0.
	guessed int
}

// leastMTU is a size that every host accepts, bytes of IP packet.
func (c *Conn) leastMTU() int {
	if c.id.local.Is4() {
		return leastPathMTU
	}
	return wire.MinIPv6MTU
}

// ceiling is the largest packet that the link and the peer accept.
func (c *Conn) ceiling() int {
	return min(c.opts.MTU, max(int(c.peerMSS), minMSS)+c.headers)
}

// dataOf is how many bytes of data a packet of mtu bytes has room for.
func (c *Conn) dataOf(mtu int) int {
	if c.timestamps {
		mtu -= wire.TCPTimestampsLen
	}
	return mtu - c.headers
}

// SetMTU sets the MTU of the route, in bytes of IP packet. If it becomes less, what has
// been sent in larger segments is sent again. locked: the packets may be fragmented on the way, so
// reports of a smaller MTU, and what timeouts suggest, are ignored.
func (c *Conn) SetMTU(now Time, mtu int, locked bool) {
	c.path.locked = locked
	mtu = min(max(mtu, 68), 0xffff)
	if mtu == c.opts.MTU {
		return
	}
	p := &c.path
	whole := p.mtu == c.opts.MTU || c.state.synchronized() && p.mtu == c.ceiling()
	c.opts.MTU = mtu
	if c.state.synchronized() {
		mtu = c.ceiling()
	}
	switch {
	case mtu < p.mtu:
		c.lowerMTU(now, mtu)
		c.stopSearch()
	case whole:
		p.mtu = mtu
		c.setMSS()
	default:
		p.searchAt = now
	}
	c.update(now)
}

// SuggestMTU lowers the path's MTU to that which another connection has found. It does
// nothing if that is not lower, or if larger segments of this connection have been
// acknowledged. searched: it was found by MTU probes, not reported by a router.
func (c *Conn) SuggestMTU(now Time, mtu int, searched bool) {
	if mtu = max(mtu, c.leastMTU()); mtu >= c.path.mtu || c.dataOf(mtu) < c.path.proven {
		return
	}
	c.lowerMTU(now, mtu)
	c.searchAfter(now, searched)
	c.update(now)
}

// PathMTU is the path's MTU as far as it is known, and whether MTU probes have found it.
func (c *Conn) PathMTU() (mtu int, searched bool) { return c.path.mtu, c.path.searched }

// MaxMTU is the most that PathMTU can become, the MTU of link and peer.
func (c *Conn) MaxMTU() int { return c.ceiling() }

// setMSS is what RFC 9293, section 3.7.1, calls Eff.snd.MSS: the least of what
// the peer takes and the path does, without the options of every segment (RFC
// 6691).
func (c *Conn) setMSS() {
	c.mss = max(c.dataOf(min(max(int(c.peerMSS), minMSS)+c.headers, c.path.mtu)), 1)
	if c.congestion != nil {
		c.congestion.SetMSS(c.mss)
		if c.phase != recovering {
			c.window = c.congestion.Window()
		}
	}
}

// lowerMTU makes segments smaller. What is in flight in larger ones is sent again.
func (c *Conn) lowerMTU(now Time, mtu int) {
	p := &c.path
	p.mtu, p.loweredAt, p.guessed = mtu, now, 0
	p.watched, p.claim, p.timeouts, p.searched = 0, 0, 0, false
	c.setMSS()
	p.proven = min(p.proven, c.mss)
	if c.state.synchronized() && !c.persisting {
		c.loseLarge(now)
	}
}

// loseLarge marks as lost what is in flight in segments that are too large now. The
// scoreboard does not hold the lengths of segments: only a span of at most one small
// segment contains no large one.
func (c *Conn) loseLarge(now Time) {
	c.complete()
	b := &c.board
	before := b.lost
	start := c.sndUna
	for s := b.head; s != nil; start, s = s.end, s.next {
		if n := int(s.end.From(start)); n > c.mss && s.marks&(sacked|lost) == 0 {
			s.marks |= lost
			b.lost += n
		}
	}
	if b.lost == before {
		return
	}
	b.guessed = 0
	b.merge(&c.table.spans)
	c.timing = false
	c.repair(now)
}

// repair begins a recovery from a loss without congestion (RFC 1191, section 6.5): the
// congestion window stays, and what was lost is sent again at once.
func (c *Conn) repair(now Time) {
	if c.phase <= lossProbing {
		c.leaveOpen(recovering)
		c.repairing = true
		c.window = c.congestion.Window()
	}
	c.undoable = false
	c.startRetransmit(now)
}

// watch notes a segment of n bytes of data that has just been sent.
func (c *Conn) watch(n int) {
	if p := &c.path; p.watched == 0 || n > c.mss {
		p.watched, p.start, p.end = n, c.sndNxt.Back(uint32(n)), c.sndNxt
		if n > c.mss {
			c.complete()
		}
	}
}

// pathAcked is called for an acknowledgment while a segment is watched, a claim is held or
// a search is due.
func (c *Conn) pathAcked(now Time) {
	p := &c.path
	if p.claim != 0 && c.sndUna.After(p.claimSeq) {
		p.claim = 0
		c.table.counts[MTUReportsRefuted]++
	}
	if n := p.watched; n != 0 && c.sndUna.AtOrAfter(p.end) {
		p.watched = 0
		if n > c.mss { // the MTU probe is acknowledged, and was sent once
			p.mtu, p.tries = p.mtuProbe, 0
			c.setMSS()
			c.searchOn(now)
		}
		p.proven = max(p.proven, n)
	}
	if now >= p.searchAt && c.state.synchronized() {
		p.searchAt, p.tries = Never, 0
		if p.high = c.ceiling(); p.guessed != 0 {
			p.high, p.guessed = min(p.high, p.guessed), 0
		}
		if p.high > p.mtu {
			p.mtuProbe = p.high
		} else if p.mtu < c.ceiling() { // a report says that the path takes no more now
			p.searchAt = now.add(searchAgain)
		}
	}
}

// blackHole is called after each timeout. If full segments are lost repeatedly, nothing is
// acknowledged meanwhile, and no ICMP error says why, the path's MTU may have become smaller
// (RFC 4821, section 7.7).
func (c *Conn) blackHole(now Time) {
	p := &c.path
	if p.watched > c.mss {
		c.mtuProbeFailed(now, 0)
	}
	p.watched, p.claim = 0, 0
	if c.backoff == 1 {
		p.timeouts = 0
	}
	if int(c.sndNxt.From(c.sndUna)) < c.mss {
		return
	}
	p.timeouts = min(p.timeouts+1, 250)
	need := uint8(blackHoleTimeouts)
	if p.guessed != 0 { // it was made less already, and that did not help
		need = 1
	} else if p.proven >= c.mss {
		need = blackHoleTimeoutsProven
	}
	if p.locked || p.timeouts < need || now < max(c.progressAt, p.loweredAt).add(blackHoleSilence) || p.mtu <= c.leastMTU() {
		return
	}
	mtu, guessed := c.leastMTU(), max(p.mtu, p.guessed)
	if p.mtu > basePathMTU {
		mtu = max(mtu, basePathMTU)
	}
	c.table.counts[BlackHoles]++
	c.lowerMTU(now, mtu)
	p.guessed = guessed
	p.searchAt = now // with the next acknowledgment
}

// SetMTU calls [Conn.SetMTU] of each connection with that host.
func (t *Table) SetMTU(now Time, local, remote wire.Addr, mtu int, locked bool) {
	for _, c := range t.conns {
		if c.Local().Addr == local && c.Remote().Addr == remote {
			c.SetMTU(now, mtu, locked)
		}
	}
}

// Packetization layer path MTU discovery (RFC 4821; RFC 8899). The search sends MTU probes:
// segments of the data that is to be sent anyway, one at a time, larger than all others
// and followed by some of these. The loss of an MTU probe alone is not congestion.
//
// Most paths have one of a few MTUs: first the largest is tried, then the common ones in
// descending order, then a binary search, unless both mtu and the rest of the range are
// large (noHalving).

const (
	searchGrain    = 16                // bytes: a difference that is not worth an MTU probe
	searchAgain    = 10 * time.Minute  // after one has ended (RFC 4821, section 7.2; RFC 1191, section 6.3)
	verifyAfter    = 5 * time.Second   // after the report of a router
	mtuProbeTries  = 2                 // that are lost before a size counts as too large
	behindMTUProbe = dupThresh         // full segments that follow an MTU probe, so that its loss is detected
	noHalving      = commonEthernetMTU // from this MTU up, no binary search over more bytes than this
)

const commonEthernetMTU = 1500

// commonMTUs: jumbo frames, the same in a tunnel, FDDI, Ethernet, PPPoE, tunnels, the
// least of IPv6.
var commonMTUs = [...]int{9000, 8900, 4352, commonEthernetMTU, 1492, 1400, 1280}

// search is the state of a search.
type search struct {
	mtuProbe int   // the size of the next probe, or of the one in flight; 0: no search
	searchAt Time  // when one is to begin
	high     int   // no packet larger than this passes
	tries    uint8 // MTU probes of this size that were lost
	searched bool  // mtu was found by a search
}

func (c *Conn) stopSearch() {
	p := &c.path
	p.mtuProbe, p.searchAt = 0, Never
	if p.watched > c.mss {
		p.watched = 0
	}
}

// searchAfter schedules the next search: soon, to verify an MTU that was not found by a
// search, or late, since the path may have changed.
func (c *Conn) searchAfter(now Time, searched bool) {
	c.stopSearch()
	p := &c.path
	if p.searched = searched; searched {
		p.searchAt = now.add(searchAgain)
	} else {
		p.searchAt = now.add(verifyAfter)
	}
}

// nextMTUProbe is the next size to try; 0: none is worth it.
func (s *search) nextMTUProbe(mtu int) int {
	if s.high-mtu < searchGrain {
		return 0
	}
	for _, size := range commonMTUs {
		if size <= s.high && size > mtu {
			return size
		}
	}
	if mtu >= noHalving && s.high-mtu > noHalving {
		return 0
	}
	return (mtu + s.high + 1) / 2
}

// searchOn takes the next step after an MTU probe, or ends the search.
func (c *Conn) searchOn(now Time) {
	p := &c.path
	if p.mtuProbe = p.nextMTUProbe(p.mtu); p.mtuProbe != 0 {
		return
	}
	p.searched = true
	if p.searchAt = Never; p.mtu < c.ceiling() {
		p.searchAt = now.add(searchAgain)
	}
	c.notify(PathChanged)
}

// planMTUProbe plans an MTU probe instead of a segment. Full segments must follow it, so
// that its loss is detected. wait: there is room for it only after those before it are
// acknowledged.
func (c *Conn) planMTUProbe(unsent, inFlight int) (p plan, wait bool) {
	n := c.dataOf(c.path.mtuProbe)
	all := n + behindMTUProbe*c.mss
	if c.phase != open || c.sndNxt != c.sndMax || unsent < all || int(c.sndWnd)-inFlight < all || c.window < all {
		return plan{}, false
	}
	if pipe := c.pipe(); c.window-pipe < n || c.board.sacked > 0 || c.dupAcks > 0 {
		return plan{}, pipe > 0
	}
	return plan{data: n}, false
}

// mtuProbeInFlight reports whether an MTU probe is in flight.
func (p *pathMTU) mtuProbeInFlight(mss int) bool { return p.watched > mss }

// mtuProbeFailed is called when the MTU probe is lost. claim is the MTU that a router has
// reported; 0: none.
func (c *Conn) mtuProbeFailed(now Time, claim int) {
	p := &c.path
	p.watched = 0
	c.table.counts[MTUProbesLost]++
	p.tries++
	switch {
	case claim >= p.mtu && claim < p.mtuProbe:
		p.high, p.tries = claim, 0
	case p.tries >= mtuProbeTries:
		p.high, p.tries = p.mtuProbe-1, 0
	default:
		return
	}
	c.searchOn(now)
}

// mtuProbeLost reports whether the MTU probe and nothing else is lost, and if so repairs
// that. If more is lost, the cause need not be the size of the MTU probe.
func (c *Conn) mtuProbeLost(now Time) bool {
	p := &c.path
	if !p.mtuProbeInFlight(c.mss) {
		return false
	}
	s, start := c.board.firstLost(c.sndUna)
	if start != p.start || s.end != p.end || c.board.lost != p.watched || c.phase > lossProbing {
		p.watched = 0
		return false
	}
	claim := 0
	if p.claim != 0 && p.claimSeq.InWindow(p.start, uint32(p.watched)) {
		claim, p.claim = p.claim, 0
		c.table.counts[MTUReportsAccepted]++
	}
	c.mtuProbeFailed(now, claim)
	c.repair(now)
	return true
}

// mtuProbeRoom is the length of the data of the MTU probe that is about to be written. If
// the frame is too short for it a segment is sent instead, and the search ends there.
func (c *Conn) mtuProbeRoom(now Time, h *header, b []byte, room int) int {
	p := &c.path
	ip := c.headers - wire.TCPHeaderLen
	size := p.mtuProbe - ip
	if len(b) < size {
		p.high, p.tries = len(b)+ip, 0
		c.searchOn(now)
		return room
	}
	c.complete() // the probe needs a span of its own
	c.table.counts[MTUProbes]++
	return size - h.len
}
