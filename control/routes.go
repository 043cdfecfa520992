//go:build linux

package control

import (
	"context"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
)

// Routes asks the unetd at socket (empty: DefaultSocket) how endpoints on an uplink reach dst from src, and how the kernel
// does. If uplink is empty the answer has each uplink on which the policy gives the caller anything; for an operator, all. If
// src is not valid the kernel chooses it. If dst is not valid the answer has only the addresses of the uplinks.
// It needs no endpoint and opens none. The error is os.ErrPermission if the policy gives the caller nothing, and an
// endpoint.ErrUplink if the uplink is not served; of an older unetd it is an ErrProtocol.
func Routes(ctx context.Context, socket, uplink string, src, dst netip.Addr) ([]endpoint.UplinkRoute, error) {
	a, err := Operator{Socket: socket}.askOnce(ctx, protocol.Operation{Op: protocol.OpRoute, Interface: uplink, Source: src, Addr: dst})
	if err != nil {
		return nil, err
	}
	return *a.Routes, nil
}
