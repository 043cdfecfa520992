//go:build unetdebug

package segment

import "testing"

func TestWriteAfterFree(t *testing.T) {
	s := newSegment(t, 1)
	addr, _ := s.Alloc(Stack)
	b := s.Bytes(addr, 2048)
	s.Free(addr, Stack)
	b[17] = 1
	mustPanic(t, "byte 17 after it was freed", func() { s.Alloc(Stack) })
}
