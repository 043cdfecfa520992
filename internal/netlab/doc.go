// Package netlab makes a network to experiment in: two hosts, joined by a
// cable, on one machine.
//
//	   host a                              host b
//	  network namespace                   network namespace
//	┌──────────────────┐                ┌──────────────────┐
//	│ uplink 10.0.0.1  ├───── veth ─────┤ uplink 10.0.0.2  │
//	└──────────────────┘                └──────────────────┘
//
// A host is a network namespace without a name. Only file descriptors of this
// process (and the processes it started there) hold it, so when this process
// ends, however it ends, the kernel takes the namespaces, the cable and
// everything attached to it away. Nothing appears in `ip netns` or in the
// machine's own `ip link`.
//
// The cable is a veth pair with one queue on each side, because a redirect
// into a veth of several queues picks one by CPU number. IPv6 is off unless it
// is asked for, so no listener report disturbs a measurement. ARP is left
// as the kernel does it, and so are the offloads: the kernel's stack on the
// other side leaves checksums partial and sends super-frames, as it does
// everywhere.
//
// A cable that is cut ([Config].Cut) ends in a third namespace, with one end of
// either half. Package impair joins them there with a link that is as bad as a
// test wants it.
//
// [Host.Do] runs a function inside a host, [Host.Start] and [Host.StartOn]
// start a process there, [Nobody] and [User] take that process's privileges away.
// [Host.Listen], [Host.ListenUDP] and [Host.Dial] are sockets of a host's kernel,
// [BPFFS] is a place to pin in.
//
// Tests and the benchmark use it; nothing else does.
package netlab
