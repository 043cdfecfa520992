package mux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// An address that is about to be claimed is asked for on the uplink's network,
// by ARP as RFC 5227, 2.1.1, has it, or by neighbour solicitation as duplicate
// address detection does (RFC 4862, 5.4). The times of these are for networks in
// which a host may be a second late; ours are for a wired one, whose hosts answer
// in milliseconds.
const (
	probeCount    = 3
	probeInterval = 150 * time.Millisecond // after each one, the last included
)

const (
	probesAtOnce  = 16 // of all leases: each has a socket
	probedAtOnce  = 64 // addresses by one socket: their answers fit its buffer
	maxProbeFrame = 128
)

// prober is how a family of addresses is asked for.
type prober struct {
	name      string
	etherType wire.EtherType
	filter    []unix.SockFilter // what is heard of the EtherType
	// listen makes the uplink hear what others say about addrs, until stop.
	listen func(ifindex int, addrs []netip.Addr) (stop func() error, err error)
	// put writes a probe for a and returns its length.
	put func(frame []byte, from wire.LinkAddr, a netip.Addr) int
	// claimed is the address that the sender of a frame has, or is about to take:
	// it speaks for it, or probes for it too.
	claimed func(eth wire.Ethernet) (a netip.Addr, at wire.LinkAddr, ok bool)
}

// notOthers is a socket filter that drops what is for other hosts and goes on
// with rest. The kernel marks so the frames of a VLAN that it does not have, too,
// after it has taken the tag off: an address on another VLAN is another address.
func notOthers(rest ...unix.SockFilter) []unix.SockFilter {
	const packetType = 0xfffff000 + 4 // SKF_AD_OFF + SKF_AD_PKTTYPE, linux/filter.h
	return append([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OTHERHOST, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}, rest...)
}

// probe asks whether somebody has one of addrs, and if so answers
// endpoint.ErrTagHeld. It takes 450 ms, when nobody has, and as long again if
// there are addresses of both families.
func (m *Mux) probe(ctx context.Context, addrs []netip.Addr) error {
	select {
	case m.probes <- struct{}{}:
		defer func() { <-m.probes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	var v4, v6 []netip.Addr
	for _, a := range addrs {
		if a.Is4() {
			v4 = append(v4, a)
		} else {
			v6 = append(v6, a)
		}
	}
	for some := range slices.Chunk(v4, probedAtOnce) {
		if err := m.probeBy(ctx, &arpProber, some); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(v6, probedAtOnce) {
		if err := m.probeBy(ctx, &ndProber, some); err != nil {
			return err
		}
	}
	return nil
}

// probeBy asks for addresses of one family, of which there are not too many.
func (m *Mux) probeBy(ctx context.Context, p *prober, addrs []netip.Addr) (err error) {
	sock, stop, err := m.openProbe(p, addrs)
	if err == nil {
		defer func() { err = errors.Join(err, stop(), sock.Close()) }()
		defer context.AfterFunc(ctx, func() { sock.SetDeadline(time.Unix(1, 0)) })()
		for range probeCount {
			if err = m.probeOnce(ctx, p, sock, addrs); err != nil {
				break
			}
		}
	}
	switch {
	case err == nil || errors.Is(err, endpoint.ErrTagHeld):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("probe by %s on %s: %w", p.name, m.up.name, err)
}

// openProbe makes a packet socket that hears the prober's protocol on the uplink
// and may send it.
func (m *Mux) openProbe(p *prober, addrs []netip.Addr) (sock *os.File, stop func() error, err error) {
	stop = func() error { return nil }
	if sock, err = m.listenPacket(p.name, p.etherType, p.filter); err != nil || p.listen == nil {
		return sock, stop, err
	}
	err = within(m.ns, func() (err error) {
		stop, err = p.listen(m.up.ifindex, addrs)
		return err
	})
	if err != nil {
		sock.Close()
	}
	return sock, stop, err
}

// listenPacket makes a packet socket that hears on the uplink what the filter lets
// through of an EtherType.
func (m *Mux) listenPacket(name string, of wire.EtherType, filter []unix.SockFilter) (sock *os.File, err error) {
	err = within(m.ns, func() error {
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
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(protocol[:]), Ifindex: m.up.ifindex})
		return os.NewSyscallError("bind", err)
	})
	if err != nil && sock != nil {
		sock.Close()
		sock = nil
	}
	return sock, err
}

// probeOnce sends one probe for each address and listens for probeInterval. ctx
// ends the deadline when it ends.
func (m *Mux) probeOnce(ctx context.Context, p *prober, sock *os.File, addrs []netip.Addr) error {
	if err := sock.SetDeadline(time.Now().Add(probeInterval)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var frame [maxProbeFrame]byte
	for _, a := range addrs {
		if _, err := sock.Write(frame[:p.put(frame[:], m.up.addr, a)]); err != nil {
			return err
		}
	}
	for {
		n, err := sock.Read(frame[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		eth, err := wire.ParseEthernet(frame[:n])
		if err != nil || eth.Type() != p.etherType {
			continue
		}
		if a, at, ok := p.claimed(eth); ok && at != m.up.addr && slices.Contains(addrs, a) {
			return fmt.Errorf("%w: %v: the host at link address %v has it", endpoint.ErrTagHeld, endpoint.AddrTag(a), at)
		}
	}
}
