package tcp

import (
	"time"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// The window that asks for text, and the buffers of both directions, which grow with
// what the path holds unless somebody has set them.
//
// The receive buffer grows as Linux's does (dynamic right-sizing): what the application
// reads in a round trip is what the path brings in one, and the window has to be twice
// that, or it would hold the sender back; four times while that doubles. A reader that
// is slow reads little, whatever waits for it, so its buffer does not grow. The send
// buffer grows to twice what may be in flight, if a writer waits for room.
//
// Where a round trip takes less than growRound, DefaultBuffer is more than any path
// holds, and nothing grows beyond.

const (
	// What the buffers begin with.
	initialSendBuffer    = 256 << 10
	initialReceiveBuffer = 128 << 10
	// growRound is the least time for which is measured what is read: the unit of
	// timestamps.
	growRound = Time(time.Millisecond)
)

// growth is what the receive buffer grows by.
type growth struct {
	rtt, lastRTT Time       // least round trip of this period and the last; 0: not known
	period       Time       // when this began
	until        seq.Number // what is beyond has been asked for after askedAt
	askedAt      Time
	echoed       uint32 // the last timestamp of ours that has come back
	nextAt       Time   // when to look again at what was read
	readAt       Time   // since when it is counted, and from where
	read         seq.Number
	most         int // that was read in a round trip
}

// startGrowth is called when the connection is established.
func (c *Conn) startGrowth(now Time) {
	g := &c.growth
	g.nextAt = Never
	if c.opts.growReceive {
		g.until, g.askedAt, g.period = c.rcvAdv, now, now
		g.read, g.readAt, g.nextAt = c.rcvNxt, now, now.add(time.Duration(growRound))
		g.most = initialSegments * c.rcvMSS()
	}
}

// measureRound takes the time of a round trip from text that has come, by the timestamp
// that it echoes or because it was asked for by a window that it lies in. Both may
// be too long, for the peer need not send at once what it may.
func (c *Conn) measureRound(now Time, s *segment) {
	g := &c.growth
	rtt := Time(0)
	if c.timestamps && s.tsEcr != g.echoed {
		g.echoed = s.tsEcr
		if ms := int32(c.timestamp(now) - s.tsEcr); ms >= 0 {
			rtt = max(Time(ms)*Time(time.Millisecond), growRound)
		}
	}
	if c.rcvNxt.After(g.until) {
		if d := now - g.askedAt; rtt == 0 || d < rtt {
			rtt = d
		}
		g.until, g.askedAt = c.rcvAdv, now
	}
	if rtt == 0 {
		return
	}
	if now-g.period > minRTTWindow {
		g.lastRTT, g.rtt, g.period = g.rtt, 0, now
	}
	if g.rtt == 0 || rtt < g.rtt {
		g.rtt = rtt
	}
}

// round is the time of a round trip as far as growth is concerned.
func (c *Conn) round() Time {
	g := &c.growth
	rtt := or(g.rtt, g.lastRTT)
	if g.lastRTT != 0 && g.lastRTT < rtt {
		rtt = g.lastRTT
	}
	return max(or(rtt, Time(c.minRTT)), growRound)
}

// growReceive looks at what has been read since it last did.
func (c *Conn) growReceive(now Time) {
	g := &c.growth
	round := c.round()
	took := now - g.readAt
	if took < round {
		g.nextAt = g.readAt + round
		return
	}
	read := c.rcvNxt.Back(uint32(c.recv.bytes))
	n := int(int64(read.From(g.read)) * int64(round) / int64(took))
	g.read, g.readAt, g.nextAt = read, now, now+round
	if n <= g.most {
		return
	}
	want := 2*n + 16*c.rcvMSS() + 2*n*(n-g.most)/g.most
	g.most = n
	c.opts.ReceiveBuffer = c.grown(c.opts.ReceiveBuffer, want, c.table.cfg.MaxReceiveBuffer, round)
}

// growSend is called when a writer waits for room.
func (c *Conn) growSend() {
	if c.opts.growSend {
		want := 2 * min(c.window, int(c.maxSndWnd))
		c.opts.SendBuffer = c.grown(c.opts.SendBuffer, want, c.table.cfg.MaxSendBuffer, Time(c.srtt))
	}
}

// grown is the size of a buffer that is to be at least want, if there is memory.
func (c *Conn) grown(size, want, most int, round Time) int {
	if round <= growRound {
		most = min(most, DefaultBuffer)
	}
	if want = min(want, most); want <= size || c.table.pool.pressed() {
		return size
	}
	return want
}

// mostReceive is what the receive buffer may ever be, which the scale of the window has
// to be enough for.
func (t *Table) mostReceive(o *Options) int {
	if o.growReceive {
		return max(o.ReceiveBuffer, t.cfg.MaxReceiveBuffer)
	}
	return o.ReceiveBuffer
}

// synWindow is the window of a SYN, which is never scaled.
func (c *Conn) synWindow() uint32 { return uint32(min(c.opts.ReceiveBuffer, 0xffff)) }

// receiveWindow is the window to advertise, in bytes. It never takes back what has
// been advertised (RFC 9293, section 3.8.6), and grows only by what is worth
// sending (section 3.8.6.2.2).
func (c *Conn) receiveWindow() uint32 {
	offered := c.rcvAdv.From(c.rcvNxt)
	free := c.freeReceive()
	if free < int(offered)+min(c.opts.ReceiveBuffer/2, c.rcvMSS()) {
		return offered
	}
	return uint32(free)
}

// freeReceive is how much more may be received. When the table's memory runs out a
// connection asks for no more than it will have room for in any case.
func (c *Conn) freeReceive() int {
	size := c.opts.ReceiveBuffer
	if c.table.pool.pressed() {
		size = min(size, max(guaranteed, 4*c.rcvMSS()))
	}
	return max(0, size-c.recv.bytes)
}

// windowField advertises the window: it moves the right edge and returns what
// the header says.
func (c *Conn) windowField() uint16 {
	wnd := c.receiveWindow()
	// A window that is not a multiple of the scale is rounded up, or the edge
	// would move left (RFC 7323, section 2.4).
	field := min((wnd+1<<c.rcvScale-1)>>c.rcvScale, 0xffff)
	if edge := c.rcvNxt.Add(field << c.rcvScale); edge.After(c.rcvAdv) {
		c.rcvAdv = edge
	}
	return uint16(field)
}

// windowUpdateDue reports whether the application has read enough to make a
// window update worth it.
func (c *Conn) windowUpdateDue() bool {
	if !c.state.synchronized() || c.gotFin || c.state == TimeWait {
		return false
	}
	offered := int(c.rcvAdv.From(c.rcvNxt))
	grow := min(c.freeReceive(), 0xffff<<c.rcvScale) - offered
	return grow >= min(c.opts.ReceiveBuffer/2, 2*c.rcvMSS()) && (offered < c.opts.ReceiveBuffer/2 || grow >= c.opts.ReceiveBuffer/4)
}
