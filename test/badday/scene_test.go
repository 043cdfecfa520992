package badday

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// patience is until a transfer gives up. None takes half of it.
const patience = 60 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// scene is a host of ours on a mux of this process on host A, the kernel of host B,
// and the link between them. What we send is captured before anything happens to it,
// what the kernel sends afterwards.
type scene struct {
	*netlab.Pair
	link *impair.Link
	host *unet.Host
}

// openScene makes a scene. The link is whole until a test sets its rules.
func openScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{Pair: netlab.RequirePair(t, netlab.Config{Cut: true})}
	s.link = impair.RequireLink(t, s.Pair, impair.Config{Seed: 1, Spare: impair.ARP})
	capture := wiretap.Start(t, wiretap.Config{Host: s.Middle, Interface: netlab.MiddleA, Ours: s.A, Impaired: true})
	var m *mux.Mux
	must(t, s.A.Do(func() (err error) {
		m, err = mux.Open(mux.Config{Interface: s.A.Interface})
		return err
	}))
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close of the mux: %v", err)
		}
	})
	owner := mux.Owner{PID: os.Getpid(), UID: uint32(os.Geteuid())}
	grant, lease, err := m.OpenEndpointFor(t.Context(), owner, mux.Terms{Trusted: true}, endpoint.Request{})
	must(t, err)
	s.host, err = unet.New(t.Context(), grant, lease, unet.Config{})
	if err != nil {
		must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() {
		if err := s.host.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
		capture.Verdict(t, s.counters(), true)
	})
	// The kernel waits 200 ms for an acknowledgment, we wait 5; let it be no slower.
	must(t, s.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rto_min_us", []byte("5000"), 0) }))
	return s
}

// impair sets the rules of both directions.
func (s *scene) impair(aToB, bToA impair.Rule) {
	s.link.Set(impair.AtoB, aToB)
	s.link.Set(impair.BtoA, bToA)
}

// connect makes a connection between our host and the kernel, dialled by either.
func (s *scene) connect(t *testing.T, dial bool) (ours, kernel net.Conn) {
	t.Helper()
	var listener net.Listener
	var err error
	if dial {
		listener, err = s.B.Listen("tcp", fmt.Sprint(s.B.Addr.Addr(), ":0"))
	} else {
		listener, err = s.host.Listen(t.Context(), "tcp", ":0")
	}
	must(t, err)
	defer listener.Close()
	if dial {
		ours, err = s.host.Dial("tcp", listener.Addr().String())
	} else {
		kernel, err = s.B.Dial("tcp", listener.Addr().String())
	}
	must(t, err)
	accepted, err := listener.Accept()
	must(t, err)
	if dial {
		kernel = accepted
	} else {
		ours = accepted
	}
	for _, c := range []net.Conn{ours, kernel} {
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
	}
	return ours, kernel
}

// counters are those of our stack.
func (s *scene) counters() map[string]uint64 {
	out := make(map[string]uint64)
	for _, c := range s.host.Stack().Counters() {
		out[c.Name] = c.Value
	}
	return out
}

// kernelFound is in how many segments the kernel has found damage.
func (s *scene) kernelFound(t *testing.T) uint64 {
	t.Helper()
	n, err := s.B.Counted("TcpInCsumErrors")
	must(t, err)
	return n
}
