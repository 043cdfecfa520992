//go:build linux

package mux_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// packets and bytesAtOnce are limits with this burst and a rate of one a second.
func packets(burst int64) endpoint.Rate { return endpoint.Rate{Packets: 1, PacketBurst: burst} }
func bytesAtOnce(burst int64) endpoint.Rate {
	return endpoint.Rate{Bytes: 1, ByteBurst: burst}
}

// flood sends n messages of an endpoint, and returns how many have passed, how many were dropped at the limit of the
// endpoint, and how many at that of its user.
func (l *lab) flood(a *app, from uint32, n int) (passed, own, user uint64) {
	l.t.Helper()
	before := l.count()
	frame := messageFrame(l.B.LinkAddr, l.A.LinkAddr, 99, from, strings.Repeat("x", 74)) // 100 bytes
	for range n {
		a.send(frame)
	}
	for deadline := time.Now().Add(testTimeout); passed+own+user != uint64(n); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("%d of %d messages passed, %d and %d were dropped", passed, n, own, user)
		}
		after := l.count()
		moved := func(name string) uint64 { return after[name] - before[name] }
		passed, own, user = moved("tx_uplink"), moved("tx_rate_endpoint"), moved("tx_rate_user")
	}
	return passed, own, user
}

// within checks how many messages have passed since begin, with this burst and a rate of one a second.
func within(t *testing.T, what string, passed, burst uint64, begin time.Time) {
	t.Helper()
	if most := burst + uint64(time.Since(begin).Seconds()) + 1; passed < burst || passed > most {
		t.Errorf("%s: %d messages passed, want %d to %d", what, passed, burst, most)
	}
}

// What an endpoint sends beyond its rate is dropped and counted, in each mode; another endpoint is not affected.
func TestFramesAboveRateAreDropped(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			l.openMux(mode)
			free := l.open(endpoint.MessageTag(1))
			rates := map[uint32]endpoint.Rates{2: {Endpoint: packets(5)}, 3: {Endpoint: bytesAtOnce(599)}}
			for tag, r := range rates {
				begin := time.Now()
				a := l.openFor(mux.Terms{Rates: r}, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(tag)}})
				passed, own, user := l.flood(a, tag, 40)
				within(t, "limited", passed, 5, begin)
				if user != 0 {
					t.Errorf("refused by the limit of the user: %d", user)
				}
				for _, info := range l.mux.Endpoints() {
					if info.ID == a.grant.ID && (info.Rates != r || info.TxRateEndpoint != own || info.TxRateUser != 0) {
						t.Errorf("%+v, want %+v and %d refused", info, r, own)
					}
				}
			}
			if passed, _, _ := l.flood(free, 1, 40); passed != 40 {
				t.Errorf("an endpoint without a limit: %d of 40 passed", passed)
			}
		})
	}
}

// The endpoints of a user share the limit of the user, at the same time and one after another. Each user has a
// limit of its own.
func TestEndpointsOfUserShareRate(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	open := func(uid uint32, r endpoint.Rates, tag uint32) *app {
		t.Helper()
		g, lease, err := l.openAs(mux.Owner{PID: os.Getpid(), UID: uid}, mux.Terms{Rates: r}, endpoint.Request{Geometry: small, Tags: []endpoint.Tag{endpoint.MessageTag(tag)}})
		testutil.Must(t, err)
		a := attach(t, g)
		a.lease = lease
		return a
	}
	tables := func(what string, ports, users int) {
		t.Helper()
		gotPorts, gotUsers, err := l.mux.LimitEntries()
		if err != nil || gotPorts != ports || gotUsers != users {
			t.Errorf("%s: entries for %d ports and %d users, want %d and %d: %v", what, gotPorts, gotUsers, ports, users, err)
		}
	}
	user := endpoint.Rates{User: packets(20)}
	both := endpoint.Rates{Endpoint: packets(4), User: user.User}
	begin := time.Now()
	a, b := open(4242, user, 1), open(4242, both, 2)
	passedA, _, _ := l.flood(a, 1, 10)
	passedB, ownB, _ := l.flood(b, 2, 10) // what its own limit refuses does not count for the user
	if passedA != 10 || ownB != 10-passedB {
		t.Errorf("%d of the first passed; of the second %d passed and %d were refused", passedA, passedB, ownB)
	}
	within(t, "the second", passedB, 4, begin)
	more, _, refused := l.flood(a, 1, 40)
	within(t, "both", passedA+passedB+more, 20, begin)
	for _, info := range l.mux.Endpoints() {
		if info.ID == a.grant.ID && (info.TxRateUser != refused || info.Rates != user) {
			t.Errorf("%+v, want %d refused", info, refused)
		}
	}
	if passed, _, _ := l.flood(open(4243, user, 3), 3, 10); passed != 10 {
		t.Errorf("another user: %d of 10 passed", passed)
	}
	tables("three endpoints of two users", 3, 2)

	// Another endpoint gets no new bucket.
	a.close()
	b.close()
	again, _, _ := l.flood(open(4242, user, 1), 1, 10)
	if most := uint64(time.Since(begin).Seconds()) + 1; passedA+passedB+more+again > 20+most {
		t.Errorf("after the end of the first endpoints %d more passed", again)
	}
	quick := endpoint.Rates{User: endpoint.Rate{Packets: 1e9, PacketBurst: 1}}
	c := open(4244, quick, 4)
	tables("three users", 3, 3)
	c.close()
	tables("a user whose bucket is full has left", 2, 2)
}

// Rates change with the policy while an endpoint is open.
func TestUpdateRates(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(endpoint.MessageTag(1))
	q := l.openRequest(endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(2)}})
	update := func(r endpoint.Rates) {
		t.Helper()
		l.policy.on(mux.Terms{Trusted: true, Rates: r}, l.mux.UpdateRates)
		if got := l.mux.Endpoints()[0].Rates; got != r {
			t.Errorf("rates %+v, want %+v", got, r)
		}
	}
	floods := func(what string, burst uint64, begin time.Time) {
		t.Helper()
		passed, _, _ := l.flood(a, 1, 40)
		if burst == 40 && passed != 40 {
			t.Errorf("%s: %d of 40 passed", what, passed)
		} else if burst < 40 {
			within(t, what, passed, burst, begin)
		}
	}
	begin := time.Now()
	update(endpoint.Rates{Endpoint: packets(5)})
	floods("limited", 5, begin)
	update(endpoint.Rates{Endpoint: packets(30)}) // the bucket keeps what it has
	floods("more", 0, begin)
	begin = time.Now()
	update(endpoint.Rates{User: packets(7)})
	floods("the user", 7, begin)
	update(endpoint.Rates{})
	floods("no limit", 40, begin)
	if got := l.mux.Endpoints()[1]; got.ID != q.grant.ID || got.Rates != (endpoint.Rates{}) {
		t.Errorf("an endpoint on a queue: %+v", got)
	}
}

// A process that takes over finds the limits and what is left in the buckets. When an endpoint is presented it
// gets the limits of the policy.
func TestRatesTakenOver(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	l.openConfig(mux.Config{Pin: l.pin})
	begin := time.Now()
	rates := endpoint.Rates{Endpoint: packets(5), User: packets(50)}
	a := l.openFor(mux.Terms{Rates: rates}, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(1)}})
	gone := l.openFor(mux.Terms{Rates: rates}, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(2)}})
	passed, _, _ := l.flood(a, 1, 20)
	within(t, "before", passed, 5, begin)
	links := listObjects(t, l.A).links
	testutil.Must(t, l.mux.Abandon())
	gone.lease = nil
	gone.closeDescriptors()
	testutil.Eventually(t, "the kernel has deleted the port", func() bool { return len(listObjects(t, l.A).links) < len(links) })

	l.openConfig(mux.Config{Pin: l.pin})
	waits := l.mux.Endpoints()
	if len(waits) != 1 || waits[0].Rates != rates || waits[0].TxRateEndpoint != 20-passed {
		t.Errorf("taken over: %+v", waits)
	}
	more, _, _ := l.flood(a, 1, 20)
	within(t, "after", passed+more, 5, begin)
	if ports, users, err := l.mux.LimitEntries(); err != nil || ports != 1 || users != 1 {
		t.Errorf("entries for %d ports and %d users: %v", ports, users, err)
	}
	other := endpoint.Rates{User: packets(100)}
	l.policy.on(mux.Terms{Rates: other}, func() { l.present(a) })
	if got := l.mux.Endpoints()[0].Rates; got != other {
		t.Errorf("presented: %+v", got)
	}
	last, own, _ := l.flood(a, 1, 80)
	within(t, "all", passed+more+last, 50, begin) // the bucket has become larger, and not fuller
	if own != 0 {
		t.Errorf("%d were refused by a limit that the endpoint does not have any more", own)
	}
}

// Invalid rates are refused, and so are rates for an endpoint on a queue.
func TestInvalidRatesAreRefused(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	_, _, err := l.openAs(me, mux.Terms{Rule: "rule r", Trusted: true, Rates: endpoint.Rates{User: packets(5)}}, endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small})
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "rule r") {
		t.Errorf("a queue: %v", err)
	}
	for _, r := range []endpoint.Rate{{Packets: 1}, {Packets: -1, PacketBurst: 1}, {PacketBurst: 1}, {Bytes: 1, ByteBurst: bpf.MaxBucket + 1}} {
		for _, rates := range []endpoint.Rates{{Endpoint: r}, {User: r}} {
			if _, _, err := l.openAs(me, mux.Terms{Rates: rates}, endpoint.Request{Geometry: small}); err == nil {
				t.Errorf("%+v was accepted", rates)
			}
		}
	}
	if ports, users, err := l.mux.LimitEntries(); err != nil || ports+users != 0 {
		t.Errorf("entries for %d ports and %d users: %v", ports, users, err)
	}
}
