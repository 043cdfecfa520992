//go:build linux

package verbs_test

import (
	"fmt"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/verbs"
)

// Word refers to the region's memory. An offset that is not aligned, or outside of the region, panics.
func TestWord(t *testing.T) {
	ha, _ := links[0].open(t, unet.HostConfig{})
	c := open(t, ha)
	mr, err := c.AllocPD().RegMR(make([]byte, 32), verbs.AccessLocalWrite)
	testutil.Must(t, err)
	mr.Word(24).Store(0x0101010101010101)
	if b := mr.Bytes(); b[23] != 0 || b[24] != 1 || b[31] != 1 {
		t.Errorf("%x", b)
	}
	for _, off := range []int{-8, 1, 4, 25, 32} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("offset %d: no panic", off)
				}
			}()
			fmt.Println(mr.Word(off).Load())
		}()
	}
}
