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

	"github.com/unet-go/unet/test/internal/unetd"
)

// crowd is how many connections there are at once.
func crowd() int {
	if unetd.RaceEnabled {
		return 200
	}
	return 1000
}

// A thousand connections are open at once, in either role; each exchanges bytes of
// its own, and then nothing of any is left.
func TestManyConnections(t *testing.T) {
	for _, role := range []string{"dial", "accept"} {
		t.Run(role, func(t *testing.T) {
			s := openScene(t, config{})
			ours, kernel := s.connect(t, role == "dial") // whatever is made once is there now
			must(t, exchange(ours, kernel, 1, pieces{1, 1}))
			settled := func() bool { return s.idle(t) }
			eventually(t, "idle", settled)
			goroutines, files := runtime.NumGoroutine(), descriptors(t)
			must(t, s.crowd(t, role == "dial"))
			eventually(t, "all connections are gone", settled)
			eventually(t, fmt.Sprintf("%d goroutines, as before", goroutines), func() bool { return runtime.NumGoroutine() <= goroutines })
			eventually(t, fmt.Sprintf("%d descriptors, as before", files), func() bool { return descriptors(t) <= files })
			if t.Failed() {
				t.Logf("kernel: %v; ours: %+v; %d goroutines, %d descriptors", s.kernelSockets(t), s.host.Stack().TCPUsage(), runtime.NumGoroutine(), descriptors(t))
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
	u := s.host.Stack().TCPUsage()
	return u.Connections == 0 && u.Memory == 0
}

// descriptors is how many this process has.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

// crowd opens many connections, and when all are open has each exchange bytes
// and close.
func (s *scene) crowd(t *testing.T, dial bool) error {
	t.Helper()
	n := crowd()
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
	tickets := make(chan struct{}, n)
	for range n {
		tickets <- struct{}{}
	}
	close(tickets)
	for range 32 { // a dial in the kernel needs a thread
		dialling.Go(func() {
			for range tickets {
				c, err := s.dial(dial, listener.Addr().String())
				if err != nil {
					errs <- err
					listener.Close() // nobody waits for what does not come
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
	if u := s.host.Stack().TCPUsage(); len(errs) == 0 && u.Connections != n {
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

// ask sends a seed and a text, and expects another one with the next seed.
func ask(c net.Conn, seed byte) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte{seed}); err != nil {
		return err
	}
	if err := send(c, newText(seed, 5000), 3000); err != nil {
		return err
	}
	if err := expect(c, newText(seed+1, 5000), 4000); err != nil {
		return err
	}
	return c.Close()
}

// answer is the other side.
func answer(c net.Conn) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	seed := make([]byte, 1)
	if _, err := c.Read(seed); err != nil {
		return err
	}
	if err := expectMore(c, newText(seed[0], 5000), 4000); err != nil {
		return err
	}
	if err := send(c, newText(seed[0]+1, 5000), 3000); err != nil {
		return err
	}
	return c.Close()
}
