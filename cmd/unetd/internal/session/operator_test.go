//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// The records are those of docs/control-protocol.md.
func TestOperatorRecords(t *testing.T) {
	p := newFakeProvider(t)
	p.counters = []endpoint.Counter{{Name: "rx_frames", Help: "Frames received.", Value: 12}, {Name: "tx_frames", Help: "Frames sent.", Value: 1 << 53}}
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.send(`{"v":1,"id":1,"op":"list"}`)
	a.want(`{"endpoints":[],"id":1,"v":1}`)
	endpointOf(t, p, 4711, endpoint.MessageTag(7))
	endpointOf(t, p, 4712)
	one := `{"attach":"port","device":"port","id":1,"leased":false,"mode":"","pid":0,"queue":0,"segment_bytes":8388608,"tags":["msg:7"],"tags_total":1,"uid":4711,"zero_copy":false}`
	two := `{"attach":"port","device":"port","id":2,"leased":false,"mode":"","pid":0,"queue":0,"segment_bytes":8388608,"tags":[],"tags_total":0,"uid":4712,"zero_copy":false}`
	counters := `{"help":"Frames received.","name":"rx_frames","value":12},`
	more := `{"help":"Frames sent.","name":"tx_frames","value":9007199254740992}`
	for _, c := range []struct{ request, answer string }{
		{`{"v":1,"id":1,"op":"list"}`, `{"endpoints":[` + one + `,` + two + `],"id":1,"v":1}`},
		{`{"v":1,"id":2,"op":"list","after":0}`, `{"endpoints":[` + one + `,` + two + `],"id":2,"v":1}`},
		{`{"v":1,"id":2,"op":"list","after":1}`, `{"endpoints":[` + two + `],"id":2,"v":1}`},
		{`{"v":1,"id":2,"op":"list","after":18446744073709551615}`, `{"endpoints":[],"id":2,"v":1}`},
		{`{"v":1,"id":3,"op":"counters"}`, `{"counters":[` + counters + more + `],"id":3,"v":1}`},
		{`{"v":1,"id":3,"op":"counters","after":1}`, `{"counters":[` + more + `],"id":3,"v":1}`},
		{`{"v":1,"id":3,"op":"counters","after":18446744073709551615}`, `{"counters":[],"id":3,"v":1}`},
		{`{"v":1,"id":4,"op":"reload"}`, `{"id":4,"reloaded":{"changes":["rule lab: added"],"policy":"/policy.yaml","rules":1},"v":1}`},
		{`{"v":1,"id":5,"op":"drain"}`, `{"id":5,"v":1}`},
		{`{"v":1,"id":6,"op":"uplinks"}`, `{"draining":true,"id":6,"uplinks":[{"endpoints":2,"index":2,"interface":"eth0","mode":"tcx","up":true}],"v":1}`},
		{`{"v":1,"id":7,"op":"drain","undo":true}`, `{"id":7,"v":1}`},
		{`{"v":1,"id":8,"op":"uplinks"}`, `{"id":8,"uplinks":[{"endpoints":2,"index":2,"interface":"eth0","mode":"tcx","up":true}],"v":1}`},
		{`{"v":1,"id":9,"op":"revoke","endpoint":99}`, `{"error":{"code":"no-endpoint","message":"no such endpoint: 99"},"id":9,"v":1}`},
	} {
		a.send(c.request)
		a.want(c.answer)
	}
}

// Lists of any length are sent, in several records if one is too short.
func TestListAndCounters(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	op := control.Operator{Socket: socket}
	ctx := context.Background()
	if list, err := op.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("List: %v, %v", list, err)
	}
	if list, err := op.Counters(ctx); err != nil || len(list) != 0 {
		t.Errorf("Counters: %v, %v", list, err)
	}
	// Entries of the greatest length.
	p.mu.Lock()
	for id := uint64(1); id <= 40; id++ {
		e := &fakeEndpoint{id: id << 58, peer: mux.Owner{UID: 1<<32 - 1, PID: 1<<31 - 1}, tags: make(map[endpoint.Tag]bool)}
		for i := range 10 * int(id) {
			addr := netip.AddrFrom16([16]byte{0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, byte(i)})
			e.tags[endpoint.UDPTag(netip.AddrPortFrom(addr, uint16(65535-i/256*64))).AsBlock()] = true
		}
		e.id = id + 1<<60
		p.endpoints[e.id] = e
	}
	for i := range 3000 {
		p.counters = append(p.counters, endpoint.Counter{Name: fmt.Sprintf("counter_%d", i), Help: strings.Repeat("help ", 40), Value: uint64(i)})
	}
	p.mu.Unlock()
	list, err := op.List(ctx)
	if err != nil || len(list) != 40 {
		t.Fatalf("List: %d, %v", len(list), err)
	}
	for i, e := range list {
		total := 10 * (i + 1)
		if e.ID != uint64(i+1)+1<<60 || e.TagsTotal != total || len(e.Tags) != min(total, 256) || e.UID != 1<<32-1 || e.SegmentBytes != 8<<20 {
			t.Errorf("entry %d: id %d, %d tags of %d", i, e.ID, len(e.Tags), e.TagsTotal)
		}
	}
	counters, err := op.Counters(ctx)
	if err != nil || len(counters) != 3000 {
		t.Fatalf("Counters: %d, %v", len(counters), err)
	}
	for i, c := range counters {
		if c.Name != fmt.Sprintf("counter_%d", i) || c.Value != uint64(i) {
			t.Errorf("entry %d: %+v", i, c)
		}
	}
}

// The status of endpoints with any number of sockets is sent, in several records if one is too short.
func TestStatus(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	op := control.Operator{Socket: socket}
	if list, err := op.Status(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("Status: %v, %v", list, err)
	}
	addr := netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
	full := endpoint.Socket{
		Protocol: "tcp", State: "established", Local: netip.AddrPortFrom(addr, 65535), Remote: netip.AddrPortFrom(addr, 65535),
		ReceiveQueue: 1<<32 - 1, SendQueue: 1<<32 - 1, Received: 1<<64 - 1, Sent: 1<<64 - 1, Drops: 1<<32 - 1, RTT: 1<<63 - 1, RTTVar: 1<<63 - 1, RTO: 1<<63 - 1,
		MSS: 65535, Window: 1<<32 - 1, InFlight: 1<<32 - 1, BytesIn: 1<<64 - 1, BytesAcked: 1<<64 - 1, Retransmitted: 1<<64 - 1,
	}
	var all []endpoint.Status
	for id, sockets := range []int{0, 1, 32, 1000, 0, 33, 64, 90, 0, 0} {
		e := endpoint.Status{Info: endpoint.Info{ID: uint64(id) + 1<<60, SegmentBytes: 8 << 20}, Command: strings.Repeat("c", 15)}
		for i := range 300 {
			e.Tags = append(e.Tags, endpoint.UDPTag(netip.AddrPortFrom(addr, uint16(i+1))))
		}
		for i := range sockets {
			full.Record = uint32(3*i + 1)
			e.Sockets = append(e.Sockets, full)
		}
		all = append(all, e)
	}
	p.mu.Lock()
	p.status = all
	p.mu.Unlock()
	got, err := op.Status(t.Context())
	if err != nil || len(got) != len(all) {
		t.Fatalf("%d endpoints, %v", len(got), err)
	}
	for i, want := range all {
		if got[i].ID != want.ID || got[i].Command != want.Command || len(got[i].Tags) != 64 || got[i].TagsTotal != 300 || !slices.Equal(got[i].Sockets, want.Sockets) {
			t.Errorf("endpoint %d: %d sockets of %d, %d tags of %d", want.ID, len(got[i].Sockets), len(want.Sockets), len(got[i].Tags), got[i].TagsTotal)
		}
	}
	a := connect(t, socket)
	a.send(`{"v":1,"id":1,"op":"status","after":18446744073709551615}`)
	a.want(`{"id":1,"status":[],"v":1}`)
	a.send(`{"v":1,"id":2,"op":"status","socket":1}`)
	a.want(`{"error":{"code":"protocol","message":"control protocol violation: op status does not take the argument socket"},"id":2,"v":1}`)
}

// A user who is no operator gets os.ErrPermission from all commands. If no unetd is running the error names the
// socket.
func TestOperatorsOnly(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	op := control.Operator{Socket: socket}
	permitAll(t, socket)
	as(t, 1001, func() {
		if _, err := op.List(context.Background()); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), socket) {
			t.Errorf("List: %v", err)
		}
		if _, err := op.Counters(context.Background()); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Counters: %v", err)
		}
		if _, err := op.Status(context.Background()); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Status: %v", err)
		}
		if _, _, err := op.Uplinks(context.Background()); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Uplinks: %v", err)
		}
		if err := op.Revoke(context.Background(), 1, ""); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Revoke: %v", err)
		}
		if _, err := op.Reload(context.Background()); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Reload: %v", err)
		}
		if err := op.Drain(context.Background()); !errors.Is(err, os.ErrPermission) {
			t.Errorf("Drain: %v", err)
		}
	})
	if _, err := (control.Operator{Socket: socket + "x"}).List(context.Background()); err == nil || !strings.Contains(err.Error(), "unetd is not running at "+socket+"x") {
		t.Errorf("without unetd: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := op.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// The application of a revoked endpoint gets the reason. A reason that cannot be sent, and a policy with mistakes,
// are errors of one line.
func TestRevokeAndReload(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	op := control.Operator{Socket: socket}
	ctx := context.Background()
	g, l := mustOpen(t, socket, endpoint.Request{})
	for _, reason := range []string{strings.Repeat("x", 257), "one\ntwo", "\x1b[2J"} {
		if err := op.Revoke(ctx, g.ID, reason); !errors.Is(err, control.ErrProtocol) || strings.Contains(err.Error(), "\n") {
			t.Errorf("reason %q: %v", reason, err)
		}
	}
	if l.Err() != nil {
		t.Errorf("ended: %v", l.Err())
	}
	if err := op.Revoke(ctx, g.ID, "moved to another host"); err != nil {
		t.Error(err)
	}
	Await(t, "the end of the lease", l.Done())
	if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || err.Error() != "lease closed: revoked: moved to another host" {
		t.Errorf("%v", err)
	}
	p.awaitClosed()
	if err := op.Revoke(ctx, g.ID, ""); !errors.Is(err, endpoint.ErrNoEndpoint) {
		t.Errorf("again: %v", err)
	}
	p.hook(hooks{reload: func() error { return errors.New("policy.yaml:1:1: one\npolicy.yaml:2:1: two") }})
	if _, err := op.Reload(ctx); err == nil || !strings.HasSuffix(err.Error(), "policy.yaml:1:1: one; policy.yaml:2:1: two") {
		t.Errorf("%v", err)
	}
}

// The answer to reload fits a record, however many rules have changed.
func TestReloadOfManyRules(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	op := control.Operator{Socket: socket}
	many := []string{"rule " + strings.Repeat("x", 100_000) + ": added"}
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("rule web-%05d: changed", i))
	}
	p.hook(hooks{changes: many})
	c, err := op.Reload(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	shown := len(c.Changes) - 1
	if shown < 1000 || c.Changes[shown-1] != many[shown-1] || c.Changes[shown] != fmt.Sprintf("and %d more", len(many)-shown) {
		t.Errorf("%d lines, the last: %q", len(c.Changes), c.Changes[shown])
	}
}

// An operator may send several requests on a connection. An idle connection is closed.
func TestIdleOperatorConnectionIsClosed(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{IdleTimeout: 50 * time.Millisecond}})
	a := connect(t, socket)
	for range 3 {
		a.send(`{"v":1,"id":1,"op":"list"}`)
		if m, _ := a.receive(); m["endpoints"] == nil {
			t.Errorf("%v", m)
		}
	}
	a.wantEOF()
}
