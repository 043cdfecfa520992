//go:build linux

package xsk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/queues"
)

var testParams = Params{
	FrameSize: 2048, FrameCount: 64,
	FillSize: 32, CompletionSize: 32, RxSize: 32, TxSize: 32, Prefill: 32,
	NeedWakeup: true,
}

func newSegment(t testing.TB, p Params) (*os.File, []byte) {
	t.Helper()
	f, err := NewSegment(int64(p.segmentSize()), false)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := MapSegment(f, p.segmentSize())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(UnmapSegment(mem), f.Close()); err != nil {
			t.Error(err)
		}
	})
	return f, mem
}

func ifindex(t testing.TB, h *netlab.Host) (index int) {
	t.Helper()
	if err := h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err == nil {
			index = i.Index
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return index
}

// open makes and attaches a socket on h's uplink.
func open(t testing.TB, h *netlab.Host, p Params) (*Socket, []byte) {
	t.Helper()
	segment, mem := newSegment(t, p)
	p.Ifindex = ifindex(t, h)
	var sock *os.File
	if err := h.Do(func() (err error) {
		sock, err = Create(p, segment)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s, err := Attach(sock, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, mem
}

// redirect sends all that arrives at h to the socket fd, with the program of
// the independent implementation.
func redirect(t *testing.T, h *netlab.Host, fd int) {
	t.Helper()
	index := ifindex(t, h)
	prog, err := xdp.NewProgram(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Do(func() error { return errors.Join(prog.Register(0, fd), prog.Attach(index)) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Do(func() error { return prog.Detach(index) }), prog.Close()); err != nil {
			t.Error(err)
		}
	})
}

func frameFor(h *netlab.Host, n uint32) []byte {
	f := make([]byte, 64)
	copy(f, h.LinkAddr[:])
	binary.BigEndian.PutUint16(f[12:], 0x88b5)
	binary.BigEndian.PutUint32(f[14:], n)
	return f
}

// TestExchangeWithOtherImplementation sends frames between this package and asavie/xdp in both directions, so many
// that all rings wrap several times.
func TestExchangeWithOtherImplementation(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	ours, mem := open(t, pair.A, testParams)
	var theirs *xdp.Socket
	index := ifindex(t, pair.B)
	if err := pair.B.Do(func() (err error) {
		theirs, err = xdp.NewSocket(index, 0, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	redirect(t, pair.A, ours.fd)
	redirect(t, pair.B, theirs.FD())
	theirs.Fill(theirs.GetDescs(theirs.NumFreeFillSlots()))

	deadline := time.Now().Add(20 * time.Second)
	for i := range uint32(200) {
		// To the peer, from frames that are not on the fill ring.
		addr := uint64(32+i%32) * 2048
		out := frameFor(pair.B, i)
		copy(mem[addr:], out)
		if !ours.TX.Push(queues.Desc{Addr: addr, Len: uint32(len(out))}) {
			t.Fatalf("frame %d: TX ring full", i)
		}
		ours.TX.Submit(1)
		if err := ours.Kick(); err != nil {
			t.Fatal(err)
		}
		var got []byte
		for got == nil {
			n, _, err := theirs.Poll(1000)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("frame %d did not arrive: %v", i, err)
			}
			for _, d := range theirs.Receive(n) {
				got = bytes.Clone(theirs.GetFrame(d))
			}
			theirs.Fill(theirs.GetDescs(theirs.NumFreeFillSlots()))
		}
		if !bytes.Equal(got, out) {
			t.Fatalf("frame %d arrived as % x", i, got)
		}
		if ours.Completion.Peek(8) != 1 || *ours.Completion.At(0) != addr {
			t.Fatalf("frame %d was not completed", i)
		}
		ours.Completion.Release(1)

		// And an answer.
		back := frameFor(pair.A, ^i)
		descs := theirs.GetDescs(1)
		descs[0].Len = uint32(copy(theirs.GetFrame(descs[0]), back))
		if theirs.Transmit(descs) != 1 {
			t.Fatal("peer could not transmit")
		}
		if _, _, err := theirs.Poll(0); err != nil {
			t.Fatal(err)
		}
		for ours.RX.Pending() == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("answer %d did not arrive", i)
			}
		}
		if n := ours.RX.Peek(8); n != 1 {
			t.Fatalf("%d frames received, want 1", n)
		}
		d := *ours.RX.At(0)
		ours.RX.Release(1)
		if in := mem[d.Addr : d.Addr+uint64(d.Len)]; !bytes.Equal(in, back) {
			t.Fatalf("answer %d arrived as % x", i, in)
		}
		if !ours.Fill.Push(d.Addr / 2048 * 2048) {
			t.Fatal("fill ring full")
		}
		ours.Fill.Submit(1)
	}
	st, err := ours.Statistics()
	st.TxRingEmpty = 0
	if err != nil || st != (Statistics{}) {
		t.Fatalf("statistics %+v, %v; want all zero", st, err)
	}
}

// TestPollerIsWoken: Sleep returns when a frame arrives, at Wake and at its deadline.
func TestPollerIsWoken(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	a, _ := open(t, pair.A, testParams)
	b, memB := open(t, pair.B, testParams)
	redirect(t, pair.A, a.fd)
	redirect(t, pair.B, b.fd) // native redirect needs a program at both ends
	p, err := NewPoller(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Sleep(time.Now().Add(time.Millisecond), false); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("sleep with nothing to come: %v", err)
	}
	p.Wake()
	if err := p.Sleep(time.Time{}, false); err != nil {
		t.Fatalf("sleep after Wake: %v", err)
	}
	for i := range uint32(50) {
		slept := make(chan error)
		again := i%5 > 1 // the socket stays in the private instance, and frames come in a sleep and between two
		until := time.Now().Add(time.Hour - time.Duration(i%3)*time.Minute)
		if i%2 == 0 {
			go func() { slept <- p.Sleep(until, again) }()
		}
		addr := uint64(40 * 2048)
		n := copy(memB[addr:], frameFor(pair.A, i))
		b.TX.Push(queues.Desc{Addr: addr, Len: uint32(n)})
		b.TX.Submit(1)
		if err := b.Kick(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			go func() { slept <- p.Sleep(until, again) }()
		}
		if err := <-slept; err != nil {
			t.Fatal(err)
		}
		if a.RX.Peek(2) != 1 {
			t.Fatalf("woken for frame %d, but %d frames wait", i, a.RX.Pending())
		}
		a.Fill.Push(a.RX.At(0).Addr / 2048 * 2048)
		a.Fill.Submit(1)
		a.RX.Release(1)
		b.Completion.Release(b.Completion.Peek(1))
	}
	// The deadline of a sleep that has ended is not that of the next one.
	go func() { p.Wake() }()
	if err := p.Sleep(time.Now().Add(20*time.Millisecond), true); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	until, err := time.Now().Add(50*time.Millisecond), nil
	for err = p.Sleep(until, true); err == nil; err = p.Sleep(until, true) {
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().Before(until) {
		t.Fatalf("%v before the deadline: %v", time.Until(until), err)
	}
	slept := make(chan error)
	go func() { slept <- p.Sleep(time.Time{}, false) }()
	p.Wake()
	if err := <-slept; err != nil {
		t.Fatalf("woken sleeper: %v", err)
	}
	go func() { slept <- p.Sleep(time.Time{}, false) }()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-slept; err == nil {
		t.Fatal("sleep on a closed poller succeeded")
	}
}

func TestSecondSocketOnQueueIsRefused(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	open(t, pair.A, testParams)
	p := testParams
	segment, _ := newSegment(t, p)
	p.Ifindex = ifindex(t, pair.A)
	if err := pair.A.Do(func() error { _, err := Create(p, segment); return err }); !errors.Is(err, ErrQueueBusy) {
		t.Fatalf("second socket on the queue: %v, want ErrQueueBusy", err)
	}
}

func TestZeroCopyOnVethIsRefused(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	p := testParams
	p.ZeroCopy = true
	segment, _ := newSegment(t, p)
	p.Ifindex = ifindex(t, pair.A)
	if err := pair.A.Do(func() error { _, err := Create(p, segment); return err }); err == nil {
		t.Fatal("zero copy on a veth was granted")
	}
}

func TestSegmentCannotBeResized(t *testing.T) {
	netlab.RequireXDP(t)
	f, _ := newSegment(t, testParams)
	for _, size := range []int64{0, int64(testParams.segmentSize()) * 2} {
		if err := unix.Ftruncate(int(f.Fd()), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if _, err := MapSegment(f, testParams.segmentSize()*2); err == nil {
		t.Error("mapped beyond the end")
	}
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	loose := os.NewFile(uintptr(fd), "unsealed")
	defer loose.Close()
	if err := loose.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := MapSegment(loose, 4096); err == nil {
		t.Error("mapped a segment that can still shrink")
	}
}

func TestAttachRefusesOtherSockets(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "udp")
	defer f.Close()
	if _, err := Attach(f, testParams); err == nil {
		t.Fatal("attached a UDP socket")
	}
}

func TestUnsupportedErrorNamesKernel(t *testing.T) {
	var err error = errNoSG
	if !errors.Is(err, ErrNotSupported) || !bytes.Contains([]byte(err.Error()), []byte("6.6")) {
		t.Fatal(err)
	}
}

// manyParams are of a socket that can have many frames in flight.
var manyParams = Params{
	FrameSize: 2048, FrameCount: 4096,
	FillSize: 64, CompletionSize: 2048, RxSize: 64, TxSize: 2048, Prefill: 64,
	NeedWakeup: true,
}

// submit puts n frames for h on s's TX ring, which has room for them.
func submit(t testing.TB, s *Socket, mem []byte, h *netlab.Host, n int) {
	frame := frameFor(h, 0)
	s.Completion.Release(s.Completion.Peek(uint32(n)))
	for i := range n {
		addr := uint64(2048+i) * 2048
		copy(mem[addr:], frame)
		if !s.TX.Push(queues.Desc{Addr: addr, Len: uint32(len(frame))}) {
			t.Fatalf("no room for frame %d on the TX ring", i)
		}
	}
	s.TX.Submit(uint32(n))
}

// TestWorldCanBeStoppedDuringKick: while a goroutine kicks a full ring, which takes
// milliseconds, the world can be stopped, as the garbage collector does.
func TestWorldCanBeStoppedDuringKick(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s, mem := open(t, pair.A, manyParams)
	for deadline := time.Now().Add(20 * time.Second); ; {
		submit(t, s, mem, pair.B, 2048)
		var kicking atomic.Bool
		left := make(chan uint32)
		go func() {
			for !kicking.Load() || s.TX.InFlight() == 2048 {
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m) // stops the world
			left <- s.TX.InFlight()
		}()
		runtime.Gosched()
		kicking.Store(true)
		if err := s.Kick(); err != nil {
			t.Fatal(err)
		}
		n := <-left
		for s.TX.InFlight() > 0 {
			if err := s.Kick(); err != nil {
				t.Fatal(err)
			}
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the world was never stopped before the kick had taken all")
		}
	}
}

// How long the garbage collector waits for a thread that kicks, and what a frame
// costs, by how many frames one system call may move. No other load may run on the two
// processors:
//
//	go test -run '^$' -bench Kick -benchtime 2s ./internal/xsk
func BenchmarkKick(b *testing.B) {
	for _, budget := range []int{32, 64, 128, 256, 2048} {
		for _, collecting := range []bool{false, true} {
			b.Run(fmt.Sprintf("budget=%d/collecting=%t", budget, collecting), func(b *testing.B) {
				benchmarkKick(b, budget, collecting)
			})
		}
	}
}

func benchmarkKick(b *testing.B, budget int, collecting bool) {
	pair := netlab.RequirePair(b, netlab.Config{})
	s, mem := open(b, pair.A, manyParams)
	if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, budget); err != nil {
		b.Skip(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for collecting {
			select {
			case <-stop:
				return
			default:
				runtime.GC()
			}
		}
	}()
	before := stops()
	const frames = 2048
	for b.Loop() {
		submit(b, s, mem, pair.B, frames)
		for s.TX.InFlight() > 0 {
			if err := s.Kick(); err != nil {
				b.Fatal(err)
			}
		}
	}
	close(stop)
	<-stopped
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/frames, "ns/frame")
	b.ReportMetric(float64(s.Kicks())/float64(b.N), "kicks/op")
	if collecting {
		after := stops()
		b.ReportMetric(quantile(before, after, 0.5)*1e6, "stop-p50-us")
		b.ReportMetric(quantile(before, after, 0.999)*1e6, "stop-p99.9-us")
	}
}

// stops is the runtime's histogram of how long it took to stop the world for the
// garbage collector.
func stops() *metrics.Float64Histogram {
	m := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(m)
	return m[0].Value.Float64Histogram()
}

// quantile is an upper bound, in seconds, of the quantile q of the values that were recorded between
// two readings.
func quantile(before, after *metrics.Float64Histogram, q float64) float64 {
	total := uint64(0)
	for i := range after.Counts {
		total += after.Counts[i] - before.Counts[i]
	}
	rest := uint64(math.Ceil(float64(total) * q))
	for i := range after.Counts {
		n := after.Counts[i] - before.Counts[i]
		if n >= rest {
			return after.Buckets[i+1]
		}
		rest -= n
	}
	return math.Inf(1)
}

// All descriptors of a socket have the same cookie, and only sockets of AF_XDP have one.
func TestCookieIdentifiesSocket(t *testing.T) {
	netlab.RequireXDP(t)
	unbound := func() *os.File {
		f, err := NewUnbound()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := unbound(), unbound()
	fd, err := unix.FcntlInt(a.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	copied := os.NewFile(uintptr(fd), "copy")
	defer copied.Close()
	cookieA, errA := Cookie(a)
	cookieB, errB := Cookie(b)
	again, errC := Cookie(copied)
	if err := errors.Join(errA, errB, errC); err != nil {
		t.Fatal(err)
	}
	if cookieA != again || cookieA == cookieB || cookieA == 0 {
		t.Errorf("cookies %d, of its copy %d, of another socket %d", cookieA, again, cookieB)
	}

	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	udpFile := os.NewFile(uintptr(udp), "udp")
	defer udpFile.Close()
	if c, err := Cookie(udpFile); err == nil {
		t.Errorf("a UDP socket has cookie %d", c)
	}
	segment, err := NewSegment(4096, false)
	if err != nil {
		t.Fatal(err)
	}
	defer segment.Close()
	if _, err := Cookie(segment); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("a file: %v", err)
	}
	a.Close()
	if _, err := Cookie(a); err == nil {
		t.Error("a closed file has a cookie")
	}
}

// Cookie does not change the flags of the open file, which the owner's descriptor shares.
func TestCookieKeepsFlags(t *testing.T) {
	netlab.RequireXDP(t)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "xsk")
	defer f.Close()
	if _, err := Cookie(f); err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
}

// The unbound socket has an RX ring: from Linux 7.3 on an XSKMAP does not accept a socket without
// one.
func TestUnboundSocketHasRxRing(t *testing.T) {
	netlab.RequireXDP(t)
	f, err := NewUnbound()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	off, err := sockOffsets(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	mem, _, err := mapRing[queues.Desc](int(f.Fd()), unix.XDP_PGOFF_RX_RING, off.Rx, unboundRing)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}
