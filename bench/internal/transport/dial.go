package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Dialers and listeners are what the transports of TCP have beside their streams:
// connections that come and go. Each is what its users would write.

// unetDialer dials from a host of package unet, which chooses the ports.
type unetDialer struct {
	host   *unet.Host
	remote netip.AddrPort
}

func dialTCP(ctx context.Context, j workload.Job) (workload.Dialer, error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return nil, err
	}
	return unetDialer{host, j.Remote.UDP}, nil
}

func (d unetDialer) Dial(ctx context.Context) (workload.Stream, error) {
	c, err := d.host.DialTCP(ctx, netip.AddrPort{}, d.remote)
	if err != nil {
		return nil, err // a bare nil, not one in an interface
	}
	return c, nil
}

func (d unetDialer) Close() error { return d.host.Close() }

// unetListener listens on a host of package unet.
type unetListener struct {
	*unet.TCPListener
	host *unet.Host
}

func listenTCP(ctx context.Context, j workload.Job) (workload.Listener, error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return nil, err
	}
	l, err := host.ListenTCP(ctx, j.Local.UDP)
	if err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return unetListener{l, host}, nil
}

func (l unetListener) Accept() (workload.Stream, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l unetListener) Close() error { return errors.Join(l.TCPListener.Close(), l.host.Close()) }

// goDialer and goListener are package net's.
type goDialer struct {
	net.Dialer
	remote string
}

func dialGoTCP(_ context.Context, j workload.Job) (workload.Dialer, error) {
	return &goDialer{remote: j.Remote.UDP.String()}, nil
}

func (d *goDialer) Dial(ctx context.Context) (workload.Stream, error) {
	c, err := d.DialContext(ctx, "tcp4", d.remote)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (d *goDialer) Close() error { return nil }

type goListener struct{ *net.TCPListener }

func listenGoTCP(_ context.Context, j workload.Job) (workload.Listener, error) {
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(j.Local.UDP))
	if err != nil {
		return nil, err
	}
	return goListener{l}, nil
}

func (l goListener) Accept() (workload.Stream, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// expiry is when ctx ends; the zero time: never.
func expiry(ctx context.Context) time.Time {
	t, _ := ctx.Deadline()
	return t
}
