//go:build linux

// Package netlab makes two hosts, joined by a cable, on one machine, for tests and for the
// benchmarks.
//
//	   host a                              host b
//	  network namespace                   network namespace
//	┌──────────────────┐                ┌──────────────────┐
//	│ uplink 10.0.0.1  ├───── veth ─────┤ uplink 10.0.0.2  │
//	└──────────────────┘                └──────────────────┘
//
// A host is a network namespace without a name. Only file descriptors of this
// process, and the processes that it started there, keep it, so the kernel removes the
// namespaces, the cable and everything attached to it when this process ends or is killed.
// Nothing appears in `ip netns` or in the machine's own `ip link`.
//
// The cable is a veth pair with one queue on each side, because a redirect
// into a veth of several queues picks one by CPU number. IPv6 is off unless it
// is configured, so no listener report disturbs a measurement. ARP and offloads have the
// kernel's defaults: its stack leaves checksums partial and sends super-frames.
//
// A cable that is cut ([Config].Cut) has one end of each half in a third namespace, where
// package impair joins them by an impaired link.
//
// [Host.Do] runs a function inside a host, [Host.Start] and [Host.StartOn]
// start a process there, [Nobody] and [User] take that process's privileges away.
// [Host.Listen], [Host.ListenUDP] and [Host.Dial] are sockets of a host's kernel,
// [BPFFS] is a place to pin in.
package netlab
