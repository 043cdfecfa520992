//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// tripsEach is how many requests of each bystander are answered while each unetd runs,
// and in between.
const tripsEach = 20

// TestRestartsUnderTraffic kills and starts unetd while a user's process talks to host
// B over its endpoints: by datagrams and by messages, with claims and resolves under way.
// Nothing is lost, and the next unetd takes all endpoints over. Meanwhile another user
// has got the XSK of one of the endpoints and tries to present it as its own.
func TestRestartsUnderTraffic(t *testing.T) {
	restarts := lengthOf(20, 3, 2)
	row := results.add(t, fmt.Sprintf("%d restarts of unetd under traffic", restarts), "kill -9 and a start, while datagrams and messages are exchanged with host B, and a thief presents a stolen XSK")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	startPeers(t, unetd.Serve(t, pair.B, unetd.Options{Flags: unseen}), remotePort)
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	w.friend = cast(t, pair.A, neighbourID)
	settle.do(t, w.friend, settleArg{Socket: d.Socket, Peer: netip.AddrPortFrom(hostB, remotePort)})
	idle := openGun.do(t, w.friend, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))})
	thief := cast(t, pair.A, attackerID)
	name := fmt.Sprintf("unet-attack-%d", thief.pid())
	await.do(t, thief, name)
	handOver.do(t, w.friend, handArg{idle.Gun, name})
	stolen := borrow.do(t, thief, nothing{})

	// At intervals the neighbour claims one more tag for a short time.
	var known []endpoint.Info
	if !unetd.Eventually(func() bool {
		known = list(t, d)
		return !slices.ContainsFunc(known, func(e endpoint.Info) bool { return len(e.Tags) > len(neighbourTags()) })
	}) {
		t.Fatalf("an endpoint keeps more than %d tags: %+v", len(neighbourTags()), known)
	}
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
					t.Errorf("the answer to the presented XSK: %s", answer)
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

	// unetd grants endpoints and tags as before.
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

// goOn waits until every bystander has had some more answers, except for those named.
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
		t.Errorf("a bystander gets no answers any more: %+v", last)
	}
}

// allLeased reports whether all known endpoints are listed, with their owners.
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

// TestAfterARestart: after a restart unetd still counts what users have, so they get no
// more, and reclaims what they do not present again.
func TestAfterARestart(t *testing.T) {
	row := results.add(t, "hopes for a restart", "a user who has all that he may have asks the next unetd for more; a process that sleeps does not present its endpoint again")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy, Flags: []string{"--grace", "3s"}})
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	before := w.look(t)

	greedy := cast(t, pair.A, attackerID)
	had := 0
	for ; had <= attackerEndpoints; had++ {
		if _, err := openGun.try(greedy, openArg{d.Socket, endpoint.Request{}}); err != nil {
			break
		}
	}
	sleeper := cast(t, pair.A, neighbourID)
	asleep := openGun.do(t, sleeper, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	if err := sleeper.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.Kill(t)
	d.Start(t)

	awake := func() (n int, sleeps bool) {
		for _, e := range list(t, d) {
			if e.UID == attackerID && e.Leased {
				n++
			}
			sleeps = sleeps || e.ID == asleep.ID
		}
		return n, sleeps
	}
	if !unetd.Eventually(func() bool { n, _ := awake(); return n == had }) {
		t.Fatalf("unetd lists %+v", list(t, d))
	}
	if _, err := openGun.try(cast(t, pair.A, attackerID), openArg{d.Socket, endpoint.Request{}}); had != attackerEndpoints || !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("one more than %d of %d endpoints: %v, want busy", had, attackerEndpoints, err)
	}
	row.note("%d endpoints before, no more afterwards", had)

	if !unetd.Eventually(func() bool { _, sleeps := awake(); return !sleeps }) {
		t.Error("the sleeper's endpoint was not reclaimed")
	}
	if err := sleeper.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	why, err := lost.try(sleeper, gunArg{asleep.Gun})
	if err != nil {
		t.Errorf("the owner of the reclaimed endpoint got no reason: %v", err)
	}
	row.note("the sleeper, when it woke: %s", why)
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, discard, mark(forged, 1))))
	row.note("what it sends then: %s", fire.do(t, sleeper, fireArg{asleep.Gun, []shot{{Frame: frame}}}).Errno)
	newcomer := cast(t, pair.A, neighbourID)
	openGun.do(t, newcomer, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	w.unharmed(t, row, before)
}

// TestCycles opens and closes endpoints, and kills processes that have them, many times.
// Afterwards no resource is left over.
func TestCycles(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	suite := t

	t.Run("open and close", func(t *testing.T) {
		cycles := lengthOf(1000, 30, 10)
		row := results.add(t, fmt.Sprintf("%d open/close cycles", cycles), "an endpoint with a UDP port, a block and a message tag, through unetd, opened, attached and closed")
		cycle := func() {
			ctx, cancel := context.WithTimeout(t.Context(), tripTimeout)
			defer cancel()
			grant, lease, err := control.Open(ctx, d.Socket, tagged(endpoint.MessageTag(0), endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)), endpoint.TCPTag(netip.AddrPortFrom(hostA, 0)).AsBlock()))
			if err != nil {
				t.Fatal(err)
			}
			ep, err := datapath.Attach(grant, datapath.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(ep.Close(), lease.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // afterwards all that is made once and kept exists
			cycle()
		}
		before, trips, begin := stock(t, pair.A, d), w.look(t), time.Now()
		for range cycles {
			cycle()
		}
		row.note("%s a cycle", rounded(time.Since(begin)/time.Duration(cycles)))
		backTo(t, row, before, pair.A, d)
		w.unharmed(t, row, trips)
	})
	t.Run("kill", func(t *testing.T) {
		cycles := lengthOf(200, 5, 3)
		row := results.add(t, fmt.Sprintf("%d processes killed under load", cycles), "kill -9 of a process that sends as fast as it can")
		killLoaded(t, w) // once before, as above
		before, trips := stock(t, pair.A, d), w.look(t)
		var worst time.Duration
		for range cycles {
			worst = max(worst, killLoaded(t, w))
		}
		row.note("port and tags were gone after %s at the latest", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until port and tags were gone: want a second at most", worst)
		}
		backTo(t, row, before, pair.A, d)
		w.unharmed(t, row, trips)
	})
	t.Run("kill while unetd is dead", func(t *testing.T) {
		cycles := lengthOf(20, 2, 2)
		row := results.add(t, fmt.Sprintf("%d processes killed while unetd is dead", cycles), "kill -9 of unetd, then of a process that sends as fast as it can; unetd is started again")
		before, trips := stock(t, pair.A, d), w.look(t)
		var worst time.Duration
		for range cycles {
			a, port := loaded(t, w)
			d.Kill(t)
			begin := time.Now()
			a.kill()
			if !unetd.Eventually(func() bool { return len(unetd.Links(t, pair.A)) == 5 }) {
				t.Fatalf("devices after the kill: %v", unetd.Links(t, pair.A))
			}
			worst = max(worst, time.Since(begin))
			isKernels(t, pair, port)
			d.Start(suite)
			if left := list(t, d); len(left) != 0 {
				t.Errorf("the next unetd lists %+v", left)
			}
		}
		row.note("the port was gone after %s at the latest, and its frames were the kernel's", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until the port was gone: want a second at most", worst)
		}
		backTo(t, row, before.ofAnother(), pair.A, d)
		w.unharmed(t, row, trips)
	})
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	unetd.Untouched(t, pair.A)
}

// loaded is a process that sends as fast as it can, and its port.
func loaded(t testing.TB, w *world) (*actor, uint16) {
	t.Helper()
	a := cast(t, w.pair.A, attackerID)
	gun := openGun.do(t, a, openArg{w.unetd.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)), endpoint.MessageTag(0))})
	port := gun.Tags[0].Port
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(nobodysPort, discard, mark(forged, 0)))) // all the way to the mux, and no further
	hammer.do(t, a, hammerArg{gun.Gun, frame})
	return a, port
}

// hammerArg is a frame to send until the agent rests.
type hammerArg struct {
	Gun   int
	Frame []byte
}

// hammer sends in the background.
var hammer = teach("hammer", func(a *agent, arg hammerArg) (nothing, error) {
	g := a.guns[arg.Gun]
	a.begin(func(stop <-chan struct{}) error {
		_, err := g.fire(func(yield func(shot) bool) {
			for yield(shot{Frame: arg.Frame}) {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		return err
	})
	return nothing{}, nil
})

// killLoaded kills a process under load and returns how long its port and its tags
// outlived it.
func killLoaded(t testing.TB, w *world) time.Duration {
	t.Helper()
	a, _ := loaded(t, w)
	before := w.counters(t)
	if !unetd.Eventually(func() bool { return since(before, w.counters(t))["tx_forged_addr"] > 1000 }) {
		t.Fatal("there is no load")
	}
	begin := time.Now()
	a.kill()
	if !unetd.Eventually(func() bool { return len(unetd.Links(t, w.pair.A)) == 5 && len(list(t, w.unetd)) == 0 }) {
		t.Fatalf("after the kill there are devices %v and endpoints %+v", unetd.Links(t, w.pair.A), list(t, w.unetd))
	}
	return time.Since(begin)
}

// isKernels checks that host A's kernel answers for a port, so no endpoint has it. It
// repeats the request, because the kernel limits the rate of its answers.
func isKernels(t testing.TB, pair *netlab.Pair, port uint16) {
	t.Helper()
	conn, err := pair.B.Dial("udp", netip.AddrPortFrom(hostA, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !unetd.Eventually(func() bool {
		conn.Write([]byte("anybody?")) // may return the error of the previous one
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = conn.Read(make([]byte, 1))
		return errors.Is(err, unix.ECONNREFUSED)
	}) {
		t.Errorf("a datagram to port %d, which a dead process had: %v, want a refusal of the kernel", port, err)
	}
}
