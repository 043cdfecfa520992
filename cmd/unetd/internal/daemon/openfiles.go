package daemon

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// openFiles is what a daemon with as many connections as package control
// allows may need: the connection, and while it opens an endpoint the XSK, the
// segment, a namespace and netlink sockets.
const openFiles = 16 << 10

// raiseOpenFiles raises RLIMIT_NOFILE as far as it is needed and allowed.
func raiseOpenFiles(log *slog.Logger) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("cannot read the limit of open files", "err", err)
		return
	}
	if limit.Cur >= openFiles {
		return
	}
	wanted := unix.Rlimit{Cur: openFiles, Max: max(limit.Max, openFiles)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted) == nil {
		return
	}
	// Without CAP_SYS_RESOURCE the hard limit stays.
	wanted = unix.Rlimit{Cur: min(limit.Max, openFiles), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted); err != nil {
		log.Warn("cannot raise the limit of open files", "err", err)
		wanted = limit
	}
	log.Warn("few open files are allowed, so few endpoints are possible: raise RLIMIT_NOFILE",
		"limit", wanted.Cur, "wanted", openFiles)
}
