package main

import (
	"context"
	"net"

	"github.com/unet-go/unet"
)

type options struct {
	socket string
	kernel bool
	wait   unet.WaitMode
}

// listen opens the listener and its host, which is nil with --kernel.
func listen(ctx context.Context, o options, address string) (net.Listener, *unet.Host, error) {
	if o.kernel {
		var config net.ListenConfig
		l, err := config.Listen(ctx, "tcp", address)
		return l, nil, err
	}
	host, err := unet.Open(ctx, unet.Config{Socket: o.socket, Wait: o.wait})
	if err != nil {
		return nil, nil, err
	}
	l, err := host.Listen(ctx, "tcp", address)
	if err != nil {
		host.Close()
		return nil, nil, err
	}
	return l, host, nil
}
