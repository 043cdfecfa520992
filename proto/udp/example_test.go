package udp_test

import (
	"fmt"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// A datagram is made, goes through the engine, and is popped.
func Example() {
	here, there := wire.AddrFrom4([4]byte{10, 0, 0, 1}), wire.AddrFrom4([4]byte{10, 0, 0, 2})
	table := udp.NewTable(udp.Config{})
	socket, err := table.Open(udp.AddrPort{Addr: here, Port: 53}, udp.AddrPort{}, udp.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer table.Close(socket)

	b := make([]byte, 1500)
	flow := wire.UDPFlow{Src: there, Dst: here, SrcPort: 5000, DstPort: 53}
	n := wire.PutUDPCopy(b, &flow, []byte("question"))
	to, queued, verdict := table.Process(&udp.Inbound{Src: there, Dst: here, Data: b[:n], Frame: 7})
	fmt.Println(to == socket, queued, verdict == udp.Queued)

	var d udp.Datagram
	socket.Pop(&d)
	fmt.Printf("%q from %v in frame %d\n", d.Payload, d.From, d.Frame) // now the caller releases frame 7
	// Output:
	// true 1 true
	// "question" from 10.0.0.2:5000 in frame 7
}
