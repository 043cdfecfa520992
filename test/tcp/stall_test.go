package tcp

import (
	"net"
	"sync"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// stallProbes is how many probes a stalled connection waits for: so many persist
// intervals have gone by.
const stallProbes = 3

const stallText = 3 << 20 // bytes, more than all buffers hold

// stalled is a connection on which one side writes and the other has stopped
// reading.
type stalled struct {
	from, to net.Conn
	sent     chan error
}

func (s *scene) stall(t *testing.T, dial, ours bool) *stalled {
	t.Helper()
	o, k := s.connect(t, dial)
	t.Cleanup(func() { o.Close(); k.Close() })
	x := &stalled{from: k, to: o, sent: make(chan error, 1)}
	if ours {
		x.from, x.to = o, k
	}
	go func() {
		err := send(x.from, newText(9, stallText), 100_000)
		if err == nil {
			err = x.from.Close()
		}
		x.sent <- err
	}()
	return x
}

// resume reads slowly at first, less than a segment at once, and then all.
func (x *stalled) resume(t *testing.T) {
	t.Helper()
	text := newText(9, stallText)
	text.left -= stallText - 20_000
	if err := expectMore(x.to, text, 100); err != nil {
		t.Error(err)
	}
	text.left = stallText - 20_000
	if err := expect(x.to, text, 64<<10); err != nil {
		t.Error(err)
	}
	if err := <-x.sent; err != nil {
		t.Error(err)
	}
	x.to.Close()
}

// The kernel stops reading: we probe its window, and lose nothing.
func TestKernelStalls(t *testing.T) {
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.Probes < 2*stallProbes {
			t.Errorf("%d probes in the capture", j.Probes)
		}
	}})
	for _, role := range []string{"dial", "accept"} {
		t.Run(role, func(t *testing.T) {
			before := s.counters()["tcp_window_probes"]
			x := s.stall(t, role == "dial", true)
			eventually(t, "probes", func() bool { return s.counters()["tcp_window_probes"] >= before+stallProbes })
			if i := x.from.(*unet.TCPConn).Info(); i.SendWindow != 0 {
				t.Errorf("we see a window of %d bytes", i.SendWindow)
			}
			x.resume(t)
			eventually(t, "nothing is left", func() bool { return s.idle(t) })
		})
	}
}

// We stop reading: the kernel probes our window. Its intervals are long, so both
// roles wait together.
func TestWeStall(t *testing.T) {
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.KernelProbes < 2*stallProbes {
			t.Errorf("%d probes of the kernel's in the capture", j.KernelProbes)
		}
	}})
	both := []*stalled{s.stall(t, true, false), s.stall(t, false, false)}
	eventually(t, "probes", func() bool { return s.kernelCount(t, "TcpExt", "TCPWinProbe") >= 2*stallProbes })
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
	eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// Neither side reads until both have filled the other.
func TestBothStall(t *testing.T) {
	s := openScene(t, config{})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		before := s.counters()["tcp_window_probes"]
		sent := make(chan error, 2)
		for _, c := range []net.Conn{ours, kernel} {
			go func() { sent <- send(c, newText(9, stallText), 100_000) }()
		}
		eventually(t, "probes", func() bool {
			return s.counters()["tcp_window_probes"] >= before+stallProbes && ours.Info().ReceiveWindow == 0
		})
		var wg sync.WaitGroup
		for _, c := range []net.Conn{ours, kernel} {
			wg.Go(func() {
				if err := expectMore(c, newText(9, stallText), 5000); err != nil {
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
