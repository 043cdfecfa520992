package stack

import (
	"time"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// The sockets are published in Config.Connections. Records are written by a timer that runs
// only while frames are sent or received, and for as long as received data waits to be read: so
// a segment or datagram costs the check of one bool, and an idle stack nothing.

const (
	publishInterval = instant(100 * time.Millisecond)
	publishSoon     = instant(10 * time.Millisecond) // while connections are left that have changed
	publishBatch    = 64                             // connections at once
)

// publisher is that timer.
type publisher struct {
	timer
	records   *wire.Connections
	published func() // Config.Published; may be nil
	quiet     bool   // there are records, and the timer is not armed
	udpAt     instant
}

// recordsOf are the records of a stack; nil: nothing is published. A socket at no address has a record of the first uplink.
func (s *Stack) recordsOf(all []Uplink) *wire.Connections {
	var of []*wire.Connections
	some := false
	for _, u := range all {
		of, some = append(of, wire.NewConnections(u.Connections)), some || u.Connections != nil
	}
	switch {
	case !some:
		return nil
	case len(of) == 1:
		return of[0]
	}
	return wire.JoinConnections(func(local wire.Addr) *wire.Connections { return of[s.own.Load().number(local)] })
}

// startPublishing arms the timer. The caller has found quiet. mu is held, as in all of this
// file.
//
// +checklocks:s.mu
func (s *Stack) startPublishing() {
	s.publisher.quiet = false
	s.startTimer(&s.publisher.timer, s.now+publishInterval)
}

// expired publishes what has changed.
//
// +checklocks:s.mu
func (p *publisher) expired(s *Stack) {
	busy := s.tcp.Changed() || s.tcp.Unread()
	s.tcp.Publish(publishBatch)
	if s.now >= p.udpAt {
		for c := range s.udpConns {
			if publishUDP(c.record, c.udp) {
				busy = true
			}
		}
		for u := range s.udpPorts {
			if publishUDP(u.record, u.udp) {
				busy = true
			}
		}
		// The work for each interval is bounded, however many sockets there are.
		p.udpAt = s.now + publishInterval*instant(1+(len(s.udpConns)+len(s.udpPorts))/publishBatch)
		if p.published != nil {
			p.published()
		}
	} else {
		busy = true
	}
	switch {
	case s.tcp.Changed():
		s.startTimer(&p.timer, s.now+publishSoon)
	case busy:
		s.startTimer(&p.timer, s.now+publishInterval)
	default:
		p.quiet = true
	}
}

// recordUDP returns a record for a socket; nil if there is none.
func (p *publisher) recordUDP(u *udp.Socket) *wire.Connection {
	local, remote := u.Local(), u.Remote()
	r := p.records.Get(local.Addr)
	if r != nil {
		*r = wire.Connection{Local: local.Addr.WithZone(0), Remote: remote.Addr.WithZone(0), LocalPort: local.Port, RemotePort: remote.Port, Protocol: wire.ProtocolUDP}
	}
	return r
}

// publishUDP brings the record of a socket up to date. again: something has changed, or may
// change without another event.
func publishUDP(r *wire.Connection, u *udp.Socket) (again bool) {
	if r == nil {
		return false
	}
	n := u.Counters()
	again = r.Received != n.Received || r.Sent != n.Sent || r.Drops != wire.Saturate(n.QueueFull) || u.Len() > 0
	r.Received, r.Sent, r.Drops = n.Received, n.Sent, wire.Saturate(n.QueueFull)
	r.ReceiveQueue = wire.Saturate(u.Bytes())
	return again
}
