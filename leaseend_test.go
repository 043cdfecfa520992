package unet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// failureHandler is a handler of a UDP port that sends the error of Failed on itself.
type failureHandler chan error

func (failureHandler) Datagram(int64, *stack.UDPPacket) {}
func (failureHandler) Run(int64) int64                  { return stack.Never }
func (h failureHandler) Failed(err error)               { h <- err }

// When the lease has ended, every call returns the reason: calls that are blocked, and later ones.
// The host is closed at once, which does not replace the reason.
func TestCallsReturnWhyTheLeaseEndedAfterClose(t *testing.T) {
	a, b, lease := newSharedMemHosts(t)
	server := netip.MustParseAddrPort("10.0.0.2:7")
	sink, err := b.ListenTCP(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	u, err := a.ListenUDP(t.Context(), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := a.ListenTCP(t.Context(), netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	handler := make(failureHandler, 1)
	if _, err := a.openUDPPort(t.Context(), netip.AddrPort{}, handler); err != nil {
		t.Fatal(err)
	}
	connect := func() *TCPConn { // to a peer that does not read
		c, err := a.DialTCP(t.Context(), netip.AddrPort{}, server)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Accept(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, full, lent := connect(), connect(), connect()
	big := make([]byte, 64<<20)
	if err := lent.Lend(big); err != nil {
		t.Fatal(err)
	}
	lease.mu.Lock()
	lease.silent = true
	lease.mu.Unlock()

	of := func(_ any, err error) error { return err }
	ctx := t.Context()
	calls := map[string]func() error{
		"read":             func() error { return of(c.Read(make([]byte, 1))) },
		"borrow":           func() error { return of(c.Borrow()) },
		"write":            func() error { return of(full.Write(big)) },
		"lend":             func() error { return lent.Lend(big) },
		"accept":           func() error { return of(l.Accept()) },
		"read from":        func() error { _, _, err := u.ReadFrom(make([]byte, 1)); return err },
		"read batch":       func() error { return of(u.ReadBatch(make([]UDPMessage, 1))) },
		"borrow datagram":  func() error { return of(u.Borrow()) },
		"dial tcp":         func() error { return of(a.DialTCP(ctx, netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.9:7"))) },
		"dial from a port": func() error { return of(a.DialTCP(ctx, netip.MustParseAddrPort("10.0.0.1:77"), server)) },
		"dial udp":         func() error { return of(a.DialUDP(ctx, netip.MustParseAddrPort("10.0.0.1:78"), server)) },
		"listen":           func() error { return of(a.ListenTCP(ctx, netip.AddrPort{})) },
		"listen udp":       func() error { return of(a.ListenUDP(ctx, netip.AddrPort{})) },
		"open port":        func() error { return of(a.openUDPPort(ctx, netip.AddrPort{}, make(failureHandler, 1))) },
	}
	check := func(when, name string, err error) {
		if !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s, %s: %v", name, when, err)
		}
	}
	var started, returned sync.WaitGroup
	for name, f := range calls {
		for range 8 {
			started.Add(1)
			returned.Go(func() {
				started.Done()
				check("blocked", name, f())
			})
		}
	}
	started.Wait()
	close(lease.done)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	returned.Wait()
	check("Failed", "port", <-handler)
	for name, f := range calls {
		check("later", name, f())
	}
	for name, err := range map[string]error{
		"write to":           of(u.WriteToUDPAddrPort(nil, server)),
		"reserve":            of(u.Reserve()),
		"close udp":          u.Close(),
		"close tcp":          c.Close(),
		"close the listener": l.Close(),
		"claim":              of(a.ListenTCP(context.Background(), netip.MustParseAddrPort("10.0.0.1:79"))),
	} {
		check("later", name, err)
	}
}

// recordingLease grants all claims and records the tags that are held.
type recordingLease struct {
	endpoint.Lease
	held map[endpoint.Tag]bool
}

func (l *recordingLease) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	l.held[t] = true
	return t, nil
}

func (l *recordingLease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	delete(l.held, t)
	return ctx.Err()
}

// If New fails after it has claimed the address, it gives the address back.
func TestFailedNewUnclaimsTheAddress(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := &recordingLease{held: map[endpoint.Tag]bool{}}
	grant := &endpoint.Grant{XSK: null, Segment: null, Geometry: endpoint.Geometry{}.WithDefaults()} // not a socket
	if _, err := New(ctx, grant, l, HostConfig{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}}); !errors.Is(err, syscall.ENOTSOCK) {
		t.Errorf("got %v, want ENOTSOCK", err)
	}
	if len(l.held) != 0 {
		t.Errorf("still claimed: %v", l.held)
	}
}
