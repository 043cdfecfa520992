package mux

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// arpProber asks for IPv4 addresses.
var arpProber = prober{
	name:      "ARP",
	etherType: wire.EtherTypeARP,
	filter:    notOthers(unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: maxProbeFrame}),
	put: func(frame []byte, from wire.LinkAddr, a netip.Addr) int {
		wire.PutEthernet(frame, wire.Broadcast, from, wire.EtherTypeARP)
		wire.PutARP(frame[wire.EthernetHeaderLen:], wire.ARPFields{Op: wire.ARPRequest, SenderLink: from, TargetAddr: a.As4()})
		return wire.EthernetHeaderLen + wire.ARPLen
	},
	claimed: func(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool) {
		arp, err := wire.ParseARP(eth.Payload())
		if err != nil {
			return a, at, false
		}
		a = netip.AddrFrom4(arp.SenderAddr())
		if a.IsUnspecified() && arp.Op() == wire.ARPRequest {
			a = netip.AddrFrom4(arp.TargetAddr())
		}
		return a, arp.SenderLink(), true
	},
}
