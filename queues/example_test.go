package queues_test

import (
	"fmt"

	"github.com/unet-go/unet/queues"
)

// Both ends of a ring, in the memory of one process. Between a process and the kernel, Shared
// is the mapping of the socket's ring, and the kernel has the other end.
func Example() {
	ring := queues.Shared[queues.Desc]{Producer: new(uint32), Consumer: new(uint32), Entries: make([]queues.Desc, 8)}
	p, c := queues.NewProducer(ring), queues.NewConsumer(ring)

	n := p.Reserve(2)
	for i := range n {
		*p.At(i) = queues.Desc{Addr: uint64(i) * 2048, Len: 64}
	}
	fmt.Println("before Submit:", c.Peek(8))
	p.Submit(n)

	n = c.Peek(8)
	for i := range n {
		fmt.Printf("%d bytes at %d\n", c.At(i).Len, c.At(i).Addr)
	}
	c.Release(n) // the producer may use the slots again
	fmt.Println("in flight:", p.InFlight())
	// Output:
	// before Submit: 0
	// 64 bytes at 0
	// 64 bytes at 2048
	// in flight: 0
}
