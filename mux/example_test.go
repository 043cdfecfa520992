//go:build linux

package mux_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// A privileged program that has a mux of its own instead of a unetd, and an endpoint on it.
func ExampleOpen() {
	ctx := context.Background()
	m, err := mux.Open(mux.Config{Interface: "eth0"}) // not pinned: it ends with this process
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	me := mux.Owner{UID: uint32(os.Geteuid()), PID: os.Getpid()}
	grant, lease, err := m.OpenEndpointFor(ctx, me, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(7)}})
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Close()
	defer grant.Close()
	fmt.Println(grant.Identity.Interface, grant.Tags)
}
