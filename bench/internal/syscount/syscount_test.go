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
	if err := c.Follow(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	bracket := func(calls int) uint64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		for range calls {
			syscall.RawSyscall(syscall.SYS_GETPID, 0, 0, 0)
		}
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		n, err := c.Bracketed(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// The runtime may add calls of its own, few next to these.
	const calls = 100_000
	if n := bracket(calls); n < calls || n > calls+calls/10 {
		t.Errorf("counted %d calls, made %d", n, calls)
	}
	if n := bracket(0); n > calls/10 {
		t.Errorf("counted %d calls, made none: the first bracket is still in it", n)
	}
	if err := c.Forget(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bracketed(os.Getpid()); err == nil {
		t.Error("a process that is not followed has a count")
	}
}
