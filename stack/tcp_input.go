package stack

import (
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// inputTCP takes the segment in a packet. See inputEthernet for f and kept.
func (s *Stack) inputTCP(eth wire.Ethernet, ip wire.IPv4, f *Frame) (kept bool) {
	if !s.tcpTouched { // the first of a batch
		s.tcpTouched = true
		s.readClock()
	}
	in := tcp.Inbound{Src: ip.Src(), Dst: ip.Dst(), Data: ip.Payload(), ECN: ip.TOS() & wire.ECNMask}
	switch {
	case f == &s.borrowed:
		in.Memory = tcp.MemoryBorrowed
	case f == nil:
		in.Memory = tcp.MemoryHeap
	case s.lent < s.quota:
		in.Memory, in.Frame = tcp.MemoryFrame, f.ID
	}
	r := s.tcp.Process(tcp.Time(s.now), &in)
	switch {
	case r.Reply:
		s.replyTCP(eth, ip)
	case r.Opening != nil:
		s.answerSYN(eth, ip, r.Opening)
	}
	if r.Kept {
		s.lent++
	}
	return r.Kept
}

// replyTCP sends the answer that no connection gives.
func (s *Stack) replyTCP(eth wire.Ethernet, ip wire.IPv4) {
	if eth.Src().IsGroup() {
		return
	}
	f, ok := s.reply(headersLen + wire.MaxTCPHeaderLen)
	if !ok {
		return
	}
	n := s.tcp.EmitReply(f.Data[headersLen:])
	s.replyHeaders(f.Data, eth, ip, wire.ProtocolTCP, n)
	f.Data = f.Data[:headersLen+n]
	s.transmit(f)
}

// answerSYN sends the answer to a SYN back to where that came from. Whoever floods
// us with SYNs of hosts that are not there thus makes nobody look for them.
func (s *Stack) answerSYN(eth wire.Ethernet, ip wire.IPv4, conn *tcp.Conn) {
	if eth.Src().IsGroup() {
		return // outputTCP loses it
	}
	conn.Owner = eth.Src() // for wayTCP, until somebody accepts the connection
	f, ok := s.reply(headersLen + wire.MaxTCPHeaderLen)
	if !ok {
		return
	}
	if r := s.routes[ip.Src()]; r != nil && r.state == routeReady {
		conn.SetMTU(tcp.Time(s.now), r.mtu)
	}
	n := conn.Emit(tcp.Time(s.now), f.Data[headersLen:])
	if n == 0 { // it has been answered already
		s.link.Release(f)
		return
	}
	s.replyHeaders(f.Data, eth, ip, wire.ProtocolTCP, n)
	f.Data = f.Data[:headersLen+n]
	s.transmit(f)
}

// releaseFrame takes a frame back that the engine has kept.
func (s *Stack) releaseFrame(id uint64) {
	s.lent--
	if !s.closed {
		s.link.Release(Frame{ID: id})
	}
}

// inputICMPErrorTCP takes an error to the connection that sent the segment it
// quotes.
func (s *Stack) inputICMPErrorTCP(m wire.ICMPv4, quoted wire.IPv4) {
	if s.tcp.ProcessICMP(tcp.Time(s.readClock()), m, quoted) == nil {
		s.count[icmpUnmatched]++
		return
	}
	s.count[icmpErrors]++
	s.settleTCP()
}

// tellTCP wakes those who wait for what the engine has done.
func (s *Stack) tellTCP() {
	for conn, e := s.tcp.NextEvent(); conn != nil; conn, e = s.tcp.NextEvent() {
		if e&tcp.PathChanged != 0 {
			s.learnPathMTU(conn)
		}
		if c, ok := conn.Owner.(*TCPConn); ok {
			c.happened(e)
		}
	}
	for l := s.tcp.NextListener(); l != nil; l = s.tcp.NextListener() {
		s.signal(&l.Owner.(*TCPListener).acceptable)
	}
}

func (c *TCPConn) happened(e tcp.Events) {
	s := c.stack
	if e&tcp.Readable != 0 {
		c.answering = c.readers > 0
		// All of them: the engine tells once, and part of the text may lie in the memory
		// of one reader, which is not the one that has waited longest.
		s.broadcast(&c.readable)
	}
	if e&tcp.Connected != 0 {
		c.connected = true
	}
	if e&(tcp.Writable|tcp.Connected) != 0 {
		s.signal(&c.writable)
	}
	if e&tcp.Returned != 0 {
		s.broadcast(&c.reclaimed)
	}
	if e&(tcp.Drained|tcp.Finished) != 0 {
		c.drained = c.drained || e&tcp.Drained != 0
		s.broadcast(&s.drained)
	}
	if e&tcp.Finished != 0 {
		c.finished = true
		c.wakeAll()
		c.release()
	}
}
