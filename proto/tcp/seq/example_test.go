package seq_test

import (
	"fmt"

	"github.com/unet-go/unet/proto/tcp/seq"
)

// Sequence numbers wrap after 4 GiB.
func ExampleNumber() {
	last := seq.New(0xffff_fff0)
	next := last.Add(0x20)
	fmt.Println(next == seq.New(0x10), last.Before(next), next.From(last))
	fmt.Println("in a window of 64 octets from last:", next.InWindow(last, 64), next.InWindow(last, 16))
	// Output:
	// true true 32
	// in a window of 64 octets from last: true false
}
