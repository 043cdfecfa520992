package transport

import (
	"context"
	"fmt"
	"strings"

	"github.com/unet-go/unet/bench/internal/workload"
)

// Network is the pair of hosts that a transport is measured on.
type Network uint8

const (
	Plain Network = iota // carries no XDP program
	Muxed                // unetd runs on both hosts
	// Unsegmented is Plain without segmentation offload.
	Unsegmented
)

// None is the attachment of a transport that has no endpoint.
const None = "none"

// Transport is a row of the table.
type Transport struct {
	Name    string
	About   string
	Network Network
	// Granted transports take an endpoint from unetd, with the attachment that
	// was asked for.
	Granted bool
	// Waits are the wait modes it can be measured with. A transport with a single one is
	// measured with that, whatever was asked for.
	Waits []string
	// Batches says that SendBatch and RecvBatch need fewer system calls than
	// as many single messages.
	Batches bool
	Open    func(ctx context.Context, j workload.Job) (workload.Conn, error)
	// Dial and Listen are nil unless it opens and closes connections.
	Dial   func(ctx context.Context, j workload.Job) (workload.Dialer, error)
	Listen func(ctx context.Context, j workload.Job) (workload.Listener, error)
}

// Names of transports that the output compares others with.
const (
	Floor        = "floor"
	Message      = "msg"
	UDP          = "udp"
	TCP          = "tcp"
	KernelTCP    = "kernel-tcp"
	GoTCP        = "go-tcp"
	KernelUDP    = "kernel-udp"
	KernelUDPMux = "kernel-udp-mux"
	GoUDP        = "go-udp"
)

var (
	anyWait = []string{"spin", "adaptive", "block"}
	spin    = []string{"spin"}
	block   = []string{"block"}
)

// All is every transport, in the order of the output.
var All = []Transport{
	{Name: Floor, About: "raw AF_XDP rings, no stack", Network: Muxed, Granted: true, Waits: spin, Batches: true, Open: openFloor},
	{Name: Message, About: "messages of package datapath", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Open: openMessages},
	{Name: UDP, About: "UDP of package unet", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Open: openUDP},
	{Name: KernelUDP, About: "kernel UDP, non-blocking and spinning; in batches sendmmsg and recvmmsg", Network: Plain, Waits: spin, Batches: true, Open: openKernelUDP},
	{Name: KernelUDPMux, About: "kernel-udp on interfaces that carry the mux", Network: Muxed, Waits: spin, Batches: true, Open: openKernelUDP},
	{Name: GoUDP, About: "package net, blocking", Network: Plain, Waits: block, Open: openGoUDP},
	{Name: TCP, About: "TCP of package unet; a batch is one write", Network: Muxed, Granted: true, Waits: anyWait, Batches: true, Open: openTCP, Dial: dialTCP, Listen: listenTCP},
	{Name: KernelTCP, About: "kernel TCP with TCP_NODELAY, non-blocking and spinning; a batch is one write", Network: Plain, Waits: spin, Batches: true, Open: openKernelTCP, Dial: dialKernel, Listen: listenKernel},
	{Name: GoTCP, About: "TCP of package net, blocking", Network: Plain, Waits: block, Batches: true, Open: openGoTCP, Dial: dialGoTCP, Listen: listenGoTCP},
}

// Names lists the table.
func Names() []string {
	names := make([]string, len(All))
	for i, t := range All {
		names[i] = t.Name
	}
	return names
}

// Connecting lists the transports that open and close connections.
func Connecting() (names []string) {
	for _, t := range All {
		if t.Dial != nil {
			names = append(names, t.Name)
		}
	}
	return names
}

// ByName finds a transport.
func ByName(name string) (Transport, error) {
	for _, t := range All {
		if t.Name == name {
			return t, nil
		}
	}
	return Transport{}, fmt.Errorf("unknown transport %q: there are %s", name, strings.Join(Names(), ", "))
}

// Names of what only bandwidth compares.
const (
	KernelTCPUnsegmented = "kernel-tcp-nogso"
	TCPToKernel          = "tcp-to-kernel"
	KernelToTCP          = "kernel-to-tcp"
)

// Bulk is what bandwidth measures, in the order of the output.
var Bulk = []Transport{
	{Name: Floor, About: "full frames over raw AF_XDP rings, no stack", Network: Muxed, Granted: true, Waits: spin, Batches: true, Open: openFlood},
	{Name: TCP, About: "TCP of package unet at both ends", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialTCP, Listen: listenTCP},
	{Name: KernelTCP, About: "kernel TCP, non-blocking and spinning, with the interface's offloads", Network: Plain, Waits: spin, Dial: dialKernel, Listen: listenKernel},
	{Name: KernelTCPUnsegmented, About: "kernel-tcp without segmentation offload (TSO, GSO, GRO)", Network: Unsegmented, Waits: spin, Dial: dialKernel, Listen: listenKernel},
	{Name: KernelToTCP, About: "from kernel-tcp, with its offloads, to tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialKernel, Listen: listenTCP},
	{Name: TCPToKernel, About: "from tcp to kernel-tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialTCP, Listen: listenKernel},
}

// BulkNames lists them.
func BulkNames() []string {
	names := make([]string, len(Bulk))
	for i, t := range Bulk {
		names[i] = t.Name
	}
	return names
}

// BulkByName finds one.
func BulkByName(name string) (Transport, error) {
	for _, t := range Bulk {
		if t.Name == name {
			return t, nil
		}
	}
	return Transport{}, fmt.Errorf("bandwidth has no transport %q: there are %s", name, strings.Join(BulkNames(), ", "))
}
