package load

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fake answers each request after some time.
type fake struct {
	took   time.Duration
	fails  int // number of the request that fails; 0: none
	hangs  int // number of the request without an answer; 0: none
	n      int
	ended  chan struct{}
	once   sync.Once
	closed atomic.Bool
}

var errFake = errors.New("refused")

func (f *fake) Ask() error {
	f.n++
	switch f.n {
	case f.fails:
		return errFake
	case f.hangs:
		<-f.ended
		return errors.New("closed")
	}
	time.Sleep(f.took)
	return nil
}

func (f *fake) Close() error {
	f.once.Do(func() { close(f.ended) })
	f.closed.Store(true)
	return nil
}

// run measures over connections in virtual time.
func run(t *testing.T, o Options, fakes ...*fake) (r Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var conns []Conn
		for _, f := range fakes {
			f.ended = make(chan struct{})
			conns = append(conns, f)
		}
		var err error
		if r, err = Run(t.Context(), conns, o); err != nil {
			t.Fatal(err)
		}
	})
	for i, f := range fakes {
		if !f.closed.Load() {
			t.Errorf("connection %d is open", i)
		}
	}
	return r
}

// TestRunCountsTheMeasuredTime: answers of the warm-up and after the end do not count, nor does their time.
func TestRunCountsTheMeasuredTime(t *testing.T) {
	o := Options{WarmUp: 9500 * time.Microsecond, Duration: 100 * time.Millisecond}
	r := run(t, o, &fake{took: time.Millisecond}, &fake{took: 4 * time.Millisecond})
	if r.N != 125 || r.Least != 25 || r.Most != 100 || r.Failed != 0 || r.Lost != 0 || r.Failure != "" {
		t.Errorf("%+v", r)
	}
	if r.P50US != 1e3 || r.P99US != 4e3 || r.PerS != 1250 || r.Fairness != 0.25 {
		t.Errorf("%+v", r)
	}
}

func TestRunCountsFailuresAndLosses(t *testing.T) {
	o := Options{Duration: 10500 * time.Microsecond}
	r := run(t, o, &fake{took: time.Millisecond}, &fake{took: time.Millisecond, fails: 3}, &fake{took: time.Millisecond, hangs: 4})
	if r.N != 10+2+3 || r.Failed != 1 || r.Lost != 1 || r.Failure != errFake.Error() || r.Least != 2 || r.Most != 10 {
		t.Errorf("%+v", r)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errFake)
		defer cancel()
		f := &fake{took: time.Millisecond, hangs: 5, ended: make(chan struct{})}
		if _, err := Run(ctx, []Conn{f}, Options{Duration: time.Hour}); !errors.Is(err, errFake) || !f.closed.Load() {
			t.Errorf("%v, closed %v", err, f.closed.Load())
		}
	})
}

func TestNothingMeasuredHasNoFairness(t *testing.T) {
	if r := summarize(make([]turns, 3), time.Second, time.Second); r != (Result{}) {
		t.Errorf("%+v", r)
	}
}

// TestProcessorTime compares the clock with what the kernel reports when the process has ended: never more.
func TestProcessorTime(t *testing.T) {
	cmd := exec.Command("sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; read line")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	got, err := processorTime(cmd.Process.Pid)
	if err := errors.Join(err, in.Close()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // read fails at the end of its input
	u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if all := time.Duration(u.Utime.Nano() + u.Stime.Nano()); got <= 0 || got > all+time.Millisecond {
		t.Errorf("%v, the process had %v when it ended", got, all)
	}
	if _, err := processorTime(cmd.Process.Pid); err == nil {
		t.Error("a process that has ended has a clock")
	}
	both, err := Options{Server: os.Getpid()}.processorTime()
	own, ownErr := Options{}.processorTime()
	if err := errors.Join(err, ownErr); err != nil || both <= own {
		t.Errorf("both %v, own %v, %v", both, own, err)
	}
}
