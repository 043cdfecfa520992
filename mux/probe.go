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

// An address that is about to be claimed is asked for on the uplink's network
// as RFC 5227, 2.1.1, has it. Its times are for networks in which a host may be
// a second late; these are for a wired one, whose hosts answer in milliseconds.
const (
	probeCount    = 3
	probeInterval = 150 * time.Millisecond // after each one, the last included
)

const (
	probesAtOnce  = 16 // of all leases: each has a socket
	probedAtOnce  = 64 // addresses by one socket: their answers fit its buffer
	maxProbeFrame = 128
)

// probe asks whether somebody has one of addrs, and if so answers
// endpoint.ErrTagHeld. It takes 450 ms, when nobody has.
func (m *Mux) probe(ctx context.Context, addrs []netip.Addr) error {
	select {
	case m.probes <- struct{}{}:
		defer func() { <-m.probes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	sock, err := m.openARP()
	if err != nil {
		return fmt.Errorf("probe by ARP: %w", err)
	}
	defer sock.Close()
	defer context.AfterFunc(ctx, func() { sock.SetDeadline(time.Unix(1, 0)) })()
	for some := range slices.Chunk(addrs, probedAtOnce) {
		for range probeCount {
			if err := m.probeOnce(ctx, sock, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// openARP is a packet socket that hears all ARP on the uplink and may send it.
func (m *Mux) openARP() (sock *os.File, err error) {
	err = within(m.ns, func() error {
		// Without a protocol it hears nothing until it is bound.
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return os.NewSyscallError("socket AF_PACKET", err)
		}
		sock = os.NewFile(uintptr(fd), "arp")
		var arp [2]byte // network byte order, and the kernel reads a number
		binary.BigEndian.PutUint16(arp[:], uint16(wire.EtherTypeARP))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16(arp[:]), Ifindex: m.up.ifindex})
		return os.NewSyscallError("bind", err)
	})
	if err != nil && sock != nil {
		sock.Close()
	}
	return sock, err
}

// probeOnce sends one probe for each address and listens for probeInterval.
func (m *Mux) probeOnce(ctx context.Context, sock *os.File, addrs []netip.Addr) error {
	until := time.Now().Add(probeInterval)
	if err := sock.SetDeadline(until); err != nil {
		return err
	}
	if ctx.Err() != nil { // if it ends later, it ends the deadline
		return context.Cause(ctx)
	}
	var frame [maxProbeFrame]byte
	for _, a := range addrs {
		wire.PutEthernet(frame[:], wire.Broadcast, m.up.addr, wire.EtherTypeARP)
		wire.PutARP(frame[wire.EthernetHeaderLen:], wire.ARPFields{Op: wire.ARPRequest, SenderLink: m.up.addr, TargetAddr: a.As4()})
		if _, err := sock.Write(frame[:wire.EthernetHeaderLen+wire.ARPLen]); err != nil {
			return m.probeError(ctx, err)
		}
	}
	for {
		n, err := sock.Read(frame[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return m.probeError(ctx, err)
		}
		if a, at, conflict := m.conflict(frame[:n], addrs); conflict {
			return fmt.Errorf("%w: %v: the host at link address %v has it", endpoint.ErrTagHeld, endpoint.AddrTag(a), at)
		}
	}
}

func (m *Mux) probeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("probe by ARP on %s: %w", m.up.name, err)
}

// conflict reports whether a frame shows that another host has one of addrs, or
// is about to take it: it speaks for it, or probes for it too.
func (m *Mux) conflict(frame []byte, addrs []netip.Addr) (a netip.Addr, at wire.LinkAddr, conflict bool) {
	eth, err := wire.ParseEthernet(frame)
	if err != nil || eth.Type() != wire.EtherTypeARP {
		return a, at, false
	}
	arp, err := wire.ParseARP(eth.Payload())
	if err != nil || arp.SenderLink() == m.up.addr {
		return a, at, false
	}
	a = netip.AddrFrom4(arp.SenderAddr())
	if a.IsUnspecified() && arp.Op() == wire.ARPRequest {
		a = netip.AddrFrom4(arp.TargetAddr())
	}
	return a, arp.SenderLink(), slices.Contains(addrs, a)
}
