package uplink

import (
	"encoding/binary"
	"fmt"
	"testing"
)

func TestXDPPrograms(t *testing.T) {
	attr := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	for _, c := range []struct {
		nested []byte
		want   string
	}{
		{attr(2, 0), "[]"},
		{append(attr(2, 2), attr(iflaXDPSKBProg, 7, 0, 0, 0)...), "[{xdpgeneric 7}]"},
		{append(attr(iflaXDPDriverProg, 7, 0, 0, 0), attr(iflaXDPSKBProg, 8, 0, 0, 0)...), "[{xdpdrv 7} {xdpgeneric 8}]"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0), "[{xdpoffload 7}]"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0)[:6], "[]"},
		{attr(iflaXDPHWProg, 7), "[]"},
		{make([]byte, 8), "[]"},
	} {
		if got := fmt.Sprint(xdpPrograms(c.nested)); got != c.want {
			t.Errorf("%v: %q, want %q", c.nested, got, c.want)
		}
	}
}
