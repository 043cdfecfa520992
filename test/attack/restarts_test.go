package attack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// tripsEach is how many requests of everybody are answered in each of unetd's lives,
// and in between.
const tripsEach = 20

// TestRestartsUnderTraffic kills and starts unetd while a user's process talks to host
// B over its endpoints: by datagrams and by messages, with claims and resolves under way.
// Nothing is lost, and the next unetd knows everybody. Meanwhile a thief has been given
// the XSK of one of the endpoints and tries to present it as his own.
func TestRestartsUnderTraffic(t *testing.T) {
	restarts := lengthOf(20, 3, 2)
	row := results.add(t, fmt.Sprintf("%d restarts of unetd under traffic", restarts), "kill -9 and a start, while datagrams and messages are exchanged with host B, and a thief presents a stolen XSK")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	startPeers(t, unetd.Serve(t, pair.B, unetd.Options{}), remotePort)
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	w.friend = cast(t, pair.A, neighbourID)
	settle.do(t, w.friend, settleArg{Socket: d.Socket, Peer: netip.AddrPortFrom(hostB, remotePort)})
	idle := openGun.do(t, w.friend, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))})
	thief := cast(t, pair.A, attackerID)
	name := fmt.Sprintf("unet-attack-%d", thief.pid())
	await.do(t, thief, name)
	handOver.do(t, w.friend, handArg{idle.Gun, name})
	stolen := borrow.do(t, thief, nothing{})

	known := list(t, d)
	before := w.look(t)
	var worst time.Duration
	for i := range restarts {
		w.goOn(t)
		d.Kill(t)
		w.goOn(t, "unetd") // which only a unetd can answer
		begin := time.Now()
		d.Start(t)
		for tries := 0; tries < 5; tries++ {
			outcome := talk.do(t, thief, talkArg{Socket: d.Socket, Records: []record{{Text: presentRecord, Descriptors: []int{stolen}}}})
			for _, answer := range outcome.Answers {
				if codeOf(answer) == "an answer" {
					t.Errorf("the thief was told: %s", answer)
				}
			}
		}
		if !unetd.Eventually(func() bool { return allLeased(list(t, d), known) }) {
			t.Fatalf("after restart %d unetd lists %+v, before %+v", i+1, list(t, d), known)
		}
		worst = max(worst, time.Since(begin))
	}
	w.goOn(t)
	row.note("all %d endpoints had been presented again %s after a start, at the latest", len(known), rounded(worst))
	after := w.look(t)
	for i := range after {
		row.note("%s: %d answered, %d lost, %d wrong", after[i].Name, after[i].Done-before[i].Done, after[i].Lost, after[i].Wrong)
	}

	// What unetd gives now it gives as ever.
	newcomer := cast(t, pair.A, attackerID)
	g := openGun.do(t, newcomer, openArg{d.Socket, tagged(arsenal()...)})
	claim.do(t, newcomer, claimArg{g.Gun, endpoint.MessageTag(attackerTag + 1)})
	if _, err := claim.try(newcomer, claimArg{g.Gun, endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort))}); err == nil {
		t.Error("a port that the neighbour has had all the time was given away")
	}
	fireOne := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, mark(legal, 1))))
	fire.do(t, newcomer, fireArg{g.Gun, []shot{{Frame: fireOne}}})
	if !unetd.Eventually(func() bool { return w.ear.legalFrames(1) == 1 }) {
		t.Error("a new endpoint's frame does not leave")
	}
	w.unharmed(t, row, before)
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	unetd.Untouched(t, pair.A)
}

// goOn waits until everybody has had some more answers, except for those named.
func (w *world) goOn(t testing.TB, except ...string) {
	t.Helper()
	from := w.look(t)
	var last []trips
	if !unetd.Eventually(func() bool {
		last = w.look(t)
		for i, b := range last {
			want := from[i].Done + tripsEach
			if b.Name == "neighbour's unetd" {
				want = from[i].Done + 2
				if len(except) > 0 {
					continue
				}
			}
			if b.Done < want && b.Lost+b.Wrong == 0 {
				return false
			}
		}
		return true
	}) {
		t.Errorf("somebody gets no answers any more: %+v", last)
	}
}

// allLeased reports whether all that were known are there, with their owners.
func allLeased(now, known []endpoint.Info) bool {
	byID := make(map[uint64]endpoint.Info)
	for _, e := range now {
		byID[e.ID] = e
	}
	for _, k := range known {
		e, ok := byID[k.ID]
		if !ok || !e.Leased || e.UID != k.UID || e.PID != k.PID || e.Device != k.Device || e.SegmentBytes != k.SegmentBytes {
			return false
		}
		for _, tag := range k.Tags {
			found := false
			for _, has := range e.Tags {
				found = found || has == tag
			}
			if !found {
				return false
			}
		}
	}
	return true
}
