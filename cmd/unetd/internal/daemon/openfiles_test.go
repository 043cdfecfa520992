//go:build linux

package daemon

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/session"
	"github.com/unet-go/unet/mux"
)

// The limit of open files is raised to OpenFiles, or to the hard limit.
func TestOpenFilesLimitIsRaised(t *testing.T) {
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	low := unix.Rlimit{Cur: 256, Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	raised := raiseOpenFiles(slog.New(slog.DiscardHandler))
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil {
		t.Fatal(err)
	}
	if after.Cur != raised || after.Cur != OpenFiles && after.Cur != before.Max {
		t.Errorf("limit %+v after %+v", after, low)
	}
}

// The limits of all applications together leave descriptors to spare, for every limit of
// open files.
func TestLimitsLeaveHeadroom(t *testing.T) {
	if l, m := limitsFor(OpenFiles); l != (session.Limits{}) || m != (mux.Limits{Tags: allTags, Endpoints: maxEndpoints}) {
		t.Errorf("%+v, %+v", l, m)
	}
	last := int64(0) // tags with fewer open files
	for files := uint64(2048); files <= OpenFiles; files += 61 {
		l, m := limitsFor(files)
		if m.Tags < last {
			t.Fatalf("%d open files: %d tags, fewer than with less", files, m.Tags)
		}
		last = m.Tags
		if files >= baseFiles { // the defaults, see session.Limits
			l.Connections, l.Resolves = 1024, 256
			l.ClosingPerUID, l.Waiting = 4, 4096
		}
		// A quarter of the descriptors is left for other uses than ports.
		if uint64(m.Tags) > files/4*3 {
			t.Fatalf("%d open files: %d tags", files, m.Tags)
		}
		// The sum in the comment of OpenFiles.
		if need := int(m.Tags) + l.Connections*(1+1+10) + int(m.Endpoints) + l.Resolves*2 + l.Waiting + ownFiles; uint64(need) > files*95/100 || l.Connections < 1 || l.Resolves < 1 || m.Endpoints < 1 ||
			l.ClosingPerUID < 1 || l.ClosingPerUID > 4 || l.Waiting < 1 || l.Waiting > 4096 {
			t.Fatalf("%d open files: %+v, %+v need %d", files, l, m, need)
		}
	}
}
