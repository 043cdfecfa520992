package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/xdp"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	raw "gvisor.dev/gvisor/pkg/xdp"

	"github.com/unet-go/unet/bench/internal/workload"
)

// netstack is gVisor's TCP/IP stack on its own AF_XDP link, as programs use it: package gonet,
// blocking. It has the host's interface and address to itself. Its process needs privilege.
type netstack struct {
	*stack.Stack
	attached link.Link
}

const netstackNIC tcpip.NICID = 1

// openNetstack makes a stack on the interface that has the link address of the job.
func openNetstack(ctx context.Context, j workload.Job) (_ *netstack, err error) {
	iface, err := interfaceOf(net.HardwareAddr(j.Local.LinkAddr[:]))
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The link has no Close, and its goroutine polls the socket: once the link is attached the
	// socket stays open until the process ends.
	ep, err := xdp.New(&xdp.Options{FD: fd, Address: tcpip.LinkAddress(j.Local.LinkAddr[:]), InterfaceIndex: iface.Index})
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	n := &netstack{}
	if err = whileBusy(ctx, syscall.EBUSY, func() error { return raw.Bind(fd, uint32(iface.Index), 0, false) }); err == nil {
		n.attached, err = redirectAll(iface.Index, fd)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	n.Stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true) // as the others have it
	address := tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddrFrom4(j.Local.UDP.Addr().As4()).WithPrefix(),
	}
	for _, failed := range []tcpip.Error{
		n.SetTransportProtocolOption(tcp.ProtocolNumber, &sack),
		n.CreateNIC(netstackNIC, ep),
		n.AddProtocolAddress(netstackNIC, address, stack.AddressProperties{}),
	} {
		if failed != nil {
			return nil, errors.Join(errors.New(failed.String()), n.Close())
		}
	}
	n.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: netstackNIC}})
	return n, nil
}

// Close detaches the interface and ends what the stack has open.
func (n *netstack) Close() error {
	n.Stack.Close()
	return n.attached.Close()
}

// interfaceOf is the interface of this host that has a link address.
func interfaceOf(address net.HardwareAddr) (net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, err
	}
	for _, i := range all {
		if bytes.Equal(i.HardwareAddr, address) {
			return i, nil
		}
	}
	return net.Interface{}, fmt.Errorf("no interface has the address %v", address)
}

// redirectAll attaches an XDP program that gives all frames of queue 0 to a socket, and passes
// others to the kernel. It stays attached while the returned link is open.
func redirectAll(ifindex, fd int) (_ link.Link, err error) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: "netstack", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		return nil, err
	}
	defer sockets.Close() // the program holds it
	if err := sockets.Put(uint32(0), uint32(fd)); err != nil {
		return nil, err
	}
	const queueOffset, pass = 16, 2 // of rx_queue_index in struct xdp_md; XDP_PASS
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "netstack", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, queueOffset, asm.Word),
			asm.LoadMapPtr(asm.R1, sockets.FD()),
			asm.Mov.Imm(asm.R3, pass),
			asm.FnRedirectMap.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, err
	}
	defer prog.Close() // the link holds it
	return link.AttachXDP(link.XDPOptions{Program: prog, Interface: ifindex, Flags: link.XDPGenericMode})
}

// fullAddress is an address as netstack has it.
func fullAddress(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: netstackNIC, Addr: tcpip.AddrFrom4(a.Addr().As4()), Port: a.Port()}
}

// netstackUDP is a connected UDP socket with its stack.
type netstackUDP struct {
	*gonet.UDPConn
	stack *netstack
}

func openNetstackUDP(ctx context.Context, j workload.Job, _ func()) (workload.Conn, error) {
	n, err := openNetstack(ctx, j)
	if err != nil {
		return nil, err
	}
	local, remote := fullAddress(j.Local.UDP), fullAddress(j.Remote.UDP)
	c, err := gonet.DialUDP(n.Stack, &local, &remote, ipv4.ProtocolNumber)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	g := newBlockingUDP(netstackUDP{c, n})
	return &g, nil
}

func (c netstackUDP) Close() error { return errors.Join(c.UDPConn.Close(), c.stack.Close()) }

// dialNetstack dials from a stack, which chooses the ports.
func dialNetstack(ctx context.Context, j workload.Job) (d workload.Dialer, err error) {
	n, err := openNetstack(ctx, j)
	if err != nil {
		return d, err
	}
	return workload.Dialer{
		Dial: func(ctx context.Context) (workload.Stream, error) {
			return opened(gonet.DialContextTCP(ctx, n.Stack, fullAddress(j.Remote.UDP), ipv4.ProtocolNumber))
		},
		Close: n.Close,
	}, nil
}

func listenNetstack(ctx context.Context, j workload.Job) (of workload.Listener, err error) {
	n, err := openNetstack(ctx, j)
	if err != nil {
		return of, err
	}
	l, err := gonet.ListenTCP(n.Stack, fullAddress(j.Local.UDP), ipv4.ProtocolNumber)
	if err != nil {
		return of, errors.Join(err, n.Close())
	}
	return workload.Listener{
		Accept: func() (workload.Stream, error) { return asStream(l.Accept()) },
		Close:  func() error { return errors.Join(l.Close(), n.Close()) },
	}, nil
}
