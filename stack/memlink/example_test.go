package memlink_test

import (
	"fmt"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// A link that loses every second frame.
func ExampleLink_Filter() {
	a, b := memlink.Pair(memlink.Config{})
	n := 0
	a.Filter(func([]byte) bool { n++; return n%2 == 1 })
	for i := range 4 {
		f, _ := a.Reserve(0)
		f.Data = fmt.Appendf(f.Data[:0], "frame %d", i)
		a.Send(f)
	}
	a.Flush()
	var frames [4]stack.Frame
	for _, f := range frames[:b.Borrow(frames[:])] {
		fmt.Printf("%s\n", f.Data)
		b.Return(f)
	}
	fmt.Println(a.Lost(), "lost; not given back:", a.Audit(), b.Audit())
	// Output:
	// frame 0
	// frame 2
	// 2 lost; not given back: <nil> <nil>
}
