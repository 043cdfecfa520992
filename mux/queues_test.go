//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// A tag of an endpoint on a queue has a rule from its claim to its return. Tags of ports have none.
func TestTagsOfAQueueHaveRules(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	rules := l.mux.SteerByModel(4, 0, 100)
	want := func(what string, n int) {
		t.Helper()
		if got := rules(); got != n {
			t.Errorf("%s: %d rules, want %d", what, got, n)
		}
	}
	l.open(udpTag("10.0.0.1:6999"), endpoint.MessageTag(6))
	want("a port", 0)
	q := l.openRequest(onQueue)
	want("one tag", 1)
	ctx := t.Context()
	for tag, n := range map[endpoint.Tag]int{
		tcpTag("10.0.0.1:0"): 1, udpBlock("10.0.0.1:40000"): 1, addrTag("10.0.0.77"): 2,
		endpoint.MessageTag(7): 0, // on queue 0 already
	} {
		claimed, err := q.lease.Claim(ctx, tag)
		testutil.Must(t, err)
		want(tag.String(), 1+n)
		if tag.Kind == endpoint.TagAddr {
			_, err := q.lease.Claim(ctx, udpTag("10.0.0.77:9"))
			testutil.Must(t, err)
			want("a port of the owned address", 1+n)
			testutil.Must(t, q.lease.Unclaim(ctx, udpTag("10.0.0.77:9")))
		}
		testutil.Must(t, q.lease.Unclaim(ctx, claimed))
		want("given back", 1)
	}
	// A request of which one tag is held gets none.
	if _, _, err := l.mux.OpenEndpoint(ctx, endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small,
		Tags: []endpoint.Tag{udpTag("10.0.0.1:7001"), udpTag("10.0.0.1:6999")}}); err == nil {
		t.Error("a held tag was granted")
	}
	want("after a refused request", 1)
	q.close()
	want("closed", 0)
}

// If hardware spreads frames over its queues and has no classification rules, or no room for one, a tag of an
// endpoint on a queue is refused. The error says what to do about it.
func TestTagOfQueueWithoutRulesIsRefused(t *testing.T) {
	l := openLab(t, mux.ModeAuto)
	before := listObjects(t, l.A)
	for locations, why := range map[uint32][]string{
		0: {"operation not supported"},
		2: {"all 2 classification rules of the driver are in use"},
	} {
		rules := l.mux.SteerByModel(4, 0, locations)
		_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small,
			Tags: []endpoint.Tag{udpTag("10.0.0.1:7000"), udpTag("10.0.0.1:7001"), tcpTag("10.0.0.1:7002")}})
		why = append(why, "over 4 queues, and the endpoint is on queue 0", "attach to a port", "ethtool -X uplink start 0 equal 1", "ethtool -L uplink combined 1")
		for _, part := range why {
			if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, part)
			}
		}
		if n := rules(); n != 0 {
			t.Errorf("%d rules are left", n)
		}
		wantObjects(t, l.A, before)
	}
	// Frames of messages come in on queue 0.
	l.mux.SteerByModel(4, 0, 0)
	l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(7)}}).close()
	// One queue needs no rule.
	l.mux.SteerByModel(1, 0, 0)
	l.openRequest(onQueue).close()
	// No setting keeps frames off the queues that a driver adds for XDP.
	l.mux.SteerByModel(1, 2, 0)
	l.openRequest(onQueue)
	if n := l.mux.Endpoints()[0].SpreadOver; n != 3 {
		t.Errorf("listed as spread over %d queues, want 3", n)
	}
}

// Frames come in on all queues of a veth pair, as the sender chooses. An endpoint on a port gets the frames of
// all queues, those of one flow in their order. An endpoint on a queue gets those of its queue, and the kernel
// gets the others; the log warns of this.
func TestFramesOfAllQueuesReachPort(t *testing.T) {
	const flows, each = 32, 3
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{Queues: 4})}
			var log logBuffer
			l.openConfig(mux.Config{Mode: mode, Log: slog.New(slog.NewTextHandler(&log, nil))})
			p := l.open(udpTag("10.0.0.1:7001"))
			q := l.openRequest(onQueue)
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "rx_pass_other_queue") || !strings.Contains(log.String(), "queues=4") {
				t.Errorf("the log has no warning:\n%s", log.String())
			}
			for _, e := range l.mux.Endpoints() {
				if want := map[endpoint.Attachment]uint32{endpoint.AttachQueue: 4}[e.Attach]; e.SpreadOver != want {
					t.Errorf("endpoint %d on a %v is spread over %d queues", e.ID, e.Attach, e.SpreadOver)
				}
			}
			for flow := range flows {
				c := kernelUDP(t, l.B, fmt.Sprintf("10.0.0.2:%d", 9000+flow))
				for i := range each {
					sendTo(t, c, "10.0.0.1:7000", "to the queue")
					sendTo(t, c, "10.0.0.1:7001", string(rune(i)))
				}
			}
			next := [flows]byte{}
			for range flows * each {
				frame := p.recv().frame
				source, payload := int(frame[34])<<8|int(frame[35])-9000, frame[42]
				if payload != next[source] {
					t.Errorf("flow %d: datagram %d, want %d", source, payload, next[source])
				}
				next[source] = payload + 1
			}
			n := l.count()["rx_queue"]
			l.await("rx_pass_other_queue", flows*each-n)
			if n == 0 || n == flows*each || n%each != 0 {
				t.Errorf("%d of %d datagrams came in on queue 0", n, flows*each)
			}
			for range n {
				q.recv()
			}
			q.wantNothing("from other queues")
		})
	}
}

// When the number of queues changes, the mux checks again whether all frames for an endpoint on a queue come
// in on its queue.
func TestNumberOfQueuesChanges(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{Queues: 4})}
	testutil.Must(t, setQueues(l.A, 1, 4))
	l.openMux(mux.ModeTCX)
	l.openRequest(onQueue)
	for _, c := range []struct{ queues, spreadOver uint32 }{{1, 0}, {2, 2}, {4, 4}, {1, 0}} {
		testutil.Must(t, setQueues(l.A, c.queues, 4))
		testutil.Eventually(t, fmt.Sprintf("spread over %d queues", c.spreadOver), func() bool { return l.mux.Endpoints()[0].SpreadOver == c.spreadOver })
	}
}

// At a change of the MTU the driver may open the device again and lose its rules. The mux checks the rules
// then, and inserts what is missing.
func TestRulesAreCheckedAfterMTUChange(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	l.openRequest(onQueue)
	rules := l.mux.SteerByModel(4, 0, 16)
	onDevice(t, l.A, l.A.Interface, func(up netlink.Link) error { return netlink.LinkSetMTU(up, 1400) })
	testutil.Eventually(t, "a rule after a change of the MTU", func() bool { return rules() == 1 })
}
