//go:build linux

package quicconn_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"golang.org/x/net/ipv4"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/quicconn"
	"github.com/unet-go/unet/unettest"
)

// A packet arrives with the address that it was sent to, as quic-go reads it. With quic-go, the
// connection is the Conn of a quic.Transport.
func ExampleNew() {
	lan, err := unettest.Open(unettest.Options{Hosts: []string{"a", "b"}})
	if err != nil {
		log.Fatal(err)
	}
	defer lan.Close()
	listen := func(h *unet.Host) *quicconn.Conn {
		socket, err := h.ListenUDP(context.Background(), netip.AddrPortFrom(h.Addr(), 443))
		if err != nil {
			log.Fatal(err)
		}
		conn, err := quicconn.New(socket)
		if err != nil {
			log.Fatal(err)
		}
		return conn
	}
	server, client := listen(lan.Host("a")), listen(lan.Host("b"))
	defer server.Close()
	defer client.Close()

	if _, err := client.WriteTo([]byte("hello"), server.LocalAddr()); err != nil {
		log.Fatal(err)
	}
	batch := []ipv4.Message{{Buffers: [][]byte{make([]byte, 1500)}, OOB: make([]byte, 128)}}
	if _, err := server.ReadBatch(batch, 0); err != nil {
		log.Fatal(err)
	}
	m := &batch[0]
	var control ipv4.ControlMessage
	if err := control.Parse(m.OOB[:m.NN]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, to this host: %t\n", m.Buffers[0][:m.N], control.Dst.String() == lan.Host("a").Addr().String())
	// Output: hello, to this host: true
}
