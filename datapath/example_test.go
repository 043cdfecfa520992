//go:build linux

package datapath_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
)

// A message is composed in place, sent to tag 9 of another host, and the answer is read in place.
func ExampleEndpoint_Send() {
	ctx := context.Background()
	grant, lease, err := control.Open(ctx, control.DefaultSocket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Close()
	ep, err := datapath.Attach(grant, datapath.Config{Lease: lease})
	if err != nil {
		log.Fatal(err)
	}
	defer ep.Close()
	ch, err := ep.Channel(ctx, lease, netip.MustParseAddr("10.0.0.2"), 9, 7)
	if err != nil {
		log.Fatal(err)
	}

	buf, err := ep.Reserve()
	if err != nil {
		log.Fatal(err)
	}
	if err := ep.Send(&ch, buf, copy(buf.Payload(), "hello")); err != nil {
		ep.Cancel(buf) // datapath.ErrQueueFull: the buffer is still ours
		log.Fatal(err)
	}
	var m [1]datapath.Message
	for ep.Borrow(m[:]) == 0 {
		if err := ep.Wait(time.Now().Add(time.Second)); err != nil { // sends what is queued first
			log.Fatal(err)
		}
	}
	fmt.Printf("%s\n", m[0].Payload())
	ep.Return(&m[0])
}
