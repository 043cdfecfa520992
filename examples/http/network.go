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

// network has the functions that net/http needs to run on unet.
type network struct {
	Listen      func(ctx context.Context, network, address string) (net.Listener, error)
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	host        *unet.Host // nil: the kernel
}

func openNetwork(ctx context.Context, o options) (*network, error) {
	if o.kernel {
		var listen net.ListenConfig
		var dial net.Dialer
		return &network{Listen: listen.Listen, DialContext: dial.DialContext}, nil
	}
	host, err := unet.Open(ctx, unet.Config{Socket: o.socket, Wait: o.wait})
	if err != nil {
		return nil, err
	}
	return &network{Listen: host.Listen, DialContext: host.DialContext, host: host}, nil
}

func (n *network) Close() error {
	if n.host == nil {
		return nil
	}
	return n.host.Close()
}
