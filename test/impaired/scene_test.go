//go:build linux

package impaired

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// testTimeout is how long a step that is no part of a transfer may take. In a transfer each read has
// testutil.Limit: of 80 transfers at a loss of 30 % on a busy machine the longest took 9 s.
const testTimeout = 4 * time.Minute

// TestMain has more scenes at a time than processors: mostly they wait for the link.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// peer is the stack on host B.
type peer string

const (
	kernelPeer peer = "kernel"
	unetPeer   peer = "unet"
)

var peers = []peer{kernelPeer, unetPeer}

// scene is a host of ours on a mux of this process on host A, on host B the kernel or
// another of ours, and the link between them. What we send is captured before anything
// happens to it, what the peer sends afterwards.
type scene struct {
	*netlab.Pair
	link *impair.Link
	host *unet.Host
	peer *unet.Host // nil: the kernel

	ours, peers netip.Addr // the addresses that are used of either side
}

// openScene makes a scene over IPv4, or over IPv6 if cfg has it, which may run beside others. The
// link has no impairment until a test sets its rules. Our host has the given configuration, if any.
func openScene(t *testing.T, stack peer, cfg netlab.Config, of ...unet.HostConfig) *scene {
	t.Helper()
	t.Parallel()
	cfg.Cut, cfg.LinkLocal = true, cfg.IPv6
	s := newScene(netlab.RequirePair(t, cfg))
	s.link = impair.RequireLink(t, s.Pair, impair.Config{Seed: 1, Spare: impair.Resolution, Doze: true})
	captureConfig := wiretap.Config{Host: s.Middle, Interface: netlab.MiddleA, Ours: s.A, Impaired: true}
	if len(of) > 0 && of[0].Addrs != nil {
		captureConfig.Addrs = of[0].Addrs
		s.ours = of[0].Addrs[len(of[0].Addrs)-1]
	}
	capture := wiretap.Start(t, captureConfig)
	var stop func()
	s.host, stop = openHost(t, s.A, of...)
	t.Cleanup(func() {
		stop()
		capture.Verdict(t, counters(s.host), true)
	})
	if stack == unetPeer {
		s.peer, stop = openHost(t, s.B)
		t.Cleanup(stop)
		return s
	}
	// The kernel's least retransmission timeout is 200 ms, ours 5 ms. Now both are 5 ms.
	testutil.Must(t, s.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rto_min_us", []byte("5000"), 0) }))
	return s
}

func newScene(p *netlab.Pair) *scene { return &scene{Pair: p, ours: p.A.IP(), peers: p.B.IP()} }

// openHost opens a host of ours on a mux, which ends with the test.
func openHost(t *testing.T, on *netlab.Host, of ...unet.HostConfig) (_ *unet.Host, stop func()) {
	t.Helper()
	m, err := mux.Open(mux.Config{Interface: on.Interface, NetNS: on.NS, Policy: mux.Permit(mux.Terms{Trusted: true})})
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close of the mux: %v", err)
		}
	})
	owner := mux.Owner{PID: os.Getpid(), UID: uint32(os.Geteuid())}
	grant, lease, err := m.OpenEndpointFor(t.Context(), owner, endpoint.Request{})
	testutil.Must(t, err)
	cfg := unet.HostConfig{}
	if len(of) > 0 {
		cfg = of[0]
	}
	host, err := unet.New(t.Context(), grant, lease, cfg)
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	return host, func() {
		if err := host.Close(); err != nil {
			t.Errorf("close of the host: %v", err)
		}
	}
}

// impair sets the rules of both directions.
func (s *scene) impair(aToB, bToA impair.Rule) {
	s.link.Set(impair.AtoB, aToB)
	s.link.Set(impair.BtoA, bToA)
}

// stack is how either side listens and dials.
type stack struct {
	listen func() (net.Listener, error)
	dial   func(addr string) (net.Conn, error)
}

func stackOf(ctx context.Context, h *unet.Host, on *netlab.Host, addr netip.Addr) stack {
	at := netip.AddrPortFrom(addr, 0).String()
	if h == nil {
		return stack{
			func() (net.Listener, error) { return on.Listen("tcp", at) },
			func(addr string) (net.Conn, error) { return on.Dial("tcp", addr) },
		}
	}
	return stack{
		func() (net.Listener, error) { return h.Listen(ctx, "tcp", at) },
		func(addr string) (net.Conn, error) { return h.Dial("tcp", addr) },
	}
}

// connect makes a connection between our host and its peer, dialled by us or by it.
func (s *scene) connect(t *testing.T, dial bool) (c connection) {
	t.Helper()
	ours, peers := stackOf(t.Context(), s.host, s.A, s.ours), stackOf(t.Context(), s.peer, s.B, s.peers)
	from, to := ours, peers
	if !dial {
		from, to = peers, ours
	}
	listener, err := to.listen()
	testutil.Must(t, err)
	defer listener.Close()
	testutil.Must(t, listener.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(testTimeout)))
	dialled, err := from.dial(listener.Addr().String())
	testutil.Must(t, err)
	accepted, err := listener.Accept()
	testutil.Must(t, err)
	if c = (connection{dialled, accepted}); !dial {
		c = connection{accepted, dialled}
	}
	for _, c := range []net.Conn{c.ours, c.peers} {
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(testTimeout))
	}
	return c
}

// counters are those of a stack of ours.
func counters(h *unet.Host) map[string]uint64 {
	out := make(map[string]uint64)
	for _, c := range h.Counters() {
		out[c.Name] = c.Value
	}
	return out
}

// damagedSegments is in how many segments each side has found damage.
func (s *scene) damagedSegments(t *testing.T) (ours, peers uint64) {
	t.Helper()
	ours = counters(s.host)["tcp_bad_checksum"]
	if s.peer != nil {
		return ours, counters(s.peer)["tcp_bad_checksum"]
	}
	peers, err := s.B.Counted("TcpInCsumErrors")
	testutil.Must(t, err)
	return ours, peers
}

// connection are the two ends of a connection: on host A, where we are, and on host B.
type connection struct{ ours, peers net.Conn }

// compare reports how many bits of the data are wrong, and where: one is undetected damage, many
// are data in the wrong place.
func compare(got, sent []byte) error {
	flipped, first, last := 0, -1, -1
	for i := range min(len(got), len(sent)) {
		if x := got[i] ^ sent[i]; x != 0 {
			if flipped == 0 {
				first = i
			}
			flipped, last = flipped+bits.OnesCount8(x), i
		}
	}
	if flipped > 0 || len(got) != len(sent) {
		return fmt.Errorf("other bytes than were sent: %d bits differ, from byte %d to %d", flipped, first, last)
	}
	return nil
}

// transfer sends data and a FIN one way, and expects both.
func transfer(from, to net.Conn, seed byte, size int) error {
	text := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(text)
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(text)
		if err == nil {
			err = from.(interface{ CloseWrite() error }).CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(testutil.Reader(to, from))
	if err == nil {
		err = compare(got, text)
	}
	if err != nil {
		from.Close()
		return fmt.Errorf("%v > %v: %d bytes of %d: %w (write: %v)", from.LocalAddr(), to.LocalAddr(), len(got), size, err, <-sent)
	}
	return <-sent
}

// exchange sends different data each way at once on each connection, and closes them.
func exchange(size int, connections ...connection) error {
	var wg sync.WaitGroup
	errs := make([]error, 2*len(connections))
	for i, c := range connections {
		wg.Go(func() { errs[2*i] = transfer(c.ours, c.peers, byte(2*i), size) })
		wg.Go(func() { errs[2*i+1] = transfer(c.peers, c.ours, byte(2*i+1), size) })
	}
	wg.Wait()
	for _, c := range connections {
		errs = append(errs, c.ours.Close(), c.peers.Close())
	}
	return errors.Join(errs...)
}
