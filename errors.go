package unet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// The errors of a host's calls are those of package net: a *net.OpError around an
// *os.SyscallError with the name of the system call that package net would have
// made, or around net.ErrClosed, os.ErrDeadlineExceeded or the error of a context. The
// reason that unetd gave follows the errno.

// openError makes the error of a listen or a dial from the error of one step. call is the
// system call that package net makes for this step.
func (h *Host) openError(ctx context.Context, call string, err error) error {
	switch {
	case errors.Is(err, endpoint.ErrLeaseClosed):
		return h.leaseEnded(ctx, err)
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		if ctx.Err() == context.Canceled {
			return canceled{}
		}
		return timeout{}
	case errors.Is(err, syscall.EADDRNOTAVAIL): // of Ports.Obtain; it may wrap one of the errors below
	case errors.Is(err, endpoint.ErrNoAddr):
		err = fmt.Errorf("%w: %w", syscall.EADDRNOTAVAIL, err)
	case errors.Is(err, endpoint.ErrTagHeld):
		err = fmt.Errorf("%w: %w", syscall.EADDRINUSE, err)
	case errors.Is(err, endpoint.ErrTagDenied):
		err = fmt.Errorf("%w: %w", syscall.EACCES, err)
	}
	return stack.SysError(call, err)
}

// leaseEnded makes the error of a call that failed with err because the lease ends or has
// ended. It waits for the reason; if ctx ends first, the reason is err.
func (h *Host) leaseEnded(ctx context.Context, err error) error {
	for _, u := range h.uplinks {
		select {
		case <-u.lease.Done():
			err = u.lease.Err()
		case <-ctx.Done():
		}
	}
	return &leaseError{err}
}

// leaseError wraps an [endpoint.ErrLeaseClosed] and net.ErrClosed, so that programs
// written for package net take it for the error of a closed socket.
type leaseError struct{ why error }

func (e *leaseError) Error() string   { return e.why.Error() }
func (e *leaseError) Unwrap() []error { return []error{net.ErrClosed, e.why} }

// linkError makes the end of the lease the error that all calls return for it.
func linkError(err error) error {
	if errors.Is(err, endpoint.ErrLeaseClosed) {
		return &leaseError{err}
	}
	return err
}

// timeout is the error of a call whose context's deadline has passed.
type timeout struct{}

func (timeout) Error() string        { return "i/o timeout" }
func (timeout) Timeout() bool        { return true }
func (timeout) Temporary() bool      { return true }
func (timeout) Is(target error) bool { return target == context.DeadlineExceeded }

// canceled is the error of a call whose context was cancelled.
type canceled struct{}

func (canceled) Error() string        { return "operation was canceled" }
func (canceled) Is(target error) bool { return target == context.Canceled }

// opError makes the error of a listen or a dial as package net does. The error of a dial
// has a local address only if the caller has chosen one.
func opError(network, op string, local, remote netip.AddrPort, err error) error {
	e := &net.OpError{Op: op, Net: network, Err: err}
	if local.IsValid() {
		e.Source = netAddr(network, local)
	}
	if op == "dial" {
		e.Addr = netAddr(network, remote)
	} else {
		e.Source, e.Addr = nil, e.Source
	}
	return e
}

func netAddr(network string, a netip.AddrPort) net.Addr {
	if isUDP(network) {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}
