package tcp

import "github.com/unet-go/unet/wire"

// Each connection is published from the end of its handshake to its end, and each listener
// (Config.Connections), so that another process can show them, and send the peer a RST when
// this process has died. The peer accepts a RST at RCV.NXT (RFC 5961, section 3.2), which is
// the highest SND.NXT unless something was lost; otherwise the peer answers with an ACK
// that contains RCV.NXT. So that number is kept up to date with each segment, by one store. All
// else is written by [Table.Publish], which the driver calls from time to time.

// published is the records.
type published struct {
	records *wire.Connections
	none    wire.Connection // shared by all connections without a record; not read
	changed list[Conn]      // whose records are not up to date, the oldest change first
	unread  int             // connections whose record has data that is not read
}

// publish gives the connection a record, if there is one left.
func (c *Conn) publish() {
	p := &c.table.published
	local, remote := c.Local(), c.Remote()
	r := p.records.Get(local.Addr)
	if r == nil {
		return
	}
	*r = wire.Connection{
		Local: local.Addr.WithZone(0), Remote: remote.Addr.WithZone(0), LocalPort: local.Port, RemotePort: remote.Port,
		Next: c.sndMax.Uint32(), Protocol: wire.ProtocolTCP, State: uint8(Established),
	}
	c.record = r
	c.change()
}

// unpublish empties the record.
func (c *Conn) unpublish() {
	p := &c.table.published
	if c.record == &p.none {
		return
	}
	if p.changed.has(c) {
		p.changed.remove(c)
	}
	if c.record.ReceiveQueue > 0 {
		p.unread--
	}
	p.records.Put(c.record)
	c.record, c.quiet = &p.none, false
}

// change notes that the record is not up to date. The caller has found quiet.
func (c *Conn) change() {
	c.quiet = false
	c.table.published.changed.push(c)
}

// Changed reports whether Publish has something to do.
func (t *Table) Changed() bool { return t.published.changed.first != nil }

// Unread reports whether a record says that data waits to be read. It may be read without
// another event, so Publish should be called again.
func (t *Table) Unread() bool { return t.published.unread > 0 }

// Publish brings up to date the records of at most n connections that have changed.
func (t *Table) Publish(n int) {
	p := &t.published
	for ; n > 0 && p.changed.first != nil; n-- {
		c := p.changed.first
		p.changed.remove(c)
		c.quiet = true
		r := c.record
		if r.ReceiveQueue > 0 {
			p.unread--
		}
		r.ReceiveQueue = wire.Saturate(c.recv.bytes)
		if r.ReceiveQueue > 0 {
			p.unread++
		}
		r.State, r.MSS = uint8(c.state), uint16(c.mss)
		r.Window, r.InFlight, r.SendQueue = wire.Saturate(c.window), c.sndMax.From(c.sndUna), wire.Saturate(c.send.bytes)
		r.RTT, r.RTTVar, r.RTO = uint64(c.srtt), uint64(c.rttvar), uint64(c.rto)
		r.Received, r.Sent = c.stat.segmentsIn, c.stat.segmentsOut
		r.BytesIn, r.BytesAcked, r.Again = c.stat.bytesIn, c.stat.bytesOut, c.stat.retransmitted
	}
}

// publish gives the listener a record, if there is one left.
func (l *Listener) publish() {
	if l.record = l.table.published.records.Get(l.local.Addr); l.record != nil {
		*l.record = wire.Connection{
			Local: l.local.Addr.WithZone(0), LocalPort: l.local.Port, Protocol: wire.ProtocolTCP, State: uint8(Listen),
			SendQueue: wire.Saturate(l.opts.AcceptQueue),
		}
	}
}

// publishQueue publishes how many connections wait to be accepted.
func (l *Listener) publishQueue() {
	if l.record != nil {
		l.record.ReceiveQueue = wire.Saturate(l.accepts.n)
	}
}
