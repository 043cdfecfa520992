package bpf_test

import (
	"fmt"

	"github.com/unet-go/unet/bpf"
)

// The programs and tables, before anything is loaded into a kernel.
func ExampleLoadMux() {
	spec, err := bpf.LoadMux()
	if err != nil {
		panic(err)
	}
	fmt.Println(spec.Programs[bpf.MuxProgUnetUplink].Type)
	tags := spec.Maps[bpf.MuxMapTags]
	fmt.Printf("%v, %d bytes of key\n", tags.Type, tags.KeySize)
	// Output:
	// XDP
	// Hash, 8 bytes of key
}

// The key of a tag in the table, and the entry under which CountOf counts it.
func ExampleKey() {
	key := bpf.Key(bpf.TagTCP, [4]byte{10, 0, 0, 1}, 8080)
	addr, port := key.AddrPort()
	fmt.Println(addr, port, bpf.CountOf(key.Kind, port))
	// Output: [10 0 0 1] 8080 126
}
