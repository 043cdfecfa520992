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
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// requestsEach is how many requests of each bystander are answered while each unetd runs,
// and in between.
const requestsEach = 20

// TestRestartsUnderTraffic kills and starts unetd while a user's process talks to host
// B over its endpoints: by datagrams and by messages, with claims and resolves under way.
// Nothing is lost, and the next unetd takes all endpoints over. Meanwhile another user
// has got the XSK of one of the endpoints and tries to present it as its own.
func TestRestartsUnderTraffic(t *testing.T) {
	restarts := lengthOf(20, 3, 2)
	row := results.add(t, fmt.Sprintf("%d restarts of unetd under traffic", restarts), "kill -9 and a start, while datagrams and messages are exchanged with host B, and another user presents an XSK that it was handed")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	startPeers(t, unetd.Serve(t, pair.B, unetd.Options{}), remotePort)
	w := &world{pair: pair, unetd: d, capture: startCapture(t, pair.B, true), kernel: startKernelTraffic(t, pair)}
	w.neighbour = startAgent(t, pair.A, neighbourID)
	openNeighbour.do(t, w.neighbour, neighbourArg{Socket: d.Socket, Peer: netip.AddrPortFrom(hostB, remotePort)})
	idle := openEndpoint.do(t, w.neighbour, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))})
	otherUser := startAgent(t, pair.A, attackerID)
	name := fmt.Sprintf("unet-attack-%d", otherUser.pid())
	listenDescriptors.do(t, otherUser, name)
	sendDescriptor.do(t, w.neighbour, sendDescriptorArg{idle.Endpoint, name})
	handedOver := receiveDescriptor.do(t, otherUser, nothing{})

	// At intervals the neighbour claims one more tag for a short time.
	var known []endpoint.Info
	if !testutil.Until(func() bool {
		known = list(t, d)
		return !slices.ContainsFunc(known, func(e endpoint.Info) bool { return len(e.Tags) > len(neighbourTags()) })
	}) {
		t.Fatalf("an endpoint keeps more than %d tags: %+v", len(neighbourTags()), known)
	}
	before := w.snapshot(t)
	var worst time.Duration
	for i := range restarts {
		w.wantMoreAnswers(t)
		d.Kill(t)
		w.wantMoreAnswers(t, "unetd") // which only a unetd can answer
		begin := time.Now()
		d.Start(t)
		for tries := 0; tries < 5; tries++ {
			outcome := talk.do(t, otherUser, talkArg{Socket: d.Socket, Records: []record{{Text: presentRecord, Descriptors: []int{handedOver}}}})
			for _, answer := range outcome.Answers {
				if codeOf(answer) == "an answer" {
					t.Errorf("the answer to the presented XSK: %s", answer)
				}
			}
		}
		if !testutil.Until(func() bool { return allLeased(list(t, d), known) }) {
			t.Fatalf("after restart %d unetd lists %+v, before %+v", i+1, list(t, d), known)
		}
		worst = max(worst, time.Since(begin))
	}
	w.wantMoreAnswers(t)
	row.note("all %d endpoints had been presented again %s after a start, at the latest", len(known), rounded(worst))
	after := w.snapshot(t)
	for i := range after {
		row.note("%s: %d answered, %d lost, %d wrong", after[i].Name, after[i].Answered-before[i].Answered, after[i].Lost, after[i].Wrong)
	}

	// unetd grants endpoints and tags as before.
	newUser := startAgent(t, pair.A, attackerID)
	g := openEndpoint.do(t, newUser, openArg{d.Socket, tagged(attackerTags()...)})
	claim.do(t, newUser, claimArg{g.Endpoint, endpoint.MessageTag(attackerTag + 1)})
	if _, err := claim.try(newUser, claimArg{g.Endpoint, endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort))}); err == nil {
		t.Error("a port that the neighbour has had all the time was given away")
	}
	fireOne := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, mark(legal, 1))))
	sendFrames.do(t, newUser, sendArg{g.Endpoint, []outFrame{{Frame: fireOne}}})
	if !testutil.Until(func() bool { return w.capture.legalFrames(1) == 1 }) {
		t.Error("a new endpoint's frame does not leave")
	}
	w.unharmed(t, row, before)
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	unetd.Untouched(t, pair.A)
}

// wantMoreAnswers waits until every bystander has had some more answers, except for those named.
func (w *world) wantMoreAnswers(t testing.TB, except ...string) {
	t.Helper()
	from := w.snapshot(t)
	var last []requestCounts
	if !testutil.Until(func() bool {
		last = w.snapshot(t)
		for i, b := range last {
			want := from[i].Answered + requestsEach
			if b.Name == "neighbour's unetd" {
				want = from[i].Answered + 2
				if len(except) > 0 {
					continue
				}
			}
			if b.Answered < want && b.Lost+b.Wrong == 0 {
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

// TestLimitsAndReclaimAfterRestart: after a restart unetd still counts what users have, so they get no
// more, and reclaims what they do not present again.
func TestLimitsAndReclaimAfterRestart(t *testing.T) {
	row := results.add(t, "limits after a restart", "a user with as many endpoints as the policy permits asks the next unetd for one more; a stopped process does not present its endpoint again")

	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy, Flags: []string{"--grace", "3s"}})
	w := &world{pair: pair, unetd: d, capture: startCapture(t, pair.B, false), kernel: startKernelTraffic(t, pair)}
	before := w.snapshot(t)

	userAtLimit := startAgent(t, pair.A, attackerID)
	had := 0
	for ; had <= attackerEndpoints; had++ {
		if _, err := openEndpoint.try(userAtLimit, openArg{d.Socket, endpoint.Request{}}); err != nil {
			break
		}
	}
	stopped := startAgent(t, pair.A, neighbourID)
	stoppedEndpoint := openEndpoint.do(t, stopped, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d.Kill(t)
	d.Start(t)

	leases := func() (n int, isListed bool) {
		for _, e := range list(t, d) {
			if e.UID == attackerID && e.Leased {
				n++
			}
			isListed = isListed || e.ID == stoppedEndpoint.ID
		}
		return n, isListed
	}
	if !testutil.Until(func() bool { n, _ := leases(); return n == had }) {
		t.Fatalf("unetd lists %+v", list(t, d))
	}
	if _, err := openEndpoint.try(startAgent(t, pair.A, attackerID), openArg{d.Socket, endpoint.Request{}}); had != attackerEndpoints || !errors.Is(err, endpoint.ErrBusy) {
		t.Errorf("one more than %d of %d endpoints: %v, want busy", had, attackerEndpoints, err)
	}
	row.note("%d endpoints before, no more afterwards", had)

	if !testutil.Until(func() bool { _, isListed := leases(); return !isListed }) {
		t.Error("the endpoint of the stopped process was not reclaimed")
	}
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	why, err := awaitLeaseEnd.try(stopped, endpointArg{stoppedEndpoint.Endpoint})
	if err != nil {
		t.Errorf("the owner of the reclaimed endpoint got no reason: %v", err)
	}
	row.note("the stopped process, when it continued: %s", why)
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(neighbourPort, discard, mark(forged, 1))))
	row.note("what it sends then: %s", sendFrames.do(t, stopped, sendArg{stoppedEndpoint.Endpoint, []outFrame{{Frame: frame}}}).Errno)
	newUser := startAgent(t, pair.A, neighbourID)
	openEndpoint.do(t, newUser, openArg{d.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourPort)))})
	w.unharmed(t, row, before)
}

// TestResourcesAreReleased opens and closes endpoints, and kills processes that have them, many times.
// Afterwards no resource is left over.
func TestResourcesAreReleased(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	w := &world{pair: pair, unetd: d, capture: startCapture(t, pair.B, false), kernel: startKernelTraffic(t, pair)}
	suite := t

	t.Run("open and close", func(t *testing.T) {
		cycles := lengthOf(1000, 30, 10)
		row := results.add(t, fmt.Sprintf("%d open/close cycles", cycles), "an endpoint with a UDP port, a block and a message tag, through unetd, opened, attached and closed")
		cycle := func() {
			ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
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
		before, countsBefore, begin := steadyResources(t, pair.A, d), w.snapshot(t), time.Now()
		for range cycles {
			cycle()
		}
		row.note("%s a cycle", rounded(time.Since(begin)/time.Duration(cycles)))
		wantReleased(t, row, before, pair.A, d)
		w.unharmed(t, row, countsBefore)
	})
	t.Run("kill", func(t *testing.T) {
		cycles := lengthOf(200, 5, 3)
		row := results.add(t, fmt.Sprintf("%d processes killed under load", cycles), "kill -9 of a process that sends as fast as it can")
		killLoaded(t, w) // once before, as above
		before, countsBefore := steadyResources(t, pair.A, d), w.snapshot(t)
		var worst time.Duration
		for range cycles {
			worst = max(worst, killLoaded(t, w))
		}
		row.note("port and tags were gone after %s at the latest", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until port and tags were gone: want a second at most", worst)
		}
		wantReleased(t, row, before, pair.A, d)
		w.unharmed(t, row, countsBefore)
	})
	t.Run("kill while unetd is dead", func(t *testing.T) {
		cycles := lengthOf(20, 2, 2)
		row := results.add(t, fmt.Sprintf("%d processes killed while unetd is dead", cycles), "kill -9 of unetd, then of a process that sends as fast as it can; unetd is started again")
		before, countsBefore := steadyResources(t, pair.A, d), w.snapshot(t)
		var worst time.Duration
		for range cycles {
			a, port := startLoaded(t, w)
			d.Kill(t)
			begin := time.Now()
			a.kill()
			if !testutil.Until(func() bool { return len(unetd.Links(t, pair.A)) == 5 }) {
				t.Fatalf("devices after the kill: %v", unetd.Links(t, pair.A))
			}
			worst = max(worst, time.Since(begin))
			wantPortOfKernel(t, pair, port)
			d.Start(suite)
			if left := list(t, d); len(left) != 0 {
				t.Errorf("the next unetd lists %+v", left)
			}
		}
		row.note("the port was gone after %s at the latest, and its frames were the kernel's", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until the port was gone: want a second at most", worst)
		}
		wantReleased(t, row, before.forNewDaemon(), pair.A, d)
		w.unharmed(t, row, countsBefore)
	})
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	unetd.Untouched(t, pair.A)
}

// startLoaded is a process that sends as fast as it can, and its port.
func startLoaded(t testing.TB, w *world) (*agentProcess, uint16) {
	t.Helper()
	a := startAgent(t, w.pair.A, attackerID)
	gun := openEndpoint.do(t, a, openArg{w.unetd.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)), endpoint.MessageTag(0))})
	port := gun.Tags[0].Port
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(nobodysPort, discard, mark(forged, 0)))) // all the way to the mux, and no further
	sendUntilStopped.do(t, a, loadArg{gun.Endpoint, frame})
	return a, port
}

// loadArg is a frame to send until the agent rests.
type loadArg struct {
	Endpoint int
	Frame    []byte
}

// sendUntilStopped sends in the background.
var sendUntilStopped = newCommand("sendUntilStopped", func(a *agent, arg loadArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	a.runTask(func(stop <-chan struct{}) error {
		_, err := g.send(func(yield func(outFrame) bool) {
			for yield(outFrame{Frame: arg.Frame}) {
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
	a, _ := startLoaded(t, w)
	before := w.counters(t)
	if !testutil.Until(func() bool { return since(before, w.counters(t))["tx_forged_addr"] > 1000 }) {
		t.Fatal("there is no load")
	}
	begin := time.Now()
	a.kill()
	if !testutil.Until(func() bool { return len(unetd.Links(t, w.pair.A)) == 5 && len(list(t, w.unetd)) == 0 }) {
		t.Fatalf("after the kill there are devices %v and endpoints %+v", unetd.Links(t, w.pair.A), list(t, w.unetd))
	}
	return time.Since(begin)
}

// wantPortOfKernel checks that host A's kernel answers for a port, so no endpoint has it. It
// repeats the request, because the kernel limits the rate of its answers.
func wantPortOfKernel(t testing.TB, pair *netlab.Pair, port uint16) {
	t.Helper()
	conn, err := pair.B.Dial("udp", netip.AddrPortFrom(hostA, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !testutil.Until(func() bool {
		conn.Write([]byte("anybody?")) // may return the error of the previous one
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = conn.Read(make([]byte, 1))
		return errors.Is(err, unix.ECONNREFUSED)
	}) {
		t.Errorf("a datagram to port %d, which a dead process had: %v, want a refusal of the kernel", port, err)
	}
}
