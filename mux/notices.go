//go:build linux

package mux

import (
	"net/netip"

	"github.com/unet-go/unet/endpoint"
)

// hopChanged sends notices to the leases that have resolved destinations behind a next hop
// that has changed. A hop that is not valid stands for all.
func (m *Mux) hopChanged(hop netip.Addr) {
	for _, l := range m.all() {
		l.watchers.Tell(l.resolved.Behind(hop)...)
	}
}

// ownerChanged sends a notice to each lease that has resolved an owned address that was claimed
// or given back. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) ownerChanged(addr netip.Addr) {
	for _, l := range m.leases {
		if l.resolved.Has(addr) {
			l.watchers.Tell(endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: addr})
		}
	}
}

// tellAddresses sends the lease notices of what has changed, where these are all addresses of the
// uplink now. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) tellAddresses(now []netip.Prefix) {
	var list []endpoint.Notice
	for _, p := range now {
		list = append(list, endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: p.Addr(), Bits: uint8(p.Bits())})
	}
	l.watchers.Renew()
	l.watchers.Tell(append(list, endpoint.Notice{Kind: endpoint.NoticeAddrGone})...)
}

// tellLink sends the lease a notice about the state of the uplink.
func (l *Lease) tellLink(down bool) {
	kind := endpoint.NoticeLinkUp
	if down {
		kind = endpoint.NoticeLinkDown
	}
	l.watchers.Tell(endpoint.Notice{Kind: kind})
}
