//go:build linux

package mux

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// Report is what a mux has, for monitoring. Making it takes time in proportion to the number of
// endpoints and users, not to that of tags.
type Report struct {
	Uplink    endpoint.Uplink
	MTU       uint32 // bytes
	Link      Traffic
	Endpoints []EndpointReport
	Users     map[uint32]Usage // by uid
	Limits    Limits
	Ended     map[string]uint64 // leases that have ended since the mux was opened, by one of EndReasons
}

// EndpointReport is one endpoint. Info is without tags.
type EndpointReport struct {
	Info endpoint.Info
	Tags int     // held now; a block counts once
	Port Traffic // of the outer end of its port: received is what the endpoint has sent, for whomever; zero for queues
	// Published is what its process says, which may be anything; nil: it publishes nothing.
	Published *wire.EndpointRecord
	Sockets   SocketTotals
}

// SocketTotals sums up the first 255 sockets that a process publishes, which may say anything.
type SocketTotals struct {
	UDP, Listening, Connections int
	// Of present TCP connections.
	Segments, Again     float64 // sent; of these, sent again
	BytesAcked, BytesIn float64
	RTT                 time.Duration // mean of the smoothed round-trip times; 0: none was measured
}

// Traffic is what a device has counted.
type Traffic struct {
	RxPackets, RxBytes, RxDropped uint64
	TxPackets, TxBytes, TxDropped uint64
}

// Usage is what a user has, or all users together.
type Usage struct {
	Endpoints int64 // also those that have ended, until their socket and segment are closed (ADR 17)
	Memory    int64 // bytes of the segments of these
	Tags      int64 // a block counts as endpoint.BlockPorts
}

// EndReasons are why leases end.
var EndReasons = []string{endClosed, "misuse", "operator", "address_taken", "port_deleted", "uplink_changed", "shutdown", endReclaimed, endOther}

const (
	endClosed    = "closed"    // its application has closed it, or has died
	endReclaimed = "reclaimed" // its application did not present it to this unetd
	endOther     = "other"
)

// endReason is the reason of an end by the mux; nil: its owner has closed the lease.
func endReason(why error) string {
	for _, e := range []struct {
		is     error
		reason string
	}{
		{ErrRevoked, "misuse"}, {ErrRevokedByOperator, "operator"}, {ErrAddrTaken, "address_taken"},
		{ErrPortDeleted, "port_deleted"}, {ErrUplinkChanged, "uplink_changed"}, {ErrClosed, "shutdown"},
	} {
		if errors.Is(why, e.is) {
			return e.reason
		}
	}
	if why != nil {
		return endOther
	}
	return endClosed
}

// Report describes what there is now.
func (m *Mux) Report() (Report, error) {
	if err := m.enter(); err != nil {
		return Report{}, err
	}
	defer m.leave()
	devices, err := m.traffic()
	if err != nil {
		return Report{}, err
	}
	var tables []*published
	r := Report{Uplink: m.Uplink(), MTU: m.mtu(), Link: devices[uint32(m.up.Index)]}
	m.mu.Lock()
	r.Limits, r.Users, r.Ended = m.users.limits, m.users.users(), maps.Clone(m.endings)
	r.Endpoints = make([]EndpointReport, 0, len(m.leases))
	for _, l := range slices.SortedFunc(maps.Values(m.leases), func(a, b *Lease) int { return cmp.Compare(a.id, b.id) }) {
		r.Endpoints = append(r.Endpoints, EndpointReport{Info: l.info(), Tags: len(l.tags), Port: devices[l.at.owner.Port]}) // +checklocksignore: a lease of this mux
		tables = append(tables, l.connections)                                                                               // +checklocksignore: a lease of this mux
	}
	m.mu.Unlock()
	// A table may be closed meanwhile: then it reads as empty.
	part := make([]byte, 1<<15)
	for i, p := range tables {
		r.Endpoints[i].Published, r.Endpoints[i].Sockets = p.total(part)
	}
	return r, nil
}

// total reads the header of a table and sums up the records that fit part, without the header. p may be nil.
func (p *published) total(part []byte) (e *wire.EndpointRecord, t SocketTotals) {
	if p == nil || p.version == 1 {
		return nil, t
	}
	n, _ := p.file.ReadAt(part, 0) // io.EOF: the table is shorter
	if n < wire.ConnectionLen {
		return nil, t
	}
	head := wire.ParseEndpointRecord(part[:n])
	var rtts, measured uint64
	for b := part[wire.ConnectionLen:n]; len(b) >= wire.ConnectionLen; b = b[wire.ConnectionLen:] {
		c := wire.ParseConnection(b)
		switch {
		case c.Protocol == 0:
		case c.Protocol == wire.ProtocolUDP:
			t.UDP++
		case c.RemotePort == 0:
			t.Listening++
		default:
			t.Connections++
			t.Segments += float64(c.Sent)
			t.Again += float64(c.Again)
			t.BytesAcked += float64(c.BytesAcked)
			t.BytesIn += float64(c.BytesIn)
			if c.RTT > 0 { // at most an hour, see wire.ParseConnection
				rtts += c.RTT
				measured++
			}
		}
	}
	if measured > 0 {
		t.RTT = time.Duration(rtts / measured)
	}
	return &head, t
}

// traffic reads what the devices of the uplink's namespace have counted, by ifindex, which is never 0.
// What the outer end of a port receives the endpoint has sent.
func (m *Mux) traffic() (map[uint32]Traffic, error) {
	links, err := route.Dump(m.nl.LinkList)
	if err != nil {
		return nil, fmt.Errorf("counters of devices: %w", err)
	}
	devices := map[uint32]Traffic{}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			devices[uint32(l.Attrs().Index)] = Traffic{s.RxPackets, s.RxBytes, s.RxDropped + s.RxMissedErrors, s.TxPackets, s.TxBytes, s.TxDropped}
		}
	}
	return devices, nil
}
