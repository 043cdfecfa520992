package syscount

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

func TestBracketedCallsAreCounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	c, err := Open()
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// count makes so many calls in each of several sections, and returns what was counted in the last.
	count := func(sections ...int) uint64 {
		if err := c.Follow(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		var u syscall.Rusage
		for _, calls := range append([]int{0}, sections...) {
			for range calls {
				syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
			}
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
		}
		n, err := c.Take()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The runtime may add calls of its own, few next to these.
	const calls = 100_000
	if n := count(calls); n < calls || n > calls+calls/10 {
		t.Errorf("counted %d calls, made %d", n, calls)
	}
	if n := count(calls, 0); n > calls/10 {
		t.Errorf("counted %d calls, made none in the last section", n)
	}
	if n, err := c.Take(); n != 0 || err != nil {
		t.Errorf("without a process: %d calls, %v", n, err)
	}
}
