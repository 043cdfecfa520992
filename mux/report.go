//go:build linux

package mux

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
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
}

// Traffic is what a device has counted.
type Traffic struct {
	RxPackets, RxBytes, RxDropped uint64
	TxPackets, TxBytes, TxDropped uint64
}

// Usage is what a user has.
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
	links, err := route.Dump(m.nl.LinkList)
	if err != nil {
		return Report{}, fmt.Errorf("statistics of devices: %w", err)
	}
	traffic := map[int]Traffic{}
	for _, l := range links {
		if s := l.Attrs().Statistics; s != nil {
			traffic[l.Attrs().Index] = trafficOf(s)
		}
	}
	r := Report{Uplink: m.Uplink(), MTU: m.mtu(), Link: traffic[m.up.ifindex], Users: map[uint32]Usage{}}
	m.mu.Lock()
	defer m.mu.Unlock()
	r.Limits, r.Ended = m.users.limits, maps.Clone(m.endings)
	for uid, u := range m.users.byUID {
		r.Users[uid] = Usage{Endpoints: u.endpoints, Memory: u.bytes, Tags: u.tags}
	}
	r.Endpoints = make([]EndpointReport, 0, len(m.leases))
	for _, l := range m.leases {
		e := EndpointReport{Info: l.info(), Tags: len(l.tags)}
		if port := l.at.owner.Port; port != 0 {
			e.Port = traffic[int(port)]
		}
		r.Endpoints = append(r.Endpoints, e)
	}
	slices.SortFunc(r.Endpoints, func(a, b EndpointReport) int { return cmp.Compare(a.Info.ID, b.Info.ID) })
	return r, nil
}

func trafficOf(s *netlink.LinkStatistics) Traffic {
	return Traffic{s.RxPackets, s.RxBytes, s.RxDropped + s.RxMissedErrors, s.TxPackets, s.TxBytes, s.TxDropped}
}
