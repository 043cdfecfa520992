//go:build linux

// Package nic knows network devices: what a driver can do (modes.go, uplink.go, binding.go), its offloads and
// queues (nic.go), and the veth pairs of ports (veth.go). It asks and changes them by netlink and ethtool.
// It knows nothing of programs, tags and leases.
//
// Package mux is above it. An interface is that of the calling thread's network namespace.
package nic
