package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// serve answers datagrams and messages until ctx ends or one of them fails.
func serve(ctx context.Context, socket string, addr netip.AddrPort) error {
	host, err := unet.Open(ctx, unet.Config{Socket: socket})
	if err != nil {
		return err
	}
	defer host.Close()
	conn, err := host.ListenUDP(ctx, addr)
	if err != nil {
		return err
	}
	tag := endpoint.MessageTag(uint32(addr.Port()))
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{tag}})
	if err != nil {
		return err
	}
	defer lease.Close()
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		return errors.Join(err, grant.Close())
	}
	fmt.Printf("answering on %v over UDP and on message tag %v\n", conn.LocalAddr(), tag.Message)

	// The error is that of the first to end: the other one is ended by it.
	ctx, end := context.WithCancelCause(ctx)
	defer context.AfterFunc(ctx, func() { host.Close() })()
	closed := make(chan error, 1)
	go func() {
		ep.Upcall(datapath.NonEmpty, echoMessages)
		end(ep.Serve(ctx))
		closed <- ep.Close()
	}()
	end(echoDatagrams(conn))
	return errors.Join(context.Cause(ctx), <-closed)
}

// echoDatagrams uses the socket as programs use one of package net.
func echoDatagrams(conn *unet.UDPConn) error {
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return err
		}
		if _, err := conn.WriteToUDPAddrPort(buf[:n], from); err != nil {
			fmt.Println("not answered:", err)
		}
	}
}

// echoMessages is the upcall: it drains the receive queue and answers in
// batches, each with one kick.
func echoMessages(ep *datapath.Endpoint) {
	var msgs [32]datapath.Message
	for n := ep.Borrow(msgs[:]); n > 0; n = ep.Borrow(msgs[:]) {
		for i := range msgs[:n] {
			ch := ep.ReplyChannel(&msgs[i])
			if err := ep.Write(&ch, msgs[i].Payload()); err != nil {
				fmt.Println("not answered:", err) // the peer may send it again
			}
		}
		ep.ReturnBatch(msgs[:n])
		if err := ep.Flush(); err != nil {
			fmt.Println("not sent:", err)
		}
	}
}
