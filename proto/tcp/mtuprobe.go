package tcp

// Packetization layer path MTU discovery (RFC 4821; RFC 8899). The search probes with
// segments of the text that is to be sent anyway, one at a time, larger than all others
// and followed by some of these. That a probe is lost, and nothing else, is no congestion.
//
// Paths have few MTUs: first the largest is tried, then those that are common, from the
// top, and only between the small ones is the search done by halves.

import (
	"time"

	"github.com/unet-go/unet/wire"
)

const (
	searchGrain = 16                // bytes: a difference that is not worth a probe
	searchAgain = 10 * time.Minute  // after one has ended (RFC 4821, section 7.2; RFC 1191, section 6.3)
	verifyAfter = 5 * time.Second   // of what a router has said
	probeTries  = 2                 // that are lost before a size counts as too large
	behindProbe = dupThresh         // full segments that follow a probe, to tell of its loss
	noHalving   = commonEthernetMTU // sizes above are common ones or none
)

const commonEthernetMTU = 1500

// commonMTUs: jumbo frames, the same in a tunnel, FDDI, Ethernet, PPPoE, tunnels, the
// least of IPv6.
var commonMTUs = [...]int{9000, 8900, 4352, commonEthernetMTU, 1492, 1400, 1280}

// search is the state of one.
type search struct {
	probe    int   // the size of the next probe, or of the one in flight; 0: no search
	searchAt Time  // when one is to begin
	high     int   // no packet larger than this passes
	tries    uint8 // probes of this size that were lost
	searched bool  // mtu was found by a search
}

// startSearch begins one, if there is anything to be found.
func (c *Conn) startSearch(now Time) {
	p := &c.path
	p.searchAt, p.tries = Never, 0
	if p.high = c.ceiling(); p.high > p.mtu {
		p.probe = p.high
	}
}

func (c *Conn) stopSearch() {
	p := &c.path
	p.probe, p.searchAt = 0, Never
	if p.watched > c.mss {
		p.watched = 0
	}
}

// searchAfter has what was not found by a search be verified by one, and what was, again
// when the path may have changed.
func (c *Conn) searchAfter(now Time, searched bool) {
	c.stopSearch()
	p := &c.path
	if p.searched = searched; searched {
		p.searchAt = now.add(searchAgain)
	} else {
		p.searchAt = now.add(verifyAfter)
	}
}

// nextProbe is the next size to try; 0: none is worth it.
func (s *search) nextProbe(mtu int) int {
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

// searchOn takes the next step after a probe, or ends the search.
func (c *Conn) searchOn(now Time) {
	p := &c.path
	if p.probe = p.nextProbe(p.mtu); p.probe != 0 {
		return
	}
	p.searched = true
	if p.searchAt = Never; p.mtu < c.ceiling() {
		p.searchAt = now.add(searchAgain)
	}
	c.notify(PathChanged)
}

// planProbe is whether a probe is sent now, instead of a segment. To be told of its loss
// it must be followed by others; to have room for it, those before it may have to be
// acknowledged first: wait.
func (c *Conn) planProbe(unsent, inFlight int) (p plan, wait bool) {
	n := c.textOf(c.path.probe)
	all := n + behindProbe*c.mss
	if c.phase != open || c.sndNxt != c.sndMax || unsent < all || int(c.sndWnd)-inFlight < all || c.window < all {
		return plan{}, false
	}
	if pipe := c.pipe(); c.window-pipe < n || c.board.sacked > 0 || c.dupAcks > 0 {
		return plan{}, pipe > 0
	}
	return plan{text: n}, false
}

// probing reports whether a probe is in flight.
func (p *pathMTU) probing(mss int) bool { return p.watched > mss }

// probePassed: the probe is acknowledged, and was sent once.
func (c *Conn) probePassed(now Time) {
	p := &c.path
	p.mtu, p.tries = p.probe, 0
	c.setMSS()
	c.searchOn(now)
}

// probeFailed: the probe is lost. claim is what a router says passes, if it has said so.
func (c *Conn) probeFailed(now Time, claim int) {
	p := &c.path
	p.watched = 0
	c.table.counts[MTUProbesLost]++
	p.tries++
	switch {
	case claim >= p.mtu && claim < p.probe:
		p.high, p.tries = claim, 0
	case p.tries >= probeTries:
		p.high, p.tries = p.probe-1, 0
	default:
		return
	}
	c.searchOn(now)
}

// probeLost reports whether what is lost is the probe and nothing else, which is dealt
// with. If more is, that says nothing about the probe.
func (c *Conn) probeLost(now Time) bool {
	p := &c.path
	if !p.probing(c.mss) {
		return false
	}
	s, start := c.board.firstLost(c.sndUna)
	if start != p.start || s.end != p.end || c.board.lost != p.watched || c.phase > probing {
		p.watched = 0
		return false
	}
	claim := 0
	if p.claim != 0 && p.claimSeq.InWindow(p.start, uint32(p.watched)) {
		claim, p.claim = p.claim, 0
		c.table.counts[MTUReportsAccepted]++
	}
	c.probeFailed(now, claim)
	c.repair(now)
	return true
}

// probeRoom is how much text the probe that is about to be written has, unless the frame
// is too short for it: then it is not sent, and nothing longer than the frame ever is.
func (c *Conn) probeRoom(now Time, h *header, b []byte, room int) int {
	p := &c.path
	size := p.probe - wire.IPv4HeaderLen
	if len(b) < size {
		p.high, p.tries = len(b)+wire.IPv4HeaderLen, 0
		c.searchOn(now)
		return room
	}
	c.complete() // it is to have a span of its own
	c.table.counts[MTUProbes]++
	return size - h.len
}
