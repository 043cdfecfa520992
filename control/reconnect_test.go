//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// If unetd is stopped but has not ended, the lease is kept: calls end with their context, and calls
// succeed again when unetd continues.
func TestUnetdHangs(t *testing.T) {
	app, unetd := SocketPair(t)
	_, w := Pipe(t)
	scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, 2) })
	g, l, err := open(context.Background(), app, noSocket, endpoint.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	Await(t, "script", scriptDone)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 * protocol.MaxRequests {
		wg.Go(func() {
			if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); !errors.Is(err, context.Canceled) {
				t.Errorf("Resolve: %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	if isClosed(l.Done()) {
		t.Error("the lease has ended")
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		answerAll(t, unetd)
	}()
	if _, err := l.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Error(err)
	}
	l.Close()
	Await(t, "unetd", answered)
}

// A claim that is granted after the context of its caller has ended is undone by an Unclaim, which is
// repeated if unetd is busy.
func TestAbandonedClaimIsUndone(t *testing.T) {
	app, unetd := SocketPair(t)
	_, w := Pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	claimed := make(chan struct{})
	scriptDone := script(t, unetd,
		func() { SendAll(t, unetd, grantRecord, w, 2) },
		func() {
			cancel()
			<-claimed
			SendAll(t, unetd, `{"v":1,"id":2,"tag":"msg:9"}`, nil, 0)
		},
		func() { SendAll(t, unetd, `{"v":1,"id":3,"error":{"code":"busy","message":"later"}}`, nil, 0) },
		func() { SendAll(t, unetd, `{"v":1,"id":4}`, nil, 0) },
		func() { SendAll(t, unetd, `{"v":1,"id":5,"tag":"msg:9"}`, nil, 0) })
	g, l, err := open(t.Context(), app, noSocket, endpoint.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := l.Claim(ctx, endpoint.MessageTag(9)); !errors.Is(err, context.Canceled) {
		t.Errorf("Claim: %v", err)
	}
	close(claimed)
	if tag, err := l.Claim(t.Context(), endpoint.MessageTag(9)); err != nil || tag != endpoint.MessageTag(9) {
		t.Errorf("Claim after it was undone: %v, %v", tag, err)
	}
	Await(t, "script", scriptDone)
	closeAfterReading(unetd)
	l.Close()
}

// Addresses that change right after the grant are in the first turn of a loop, whenever that begins.
func TestAddressesChangeBeforeFirstNotice(t *testing.T) {
	app, unetd := SocketPair(t)
	_, w := Pipe(t)
	scriptDone := script(t, unetd, func() {
		SendAll(t, unetd, grantRecord, w, 2)
		SendAll(t, unetd, `{"v":1,"event":"address","prefixes":["10.0.0.3/25","fd00::1/64"],"up":true}`, nil, 0)
		SendAll(t, unetd, `{"v":1,"event":"address","addrs":["10.0.0.1"],"up":false}`, nil, 0)
	}, func() {
		SendAll(t, unetd, `{"v":1,"id":2,"tag":"msg:9"}`, nil, 0)
	})
	g, l, err := open(t.Context(), app, noSocket, endpoint.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := l.Claim(t.Context(), endpoint.MessageTag(9)); err != nil { // its answer comes after the events
		t.Fatal(err)
	}
	want := []endpoint.Notice{
		{Kind: endpoint.NoticeAddrHere, Addr: netip.MustParseAddr("10.0.0.3"), Bits: 25},
		{Kind: endpoint.NoticeAddrHere, Addr: netip.MustParseAddr("fd00::1"), Bits: 64},
		{Kind: endpoint.NoticeAddrGone, Addr: netip.MustParseAddr("10.0.0.1")},
	}
	for list := range l.Notices(t.Context()) {
		if !slices.Equal(list, want) {
			t.Errorf("the first turn has %v, want %v", list, want)
		}
		break
	}
	Await(t, "script", scriptDone)
	closeAfterReading(unetd)
	l.Close()
}

// answerAll answers resolves until the end of the stream.
func answerAll(t *testing.T, c *net.UnixConn) {
	for {
		record, _, err := protocol.ReadRecord(c, 0)
		if err != nil {
			c.Close()
			return
		}
		var r protocol.Request
		if err := json.Unmarshal(record, &r); err != nil {
			t.Error(err)
		}
		SendAll(t, c, fmt.Sprintf(`{"v":1,"id":%d,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`, r.ID), nil, 0)
	}
}
