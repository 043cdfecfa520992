//go:build linux

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

func TestOperationRoundTrip(t *testing.T) {
	for _, o := range []Operation{
		{Op: OpOpen, Open: endpoint.Request{Attach: endpoint.AttachQueue, Queue: 1, Tags: []endpoint.Tag{endpoint.MessageTag(1)}}},
		{Op: OpClaim, Tag: endpoint.AddrTag(netip.MustParseAddr("10.0.0.1"))},
		{Op: OpUnclaim, Tag: endpoint.UDPTag(netip.MustParseAddrPort("10.0.0.1:7"))},
		{Op: OpResolve, Addr: netip.MustParseAddr("2001:db8::1")},
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
		if err != nil || back.Op != o.Op || back.Tag != o.Tag || back.Addr != o.Addr || back.Open.Queue != o.Open.Queue ||
			back.Open.Attach != o.Open.Attach || !slices.Equal(back.Open.Tags, o.Open.Tags) {
			t.Errorf("%s: %+v, %v", record, back, err)
		}
	}
}

// A record of an error tells ErrNoRoute from other kinds of ErrUnreachable. An application that does not know
// ErrNoRoute sees ErrUnreachable.
func TestNoRouteErrorIsKeptInRecord(t *testing.T) {
	for _, c := range []struct {
		err     error
		noRoute bool
	}{{endpoint.ErrUnreachable, false}, {endpoint.ErrNoRoute, true}} {
		b, err := json.Marshal(NewError(fmt.Errorf("route: %w", c.err)))
		if err != nil {
			t.Fatal(err)
		}
		var e Error
		if err := json.Unmarshal(b, &e); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(&e, endpoint.ErrUnreachable) || errors.Is(&e, endpoint.ErrNoRoute) != c.noRoute || e.Code != "unreachable" {
			t.Errorf("%v became %s", c.err, b)
		}
	}
}
