package frag_test

import (
	"fmt"

	"github.com/unet-go/unet/proto/frag"
	"github.com/unet-go/unet/wire"
)

// A payload is divided into IPv4 fragments for an MTU of 1,500 bytes, and put together from
// fragments in another order, of which one comes twice.
func Example() {
	payload := make([]byte, 3000)
	var fragments [][]byte
	for p := range frag.Pieces(len(payload), 1500-wire.IPv4HeaderLen) {
		b := make([]byte, wire.IPv4HeaderLen+p.Len)
		wire.PutIPv4(b, wire.IPv4Fields{
			TotalLen: uint16(len(b)), ID: 7, Fragment: p.Field(false), TTL: 64, Protocol: wire.ProtocolUDP,
			Src: [4]byte{192, 0, 2, 1}, Dst: [4]byte{192, 0, 2, 2},
		})
		copy(b[wire.IPv4HeaderLen:], payload[p.Offset:])
		fragments = append(fragments, b)
	}

	r := frag.New(frag.Config{}) // a megabyte at most
	for now, i := range []int{2, 0, 0, 1} {
		var p wire.IPv4
		if err := p.Parse(fragments[i]); err != nil {
			fmt.Println(err)
			return
		}
		whole, verdict := r.IPv4(frag.Time(now), &p, wire.LinkAddr{})
		fmt.Printf("%d bytes at %d: %v, %d bytes\n", len(p.Payload), p.FragmentOffset(), verdict, len(whole))
	}
	// Output:
	// 40 bytes at 2960: kept, 0 bytes
	// 1480 bytes at 0: kept, 0 bytes
	// 1480 bytes at 0: duplicate, 0 bytes
	// 1480 bytes at 1480: complete, 3020 bytes
}
