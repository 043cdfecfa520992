package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// openMessage is openUDP for messages. It opens an endpoint with a tag of its own, and a
// channel to the server's tag.
func openMessage(ctx context.Context, socket string, to netip.AddrPort) (exchange func([]byte) error, closeAll func(), err error) {
	anyTag := endpoint.MessageTag(0)
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{anyTag}})
	if err != nil {
		return nil, nil, err
	}
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		return nil, nil, errors.Join(err, grant.Close(), lease.Close())
	}
	closeAll = func() { ep.Close(); lease.Close() }
	ch, err := ep.Channel(ctx, lease, to.Addr(), uint32(to.Port()), ep.Tags()[0].Message)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return func(payload []byte) error {
		deadline := time.Now().Add(answerTimeout)
		if err := ep.Write(&ch, payload); err != nil {
			return err
		}
		for {
			if err := ep.Wait(deadline); err != nil { // flushes what was written
				return err
			}
			var m [1]datapath.Message
			if ep.Borrow(m[:]) == 0 {
				continue
			}
			back := bytes.Equal(m[0].Payload(), payload)
			ep.Return(&m[0])
			if back {
				return nil
			}
		}
	}, closeAll, nil
}
