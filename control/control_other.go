//go:build !linux

package control

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/unet-go/unet/endpoint"
)

// DefaultSocket is the default path of unetd's socket, on Linux.
const DefaultSocket = "/run/unet/unetd.sock"

// Lease is an endpoint's lease. Only Linux has endpoints.
type Lease struct{ endpoint.Lease }

// Open needs Linux: it returns an error that wraps [errors.ErrUnsupported].
func Open(context.Context, string, endpoint.Request) (*endpoint.Grant, *Lease, error) {
	return nil, nil, fmt.Errorf("unetd needs Linux, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
