package perf

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// TestSetCountsWhatItsThreadStarts: a child of the thread is counted, with its system calls, from its
// first instruction on; another thread of this process is not.
func TestSetCountsWhatItsThreadStarts(t *testing.T) {
	requireRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s, err := OpenSet(0, Clock)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	// Both are counted: bash, and the process that it starts.
	cmd := exec.Command("bash", "-c", "for i in {1..50000}; do :; done; bash -c 'for i in {1..50000}; do :; done'")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := s.Read()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := after.Since(before)
	if err != nil {
		t.Fatal(err)
	}
	used := uint64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()) // of both
	for i, n := range counts {
		// This thread's own part is what it takes to start bash.
		if n < used*9/10 || n > 3*used {
			t.Errorf("counter %d: %d ns, the children used %d", i, n, used)
		}
	}
}

func TestSharedCountersAreRefused(t *testing.T) {
	var before, after Reading
	for i := range after {
		before[i].Count, before[i].Enabled, before[i].Running = 100, 1000, 1000
		after[i].Count, after[i].Enabled, after[i].Running = 175, 11_000, 11_000
	}
	if c, err := after.Since(before); err != nil || c != (Counts{75, 75, 75, 75}) {
		t.Errorf("%v, %v", c, err)
	}
	after[KernelCycles].Running = 6000
	if c, err := after.Since(before); !errors.Is(err, ErrShared) || c != (Counts{}) {
		t.Errorf("a counter that ran half of the time: %v, %v", c, err)
	}
	if c, err := before.Since(before); !errors.Is(err, ErrShared) {
		t.Errorf("counters that did not run: %v, %v", c, err)
	}
}

func TestReasonsAreOneLine(t *testing.T) {
	for err, want := range map[unix.Errno]string{
		unix.ENOENT: "no hardware counters", unix.EOPNOTSUPP: "no hardware counters", unix.EACCES: "perf_event_paranoid is", unix.EMFILE: "too many open files",
	} {
		if got := reason(err); !strings.Contains(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%v: %q", err, got)
		}
	}
}
