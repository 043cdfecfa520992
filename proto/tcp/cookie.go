package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// SYN cookies (RFC 4987, section 3.6). When the SYN queue is full, all that is
// known of a connection goes into the SYN-ACK, and the ACK brings it back:
//
//	sequence number:  5 bits time, 3 bits MSS, 24 bits MAC
//	timestamp value:  our clock, but its last 6 bits are the other options
//
// The MAC covers both ends, the peer's sequence number, the time and the MSS.
// Without timestamps there is no place for the options, so the connection has
// neither window scale nor SACK.

const (
	cookieTick   = 64 * time.Second
	cookieMaxAge = 2 // ticks

	cookieScaleMask = 0x0f // no window scale: all ones
	cookieSACK      = 0x10
	cookieECN       = 0x20
	cookieBits      = 6
)

// cookieMSS are the values that three bits can say: the usual ones.
var cookieMSS = [8]uint16{defaultMSS, 1200, 1300, 1400, 1440, 1460, 4312, 8960}

func (t *Table) cookie(id tuple, irs seq.Number, tick uint64, mss uint32) seq.Number {
	mac := t.hash.sum(useCookie, id.local, id.remote, uint64(irs.Uint32())<<32|uint64(mss), tick)
	return seq.New(uint32(tick&31)<<27 | mss<<24 | uint32(mac)&0xffffff)
}

// sendCookie answers a SYN and remembers nothing.
func (l *Listener) sendCookie(now Time, s *segment) {
	t := l.table
	t.counts[CookiesSent]++
	l.cookies, l.cookiesAt = true, now
	mss, offered := uint32(0), or(s.options.MSS, defaultMSS)
	for i, m := range cookieMSS {
		if m <= offered {
			mss = uint32(i)
		}
	}
	o := &l.opts.Options
	iss := t.cookie(s.id, s.seq, uint64(now)/uint64(cookieTick), mss)
	t.answer(s, wire.TCPSyn|wire.TCPAck, iss, s.seq.Add(1), uint16(min(o.ReceiveBuffer, 0xffff)))
	r := &t.reply.options
	r.MSS = uint16(o.MTU - ipAndTCPHeaders)
	if !s.hasTimestamps || t.cfg.NoTimestamps {
		return
	}
	bits := uint32(cookieScaleMask)
	if s.options.HasWindowScale && !t.cfg.NoWindowScale {
		bits = uint32(min(s.options.WindowScale, 14))
		r.HasWindowScale, r.WindowScale = true, scaleFor(t.mostReceive(o))
	}
	if s.options.SACKPermitted && !t.cfg.NoSACK {
		bits |= cookieSACK
		r.SACKPermitted = true
	}
	if t.cfg.ECN != ECNOff && s.flags&ecnSetup == ecnSetup && s.ecn == 0 {
		bits |= cookieECN
		t.reply.fields.Flags |= wire.TCPEce
	}
	// The clock may go back by 63 ms for it, but never forward: what we send
	// next must not look older.
	clock := now.milliseconds()
	if clock&(1<<cookieBits-1) < bits {
		clock -= 1 << cookieBits
	}
	clock = clock&^(1<<cookieBits-1) | bits
	r.HasTimestamps, r.TSVal, r.TSEcr = true, clock+t.timestampOffset(s.id), s.tsVal
}

// acceptCookie makes a connection of an ACK that answers a cookie, and takes the
// segment to it. It reports whether the segment has been dealt with.
func (l *Listener) acceptCookie(now Time, s *segment) bool {
	t := l.table
	if !l.cookies || now-l.cookiesAt > Time((cookieMaxAge+1)*cookieTick) {
		return false
	}
	iss, irs := s.ack.Back(1), s.seq.Back(1)
	tick := uint64(now) / uint64(cookieTick)
	age := (tick - uint64(iss.Uint32()>>27)) & 31
	mss := iss.Uint32() >> 24 & 7
	if age > cookieMaxAge || age > tick || t.cookie(s.id, irs, tick-age, mss) != iss {
		t.counts[CookiesBad]++
		return false
	}
	if t.pool.exhausted() {
		t.counts[NotOpened]++
		return true
	}
	if l.full() {
		t.counts[AcceptOverflows]++
		return true
	}
	t.counts[CookiesAccepted]++
	// What the SYN said, as far as it has come back.
	syn := segment{id: s.id, seq: irs, window: s.window}
	syn.options.MSS = cookieMSS[mss]
	if s.hasTimestamps && !t.cfg.NoTimestamps {
		bits := (s.tsEcr - t.timestampOffset(s.id)) & (1<<cookieBits - 1)
		syn.options.HasTimestamps, syn.options.TSVal = true, s.tsVal
		syn.options.SACKPermitted = bits&cookieSACK != 0
		if scale := bits & cookieScaleMask; scale != cookieScaleMask {
			syn.options.HasWindowScale, syn.options.WindowScale = true, uint8(scale)
		}
		if bits&cookieECN != 0 {
			syn.flags = ecnSetup
		}
	}
	c := l.child(now, &syn, iss)
	c.agree(now, &syn)
	c.sndNxt = iss.Add(1)
	c.sndMax = c.sndNxt
	c.process(now, s)
	c.update(now)
	return true
}
