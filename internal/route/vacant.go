package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// The times of RFC 5227 and RFC 4862 are for networks in which a host may be a second
// late; these are for a wired one, whose hosts answer in milliseconds.
const (
	probeCount    = 3
	probeInterval = 150 * time.Millisecond // after each one, the last included
	probedAtOnce  = 64                     // addresses by one socket: their answers fit its buffer
	maxProbeFrame = 128                    // bytes that are looked at
)

// InUse says that a host on the uplink's network has an address.
type InUse struct {
	Addr netip.Addr
	At   wire.LinkAddr
}

func (e *InUse) Error() string {
	return fmt.Sprintf("the host at MAC address %v has %v", e.At, e.Addr)
}

// Vacant asks on the uplink's network whether somebody has one of addrs, as a host does
// before it takes an address: by ARP probes (RFC 5227, section 2.1.1) and by neighbour
// solicitations (RFC 4862, section 5.4). The answer is an [InUse]. us is the uplink's own
// MAC address. If nobody answers it takes 450 ms for each 64 addresses of a family.
func (r *Resolver) Vacant(ctx context.Context, us wire.LinkAddr, addrs []netip.Addr) error {
	var v4, v6 []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	for _, family := range [][]netip.Addr{v4, v6} {
		for some := range slices.Chunk(family, probedAtOnce) {
			if err := r.vacant(ctx, us, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// vacant asks for addresses of one family, of which there are not too many.
func (r *Resolver) vacant(ctx context.Context, us wire.LinkAddr, addrs []netip.Addr) (err error) {
	name, of, filter := "ARP", wire.EtherTypeARP, []unix.SockFilter{accept(maxProbeFrame)}
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
		for range probeCount {
			if err = probeOnce(ctx, sock, us, addrs); err != nil {
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

// probeOnce sends one probe for each address and listens for probeInterval. ctx
// ends the deadline when it ends.
func probeOnce(ctx context.Context, sock *os.File, us wire.LinkAddr, addrs []netip.Addr) error {
	if err := sock.SetDeadline(time.Now().Add(probeInterval)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for _, a := range addrs {
		if _, err := sock.Write(solicitation(a, groupOf(a), sender{link: us})); err != nil {
			return err
		}
	}
	for {
		var frame [maxProbeFrame]byte
		n, err := sock.Read(frame[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		eth, err := wire.ParseEthernet(frame[:n])
		if err != nil {
			continue
		}
		if a, at, ok := claimed(eth); ok && at != us && slices.Contains(addrs, a) {
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
	accept(maxProbeFrame),
	accept(0),
}

// Listen makes a packet socket that hears what a filter accepts of an EtherType on an
// interface of ns, and may send. It does not hear what is for other hosts. The kernel
// marks so the frames of a VLAN that it does not have, too, after it has taken the tag
// off: an address on another VLAN is another address.
func Listen(ns netns.NsHandle, ifindex int, name string, of wire.EtherType, filter []unix.SockFilter) (sock *os.File, err error) {
	const packetType = 0xfffff000 + 4 // SKF_AD_OFF + SKF_AD_PKTTYPE, linux/filter.h
	filter = append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OTHERHOST, Jf: 1},
		accept(0),
	}, filter...)
	err = Within(ns, func() error {
		// Without a protocol it hears nothing until it is bound.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket AF_PACKET", err)
		}
		sock = os.NewFile(uintptr(fd), name)
		fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
			return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
		}
		var protocol [2]byte // network byte order, and the kernel reads a number
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

// JoinSolicited makes the host a member of the solicited-node groups of IPv6 addresses on
// an interface of the calling thread's namespace, as long as the socket is open: its
// hardware takes in what is sent to them, and switches that listen to its reports send it
// here. (Advertisements come to all nodes, ff02::1, and of those the host is one anyway.)
// The kernel does not answer for addresses that are not its own.
func JoinSolicited(ifindex int, addrs ...netip.Addr) (fd int, err error) {
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
