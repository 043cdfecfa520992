// Package daemon is unetd between its start and its end: it takes the socket,
// opens the mux, says that it is ready, serves, and on the way out gives back
// everything in the opposite order.
//
//	raise the limit of open files   and lower those on applications if that is not allowed
//	take the socket                 locked, bound under a umask that lets nobody in, then opened as asked
//	open the mux                    programs attached to the uplink, or taken over from a daemon that has died
//	ready                           log, sd_notify(3), --ready-fd
//	serve                           package control, until the context ends or the uplink is lost
//	close every lease               its owner is told why; tags, ports and queues are reclaimed
//	close the mux                   programs detached
//	remove the socket               if it still is ours, and the lock on it
//
// A daemon that is to keep everything drops its connections instead of closing
// leases, and abandons the mux instead of closing it. Nothing changes in the
// kernel then; applications go on, and find the next daemon by themselves. A lost
// uplink is not kept: nobody could go on with it.
//
// The memory of an endpoint, and the network namespace that a port's socket
// belongs to, are not the daemon's to reclaim: they live until the application
// closes its descriptors, also when that is after the daemon's end.
//
// The socket comes first so that a second unetd is told that there is one
// already, and not what the first one's programs look like to it. Applications
// that connect meanwhile wait in the backlog. For the same reason the lock goes
// last: a successor that starts while this one ends waits until the uplink is
// free. The lock is on a file of its own, SOCKET.lock, that nobody but its owner
// can open; after a crash the file is left, without a lock on it.
//
// The package knows the mux only as a [Mux]; package uplink has the real one.
package daemon
