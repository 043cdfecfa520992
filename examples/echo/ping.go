package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

const patience = time.Second // for one answer

// ping sends n payloads, one after the other, and prints how long each took.
func ping(ctx context.Context, socket string, to netip.AddrPort, n int, message bool) error {
	open := openUDP
	if message {
		open = openMessage
	}
	roundTrip, closeAll, err := open(ctx, socket, to)
	if err != nil {
		return err
	}
	defer closeAll()
	lost := 0
	for i := range n {
		payload := fmt.Appendf(nil, "echo %d", i)
		start := time.Now()
		answer, err := roundTrip(payload)
		switch took := time.Since(start); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			lost++
			fmt.Printf("%v: seq %d: %v\n", to, i, err)
		case !bytes.Equal(answer, payload):
			return fmt.Errorf("%v answered %q to %q", to, answer, payload)
		default:
			fmt.Printf("%d bytes from %v: seq %d time %.1f us\n", len(answer), to, i, float64(took.Nanoseconds())/1e3)
		}
	}
	fmt.Printf("%d sent, %d answered\n", n, n-lost)
	if lost > 0 {
		return errors.New("not every payload was answered")
	}
	return nil
}

type roundTripFunc func(payload []byte) ([]byte, error)

func openUDP(ctx context.Context, socket string, to netip.AddrPort) (roundTripFunc, func(), error) {
	host, err := unet.Open(ctx, unet.Config{Socket: socket})
	if err != nil {
		return nil, nil, err
	}
	conn, err := host.DialContext(ctx, "udp", to.String())
	if err != nil {
		host.Close()
		return nil, nil, err
	}
	buf := make([]byte, 2048)
	return func(payload []byte) ([]byte, error) {
		if _, err := conn.Write(payload); err != nil {
			return nil, err
		}
		conn.SetReadDeadline(time.Now().Add(patience))
		n, err := conn.Read(buf)
		return buf[:n], err
	}, func() { host.Close() }, nil
}

func openMessage(ctx context.Context, socket string, to netip.AddrPort) (roundTripFunc, func(), error) {
	mine := endpoint.MessageTag(0) // any that is free
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{mine}})
	if err != nil {
		return nil, nil, err
	}
	ep, err := endpoint.Attach(grant, endpoint.Config{})
	if err != nil {
		return nil, nil, errors.Join(err, grant.Close(), lease.Close())
	}
	closeAll := func() { ep.Close(); lease.Close() }
	ch, err := ep.Channel(ctx, lease, to.Addr(), uint32(to.Port()), ep.Tags()[0].Message)
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	var msgs [1]endpoint.Message
	return func(payload []byte) ([]byte, error) {
		if err := ep.Write(&ch, payload); err != nil {
			return nil, err
		}
		for ep.Recv(msgs[:]) == 0 {
			if err := ep.Wait(time.Now().Add(patience)); err != nil {
				return nil, err
			}
		}
		defer ep.Free(&msgs[0])
		return bytes.Clone(msgs[0].Payload()), nil
	}, closeAll, nil
}
