package perf

import (
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// record is a perf record.
func record(kind uint32, body ...uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, kind)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint16(b, uint16(8+8*len(body)))
	for _, v := range body {
		b = binary.NativeEndian.AppendUint64(b, v)
	}
	return b
}

func marker(context int64) uint64 { return uint64(context) }

func TestParse(t *testing.T) {
	const ids = 5 | 6<<32 // pid 5, tid 6
	both := record(unix.PERF_RECORD_SAMPLE, ids, 5, marker(unix.PERF_CONTEXT_KERNEL), 100, marker(unix.PERF_CONTEXT_USER), 200, 201)
	user := record(unix.PERF_RECORD_SAMPLE, ids, 4, marker(unix.PERF_CONTEXT_GUEST), 99, marker(unix.PERF_CONTEXT_USER), 200)
	throttle := record(unix.PERF_RECORD_THROTTLE, 1, 2, 3)
	got, throttled, err := parse(slices.Concat(both, throttle, record(1234, 1), user))
	if err != nil || throttled != 1 || len(got) != 2 {
		t.Fatalf("%+v, %d, %v", got, throttled, err)
	}
	if s := got[0]; s.PID != 5 || s.TID != 6 || !slices.Equal(s.Kernel, []uint64{100}) || !slices.Equal(s.User, []uint64{200, 201}) {
		t.Errorf("%+v", s)
	}
	if s := got[1]; len(s.Kernel) != 0 || !slices.Equal(s.User, []uint64{200}) {
		t.Errorf("%+v", s)
	}
	for name, b := range map[string][]byte{
		"ends in a header": both[:7], "ends in a record": both[:len(both)-1], "no size": make([]byte, 8),
		"no list": record(unix.PERF_RECORD_SAMPLE, ids), "list too long": record(unix.PERF_RECORD_SAMPLE, ids, 2, 100),
		"list of more than memory": record(unix.PERF_RECORD_SAMPLE, ids, 1<<63, 100),
	} {
		if got, _, err := parse(b); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

const kallsyms = `ffffffff00000300 T sock_alloc_send_pskb
ffffffff00000100 T entry_SYSCALL_64
ffffffff00000200 t __pfx_xsk_build_skb
ffffffff00000210 t xsk_build_skb
ffffffff00000280 d xsk_data
0000000000000000 T hidden
ffffffff00000400 t do_xdp_generic
ffffffff00000500 t memcpy
ffffffffc0000000 t bpf_prog_d3620a59851d78d4_unet_port	[bpf]
ffffffffc0001000 t bpf_prog_run_generic_xdp
`

func TestGroups(t *testing.T) {
	s := parseSymbols([]byte(kallsyms))
	const (
		entry, build, alloc, generic, copying = 0xffffffff00000110, 0xffffffff00000220, 0xffffffff00000310, 0xffffffff00000410, 0xffffffff00000510
		port, runs                            = 0xffffffffc0000020, 0xffffffffc0001010
	)
	spinPC := pc(t, (*spinner).spin)
	const stepName = module + "/bench/internal/perf.(*spinner).step"
	inlined := spinPC
	for f := runtime.FuncForPC(uintptr(inlined)); f.Name() != stepName; f = runtime.FuncForPC(uintptr(inlined)) {
		if inlined++; inlined > spinPC+1000 {
			t.Fatal("step is not inlined into spin")
		}
	}
	for _, c := range []struct {
		name   string
		sample Sample
		want   Place
	}{
		{"helper of a caller", Sample{Kernel: []uint64{alloc, build, entry}}, Place{"sock_alloc_send_pskb", AFXDP}},
		{"helper of nobody", Sample{Kernel: []uint64{alloc}}, Place{"sock_alloc_send_pskb", Other}},
		{"program", Sample{Kernel: []uint64{port, runs, generic}}, Place{"unet_port", Programs + "unet_port"}},
		{"helper of a program", Sample{Kernel: []uint64{alloc, port, runs}}, Place{"sock_alloc_send_pskb", Programs + "unet_port"}},
		{"copy", Sample{Kernel: []uint64{copying, build}}, Place{"memcpy", Copy}},
		{"not a program", Sample{Kernel: []uint64{runs}}, Place{"bpf_prog_run_generic_xdp", XDP}},
		{"data is no function", Sample{Kernel: []uint64{0xffffffff00000290}}, Place{"xsk_build_skb", AFXDP}},
		{"below all", Sample{Kernel: []uint64{5}}, Place{"unknown", Other}},
		{"in the loop that waits", Sample{User: []uint64{pc(t, strings.Clone), spinPC + 1}}, Place{"strings.Clone", Waiting}},
		{"inlined into the loop that waits", Sample{User: []uint64{inlined}}, Place{stepName, Waiting}},
		{"system call", Sample{User: []uint64{pc(t, syscall.RawSyscall)}}, Place{"syscall.RawSyscall", Syscall}},
		{"not of the program", Sample{User: []uint64{5}}, Place{"not of the program (vDSO)", Other}},
		{"runtime", Sample{User: []uint64{pc(t, runtime.Gosched)}}, Place{"runtime.Gosched", Runtime}},
	} {
		if got := s.Of(c.sample); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	functions, groups := s.Tally([]Sample{{PID: 1, Kernel: []uint64{build}}, {PID: 2, Kernel: []uint64{build}}, {PID: 2, Kernel: []uint64{copying}}, {PID: 1, Kernel: []uint64{alloc, build}}}, 1)
	if len(functions) != 2 || len(groups) != 1 || groups[0] != (Share{Place{Group: AFXDP}, 2}) {
		t.Errorf("of process 1: %+v, %+v", functions, groups)
	}
}

type spinner struct{ state uint64 }

//go:noinline
func (s *spinner) spin() {
	x := s.state // a local variable: the race detector calls no function for it
	for range 1000 {
		x = s.step(x)
	}
	s.state = x
}

// step is xorshift64.
func (s *spinner) step(x uint64) uint64 {
	x ^= x << 13
	x ^= x >> 7
	return x ^ x<<17
}

// TestSampler: a thread uses processor time in a function and in system calls. The samples show the
// thread, the function and the system calls.
func TestSampler(t *testing.T) {
	requireRoot(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		t.Fatal(err)
	}
	defer unix.SchedSetaffinity(0, &old)
	cpu := 0
	for !old.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	s, err := NewSampler([]int{cpu}, false)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	symbols, err := KernelSymbols()
	if err != nil {
		t.Fatal(err)
	}
	sample := func(work func()) (all []Sample) {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		for begin := used(t); used(t)-begin < 50e6; {
			for range 100 {
				work()
			}
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		got, lost, err := s.Samples()
		if err != nil || lost > 0 {
			t.Fatalf("%d lost, %v", lost, err)
		}
		for _, x := range got {
			if int(x.TID) == unix.Gettid() {
				all = append(all, x)
			}
		}
		return all
	}
	loop := spinner{1}
	spinning := sample(loop.spin)
	const fewest = 50_000_000 / TimePeriod / 4 // a virtual machine may not have run all of the time
	if len(spinning) < fewest {
		t.Fatalf("%d samples of 50 ms", len(spinning))
	}
	n := 0
	for _, x := range spinning {
		if p := symbols.Of(x); len(x.Kernel) == 0 && strings.Contains(p.Function, ".(*spinner).") && p.Group == Waiting {
			n++
		}
	}
	if n < len(spinning)/2 {
		t.Errorf("%d of %d samples in the function that spins", n, len(spinning))
	}
	all := sample(func() { syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0) })[len(spinning):]
	n = 0
	for _, x := range all {
		if symbols.Of(x).Group == Syscall && len(x.User) > 0 {
			n++
		}
	}
	if n < len(all)/4 || len(all) < fewest {
		t.Errorf("%d of %d samples in system calls", n, len(all))
	}
}

// used is the processor time of this thread, in nanoseconds.
func used(t *testing.T) int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

// pc is the address of a function.
func pc(t *testing.T, f any) uint64 {
	t.Helper()
	return uint64(reflect.ValueOf(f).Pointer())
}
