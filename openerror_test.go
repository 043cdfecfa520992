package unet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
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
