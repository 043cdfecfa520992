package cm

import (
	"net/netip"
	"slices"

	"github.com/unet-go/unet/wire"
)

// Input processes a MAD that came from a host to QP 1, with the right Q_Key. It is lent until
// Input returns. A MAD that is refused or has no effect costs a counter, and in the cases of
// the specification a REJ.
func (e *Engine) Input(now Time, from [4]byte, mad []byte) {
	e.counts[MadsReceived]++
	m, err := wire.ParseCM(mad)
	if err != nil {
		if !wire.IsMADGet(mad) {
			e.counts[Malformed]++
			return
		}
		e.counts[Unsupported]++ // ClassPortInfo, or another attribute
		wire.PutMADUnsupported(e.reply(from), mad)
		return
	}
	switch m.Attr() {
	case wire.CMReqAttr:
		e.req(now, from, m)
	case wire.CMRepAttr:
		e.rep(now, from, m)
	case wire.CMRtuAttr:
		e.rtu(from, m)
	case wire.CMRejAttr:
		e.rej(from, m)
	case wire.CMDreqAttr:
		e.dreq(from, m)
	case wire.CMDrepAttr:
		e.drep(from, m)
	case wire.CMMraAttr:
		e.mra(now, from, m)
	case wire.CMSidrReqAttr:
		e.counts[Unsupported]++
		wire.PutCMSidrUnsupported(e.reply(from), m)
	case wire.CMLapAttr:
		e.counts[Unsupported]++
		status := wire.CMAprUnsupported
		if e.conn(from, m) == nil {
			status = wire.CMAprInvalidCommID
		}
		wire.PutCMApr(e.reply(from), m.TransactionID(), m.RemoteID(), m.LocalID(), status)
	default:
		e.counts[Unsupported]++
	}
}

// conn is the connection that a message from a host names, nil if there is none. In ReqSent the
// peer's ID is not known yet, and the transaction ID takes its place.
func (e *Engine) conn(from [4]byte, m wire.CM) *Conn {
	c := e.conns[m.RemoteID()]
	if c == nil || c.peer.Addr != from {
		return nil
	}
	if c.state == ReqSent {
		if m.TransactionID() != c.tid {
			return nil
		}
	} else if m.LocalID() != c.remote {
		return nil
	}
	return c
}

func (e *Engine) req(now Time, from [4]byte, m wire.CM) {
	r := m.Req()
	id, qp := remoteID{from, m.LocalID()}, remoteQP{from, r.QPN}
	if c := e.remotes[id]; c != nil && c.tid == m.TransactionID() && c.attr.DestQPN == r.QPN && c.listener != nil {
		e.counts[Duplicates]++
		if c.state == RepSent {
			c.ready(emitMessage)
		}
		return
	}
	stale := e.remotes[id]
	if stale == nil {
		stale = e.qps[qp]
	}
	var l *Listener
	if r.ServiceID&^0xffff == wire.ServiceTCP {
		l = e.listeners[uint16(r.ServiceID)]
	}
	addr, err := wire.ParseCMAddress(r.Private)
	self, peer := netip.AddrFrom4(e.cfg.Addr), netip.AddrFrom4(from)
	switch {
	case stale != nil:
		stale.suspect()
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejStale)
	case l == nil:
		e.counts[NoListener]++
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejInvalidServiceID)
	case r.Transport > wire.CMTransportUC:
		e.counts[BadRequests]++
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejInvalidTransport)
	case r.PathMTU == 0 || r.PathMTU > e.cfg.PathMTU:
		e.counts[BadRequests]++
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejInvalidPathMTU, e.cfg.PathMTU)
	case r.Src.Unmap() != peer || r.Dst.Unmap() != self:
		e.counts[BadRequests]++
		acceptable := self
		if r.Dst.Unmap() == self { // the source is not the sender's
			acceptable = peer
		}
		gid := acceptable.As16()
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejInvalidGID, gid[:]...)
	case err != nil || addr.Src != peer || addr.Dst != self || !validQPN(r.QPN) || id.id == 0 || r.PKey&0x7fff != wire.DefaultPKey&0x7fff:
		e.counts[BadRequests]++
		e.refuse(from, m, wire.CMMessageReq, wire.CMRejUnsupported)
	case l.pending >= l.backlog || len(e.conns) >= e.cfg.MaxConns:
		e.counts[BacklogFull]++ // no answer: the peer sends the REQ again
	default:
		c := e.newConn(now, ReqReceived, wire.AddrPort4{Addr: from, Port: addr.SrcPort})
		c.listener, c.remote, c.tid = l, id.id, m.TransactionID()
		c.retries, c.timeout = r.MaxRetries, e.responseTimeout(r.LocalTimeout)
		c.attr = Attr{
			Transport: r.Transport, DestQPN: r.QPN, SQPSN: r.PSN, PathMTU: r.PathMTU, Timeout: r.AckTimeout,
			MaxDestRdAtomic: r.InitiatorDepth, MaxRdAtomic: r.ResponderResources,
			RetryCount: r.RetryCount, RNRRetry: r.RNRRetry, PeerSRQ: r.SRQ,
		}
		c.private = slices.Clone(r.Private[wire.CMAddressLen:])
		l.pending++
		e.remotes[id], e.qps[qp] = c, c
		// When the peer has given up, there is nothing left to accept.
		e.timers.Set(&c.timer, min(now+e.responseTimeout(r.RemoteTimeout)*Time(1+r.MaxRetries), c.giveUp))
		c.event(ConnectRequest)
	}
}

// suspect asks the peer whether it still knows a connection whose queue pair or ID it gives to another
// one, as a host does that has forgotten it (section 12.9.8.3.1). Whoever can forge the peer's address can
// send such a REQ, and numbers of queue pairs are often given in sequence. So the connection ends only by the peer's answer:
// a DREQ that names no queue pair has no effect on a connection, and where there is none a DREP answers it,
// which has the 64 random bits of the transaction ID. If either is lost, the peer's next REQ repeats the question.
//
// A connection whose handshake has not ended times out. Its peer may not know our ID yet, so the answer would be wrong.
func (c *Conn) suspect() {
	c.e.counts[Stale]++
	if !c.mayBeStale() {
		return
	}
	if c.dreqTID == 0 {
		c.dreqTID = c.e.cfg.Rand()
	}
	wire.PutCMDreq(c.e.reply(c.peer.Addr), c.dreqTID, c.local, c.remote, 0)
}

func (c *Conn) mayBeStale() bool { return c.state == RepReceived || c.state == StateEstablished }

// refuse answers a REQ or a REP that has no connection here. info is the additional information.
func (e *Engine) refuse(to [4]byte, m wire.CM, message wire.CMMessage, reason wire.CMReason, info ...byte) {
	e.counts[RejectsSent]++
	wire.PutCMRej(e.reply(to), m.TransactionID(), m.RemoteID(), m.LocalID(), &wire.CMRej{Rejected: message, Reason: reason, Info: info})
}

func (e *Engine) rep(now Time, from [4]byte, m wire.CM) {
	c := e.conn(from, m)
	switch {
	case c == nil:
		e.counts[NoConnection]++
		e.refuse(from, m, wire.CMMessageRep, wire.CMRejInvalidCommID)
		return
	case c.state == StateEstablished && c.listener == nil:
		e.counts[Duplicates]++
		c.ready(emitRTU)
		return
	case c.state == RepReceived:
		e.counts[Duplicates]++
		return
	case c.state != ReqSent:
		e.counts[WrongState]++
		return
	}
	r := m.Rep()
	id, qp := remoteID{from, m.LocalID()}, remoteQP{from, r.QPN}
	if !validQPN(r.QPN) || id.id == 0 || e.remotes[id] != nil {
		e.counts[BadRequests]++
		e.refuse(from, m, wire.CMMessageRep, wire.CMRejUnsupported)
		c.end(Rejected, &RejectError{Reason: wire.CMRejUnsupported})
		return
	}
	if stale := e.qps[qp]; stale != nil {
		stale.suspect()
		e.refuse(from, m, wire.CMMessageRep, wire.CMRejStale)
		c.end(Rejected, &RejectError{Reason: wire.CMRejStale})
		return
	}
	a := &c.attr
	a.DestQPN, a.SQPSN, a.PeerSRQ, a.RNRRetry = r.QPN, r.PSN, r.SRQ, r.RNRRetry
	a.MaxDestRdAtomic = min(a.MaxDestRdAtomic, r.InitiatorDepth)
	a.MaxRdAtomic = min(a.MaxRdAtomic, r.ResponderResources)
	a.Timeout = ackTimeout(r.AckDelay, e.cfg.PacketLifetime)
	c.private = slices.Clone(r.Private)
	c.state, c.remote, c.message, c.emit = RepReceived, id.id, nil, 0
	e.remotes[id], e.qps[qp] = c, c
	e.timers.Set(&c.timer, Never)
	c.event(ConnectResponse)
}

func (e *Engine) rtu(from [4]byte, m wire.CM) {
	c := e.conn(from, m)
	switch {
	case c == nil:
		e.counts[NoConnection]++
	case c.state == RepSent && m.TransactionID() == c.tid:
		c.CommEstablished()
	default:
		e.counts[Duplicates]++
	}
}

func (e *Engine) rej(from [4]byte, m wire.CM) {
	r, err := m.Rej()
	if err != nil {
		e.counts[Malformed]++
		return
	}
	c := e.conn(from, m)
	if c == nil && m.RemoteID() == 0 && r.Reason == wire.CMRejTimeout {
		// The peer has given up before it received the REP that has our ID.
		if c = e.remotes[remoteID{from, m.LocalID()}]; c != nil && m.TransactionID() != c.tid {
			c = nil
		}
	}
	if c == nil {
		e.counts[NoConnection]++
		return
	}
	e.counts[RejectsReceived]++
	t := Rejected
	if c.state >= StateEstablished {
		t = Disconnected
	}
	c.end(t, &RejectError{r.Reason, slices.Clone(r.Info), slices.Clone(r.Private)})
}

func (e *Engine) dreq(from [4]byte, m wire.CM) {
	c := e.conn(from, m)
	if c != nil && (c.state == ReqSent || c.state == ReqReceived || m.DreqQPN() != c.qpn) {
		e.counts[WrongState]++
		return
	}
	// Without a connection our DREP was lost: it is sent again.
	wire.PutCM(e.reply(from), wire.CMDrepAttr, m.TransactionID(), m.RemoteID(), m.LocalID())
	if c == nil {
		e.counts[NoConnection]++
		return
	}
	var err error
	if c.state < StateEstablished {
		err = ErrDisconnected
	}
	c.end(Disconnected, err)
}

func (e *Engine) drep(from [4]byte, m wire.CM) {
	c := e.conn(from, m)
	switch {
	case c == nil:
		e.counts[NoConnection]++
	case c.dreqTID == 0 || m.TransactionID() != c.dreqTID:
		e.counts[WrongState]++
	case c.state == RepReceived:
		c.end(Rejected, &RejectError{Reason: wire.CMRejStale})
	case c.state == DreqSent || c.state == StateEstablished:
		c.end(Disconnected, nil)
	default:
		e.counts[WrongState]++
	}
}

func (e *Engine) mra(now Time, from [4]byte, m wire.CM) {
	c, r := e.conn(from, m), m.Mra()
	switch {
	case c == nil:
		e.counts[NoConnection]++
	case c.state == ReqSent && r.Message == wire.CMMessageReq, c.state == RepSent && r.Message == wire.CMMessageRep:
		e.timers.Set(&c.timer, min(now+e.responseTimeout(r.Timeout), c.giveUp))
	default:
		e.counts[WrongState]++
	}
}
