package segment_test

import (
	"fmt"

	"github.com/unet-go/unet/segment"
)

// The life of a frame that is sent.
func Example() {
	s, err := segment.New(make([]byte, 4*2048), 2048, 0) // four frames, none with the kernel
	if err != nil {
		fmt.Println(err)
		return
	}
	addr, ok := s.Alloc(segment.Stack)
	if !ok {
		fmt.Println("no free frame")
		return
	}
	n := copy(s.Bytes(addr, s.FrameSize()), "hello")
	s.Move(addr, segment.Stack, segment.KernelTransmit) // its descriptor is on the TX ring
	fmt.Printf("%q is being sent, %d frames are free\n", s.Bytes(addr, uint32(n)), s.Available())
	s.Free(addr, segment.KernelTransmit) // its completion was taken
	fmt.Println(s.Available(), "frames are free")
	// Output:
	// "hello" is being sent, 3 frames are free
	// 4 frames are free
}
