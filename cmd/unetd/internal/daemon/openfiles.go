package daemon

import (
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/mux"
)

// openFiles is what a daemon needs that is as busy as its limits allow: a
// descriptor for each tag (the kernel's socket on a port; a block counts as many
// tags as it has ports), for each connection itself, for each endpoint being
// opened about ten more (socket, segment, namespaces, netlink), for each
// endpoint that is there its segment, for each lease its table of connections (a lease
// has a connection of its own), for each resolve request two, for each connection that
// waits to be refused one, and some of its own (maps, programs, links, netlink). That
// leaves a tenth of it as headroom.
//
// With baseFiles there are fewer tags, and all else is as it should be.
const (
	openFiles = 180 << 10
	baseFiles = 40 << 10

	allTags  = 128 << 10
	baseTags = 16 << 10
)

// Endpoints that may be there at once, with those that were closed and are still
// held open: as many as a mux has ports.
const maxEndpoints = 4096

// raiseOpenFiles raises RLIMIT_NOFILE as far as it is needed and allowed, and
// returns what it is then.
func raiseOpenFiles(log *slog.Logger) uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("cannot read the limit of open files", "error", err)
		return openFiles
	}
	if limit.Cur >= openFiles {
		return limit.Cur
	}
	wanted := unix.Rlimit{Cur: openFiles, Max: max(limit.Max, openFiles)}
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted) == nil {
		return wanted.Cur
	}
	// Without CAP_SYS_RESOURCE the hard limit stays.
	wanted = unix.Rlimit{Cur: min(limit.Max, openFiles), Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &wanted); err != nil {
		log.Warn("cannot raise the limit of open files", "error", err)
		wanted = limit
	}
	log.Info("fewer open files are allowed than every limit at its full needs, so the limits are smaller: raise RLIMIT_NOFILE for more",
		"limit", wanted.Cur, "full", openFiles)
	return wanted.Cur
}

// limitsFor makes the daemon run into its own limits, which concern those who
// ask for more, before it runs out of descriptors, which would concern all.
func limitsFor(files uint64) (control.Limits, mux.Limits) {
	if files >= baseFiles { // the defaults, and what is more is for tags
		return control.Limits{}, mux.Limits{Endpoints: maxEndpoints, Tags: int64(min(allTags, baseTags+(files-baseFiles)*4/5, files/4*3))}
	}
	share := func(of uint64) int { return int(max(1, of*files/baseFiles)) }
	return control.Limits{
		Connections: share(1024), ConnectionsPerUID: share(256),
		Resolves: share(64), ResolvesPerUID: share(32),
		ClosingPerUID: share(4), Waiting: share(4096),
	}, mux.Limits{Endpoints: int64(share(maxEndpoints)), Tags: int64(share(baseTags)), TagsPerUID: int64(share(baseTags / 2))}
}
