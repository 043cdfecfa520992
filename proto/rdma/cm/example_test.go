package cm_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/unet-go/unet/proto/rdma/cm"
	"github.com/unet-go/unet/wire"
)

// Two engines side by side: the messages that one emits are the other's input. A driver puts
// packets of QP 1, a clock and queue pairs in the place of these loops.
func Example() {
	addrs := [2][4]byte{{10, 0, 0, 1}, {10, 0, 0, 2}}
	var engines [2]*cm.Engine
	for i, a := range addrs {
		engines[i] = cm.New(cm.Config{Addr: a, GUID: uint64(i + 1), Rand: rand.Uint64})
	}
	var now cm.Time
	if _, err := engines[1].Listen(7471, 0); err != nil {
		panic(err)
	}
	if _, err := engines[0].Dial(now, wire.AddrPort4{Addr: addrs[1], Port: 7471}, cm.Param{QPN: 17, RetryCount: 7}); err != nil {
		panic(err)
	}
	mad := make([]byte, wire.MADLen)
	for i, idle := 0, 0; idle < 2; i = 1 - i {
		idle++
		for _, ok := engines[i].Emit(mad); ok; _, ok = engines[i].Emit(mad) {
			engines[1-i].Input(now, addrs[i], mad)
			idle = 0
		}
		for ev, ok := engines[1-i].NextEvent(); ok; ev, ok = engines[1-i].NextEvent() {
			idle = 0
			switch ev.Type {
			case cm.ConnectRequest:
				fmt.Println("request from queue pair", ev.Conn.Attr().DestQPN)
				ev.Conn.Accept(now, cm.Param{QPN: 18})
			case cm.ConnectResponse:
				fmt.Println("response from queue pair", ev.Conn.Attr().DestQPN)
				ev.Conn.Establish()
			case cm.Established:
				fmt.Println("established")
			}
		}
	}
	// Output:
	// request from queue pair 17
	// response from queue pair 18
	// established
}
