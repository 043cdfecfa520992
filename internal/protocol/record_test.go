//go:build linux

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

func TestOperationRoundTrip(t *testing.T) {
	for _, o := range []Operation{
		{Op: OpOpen, Open: endpoint.Request{Attach: endpoint.AttachQueue, Queue: 1, Tags: []endpoint.Tag{endpoint.MessageTag(1)}}},
		{Op: OpClaim, Tag: endpoint.AddrTag(netip.MustParseAddr("10.0.0.1"))},
		{Op: OpUnclaim, Tag: endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:7"))},
		{Op: OpResolve, Addr: netip.MustParseAddr("2001:db8::1")},
		{Op: OpResolve, Addr: netip.MustParseAddr("2001:db8::1"), Source: netip.MustParseAddr("fe80::1")},
	} {
		record, err := o.Record(1 << 63)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseRequest(record)
		if err != nil || r.ID != 1<<63 {
			t.Fatalf("%s: %+v, %v", record, r, err)
		}
		back, err := r.Operation()
		if err != nil || back.Op != o.Op || back.Tag != o.Tag || back.Addr != o.Addr || back.Source != o.Source || back.Open.Queue != o.Open.Queue ||
			back.Open.Attach != o.Open.Attach || !slices.Equal(back.Open.Tags, o.Open.Tags) {
			t.Errorf("%s: %+v, %v", record, back, err)
		}
	}
}

// A record of an error tells the kinds of ErrUnreachable from one another.
func TestKindsOfUnreachableAreKeptInRecord(t *testing.T) {
	kinds := []error{endpoint.ErrNoRoute, endpoint.ErrProhibited, endpoint.ErrBlackhole}
	for _, want := range append(kinds, endpoint.ErrUnreachable) {
		b, err := json.Marshal(NewError(fmt.Errorf("route: %w", want)))
		if err != nil {
			t.Fatal(err)
		}
		var e Error
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(&e, endpoint.ErrUnreachable) {
			t.Errorf("%v became %s", want, b)
		}
		for _, kind := range kinds {
			if errors.Is(&e, kind) != (kind == want) {
				t.Errorf("%v became %s", want, b)
			}
		}
	}
}

// Every text of a request has a bound. Mistakes of a user have an error of their own.
func TestLongTexts(t *testing.T) {
	long := strings.Repeat("<", 12000)
	for _, c := range []struct {
		request Request
		want    error
	}{
		{Request{Op: OpResolve, Addr: "fe80::1%" + long}, ErrProtocol},
		{Request{Op: OpResolve, Addr: "fe80::1%eth0"}, endpoint.ErrUnreachable},
		{Request{Op: OpResolve, Addr: "::"}, endpoint.ErrUnreachable},
		{Request{Op: OpResolve, Addr: "10.0.0.2"}, nil},
		{Request{Op: OpResolve, Addr: "fd00::2", Source: "fe80::1%" + long}, ErrProtocol},
		{Request{Op: OpResolve, Addr: "fd00::2", Source: "fe80::1%eth0"}, endpoint.ErrNoRoute},
		{Request{Op: OpResolve, Addr: "fd00::2", Source: "10.0.0.1"}, endpoint.ErrNoRoute},
		{Request{Op: OpResolve, Addr: "::ffff:10.0.0.2", Source: "10.0.0.1"}, nil},
		{Request{Op: OpClaim, Tag: "udp:[fe80::1%" + long + "]:7"}, endpoint.ErrTag},
		{Request{Op: OpUnclaim, Tag: long}, endpoint.ErrTag},
		{Request{Op: OpClaim, Tag: "tcp:[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65472-65535"}, nil},
		{Request{Op: OpClaim, Tag: "tcp:[0000:0000:0000:0000:0000:0001:255.255.255.255]:65472-65535"}, nil},
		{Request{Op: OpOpen, Open: []byte(`{"tags":["msg:` + long + `"]}`)}, endpoint.ErrTag},
		{Request{Op: OpOpen, Open: []byte(`{"attach":"port","interface":"` + long + `"}`)}, endpoint.ErrUplink},
		{Request{Op: OpOpen, Open: []byte(`{"attach":"port","interface":"` + long[:maxInterface] + `"}`)}, nil},
		{Request{Op: OpRevoke, Endpoint: new(uint64), Reason: long}, ErrProtocol},
	} {
		if _, err := c.request.Operation(); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) || err != nil && len(err.Error()) > 512 {
			t.Errorf("%.60q %.60q %.60q: %v, want %v", c.request.Addr, c.request.Tag, c.request.Open, err, c.want)
		}
	}
}
