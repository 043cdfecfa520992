package transport

import (
	"fmt"
	"strings"
)

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
	{Name: KernelTCP, About: "kernel TCP, non-blocking and spinning, with the interface's offloads", Network: Plain, Waits: spin, Dial: dialManyKernelTCP, Listen: listenManyKernelTCP},
	{Name: KernelTCPUnsegmented, About: "kernel-tcp without segmentation offload (TSO, GSO, GRO)", Network: Unsegmented, Waits: spin, Dial: dialManyKernelTCP, Listen: listenManyKernelTCP},
	{Name: KernelToTCP, About: "from kernel-tcp, with its offloads, to tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialManyKernelTCP, Listen: listenTCP},
	{Name: TCPToKernel, About: "from tcp to kernel-tcp", Network: Muxed, Granted: true, Waits: anyWait, Dial: dialTCP, Listen: listenManyKernelTCP},
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
