package transport

import (
	"context"
	"errors"
	"net/netip"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
)

// openTCP is a TCP connection of package unet.
func openTCP(ctx context.Context, j workload.Job) (workload.Conn, error) {
	host, err := openHost(ctx, j)
	if err != nil {
		return nil, err
	}
	if j.Role == workload.Server {
		l, err := host.ListenTCP(ctx, j.Local.UDP)
		if err != nil {
			return nil, errors.Join(err, host.Close())
		}
		return newStream(j, nil, func() (byteConn, error) {
			c, err := l.AcceptTCP()
			return c, errors.Join(err, l.Close())
		}, host.Close), nil
	}
	var c *unet.TCPConn
	if err := dialAgain(ctx, func() (err error) {
		c, err = host.DialTCP(ctx, netip.AddrPort{}, j.Remote.UDP)
		return err
	}); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return newStream(j, c, nil, host.Close), nil
}
