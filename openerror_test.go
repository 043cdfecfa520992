package unet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ports"
)

// A dial fails with ETIMEDOUT after minutes if the peer never answers a SYN. This test checks only
// the error that the caller gets.
func TestDialTimedOut(t *testing.T) {
	h := new(Host) // its lease has not ended
	remote := netip.MustParseAddrPort("10.0.0.1:80")
	err := opError("tcp", "dial", netip.AddrPort{}, remote, h.openError(context.Background(), "connect", syscall.ETIMEDOUT))
	if got, want := err.Error(), "dial tcp 10.0.0.1:80: connect: connection timed out"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if e, ok := err.(net.Error); !ok || !e.Timeout() || !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("%v is no timeout", err)
	}
}

// The error of a claim that unetd refuses has first the text of the errno, then that of unetd.
func TestRefusedClaim(t *testing.T) {
	h := new(Host) // its lease has not ended
	for refused, want := range map[error]syscall.Errno{endpoint.ErrTagHeld: syscall.EADDRINUSE, endpoint.ErrTagDenied: syscall.EACCES} {
		err := h.openError(context.Background(), "bind", refused)
		if text := "bind: " + want.Error() + ": " + refused.Error(); err.Error() != text || !errors.Is(err, want) || !errors.Is(err, refused) {
			t.Errorf("got %q, want %q", err, text)
		}
	}
}

// refusingLease refuses every claim.
type refusingLease struct {
	endpoint.Lease
	why error
}

func (l refusingLease) Claim(context.Context, endpoint.Tag) (endpoint.Tag, error) {
	return endpoint.Tag{}, l.why
}

// A socket for which there is no port any more gets EADDRNOTAVAIL, not the errno of unetd's refusal.
func TestNoPortIsLeft(t *testing.T) {
	h := new(Host) // its lease has not ended
	for _, refused := range []error{endpoint.ErrTagHeld, endpoint.ErrBusy} {
		l := ports.NewLocals(refusingLease{why: refused}, false, netip.MustParseAddr("10.0.0.1")).At(netip.MustParseAddr("10.0.0.1"))
		_, _, err := l.UDP.Get(t.Context(), 0, true)
		if err = h.openError(t.Context(), "bind", err); !errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EADDRINUSE) || !errors.Is(err, refused) {
			t.Errorf("%v: got %v", refused, err)
		}
	}
}
