//go:build linux

package tcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// connectionCount is how many connections there are at once.
func connectionCount() int {
	if unetd.RaceEnabled {
		return 200
	}
	return 1000
}

// A thousand connections are open at once, in either role. Each exchanges bytes of its own.
// Afterwards no connection and no buffered data is left.
func TestManyConnections(t *testing.T) {
	for _, role := range []string{"dial", "accept"} {
		t.Run(role, func(t *testing.T) {
			s := openScene(t, config{})
			ours, kernel := s.connect(t, role == "dial") // now all that is made once exists
			testutil.Must(t, exchange(ours, kernel, 1, pieces{1, 1}))
			idle := func() bool { return s.idle(t) }
			testutil.Eventually(t, "idle", idle)
			goroutines, files := runtime.NumGoroutine(), descriptors(t)
			testutil.Must(t, s.exchangeOnMany(t, role == "dial"))
			testutil.Eventually(t, "all connections are gone", idle)
			testutil.Eventually(t, fmt.Sprintf("%d goroutines, as before", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines })
			testutil.Eventually(t, fmt.Sprintf("%d descriptors, as before", files), func() bool { return descriptors(t) <= files })
			if t.Failed() {
				t.Logf("kernel: %v; ours: %+v; %d goroutines, %d descriptors", s.kernelSockets(t), hoststack.Of(s.host).TCPUsage(), runtime.NumGoroutine(), descriptors(t))
			}
			if n := s.counters()["tcp_failed"]; n != 0 {
				t.Errorf("%d connections failed", n)
			}
		})
	}
}

// idle reports whether neither side has a connection, but for TIME-WAIT, nor
// anything in a buffer.
func (s *scene) idle(t *testing.T) bool {
	for state := range s.kernelSockets(t) {
		if state != "TIME-WAIT" {
			return false
		}
	}
	u := hoststack.Of(s.host).TCPUsage()
	return u.Connections == 0 && u.Memory == 0
}

// descriptors is how many this process has.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	return len(list)
}

// exchangeOnMany opens many connections, and when all are open has each exchange bytes
// and close.
func (s *scene) exchangeOnMany(t *testing.T, dial bool) error {
	t.Helper()
	n := connectionCount()
	listener := s.listen(t, !dial)
	defer listener.Close()
	errs := make(chan error, 2*n+2)
	dialled, accepted := make(chan net.Conn, n), make(chan net.Conn, n)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(accepted)
		for range n {
			c, err := listener.Accept()
			if err != nil {
				errs <- err
				return
			}
			accepted <- c
		}
	})
	var dialling sync.WaitGroup
	dials := make(chan struct{}, n)
	for range n {
		dials <- struct{}{}
	}
	close(dials)
	for range 32 { // a dial in the kernel needs a thread
		dialling.Go(func() {
			for range dials {
				c, err := s.dial(dial, listener.Addr().String())
				if err != nil {
					errs <- err
					listener.Close() // end the wait for connections that do not come
					return
				}
				dialled <- c
			}
		})
	}
	dialling.Wait()
	close(dialled)
	wg.Wait()
	if states := s.kernelSockets(t); len(errs) == 0 && states["ESTABLISHED"] != n {
		errs <- fmt.Errorf("%d are open at once, of %d: %v", states["ESTABLISHED"], n, states)
	}
	if u := hoststack.Of(s.host).TCPUsage(); len(errs) == 0 && u.Connections != n {
		errs <- fmt.Errorf("we have %d connections at once, of %d", u.Connections, n)
	}
	i := 0
	for c := range dialled {
		seed := byte(i)
		wg.Go(func() { errs <- ask(c, seed) })
		i++
	}
	for c := range accepted {
		wg.Go(func() { errs <- answer(c) })
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		if err != nil && len(all) < 10 {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// ask sends a seed and its data, and expects the data of the next seed.
func ask(c net.Conn, seed byte) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	if _, err := c.Write([]byte{seed}); err != nil {
		return err
	}
	if err := send(c, newStream(seed, 5000), 3000); err != nil {
		return err
	}
	if err := expect(c, newStream(seed+1, 5000), 4000); err != nil {
		return err
	}
	return c.Close()
}

// answer is the other side.
func answer(c net.Conn) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	seed := make([]byte, 1)
	if _, err := c.Read(seed); err != nil {
		return err
	}
	if err := expectMore(c, newStream(seed[0], 5000), 4000); err != nil {
		return err
	}
	if err := send(c, newStream(seed[0]+1, 5000), 3000); err != nil {
		return err
	}
	return c.Close()
}

// stallProbes is how many window probes a stalled connection waits for, one each persist
// interval.
const stallProbes = 3

const stallData = 3 << 20 // bytes, more than all buffers hold

// stalledConn is a connection on which one side writes and the other has stopped
// reading.
type stalledConn struct {
	from, to net.Conn
	sent     chan error
}

func (s *scene) stall(t *testing.T, dial, ours bool) *stalledConn {
	t.Helper()
	o, k := s.connect(t, dial)
	t.Cleanup(func() { o.Close(); k.Close() })
	x := &stalledConn{from: k, to: o, sent: make(chan error, 1)}
	if ours {
		x.from, x.to = o, k
	}
	go func() {
		err := send(x.from, newStream(9, stallData), 100_000)
		if err == nil {
			err = x.from.Close()
		}
		x.sent <- err
	}()
	return x
}

// resume reads slowly at first, less than a segment at once, and then all.
func (x *stalledConn) resume(t *testing.T) {
	t.Helper()
	text := newStream(9, stallData)
	text.left -= stallData - 20_000
	if err := expectMore(x.to, text, 100); err != nil {
		t.Error(err)
	}
	text.left = stallData - 20_000
	if err := expect(x.to, text, 64<<10); err != nil {
		t.Error(err)
	}
	if err := <-x.sent; err != nil {
		t.Error(err)
	}
	x.to.Close()
}

// The kernel stops reading: we probe its window, and lose nothing.
func TestWeProbeClosedWindowOfKernel(t *testing.T) {
	t.Parallel()
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.Probes < 2*stallProbes {
			t.Errorf("%d probes in the capture", j.Probes)
		}
	}})
	for _, role := range []string{"dial", "accept"} {
		t.Run(role, func(t *testing.T) {
			before := s.counters()["tcp_window_probes"]
			x := s.stall(t, role == "dial", true)
			testutil.Eventually(t, "probes", func() bool { return s.counters()["tcp_window_probes"] >= before+stallProbes })
			if i := x.from.(*unet.TCPConn).Info(); i.SendWindow != 0 {
				t.Errorf("we see a window of %d bytes", i.SendWindow)
			}
			x.resume(t)
			testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
		})
	}
}

// We stop reading: the kernel probes our window. Its intervals are long, so both
// roles wait together.
func TestKernelProbesOurClosedWindow(t *testing.T) {
	t.Parallel()
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.KernelProbes < 2*stallProbes {
			t.Errorf("%d probes of the kernel's in the capture", j.KernelProbes)
		}
	}})
	both := []*stalledConn{s.stall(t, true, false), s.stall(t, false, false)}
	testutil.Eventually(t, "probes", func() bool { return s.kernelCount(t, "TcpExt", "TCPWinProbe") >= 2*stallProbes })
	for _, x := range both {
		if i := x.to.(*unet.TCPConn).Info(); i.ReceiveWindow != 0 {
			t.Errorf("we offer a window of %d bytes", i.ReceiveWindow)
		}
	}
	var wg sync.WaitGroup
	for _, x := range both {
		wg.Go(func() { x.resume(t) })
	}
	wg.Wait()
	testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// Neither side reads until the buffers of both directions are full.
func TestBothWindowsClosed(t *testing.T) {
	t.Parallel()
	s := openScene(t, config{})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		before := s.counters()["tcp_window_probes"]
		sent := make(chan error, 2)
		for _, c := range []net.Conn{ours, kernel} {
			go func() { sent <- send(c, newStream(9, stallData), 100_000) }()
		}
		testutil.Eventually(t, "probes", func() bool {
			return s.counters()["tcp_window_probes"] >= before+stallProbes && ours.Info().ReceiveWindow == 0
		})
		var wg sync.WaitGroup
		for _, c := range []net.Conn{ours, kernel} {
			wg.Go(func() {
				if err := expectMore(c, newStream(9, stallData), 5000); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for range 2 {
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
	})
}
