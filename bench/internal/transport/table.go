package transport

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/verbs"
)

// Network is the pair of hosts that a transport is measured on.
type Network uint8

const (
	Plain Network = iota // carries no XDP program
	Muxed                // unetd runs on both hosts
	// Unsegmented is Plain without segmentation offload.
	Unsegmented
	// Direct is without unetd too. The transport attaches a program of its own while it is open.
	Direct
	// OneHost is no pair: the transport does not leave its host.
	OneHost
)

// Transport is a row of the table.
type Transport struct {
	Name    string
	About   string
	Network Network
	IPv6    bool // over the IPv6 addresses of the hosts
	// Granted transports take an endpoint from unetd, with the attachment that
	// was asked for.
	Granted bool
	// Privileged transports run as root: they open AF_XDP sockets and load programs themselves.
	Privileged bool
	// Waits are the wait modes it can be measured with. A transport with a single one is
	// measured with that, whatever was asked for.
	Waits []string
	// Batches says that SendBatch and RecvBatch need fewer system calls than
	// as many single messages.
	Batches bool
	// Open opens one end of a connection that carries messages. That of a server calls listening when its
	// client can open the other one, if it waits for that.
	Open func(ctx context.Context, j workload.Job, listening func()) (workload.Conn, error)
	// Device transports take a port that every address has once: two on one host need an address each.
	Device bool
	// Waiters says that it can have other connections, with a goroutine each that waits.
	Waiters bool
	// Dial and Listen are there instead of Open if it opens and closes connections. Messages go by one of them.
	Dial   func(ctx context.Context, j workload.Job) (workload.Dialer, error)
	Listen func(ctx context.Context, j workload.Job) (workload.Listener, error)
}

// Names of transports that the output compares others with.
const (
	Floor        = "floor"
	Ring         = "ring"
	Message      = "msg"
	UDP          = "udp"
	UDP6         = "udp6"
	TCP          = "tcp"
	TCP6         = "tcp6"
	KernelTCP    = "kernel-tcp"
	GoTCP        = "go-tcp"
	KernelUDP    = "kernel-udp"
	KernelUDPMux = "kernel-udp-mux"
	GoUDP        = "go-udp"
	Unix         = "unix"
	GoUnix       = "go-unix"
	NetstackUDP  = "netstack-udp"
	NetstackTCP  = "netstack-tcp"
	RCSend       = "rc-send"
	RCWrite      = "rc-write"
	RCRead       = "rc-read"
	RCFetchAdd   = "rc-fetch-add"
)

var (
	anyWait = []string{"spin", "adaptive", "block"}
	spin    = []string{"spin"}
	block   = []string{"block"}
)

// All is every transport, in the order of the output.
var All = []Transport{
	{Name: Floor, About: "raw AF_XDP rings, no stack", Network: Muxed, Granted: true, Waits: spin, Batches: true, Open: openFloor},
	{Name: Ring, About: "a bare memory path, no stack; on one host only", Network: OneHost, Waits: spin, Batches: true, Open: openRing},
	{Name: Message, About: "messages of package datapath", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Open: openMessages},
	{Name: UDP, About: "UDP of package unet", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Open: openUDP},
	{Name: KernelUDP, About: "kernel UDP, non-blocking and spinning; in batches sendmmsg and recvmmsg", Network: Plain, Waits: spin, Batches: true, Open: openKernelUDP},
	{Name: KernelUDPMux, About: "kernel-udp on interfaces that carry the mux", Network: Muxed, Waits: spin, Batches: true, Open: openKernelUDP},
	{Name: GoUDP, About: "package net, blocking", Network: Plain, Waits: block, Open: openGoUDP},
	{Name: TCP, About: "TCP of package unet; a batch is one write", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Waiters: true, Dial: dialTCP, Listen: listenTCP},
	{Name: KernelTCP, About: "kernel TCP with TCP_NODELAY, non-blocking and spinning; a batch is one write", Network: Plain, Waits: spin, Batches: true, Dial: dialKernel, Listen: listenKernel},
	{Name: GoTCP, About: "TCP of package net, blocking", Network: Plain, Waits: block, Batches: true, Waiters: true, Dial: dialGoTCP, Listen: listenGoTCP},
	{Name: Unix, About: "unix stream sockets, non-blocking and spinning; a batch is one write; on one host only", Network: OneHost, Waits: spin, Batches: true, Dial: dialUnix, Listen: listenUnix},
	{Name: GoUnix, About: "unix stream sockets of package net, blocking; on one host only", Network: OneHost, Waits: block, Batches: true, Waiters: true, Dial: dialGoUnix, Listen: listenGoUnix},
	{Name: NetstackUDP, About: "UDP of gVisor's netstack over AF_XDP, blocking; its processes run as root", Network: Direct, Privileged: true, Waits: block, Open: openNetstackUDP},
	{Name: NetstackTCP, About: "TCP of gVisor's netstack over AF_XDP, blocking; its processes run as root", Network: Direct, Privileged: true, Waits: block, Batches: true, Waiters: true, Dial: dialNetstack, Listen: listenNetstack},
}

// IPv6 is what runs over IPv6, in the order of the output. It is not among the defaults.
var IPv6 = []Transport{
	{Name: UDP6, About: "UDP of package unet over IPv6", Network: Muxed, IPv6: true, Granted: true, Waits: anyWait, Batches: true, Open: openUDP},
	{Name: TCP6, About: "TCP of package unet over IPv6", Network: Muxed, IPv6: true, Granted: true, Waits: anyWait, Batches: true, Waiters: true, Dial: dialTCP, Listen: listenTCP},
}

// Verbs is what package verbs adds, in the order of the output. What has no name in All is not
// among the defaults.
var Verbs = []Transport{
	{Name: RCSend, About: "verbs: SEND and RECV over RC", Network: Muxed, Granted: true, Device: true, Waits: anyWait, Batches: true, Open: openRCSend},
	{Name: RCWrite, About: "verbs: WRITE over RC; the receiver polls its memory", Network: Muxed, Granted: true, Device: true, Waits: spin, Open: openRCWrite},
}

// Operations is what rdma measures, from the post to the completion, in the order of the output.
var Operations = []Transport{
	operation(RCSend, "SEND over RC", verbs.WRSend),
	operation(RCWrite, "WRITE over RC", verbs.WRRDMAWrite),
	operation(RCRead, "READ", verbs.WRRDMARead),
	operation(RCFetchAdd, "FETCH_ADD on 8 bytes, all on one word", verbs.WRAtomicFetchAndAdd),
}

func operation(name, about string, op verbs.WROpcode) Transport {
	return Transport{Name: name, About: about, Network: Muxed, Granted: true, Device: true, Waits: anyWait, Batches: true, Open: openOperations(op)}
}

// Names lists a table.
func Names(table []Transport) (all []string) {
	for _, t := range table {
		all = append(all, t.Name)
	}
	return all
}

// Connecting lists the transports that open and close connections.
func Connecting() []string {
	return Names(slices.DeleteFunc(slices.Clone(All), func(t Transport) bool { return t.Dial == nil }))
}

// ByName finds a transport of a benchmark.
func ByName(b workload.Bench, name string) (Transport, error) {
	table, failure := slices.Concat(All, IPv6, Verbs), "unknown transport"
	switch b {
	case workload.Bandwidth:
		table, failure = Bulk, "bandwidth has no transport"
	case workload.RDMA:
		table, failure = Operations, "rdma has no operation"
	}
	i := slices.IndexFunc(table, func(t Transport) bool { return t.Name == name })
	if i < 0 {
		return Transport{}, fmt.Errorf("%s %q: there are %s", failure, name, strings.Join(Names(table), ", "))
	}
	return table[i], nil
}

// Names of what only bandwidth compares.
const (
	KernelTCPUnsegmented = "kernel-tcp-nogso"
	KernelTCPMux         = "kernel-tcp-mux"
	TCPToKernel          = "tcp-to-kernel"
	KernelToTCP          = "kernel-to-tcp"
)

// Bulk is what bandwidth measures, in the order of the output.
var Bulk = []Transport{
	{Name: Floor, About: "full frames over raw AF_XDP rings, no stack", Network: Muxed, Granted: true, Waits: spin, Batches: true, Open: openFlood},
	{Name: Ring, About: "full frames over a bare memory path, no stack; on one host only", Network: OneHost, Waits: spin, Batches: true, Open: openRing},
	{Name: TCP, About: "TCP of package unet at both ends", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialTCP, Listen: listenTCP},
	{Name: KernelTCP, About: "kernel TCP, non-blocking and spinning, with the interface's offloads", Network: Plain, Waits: spin, Dial: dialKernel, Listen: listenKernel},
	{Name: KernelTCPUnsegmented, About: "kernel-tcp without segmentation offload (TSO, GSO, GRO)", Network: Unsegmented, Waits: spin, Dial: dialKernel, Listen: listenKernel},
	{Name: KernelTCPMux, About: "kernel-tcp on interfaces that carry the mux", Network: Muxed, Waits: spin, Dial: dialKernel, Listen: listenKernel},
	{Name: Unix, About: "unix stream sockets, non-blocking and spinning; on one host only", Network: OneHost, Waits: spin, Dial: dialUnix, Listen: listenUnix},
	{Name: KernelToTCP, About: "from kernel-tcp, with its offloads, to tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialKernel, Listen: listenTCP},
	{Name: TCPToKernel, About: "from tcp to kernel-tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialTCP, Listen: listenKernel},
}
