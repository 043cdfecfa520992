//go:build linux

package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// The times of RFC 5227 and RFC 4862 are longer, for networks in which an answer takes up to a
// second. Hosts of a wired network answer in milliseconds.
const (
	VacantProbes   = 3                      // for each address
	vacantInterval = 150 * time.Millisecond // after each probe, also the last
	vacantAtOnce   = 64                     // addresses probed by one socket: the answers fit its receive buffer
	maxVacantFrame = 128                    // bytes read of a frame
)

// InUse is the error that a host on the uplink's network has an address.
type InUse struct {
	Addr netip.Addr
	At   wire.LinkAddr // MAC address of that host
}

func (e *InUse) Error() string {
	return fmt.Sprintf("the host at MAC address %v has %v", e.At, e.Addr)
}

// Probes divides addresses into parts for Vacant.
func Probes(addrs []netip.Addr) iter.Seq[[]netip.Addr] {
	return func(yield func([]netip.Addr) bool) {
		for _, v6 := range []bool{false, true} {
			family := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is6() != v6 })
			for some := range slices.Chunk(family, vacantAtOnce) {
				if !yield(some) {
					return
				}
			}
		}
	}
}

// Vacant returns nil if no host on the uplink's network answers probes for addrs, one of the
// parts of [Probes], else an [InUse]. It sends ARP probes (RFC 5227, section 2.1.1) or neighbour solicitations (RFC 4862,
// section 5.4), as a host does before it takes an address. us is the uplink's own MAC address.
// Without an answer it takes 450 ms.
func (r *Resolver) Vacant(ctx context.Context, us wire.LinkAddr, addrs []netip.Addr) (err error) {
	name, of, filter := "ARP", wire.EtherTypeARP, []unix.SockFilter{accept(maxVacantFrame)}
	if addrs[0].Is6() {
		name, of, filter = "neighbour solicitation", wire.EtherTypeIPv6, ndFilter
	}
	sock, err := Listen(r.ns, r.ifindex, name, of, filter)
	if err == nil {
		defer func() { err = errors.Join(err, sock.Close()) }()
		if addrs[0].Is6() {
			var groups int
			err = Within(r.ns, func() (err error) {
				groups, err = JoinSolicited(r.ifindex, addrs...)
				return err
			})
			if err == nil {
				defer func() { err = errors.Join(err, unix.Close(groups)) }()
			}
		}
	}
	if err == nil {
		defer context.AfterFunc(ctx, func() { sock.SetDeadline(time.Unix(1, 0)) })()
		for range VacantProbes {
			if err = r.probeOnce(ctx, sock, us, addrs); err != nil {
				break
			}
		}
	}
	var used *InUse
	switch {
	case err == nil || errors.As(err, &used):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("probe by %s: %w", name, err)
}

// probeOnce sends one probe for each address and reads answers for vacantInterval. When ctx ends
// the caller sets a deadline in the past, which ends the read.
func (r *Resolver) probeOnce(ctx context.Context, sock *os.File, us wire.LinkAddr, addrs []netip.Addr) error {
	if err := sock.SetDeadline(time.Now().Add(vacantInterval)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, a := range addrs {
		if _, err := sock.Write(solicitation(a, groupOf(a), sender{link: us})); err != nil {
			return err
		}
		r.sent()
	}
	for {
		var frame [maxVacantFrame]byte
		n, err := sock.Read(frame[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		if a, at, ok := claimed(frame[:n]); ok && at != us && slices.Contains(addrs, a) {
			return &InUse{a, at}
		}
	}
}

func accept(bytes uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: bytes}
}

// ndFilter accepts solicitations and advertisements.
var ndFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ndNext},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_ICMPV6, Jf: 4},
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ndType},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ndSolicitation, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: ndAdvertisement, Jf: 1},
	accept(maxVacantFrame),
	accept(0),
}

// Listen makes a packet socket on an interface of ns. It receives the frames of an EtherType that
// a filter accepts, except those that the kernel marks as for other hosts (PACKET_OTHERHOST).
// So it does not receive frames of a VLAN that has no interface on this host: the kernel has
// removed their VLAN tag and marked them so. An address on another VLAN is another address.
func Listen(ns netns.NsHandle, ifindex int, name string, of wire.EtherType, filter []unix.SockFilter) (sock *os.File, err error) {
	const packetType = 0xfffff000 + 4 // SKF_AD_OFF + SKF_AD_PKTTYPE, linux/filter.h
	filter = append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OTHERHOST, Jf: 1},
		accept(0),
	}, filter...)
	err = Within(ns, func() error {
		// Protocol 0: it receives nothing until it is bound.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket AF_PACKET", err)
		}
		sock = os.NewFile(uintptr(fd), name)
		fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
			return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
		}
		var protocol [2]byte // in network byte order
		binary.BigEndian.PutUint16(protocol[:], uint16(of))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(protocol[:]), Ifindex: ifindex})
		return os.NewSyscallError("bind", err)
	})
	if err != nil && sock != nil {
		sock.Close()
		sock = nil
	}
	return sock, err
}

// JoinSolicited makes the host a member of the solicited-node groups of IPv6 addresses on an
// interface of the calling thread's namespace, as long as the socket is open. Then the
// interface receives frames to these groups, and switches with MLD snooping forward them.
// (Advertisements are sent to ff02::1, of which each host is a member.) The kernel does not
// answer for addresses that are not its own.
func JoinSolicited(ifindex int, addrs ...netip.Addr) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	joined := map[[16]byte]bool{}
	for _, a := range addrs {
		group := SolicitedNode(a)
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

// Offsets of neighbour discovery (RFC 4861) in a frame without VLAN tag and extension headers.
const (
	ndIPv6   = wire.EthernetHeaderLen
	ndNext   = ndIPv6 + 6
	ndHops   = ndIPv6 + 7
	ndSource = ndIPv6 + 8
	ndDest   = ndIPv6 + 24
	ndType   = ndIPv6 + 40
	ndCode   = ndType + 1
	ndTarget = ndType + 8
	ndEnd    = ndTarget + 16 // options follow

	ndSolicitation  = 135
	ndAdvertisement = 136
	ndOverride      = 0x20 // of an advertisement: it replaces a MAC address that the receiver has
	ndHopLimit      = 255  // a packet from another link has a smaller one
	ndLinkOption    = 8    // bytes of the source link-layer address option
)

// groupOf is the destination MAC address of a probe for an address whose MAC address is not
// known: broadcast, or the solicited-node group (RFC 2464, section 7).
func groupOf(a netip.Addr) wire.LinkAddr {
	if a.Is4() {
		return wire.Broadcast
	}
	b := a.As16()
	return wire.LinkAddr{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}

// SolicitedNode is the multicast address of solicitations for a (RFC 4291, section 2.7.1).
func SolicitedNode(a netip.Addr) [16]byte {
	b := a.As16()
	return [16]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
}

// solicitation is the frame of an ARP request, or of a neighbour solicitation (RFC 4861, section
// 4.3). Without a source address it is a probe, which claims none (RFC 5227, section 2.1.1, and
// RFC 4862, section 5.4.2).
func solicitation(a netip.Addr, to wire.LinkAddr, from sender) []byte {
	if a.Is4() {
		b := make([]byte, wire.EthernetHeaderLen+wire.ARPLen)
		wire.PutEthernet(b, to, from.link, wire.EtherTypeARP)
		fields := wire.ARPFields{Op: wire.ARPRequest, SenderLink: from.link, TargetAddr: a.As4()}
		if from.addr.Is4() {
			fields.SenderAddr = from.addr.As4()
		}
		wire.PutARP(b[wire.EthernetHeaderLen:], fields)
		return b
	}
	b := make([]byte, ndEnd, ndEnd+ndLinkOption)
	target := a.As16()
	dst := target
	if to.IsGroup() {
		dst = SolicitedNode(a)
	}
	if from.addr.Is6() {
		src := from.addr.As16()
		copy(b[ndSource:], src[:])
		b = append(append(b, 1, 1), from.link[:]...) // one unit of 8 bytes
	}
	wire.PutEthernet(b, to, from.link, wire.EtherTypeIPv6)
	copy(b[ndDest:], dst[:])
	b[ndType] = ndSolicitation
	copy(b[ndTarget:], target[:])
	finishND(b)
	return b
}

// Announcement is the frame that tells all hosts the MAC address of an IP address: an ARP request for itself
// (RFC 5227, section 2.3), or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6).
func Announcement(a netip.Addr, at wire.LinkAddr) []byte {
	if a.Is4() {
		return solicitation(a, wire.Broadcast, sender{at, a})
	}
	b := make([]byte, ndEnd, ndEnd+ndLinkOption)
	target, allNodes := a.As16(), netip.IPv6LinkLocalAllNodes()
	dst := allNodes.As16()
	b = append(append(b, 2, 1), at[:]...) // target link-layer address, one unit of 8 bytes
	wire.PutEthernet(b, wire.GroupLink(wire.AddrFrom(allNodes)), at, wire.EtherTypeIPv6)
	copy(b[ndSource:], target[:])
	copy(b[ndDest:], dst[:])
	b[ndType], b[ndType+4] = ndAdvertisement, ndOverride
	copy(b[ndTarget:], target[:])
	finishND(b)
	return b
}

// finishND sets the other fields of the IPv6 header, and the checksum.
func finishND(b []byte) {
	length := byte(len(b) - ndType)
	b[ndIPv6], b[ndIPv6+5], b[ndNext], b[ndHops] = 6<<4, length, unix.IPPROTO_ICMPV6, ndHopLimit
	pseudo := [8]byte{3: length, 7: unix.IPPROTO_ICMPV6} // after the addresses (RFC 8200, section 8.1)
	sum := wire.Sum(b[ndType:], wire.Sum(pseudo[:], wire.Sum(b[ndSource:ndType], 0)))
	binary.BigEndian.PutUint16(b[ndCode+1:], ^wire.Fold(sum))
}

// claimed is the IP address that the sender of a frame has (ARP, advertisement, solicitation) or
// is about to take (probe), and the sender's MAC address.
func claimed(frame []byte) (a netip.Addr, at wire.LinkAddr, ok bool) {
	var eth wire.Ethernet
	if eth.Parse(frame) != nil {
		return a, at, false
	}
	switch {
	case eth.Type == wire.EtherTypeARP:
		return claimedByARP(eth.Payload)
	case eth.Type == wire.EtherTypeIPv6 && !eth.Tagged:
		return claimedByND(frame, eth.Src)
	}
	return a, at, false
}

func claimedByARP(b []byte) (a netip.Addr, at wire.LinkAddr, ok bool) {
	arp, err := wire.ParseARP(b)
	if err != nil {
		return a, at, false
	}
	a = netip.AddrFrom4(arp.SenderAddr())
	if a.IsUnspecified() && arp.Op() == wire.ARPRequest {
		a = netip.AddrFrom4(arp.TargetAddr())
	}
	return a, arp.SenderLink(), true
}

// claimedByND is claimed for neighbour discovery. It does not verify the checksum: on a virtual
// link it may be partial. A corrupted frame can only make a claim fail, and the claim can be
// repeated.
func claimedByND(frame []byte, src wire.LinkAddr) (a netip.Addr, at wire.LinkAddr, ok bool) {
	if len(frame) < ndEnd || frame[ndIPv6]>>4 != 6 || frame[ndNext] != unix.IPPROTO_ICMPV6 ||
		frame[ndHops] != ndHopLimit || frame[ndCode] != 0 || binary.BigEndian.Uint16(frame[ndIPv6+4:]) < ndEnd-ndType {
		return a, at, false
	}
	source := netip.AddrFrom16([16]byte(frame[ndSource:]))
	target := netip.AddrFrom16([16]byte(frame[ndTarget:]))
	switch {
	case frame[ndType] == ndAdvertisement, frame[ndType] == ndSolicitation && source.IsUnspecified():
		return target, src, true
	case frame[ndType] == ndSolicitation: // the sender has the source address
		return source, src, true
	}
	return a, at, false
}
