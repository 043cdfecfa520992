//go:build linux

package mux

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// Status describes the endpoints whose identifier is from or more, by identifier, without
// their sockets, which [Mux.Sockets] reads. Command is left out.
func (m *Mux) Status(from uint64) ([]endpoint.Status, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer m.leave()
	devices, err := m.traffic()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []endpoint.Status
	for _, l := range m.leases {
		if l.id < from {
			continue
		}
		s := endpoint.Status{Info: l.infoWithTags(), FillQueue: m.fills.depth(l)} // +checklocksignore: a lease of this mux
		if d, ok := devices[l.at.owner.Port]; ok {
			s.Port = &endpoint.PortCount{FramesOut: d.RxPackets, BytesOut: d.RxBytes, DroppedIn: d.TxDropped}
			if m.progs.Mode != ModeTCX { // bpf_redirect_peer leaves the outer end out
				s.Port.FramesIn, s.Port.BytesIn = &d.TxPackets, &d.TxBytes
			}
		}
		if e := l.connections.endpoint(); e != nil { // +checklocksignore: a lease of this mux
			s.Published = &endpoint.Published{
				Sent: e.Sent, Received: e.Received, SendQueueFull: e.QueueFull, NoBuffers: e.NoBuffers, Malformed: e.Malformed,
				ReceiveQueueFull: e.RxRingFull, FreeQueueEmpty: e.FillRingEmpty, ReceiveDropped: e.RxDropped,
				InvalidReceive: e.InvalidRx, InvalidSend: e.InvalidTx, ReceiveQueue: e.RxQueue, SendQueue: e.TxQueue,
				PathSent: e.PathSent, PathReceived: e.PathReceived, PathDropped: e.PathDropped,
			}
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b endpoint.Status) int { return cmp.Compare(a.ID, b.ID) })
	return list, nil
}

var errEnough = errors.New("enough sockets")

// Sockets reads the sockets that the process of an endpoint publishes: at most n, from the
// record numbered from on. more: there may be others. A record is left out unless its local
// end is one of the endpoint's tags. Without such an endpoint there are no sockets.
func (m *Mux) Sockets(id uint64, from uint32, n int) (list []endpoint.Socket, more bool, err error) {
	if err := m.enter(); err != nil {
		return nil, false, err
	}
	defer m.leave()
	m.mu.Lock()
	l := m.leases[id]
	var p *published
	var held heldPorts
	if l != nil && l.connections != nil { // +checklocksignore: a lease of this mux
		p, err = l.connections.share() // +checklocksignore: the lease may end meanwhile
		held = heldBy(l)
	}
	m.mu.Unlock()
	if p == nil || err != nil {
		return nil, false, err
	}
	err = p.each(from, func(at uint32, c wire.Connection) error {
		s, ok := socketOf(at, &c)
		if !ok || !held.has(c.Protocol, s.Local) {
			return nil
		}
		if len(list) == n {
			more = true
			return errEnough
		}
		list = append(list, s)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list, more, errors.Join(err, p.Close())
}

// heldPorts are the tags of a lease on which sockets can be.
type heldPorts struct {
	tags  map[endpoint.Tag]bool
	owned bool
	ports map[portKey]bool // on any address, for sockets at a wildcard
}

type portKey struct {
	kind  endpoint.TagKind
	port  uint16
	block bool
}

// heldBy needs m.mu.
func heldBy(l *Lease) heldPorts {
	h := heldPorts{tags: map[endpoint.Tag]bool{}, ports: map[portKey]bool{}}
	for t := range l.tags {
		h.tags[t] = true
		h.owned = h.owned || t.Kind == endpoint.TagAddr
		h.ports[portKey{t.Kind, t.Port, t.Block}] = true
	}
	return h
}

// has reports whether a socket of the lease can be at local.
func (h *heldPorts) has(protocol uint8, local netip.AddrPort) bool {
	t := endpoint.UDPTag(local)
	if protocol == wire.ProtocolTCP {
		t = endpoint.TCPTag(local)
	}
	b := t.AsBlock()
	if local.Addr().IsUnspecified() {
		return h.owned || h.ports[portKey{t.Kind, t.Port, false}] || h.ports[portKey{b.Kind, b.Port, true}]
	}
	return h.tags[t] || h.tags[b] || h.tags[endpoint.AddrTag(local.Addr())]
}

// socketStates are the names of the states of package proto/tcp, by number, as ss(8) has them
// in filters. Connections in other states are not published.
var socketStates = [...]endpoint.SocketState{
	1: "listening", 4: "established", 5: "fin-wait-1", 6: "fin-wait-2", 7: "close-wait", 8: "closing", 9: "last-ack",
}

// socketOf converts a record; ok is false if it cannot be one of a socket.
func socketOf(at uint32, c *wire.Connection) (s endpoint.Socket, ok bool) {
	s = endpoint.Socket{
		Record: at, Protocol: "udp", State: "unconnected", Local: netip.AddrPortFrom(c.Local.Netip(), c.LocalPort), ReceiveQueue: c.ReceiveQueue, SendQueue: c.SendQueue,
		Received: c.Received, Sent: c.Sent, Drops: c.Drops,
	}
	if c.RemotePort != 0 {
		s.Remote = netip.AddrPortFrom(c.Remote.Netip(), c.RemotePort)
		s.State = "established"
	}
	if c.Protocol == wire.ProtocolUDP {
		return s, true
	}
	if int(c.State) >= len(socketStates) || socketStates[c.State] == "" || (c.State == 1) != (c.RemotePort == 0) {
		return s, false
	}
	s.Protocol, s.State, s.Drops = "tcp", socketStates[c.State], 0
	s.RTT, s.RTTVar, s.RTO = time.Duration(c.RTT), time.Duration(c.RTTVar), time.Duration(c.RTO)
	s.MSS, s.Window, s.InFlight = c.MSS, c.Window, c.InFlight
	s.BytesIn, s.BytesAcked, s.Retransmitted = c.BytesIn, c.BytesAcked, c.Again
	return s, true
}
