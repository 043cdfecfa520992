package transport

import (
	"context"
	"errors"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// rebindPatience is how long a queue that the last round's endpoint has just
// left may take to become free: the kernel unbinds it asynchronously.
const rebindPatience = 5 * time.Second

// openGrant gets an endpoint from this host's unetd.
func openGrant(ctx context.Context, j workload.Job, tags ...endpoint.Tag) (*endpoint.Grant, *control.Lease, error) {
	attach, err := endpoint.ParseAttachment(j.Attach)
	if err != nil {
		return nil, nil, err
	}
	req := endpoint.Request{Attach: attach, Tags: tags}
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for until := time.Now().Add(rebindPatience); ; {
		g, l, err := control.Open(ctx, j.Socket, req)
		if !errors.Is(err, control.ErrBusy) || expired(until) {
			return g, l, err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}
