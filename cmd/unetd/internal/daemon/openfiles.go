//go:build linux

package daemon

import (
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/session"
	"github.com/unet-go/unet/mux"
)

// OpenFiles is the number of descriptors that a daemon needs when all its limits are
// reached: one for each tag (the kernel's socket on a port; a block counts as many tags as
// it has ports), one for each connection, about ten more for each endpoint that is being
// opened (socket, segment, namespaces, netlink), one for the segment of each endpoint, one
// for each lease's table of TCP connections (there are no more leases than connections to
// unetd), two for each resolve request, one for each refused connection that waits to be closed,
// and some for maps, programs, links and netlink. A tenth is headroom.
//
// With baseFiles the limit of tags is lower, and the other limits are the same.
const (
	OpenFiles = 180 << 10
	baseFiles = 40 << 10
	ownFiles  = 100 // maps, programs, links and netlink

	allTags  = mux.MaxTags
	baseTags = 16 << 10
)

// maxEndpoints is the limit of endpoints at a time, including those that were closed and
// whose descriptors an application still holds. A mux has as many ports.
const maxEndpoints = 4096

// raiseOpenFiles raises RLIMIT_NOFILE to OpenFiles, or as far as it may, and returns it.
func raiseOpenFiles(log *slog.Logger) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("cannot read the limit of open files", "error", err)
		return OpenFiles
	}
	if limit.Cur >= OpenFiles {
		return limit.Cur
	}
	wanted := unix.Rlimit{Cur: OpenFiles, Max: max(limit.Max, OpenFiles)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted) == nil {
		return wanted.Cur
	}
	// Without CAP_SYS_RESOURCE the hard limit stays.
	wanted = unix.Rlimit{Cur: min(limit.Max, OpenFiles), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted); err != nil {
		log.Warn("cannot raise the limit of open files", "error", err)
		wanted = limit
	}
	log.Info("limits are lowered to the number of open files that is allowed: raise RLIMIT_NOFILE for the full limits",
		"limit", wanted.Cur, "full", OpenFiles)
	return wanted.Cur
}

// limitsFor returns limits that are reached before the daemon has used all descriptors. At a
// limit one request is refused; without a descriptor every request would fail.
func limitsFor(files uint64) (session.Limits, mux.Limits) {
	if files >= baseFiles { // the defaults; descriptors beyond baseFiles are for tags
		return session.Limits{}, mux.Limits{Endpoints: maxEndpoints, Tags: int64(min(allTags, baseTags+(files-baseFiles)*4/5, files/4*3))}
	}
	share := func(of uint64) int { return int(max(1, of*(max(files, ownFiles)-ownFiles)/baseFiles)) }
	return session.Limits{
		Connections: share(1024), ConnectionsPerUID: share(256),
		Resolves: share(256), ResolvesPerUID: share(32),
		ClosingPerUID: share(4), Waiting: share(4096),
	}, mux.Limits{Endpoints: int64(share(maxEndpoints)), Tags: int64(share(baseTags))}
}
