package tcp_test

import (
	"fmt"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// Two engines side by side: each one's emissions are what the other processes. A
// driver puts frames, a clock and goroutines in the place of these loops.
func Example() {
	var (
		addrs = [2]wire.Addr{wire.AddrFrom4([4]byte{10, 0, 0, 1}), wire.AddrFrom4([4]byte{10, 0, 0, 2})}
		tabs  = [2]*tcp.Table{tcp.NewTable(tcp.Config{}), tcp.NewTable(tcp.Config{})}
		now   = tcp.Time(time.Second)
		frame = make([]byte, 1500)
	)
	// exchange carries segments until neither side has any more.
	exchange := func() {
		for i := 0; tabs[0].Ready != nil || tabs[1].Ready != nil; i = 1 - i {
			for c := tabs[i].Ready; c != nil; c = tabs[i].Ready {
				n := c.Emit(now, frame)
				fmt.Printf("%v sends %d bytes\n", c.Local(), n)
				r := tabs[1-i].Process(now, &tcp.Inbound{Src: addrs[i], Dst: addrs[1-i], Data: frame[:n]})
				if r.Reply { // here it is the ACK that TIME-WAIT begins with
					n := tabs[1-i].EmitReply(frame)
					tabs[i].Process(now, &tcp.Inbound{Src: addrs[1-i], Dst: addrs[i], Data: frame[:n]})
				}
			}
			now = now + tcp.Time(10*time.Microsecond)
		}
	}

	listener, err := tabs[1].Listen(tcp.AddrPort{Port: 80}, tcp.ListenOptions{})
	if err != nil {
		panic(err)
	}
	client, err := tabs[0].Dial(now, tcp.AddrPort{Addr: addrs[0], Port: 4000}, tcp.AddrPort{Addr: addrs[1], Port: 80}, tcp.Options{})
	if err != nil {
		panic(err)
	}
	exchange()
	server := listener.Accept()
	fmt.Println(client.State(), server.State())

	client.Write(now, []byte("hello"))
	client.CloseWrite(now)
	exchange()
	buf := make([]byte, 100)
	n, err := server.Read(now, buf)
	fmt.Printf("%q %v\n", buf[:n], err)
	n, err = server.Read(now, buf)
	fmt.Println(n, err)
	server.Close(now)
	exchange()
	fmt.Println(client.State(), server.State())
	// Output:
	// 10.0.0.1:4000 sends 40 bytes
	// 10.0.0.2:80 sends 40 bytes
	// 10.0.0.1:4000 sends 32 bytes
	// ESTABLISHED ESTABLISHED
	// 10.0.0.1:4000 sends 37 bytes
	// 10.0.0.2:80 sends 32 bytes
	// "hello" <nil>
	// 0 EOF
	// 10.0.0.2:80 sends 32 bytes
	// TIME-WAIT CLOSED
}
