package unet_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
)

// An HTTP server on an endpoint that shares the interface's address.
func ExampleOpen() {
	ctx := context.Background()
	host, err := unet.Open(ctx, unet.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close() // sends what was written and closes the connections

	listener, err := host.Listen(ctx, "tcp", ":8080")
	if err != nil {
		log.Fatal(err)
	}
	err = http.Serve(listener, http.FileServer(http.Dir(".")))
	if errors.Is(err, endpoint.ErrLeaseClosed) {
		log.Fatal("unetd has ended the endpoint: ", err)
	}
	log.Fatal(err)
}

// An HTTP client.
func ExampleHost_DialContext() {
	host, err := unet.Open(context.Background(), unet.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()

	client := http.Client{Transport: &http.Transport{DialContext: host.DialContext}}
	answer, err := client.Get("http://10.0.0.2:8080/")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	log.Printf("%s, %v", body, err)
}
