package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// Neighbour discovery (RFC 4861) as it stands in a frame without a VLAN tag or
// extension headers. Nobody sends it with them.
const (
	ndIPv6    = wire.EthernetHeaderLen
	ndNext    = ndIPv6 + 6
	ndHops    = ndIPv6 + 7
	ndSource  = ndIPv6 + 8
	ndDest    = ndIPv6 + 24
	ndType    = ndIPv6 + 40
	ndCode    = ndType + 1
	ndTarget  = ndType + 8
	ndEnd     = ndTarget + 16
	ndBodyLen = ndEnd - ndType

	ndSolicitation  = 135
	ndAdvertisement = 136
	ndHopLimit      = 255 // so that nothing comes from another link
)

// ndProber asks for IPv6 addresses.
var ndProber = prober{
	name:      "neighbour solicitation",
	etherType: wire.EtherTypeIPv6,
	filter: notOthers([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ndNext},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jf: 4},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ndType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ndSolicitation, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ndAdvertisement, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: maxProbeFrame},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}...),
	listen: func(ifindex int, addrs []netip.Addr) (stop func() error, err error) {
		fd, err := joinSolicited(ifindex, addrs)
		return func() error { return unix.Close(fd) }, err
	},
	put: func(frame []byte, from wire.LinkAddr, a netip.Addr) int {
		group := solicitedNode(a)
		link := wire.LinkAddr{0x33, 0x33} // RFC 2464, 7
		copy(link[2:], group[12:])
		clear(frame[:ndEnd]) // the source is unspecified
		wire.PutEthernet(frame, link, from, wire.EtherTypeIPv6)
		frame[ndIPv6] = 6 << 4
		binary.BigEndian.PutUint16(frame[ndIPv6+4:], ndBodyLen)
		frame[ndNext], frame[ndHops] = unix.IPPROTO_ICMPV6, ndHopLimit
		copy(frame[ndDest:], group[:])
		target := a.As16()
		frame[ndType] = ndSolicitation
		copy(frame[ndTarget:], target[:])
		// The pseudo-header is the addresses, the length and the protocol.
		sum := wire.Sum(frame[ndSource:ndEnd], 0)
		sum = wire.Sum([]byte{0, ndBodyLen, 0, unix.IPPROTO_ICMPV6}, sum)
		binary.BigEndian.PutUint16(frame[ndCode+1:], ^wire.Fold(sum))
		return ndEnd
	},
	// The checksum is not looked at: on a virtual link it may be half done, and a
	// frame that was corrupted costs its claimant no more than another try.
	claimed: func(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool) {
		if eth.HeaderLen() != ndIPv6 || len(eth) < ndEnd || eth[ndIPv6]>>4 != 6 || eth[ndNext] != unix.IPPROTO_ICMPV6 ||
			eth[ndHops] != ndHopLimit || eth[ndCode] != 0 || binary.BigEndian.Uint16(eth[ndIPv6+4:]) < ndBodyLen {
			return a, at, false
		}
		source := netip.AddrFrom16([16]byte(eth[ndSource:]))
		target := netip.AddrFrom16([16]byte(eth[ndTarget:]))
		switch {
		case eth[ndType] == ndAdvertisement, eth[ndType] == ndSolicitation && source.IsUnspecified():
			return target, eth.Src(), true
		case eth[ndType] == ndSolicitation: // for another, by who has this one
			return source, eth.Src(), true
		}
		return a, at, false
	},
}

// solicitedNode is the multicast address to which solicitations for a go (RFC
// 4291, 2.7.1).
func solicitedNode(a netip.Addr) [16]byte {
	group := [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
	b := a.As16()
	copy(group[13:], b[13:])
	return group
}

// joinSolicited makes the host a member of the solicited-node groups of addrs on
// an interface, as long as the socket is open: its hardware takes in what is sent
// to them, and switches that listen to its reports send it here. (Advertisements
// come to all nodes, ff02::1, and of those the host is one anyway.) The kernel does
// not answer for addresses that are not its own.
func joinSolicited(ifindex int, addrs []netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	joined := map[[16]byte]bool{}
	for _, a := range addrs {
		group := solicitedNode(a)
		if joined[group] {
			continue
		}
		joined[group] = true
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group, Interface: uint32(ifindex)})
		if err != nil {
			return -1, errors.Join(fmt.Errorf("join the solicited-node group of %v: %w", a, err), unix.Close(fd))
		}
	}
	return fd, nil
}

// hear keeps the uplink a member of the group by which others ask for an IPv6
// address. For an IPv4 address they broadcast.
func (r *reserver) hear(a netip.Addr) (fds []int, err error) {
	if a.Is4() {
		return nil, nil
	}
	fd, err := joinSolicited(r.ifindex, []netip.Addr{a})
	if err != nil {
		return nil, err
	}
	return []int{fd}, nil
}
