//go:build linux

// Package daemon starts, runs and stops unetd. In this order:
//
//	raise the limit of open files   if that is not allowed, lower the limits of applications
//	take the socket                 lock it, bind it under a umask that permits only its owner, then set its group and mode
//	open the muxes                  attach programs to the interfaces, or take them over from a unetd that has died
//	report ready                    log, sd_notify(3), --ready-fd
//	serve                           package session, until the context ends
//	close all leases                with a reason to their owners; reclaim tags, ports and queues
//	close the mux                   detach the programs
//	remove the socket               unless another file is at its path; and the lock
//
// With Config.Keep connections are closed and leases are not, and the mux is abandoned
// instead of closed. Nothing changes in the kernel; applications go on, and connect to the
// next unetd by themselves.
//
// The daemon does not reclaim the memory of an endpoint, or the network namespace of a
// port's socket: they exist until the application closes its descriptors, also after the
// daemon's end.
//
// The socket is taken first, so that a second unetd fails with the error that a unetd
// runs already, not with one about the first one's programs. Applications that connect
// meanwhile wait in the backlog. The lock is released last, so that a unetd which starts
// while this one ends waits until the uplink is free. The lock is on a file of its own,
// SOCKET.lock, which only its owner can open. After a crash the file is left, unlocked.
//
// Package uplink implements [Mux].
package daemon
