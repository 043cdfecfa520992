//go:build linux

package attach

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// names are the pins of a directory, sorted.
func names(t *testing.T, p *Pins) []string {
	t.Helper()
	list, err := p.Names()
	testutil.Must(t, err)
	slices.Sort(list)
	return list
}

// A removal that fails has removed the uplink's link, so that nobody takes over what is left, and has left the state,
// so that it can be repeated.
func TestRemovalOfPinsCanBeRepeated(t *testing.T) {
	netlab.RequireXDP(t)
	p, err := OpenPins(netlab.BPFFS(t), 1, 2)
	testutil.Must(t, err)
	defer p.Close()
	obstacle := filepath.Join(p.at("tags"), "inside") // a directory that is not empty is not removed
	for _, name := range []string{p.at(pinState), p.at(pinUplink), obstacle} {
		testutil.Must(t, os.MkdirAll(name, 0o700))
	}
	if err := p.Remove(); err == nil {
		t.Error("a pin that cannot be removed was removed")
	}
	if got := names(t, p); !slices.Equal(got, []string{pinState, "tags"}) {
		t.Errorf("left: %v", got)
	}
	testutil.Must(t, os.Remove(obstacle))
	testutil.Must(t, p.Remove())
	if _, err := os.Stat(p.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	if err := p.clear(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed again: %v", err)
	}
	if _, err := LockPins(p.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("locked a directory that is gone: %v", err)
	}
}

// A directory has one holder. Who waits for it gets the one of that name, also if the first was removed.
func TestPinsHaveOneHolder(t *testing.T) {
	netlab.RequireXDP(t)
	bpffs := netlab.BPFFS(t)
	first, err := OpenPins(bpffs, 1, 2)
	testutil.Must(t, err)
	if _, err := OpenPins(bpffs, 1, 2); !errors.Is(err, ErrInUse) {
		t.Errorf("a second holder: %v", err)
	}
	testutil.Must(t, first.Remove()) // the lock is on a directory without a name now
	second, err := OpenPins(bpffs, 1, 2)
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(first.Close(), second.Close()))
	third, err := OpenPins(bpffs, 1, 2)
	testutil.Must(t, err)
	testutil.Must(t, third.Close())
}

// Other directories are no muxes, and a sweep leaves a mux whose pins are incomplete.
func TestSweepLeavesWhatIsNotGone(t *testing.T) {
	netlab.RequireXDP(t)
	bpffs := netlab.BPFFS(t)
	sweep := func() { testutil.Must(t, Sweep(nil, nil, bpffs, 1, slog.New(slog.DiscardHandler))) }
	sweep() // without the folder of all muxes
	p, err := OpenPins(bpffs, 1, 2)
	testutil.Must(t, err)
	testutil.Must(t, p.Close())
	for _, name := range []string{"other", "01-2", "1-2-3"} {
		testutil.Must(t, os.Mkdir(filepath.Join(bpffs, pinFolder, name), 0o700))
	}
	sweep()
	list, err := Pinned(bpffs)
	if want := []PinnedMux{{Path: pinPath(bpffs, 1, 2), Netns: 1, Index: 2}}; err != nil || !slices.Equal(list, want) {
		t.Errorf("%v, %v, want %v", list, err, want)
	}
	if gone, complete, err := list[0].UplinkGone(); gone || complete || err != nil {
		t.Errorf("pins without a link: gone %v, complete %v, %v", gone, complete, err)
	}
}

// Without pins nothing is done.
func TestNoPins(t *testing.T) {
	var p *Pins
	testutil.Must(t, errors.Join(p.clear(), p.Remove(), p.Close()))
}
