//go:build linux

package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// A dest as ib_read_lat sends it: as text, and as the struct.
func TestDestEncoding(t *testing.T) {
	want := dest{16, 0x2d, 0xf19e4, 0x5c89, 0x56213d2bd000, netip.MustParseAddr("10.0.0.3")}
	const text = "0000:0010:00002d:0f19e4:00005c89:000056213d2bd000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:03:00000000:\x00"
	if b := want.appendText(nil); string(b) != text || len(b) != textLen {
		t.Errorf("%q, want %q", b, text)
	}
	if got, err := parseText([]byte(text)); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	for _, bad := range []string{"", strings.Repeat("0:", 5), strings.Replace(text, "2d", "2x", 1)} {
		if d, err := parseText([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, d)
		}
	}
	const structHex = "00000000" + "00000010" + "0000002d" + "000f19e4" + "00005c89" + "00000000" + "000056213d2bd000" + "00000000000000000000ffff0a000003" + "0000000000000000"
	b := want.appendStruct(nil)
	if got := fmt.Sprintf("%x", b); got != structHex || len(b) != structLen {
		t.Errorf("%s, want %s", got, structHex)
	}
	if got := parseStruct(b); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Client and server exchange the same things in the same order.
func TestClientAndServerExchange(t *testing.T) {
	a, b := net.Pipe()
	both := func(c *comm) (d dest, mtu int, err error) {
		if mtu, err = c.agree(map[bool]int{true: 5, false: 3}[c.client]); err != nil {
			return
		}
		if d, err = c.shake(dest{qpn: map[bool]uint32{true: 1, false: 2}[c.client], addr: netip.MustParseAddr("10.0.0.1")}); err != nil {
			return
		}
		err = c.report()
		return
	}
	type result struct {
		d   dest
		mtu int
		err error
	}
	server := make(chan result)
	go func() {
		d, mtu, err := both(&comm{ReadWriter: b})
		server <- result{d, mtu, err}
	}()
	d, mtu, err := both(&comm{ReadWriter: a, client: true})
	s := <-server
	if err != nil || s.err != nil || d.qpn != 2 || s.d.qpn != 1 || mtu != 3 || s.mtu != 3 {
		t.Errorf("client: %+v, MTU %d, %v; server: %+v", d, mtu, err, s)
	}
}
