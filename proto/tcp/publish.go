package tcp

import "github.com/unet-go/unet/wire"

// Each connection is published from the end of its handshake to its end, in memory of
// the driver's (Config.Connections), so that somebody else can send its peer a RST when
// this process has died. The peer takes one at RCV.NXT (RFC 5961, section 3.2), which is
// the highest SND.NXT unless something was lost; if it was, the peer answers with an
// ACK that says RCV.NXT. So that number is all that is kept up to date.

// published is that memory.
type published struct {
	unused []wire.Connection  // never used
	freed  []*wire.Connection // used, and free again; the last is used next
	none   wire.Connection    // of all connections that have no record
}

// publish gives the connection a record, if there is one left.
func (c *Conn) publish() {
	p := &c.table.published
	switch n := len(p.freed); {
	case n > 0:
		c.record = p.freed[n-1]
		p.freed = p.freed[:n-1]
	case len(p.unused) > 0:
		c.record = &p.unused[0]
		p.unused = p.unused[1:]
	default:
		return
	}
	local, remote := c.Local(), c.Remote()
	*c.record = wire.Connection{
		Local: local.Addr, Remote: remote.Addr, LocalPort: local.Port, RemotePort: remote.Port, Next: c.sndMax.Uint32(),
	}
}

// unpublish empties the record.
func (c *Conn) unpublish() {
	p := &c.table.published
	if c.record == &p.none {
		return
	}
	*c.record = wire.Connection{}
	p.freed = append(p.freed, c.record)
	c.record = &p.none
}
