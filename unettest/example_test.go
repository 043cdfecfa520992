package unettest_test

import (
	"context"
	"fmt"
	"log"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/unettest"
)

// greet is a service that runs on any network: a host's, the kernel's, or this one.
func greet(ctx context.Context, on unet.Network) error {
	l, err := on.Listen(ctx, "tcp", ":7000")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "hello", c.RemoteAddr().Network())
			c.Close()
		}
	}()
	return nil
}

// In a test, use [unettest.New] or [unettest.Pair], which close the network at its end.
func ExampleOpen() {
	ctx := context.Background()
	lan, err := unettest.Open(unettest.Options{Hosts: []string{"server", "client"}})
	if err != nil {
		log.Fatal(err)
	}
	defer lan.Close()
	if err := greet(ctx, lan.Host("server")); err != nil {
		log.Fatal(err)
	}
	c, err := lan.Host("client").DialContext(ctx, "tcp", "server:7000")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	var hello, network string
	fmt.Fscan(c, &hello, &network)
	fmt.Println(hello, network)
	// Output: hello tcp
}
