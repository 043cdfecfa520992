package main

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// What ibv_rc_pingpong sends for LID 0, QPN 0x12, PSN 0xabcdef and GID ::ffff:10.9.1.2.
const sent = "0000:000012:abcdef:00000000000000000000ffff0a090102\x00"

func TestDest(t *testing.T) {
	want := dest{0x12, 0xabcdef, netip.MustParseAddr("10.9.1.2")}
	got, err := parseDest([]byte(sent))
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if b := want.appendTo(nil); string(b) != sent {
		t.Errorf("%q, want %q", b, sent)
	}
	if s := want.String(); s != "LID 0x0000, QPN 0x000012, PSN 0xabcdef, GID ::ffff:10.9.1.2" {
		t.Error(s)
	}
	for _, bad := range []string{
		"0000:000012:abcdef:00000000000000000000000000000000\x00", // without -g
		"0000:000012:abcdef:0000000000000000000xffff0a090102\x00",
		"0000:000012 abcdef:00000000000000000000ffff0a090102\x00",
		string(make([]byte, destLen)),
	} {
		if d, err := parseDest([]byte(bad)); err == nil {
			t.Errorf("%q is %+v", bad, d)
		}
	}
}

// Each side of the exchange gets all queue pairs of the other. The server connects before the
// client gets the queue pairs of the server.
func TestExchange(t *testing.T) {
	for _, n := range []int{1, srqSlots} {
		var a, b []dest
		for i := range min(n, 3) {
			a = append(a, dest{uint32(i + 1), uint32(i + 11), netip.MustParseAddr("10.0.0.1")})
			b = append(b, dest{uint32(i + 21), uint32(i + 31), netip.MustParseAddr("10.0.0.2")})
		}
		client, server := net.Pipe()
		connected := make(chan struct{})
		ended := make(chan error)
		go func() {
			got, err := exchangeServer(server, n, b, func(got []dest) error { close(connected); return nil })
			if err == nil && !slices.Equal(got, a) {
				err = errors.New("the server has other queue pairs than the client told")
			}
			ended <- err
		}()
		got, err := exchangeClient(client, n, a)
		if err != nil || !slices.Equal(got, b) {
			t.Errorf("client: %+v, %v, want %+v", got, err, b)
		}
		select {
		case <-connected:
		default:
			t.Error("the client's exchange has ended before the server connected")
		}
		if err := <-ended; err != nil {
			t.Errorf("server: %v", err)
		}
	}
	if _, err := readDests(strings.NewReader(sent[:20]), 1, 1); err == nil {
		t.Error("a short message is no error")
	}
}
