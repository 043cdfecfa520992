//go:build linux

package control_test

import (
	"context"
	"fmt"
	"log"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// A process asks unetd for an endpoint with a message tag, and for the route to a peer. Package
// datapath attaches to the grant.
func ExampleOpen() {
	ctx := context.Background()
	grant, lease, err := control.Open(ctx, control.DefaultSocket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	if err != nil {
		log.Fatal(err) // such as: unetd is not running at /run/unet/unetd.sock
	}
	defer lease.Close()
	defer grant.Close()
	fmt.Println("on", grant.Identity.Interface, "with", grant.Tags)
	<-lease.Done()
	fmt.Println(lease.Err()) // why unetd has ended it
}

// What an operator asks: unetd counters.
func ExampleOperator_Counters() {
	counters, err := control.Operator{}.Counters(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range counters {
		fmt.Println(c.Value, c.Name, c.Help)
	}
}
