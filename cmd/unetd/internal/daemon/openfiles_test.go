package daemon

import (
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
)

func TestOpenFiles(t *testing.T) {
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
	if after.Cur != raised || after.Cur != openFiles && after.Cur != before.Max {
		t.Errorf("limit %+v after %+v", after, low)
	}
}

// What applications may hold together leaves descriptors to spare, however few
// there are.
func TestLimitsLeaveHeadroom(t *testing.T) {
	if l, endpoints := limitsFor(openFiles); l != (control.Limits{}) || endpoints != maxEndpoints {
		t.Errorf("%+v, %d", l, endpoints)
	}
	const own = 100
	if need := 16<<10 + 1024*(1+10) + maxEndpoints + 64*2 + own; need > openFiles*95/100 {
		t.Errorf("%d of %d needed with all limits at their defaults", need, openFiles)
	}
	for files := uint64(2048); files < openFiles; files += 61 {
		l, endpoints := limitsFor(files)
		// The account in openFiles.
		if need := l.Tags + l.Connections*(1+10) + int(endpoints) + l.Resolves*2 + own; uint64(need) > files*95/100 || l.Connections < 1 || l.TagsPerUID < 1 || l.Resolves < 1 || endpoints < 1 {
			t.Fatalf("%d open files: %+v, %d endpoints need %d", files, l, endpoints, need)
		}
	}
}
