// Package daemon is unetd between its start and its end: it takes the socket,
// opens the mux, says that it is ready, serves, and on the way out gives back
// everything in the opposite order.
//
//	raise the limit of open files
//	take the socket             bound under a umask that lets nobody in, then opened as asked
//	open the mux                programs attached to the uplink
//	ready                       log, sd_notify(3), --ready-fd
//	serve                       package control, until the context ends
//	close every lease           tags, ports and memory are reclaimed
//	close the mux               programs detached
//	remove the socket           if it still is ours
//
// The socket comes first so that a second unetd is told that there is one
// already, and not what the first one's programs look like to it. Applications
// that connect meanwhile wait in the backlog.
//
// The package knows the mux only as a [Mux]; package uplink has the real one.
package daemon
