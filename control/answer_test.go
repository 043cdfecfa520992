//go:build linux

package control

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// Answers to open, each with a number of descriptors, that are errors.
func TestUnusableGrants(t *testing.T) {
	for _, c := range []struct {
		name        string
		record      string
		descriptors int
		err         error
		text        string
	}{
		{name: "no descriptors", record: grantRecord, err: protocol.ErrProtocol},
		{name: "one descriptor", record: grantRecord, descriptors: 1, err: protocol.ErrProtocol},
		{name: "three descriptors", record: grantRecord, descriptors: 3, err: protocol.ErrProtocol},
		{name: "two hundred descriptors", record: grantRecord, descriptors: 200, err: protocol.ErrProtocol},
		{name: "not JSON", record: "hello", descriptors: 2, err: protocol.ErrProtocol},
		{name: "version", record: `{"v":3,"id":1}`, err: protocol.ErrProtocol, text: "version 3"},
		{name: "geometry", record: strings.Replace(grantRecord, `"rx_size":64`, `"rx_size":63`, 1), descriptors: 2, err: protocol.ErrProtocol, text: "rx ring"},
		{name: "another id", record: strings.Replace(grantRecord, `"id":1`, `"id":2`, 1), descriptors: 2, err: protocol.ErrProtocol},
		{name: "grant of no request", record: strings.Replace(grantRecord, `"id":1`, `"id":0`, 1), descriptors: 2, err: protocol.ErrProtocol},
		{name: "no grant", record: `{"v":1,"id":1}`, err: protocol.ErrProtocol},
		{name: "a tag", record: `{"v":1,"id":1,"tag":"msg:1"}`, err: protocol.ErrProtocol},
		{name: "grant and error", record: strings.Replace(grantRecord, `"id":1`, `"id":1,"error":{"code":"x","message":"y"}`, 1), descriptors: 2, err: protocol.ErrProtocol},
		{name: "grant and event", record: strings.Replace(grantRecord, `"id":1`, `"id":1,"event":"x"`, 1), descriptors: 2, err: protocol.ErrProtocol},
		{name: "error with descriptors", record: `{"v":1,"id":1,"error":{"code":"tag-held","message":"m"}}`, descriptors: 2, err: protocol.ErrProtocol},
		{name: "event with descriptors", record: `{"v":1,"event":"x"}`, descriptors: 1, err: protocol.ErrProtocol},
		{name: "neither answer nor event", record: `{"v":1}`, err: protocol.ErrProtocol},
		{name: "too long", record: grantRecord + strings.Repeat(" ", protocol.MaxRecord), descriptors: 2, err: protocol.ErrProtocol},
		{name: "error of the connection", record: `{"v":1,"id":0,"error":{"code":"busy","message":"too many endpoints"}}`, err: endpoint.ErrBusy, text: "too many endpoints"},
		{name: "unknown code", record: `{"v":1,"id":1,"error":{"code":"unknown-code","message":"the reason"}}`, text: "the reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			DescriptorLeaks(t)
			app, unetd := SocketPair(t)
			r, w := Pipe(t)
			scriptDone := script(t, unetd, func() { SendAll(t, unetd, c.record, w, c.descriptors) })
			g, l, err := open(context.Background(), app, noSocket, endpoint.Request{})
			if err == nil || g != nil || l != nil {
				t.Fatalf("open: %v, %v, %v", g, l, err)
			}
			if c.err != nil && !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("open: %v, want %v, %q", err, c.err, c.text)
			}
			Await(t, "script", scriptDone)
			unetd.Close()
			w.Close()
			WantClosed(t, r)
			r.Close()
		})
	}
}

// Unknown fields, and unknown events before and after the grant, are ignored: later versions
// may add them.
func TestUnknownFieldsAndEventsAreIgnored(t *testing.T) {
	DescriptorLeaks(t)
	app, unetd := SocketPair(t)
	r, w := Pipe(t)
	scriptDone := script(t, unetd, func() {
		SendAll(t, unetd, `{"v":1,"event":"unknown","field":"value"}`, nil, 0)
		SendAll(t, unetd, strings.Replace(grantRecord, `"id":5`, `"id":5,"unknown":"value"`, 1), w, 2)
		SendAll(t, unetd, `{"v":1,"id":0,"event":"unknown"}`, nil, 0)
	}, func() {
		SendAll(t, unetd, `{"v":1,"id":2,"tag":"msg:9","unknown":"value"}`, nil, 0)
	})
	ctx := context.Background()
	g, l, err := open(ctx, app, noSocket, endpoint.Request{})
	if err != nil || g.ID != 5 || len(g.Tags) != 1 {
		t.Fatalf("open: %+v, %v", g, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if tag, err := l.Claim(ctx, endpoint.MessageTag(9)); err != nil || tag != endpoint.MessageTag(9) {
		t.Errorf("Claim: %v, %v", tag, err)
	}
	Await(t, "script", scriptDone)
	unetd.Close()
	l.Close()
	Await(t, "Done", l.Done())
	w.Close()
	WantClosed(t, r)
	r.Close()
}

// An answer without a request ends an open lease and all calls in progress.
func TestUnusableAnswers(t *testing.T) {
	for _, record := range []string{
		`{"v":1,"id":9}`, `{"v":1,"id":1}`, `{"v":1,"id":2}`, `{"v":1,"id":2,"tag":"msg:1"}`, `{"v":1,"id":2,"route":null}`,
		`{"v":1,"id":2,"route":{"source":"nowhere"}}`, `{"v":1}`, `[]`, `{"v":1,"id":2,"grant":{}}`,
		`{"v":1,"tag":"msg:1"}`, `{"v":1,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
	} {
		t.Run(record, func(t *testing.T) {
			DescriptorLeaks(t)
			app, unetd := SocketPair(t)
			r, w := Pipe(t)
			scriptDone := script(t, unetd,
				func() { SendAll(t, unetd, grantRecord, w, 2) },
				func() { SendAll(t, unetd, record, nil, 0) })
			g, l, err := open(context.Background(), app, noSocket, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			_, err = l.Resolve(context.Background(), netip.Addr{}, remoteAddr)
			if !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, protocol.ErrProtocol) {
				t.Errorf("Resolve: %v", err)
			}
			Await(t, "Done", l.Done())
			Await(t, "script", scriptDone)
			unetd.Close()
			w.Close()
			WantClosed(t, r)
			r.Close()
		})
	}
}
