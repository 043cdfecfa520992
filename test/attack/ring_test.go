//go:build linux

package attack

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// smallRings is an endpoint whose rings are full soon.
func smallRings(tags ...endpoint.Tag) endpoint.Request {
	return endpoint.Request{Tags: tags, Geometry: endpoint.Geometry{FrameCount: 256, FillSize: 64, RxSize: 64, TxSize: 64, CompletionSize: 64}}
}

// target is an attacker's endpoint that host B can send datagrams to.
type target struct {
	*attacker
	port int
	conn net.Conn // host B's
}

// target opens an endpoint with a UDP port of its own.
func (s *caseRun) target(req endpoint.Request) *target {
	s.Helper()
	return s.targetOf(attackerID, req)
}

func (s *caseRun) targetOf(uid uint32, req endpoint.Request) *target {
	s.Helper()
	req.Tags = append(req.Tags, endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))
	a := startAgent(s, s.pair.A, uid)
	for port := attackerPort + 1; ; port++ {
		req.Tags[len(req.Tags)-1].Port = uint16(port)
		g, err := openEndpoint.try(a, openArg{s.unetd.Socket, req})
		if errors.Is(err, endpoint.ErrTagHeld) && port < attackerPort+99 {
			continue // what an earlier case has had may linger
		}
		if err != nil {
			s.Fatal(err)
		}
		conn, err := s.pair.B.Dial("udp", fmt.Sprintf("%v:%d", hostA, port))
		if err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() { conn.Close() })
		return &target{&attacker{a, g}, port, conn}
	}
}

// sendTo sends datagrams to it from host B's kernel and returns how long the longest
// send took: the receive work is done in it.
func (t *target) sendTo(n int) (worst time.Duration) {
	payload := make([]byte, 64)
	for range n {
		begin := time.Now()
		t.conn.Write(payload) // an error is expected if earlier datagrams were refused
		worst = max(worst, time.Since(begin))
	}
	return worst
}

// wantAnswers checks that an endpoint sends and receives as it should.
func (t *target) wantAnswers(s *caseRun) {
	s.Helper()
	drain.do(s, t.agentProcess, endpointArg{t.Endpoint})
	t.sendTo(10)
	got := 0
	if !testutil.Until(func() bool { got += drain.do(s, t.agentProcess, endpointArg{t.Endpoint}).Frames; return got >= 10 }) {
		s.Errorf("afterwards %d of 10 datagrams arrived", got)
	}
	v := s.permitted()
	v.add(ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark()))))
	v.send(t.attacker)
}

func ringCases() []attackCase {
	return []attackCase{
		{"full receive ring", "64 entries that nobody takes, and 3,000 datagrams from host B; then the owner reads again", func(s *caseRun) {
			t := s.target(smallRings())
			t.sendTo(3000)
			st := readStatistics.do(s, t.agentProcess, endpointArg{t.Endpoint})
			s.row.note("RX ring full %d times, fill ring empty %d times", st.Rx_ring_full, st.Rx_fill_ring_empty_descs)
			if st.Rx_ring_full+st.Rx_fill_ring_empty_descs == 0 {
				s.Error("nothing was lost")
			}
			t.wantAnswers(s)
		}},
		{"starved fill ring", "an owner that takes frames and gives none back, and 3,000 datagrams; then it gives them back", func(s *caseRun) {
			t := s.target(smallRings())
			for range 30 {
				t.sendTo(100)
				takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
			}
			st := readStatistics.do(s, t.agentProcess, endpointArg{t.Endpoint})
			s.row.note("fill ring empty %d times", st.Rx_fill_ring_empty_descs)
			if st.Rx_fill_ring_empty_descs == 0 {
				s.Error("the fill ring never was empty")
			}
			refill.do(s, t.agentProcess, endpointArg{t.Endpoint})
			t.wantAnswers(s)
		}},
		{"full completion ring", "an owner that sends and never takes completions; then it takes them", func(s *caseRun) {
			t := s.target(smallRings())
			v := s.permitted()
			frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark())))
			n := sendWithoutCompletions.do(s, t.agentProcess, keepCompletionsArg{t.Endpoint, frame, 1000})
			s.row.note("the kernel took %d of 1,000 frames and left the others", n)
			if n > 64 {
				s.Errorf("%d frames were completed into a ring of 64", n)
			}
			if _, err := flushEndpoint.try(t.agentProcess, endpointArg{t.Endpoint}); err != nil {
				s.Errorf("after the completions were taken: %v", err)
			}
			t.wantAnswers(s)
		}},
		{"one frame on the whole fill ring", "64 times the same frame to receive into: it is overwritten, which is its owner's loss", func(s *caseRun) {
			t := s.target(smallRings())
			t.sendTo(200)
			takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
			overwriteRing.do(s, t.agentProcess, overwriteArg{Endpoint: t.Endpoint, Ring: "fill", Addr: 2048})
			writeIndex.do(s, t.agentProcess, writeIndexArg{t.Endpoint, "fill", "producer", 64, true})
			t.sendTo(200)
			st := readStatistics.do(s, t.agentProcess, endpointArg{t.Endpoint})
			s.row.note("%d invalid fill entries", st.Rx_invalid_descs)
			takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
			refill.do(s, t.agentProcess, endpointArg{t.Endpoint})
			t.wantAnswers(s)
		}},
		{"invalid frames on the fill ring", "a fill ring of 2,048 entries outside the segment, filled again and again: unetd revokes the endpoint", func(s *caseRun) {
			t := s.targetOf(s.freshAttacker(), endpoint.Request{})
			t.sendTo(3000)
			takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
			overwriteRing.do(s, t.agentProcess, overwriteArg{Endpoint: t.Endpoint, Ring: "fill", Addr: math.MaxUint64 - 1})
			var worst time.Duration
			rounds := 0
			for ; rounds < 200 && s.leased(t.ID); rounds++ {
				if _, err := writeIndex.try(t.agentProcess, writeIndexArg{t.Endpoint, "fill", "producer", 2048, true}); err != nil {
					break
				}
				worst = max(worst, t.sendTo(1))
			}
			s.wantRevoked(t, func() { t.sendTo(1) })
			s.row.note("after %d rounds; the longest send to it took %s", rounds, rounded(worst))
		}},
		{"transmit ring's producer far ahead", "1 thousand, 1 million and 100 million invalid descriptors, and kicks for half a second", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			overwriteRing.do(s, t.agentProcess, overwriteArg{t.Endpoint, "tx", math.MaxUint64 - 1, 60})
			for _, ahead := range []uint32{1000, 1_000_000, 100_000_000} {
				writeIndex.do(s, t.agentProcess, writeIndexArg{t.Endpoint, "tx", "producer", ahead, true})
				k := kickFor.do(s, t.agentProcess, kickArg{t.Endpoint, 500 * time.Millisecond})
				s.row.note("%d ahead: %d kicks, the longest of %s, took %d", ahead, k.Kicks, rounded(k.Worst), k.Taken)
			}
		}},
		{"scrambled indices", "random numbers near the true ones over all indices of the TX, RX and completion rings, with kicks and 20,000 datagrams meanwhile", func(s *caseRun) {
			t := s.target(smallRings())
			scrambleIndices.do(s, t.agentProcess, scrambleArg{t.Endpoint, []string{"tx", "rx", "completion"}, 42})
			t.sendTo(lengthOf(100_000, 20_000, 5000))
			stopTasks.do(s, t.agentProcess, nothing{})
			st := readStatistics.do(s, t.agentProcess, endpointArg{t.Endpoint})
			s.row.note("%d invalid TX descriptors, RX ring full %d times", st.Tx_invalid_descs, st.Rx_ring_full)
		}},
	}
}

// leased reports whether unetd has a lease of an endpoint.
func (s *caseRun) leased(id uint64) bool {
	for _, e := range list(s, s.unetd) {
		if e.ID == id {
			return e.Leased
		}
	}
	return false
}

// wantRevoked waits until unetd has revoked an endpoint, and its owner has got the
// reason.
func (s *caseRun) wantRevoked(t *target, trigger func()) {
	s.Helper()
	begin := time.Now()
	if why := s.awaitRevoked(t, trigger); why != "" {
		s.row.note("revoked %s later: %s", rounded(time.Since(begin)), why)
	}
}

// awaitRevoked returns why an endpoint was revoked. trigger sends it a frame: the mux
// checks an endpoint when there is a frame for it.
func (s *caseRun) awaitRevoked(t *target, trigger func()) (why string) {
	s.Helper()
	if !testutil.Until(func() bool { trigger(); return !s.leased(t.ID) }) {
		s.Errorf("endpoint %d was not revoked", t.ID)
		return ""
	}
	why, err := awaitLeaseEnd.try(t.agentProcess, endpointArg{t.Endpoint})
	if err != nil {
		s.Errorf("the owner of the revoked endpoint got no reason: %v", err)
	}
	return why
}

// alternateArg is how far ahead the producer of a fill ring is put, repeatedly.
type alternateArg struct {
	Endpoint int
	Ahead    uint32
}

// alternateProducer puts the fill ring's producer far ahead and back, as fast as it can, so that
// the mux's check and the kernel read different values.
var alternateProducer = newCommand("alternateProducer", func(a *agent, arg alternateArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	sane := atomic.LoadUint32(g.fill.producer)
	a.repeatTask(func(_ <-chan struct{}) error {
		for range 1000 {
			atomic.StoreUint32(g.fill.producer, sane+arg.Ahead)
			atomic.StoreUint32(g.fill.producer, sane)
		}
		return nil
	})
	return nothing{}, nil
})

// invalidFillCases attack the kernel through the fill ring, whose contents it trusts
// (docs/adr/0011).
//
// All frames to these endpoints are short and in one piece. A frame in several
// buffers takes another code path of the kernel, which crashes if the fill ring changes
// at the wrong moment.
func invalidFillCases() (cases []attackCase) {
	for _, c := range []struct {
		name  string
		ahead uint32
	}{{"1 thousand", 1000}, {"1 million", 1_000_000}, {"100 million", 100_000_000}, {"2^31", 1 << 31}, {"2^32-1", math.MaxUint32}} {
		cases = append(cases, attackCase{"fill ring's producer " + c.name + " ahead", "with invalid addresses; host B sends to it, and the neighbour's requests are answered", func(s *caseRun) {
			t := s.invalidFillRing(s.freshAttacker())
			writeIndex.do(s, t.agentProcess, writeIndexArg{t.Endpoint, "fill", "producer", c.ahead, true})
			worst := t.sendTo(1)
			s.wantRevoked(t, func() { worst = max(worst, t.sendTo(1)) })
			s.row.note("the longest send to it took %s", rounded(worst))
		}})
	}
	cases = append(cases, attackCase{"many revocations", "endpoints of many users, each with a fill ring of invalid addresses whose producer is far ahead; then each user asks for another endpoint", func(s *caseRun) {
		count := lengthOf(50, 5, 3)
		for range count {
			uid := s.freshAttacker()
			t := s.invalidFillRing(uid)
			writeIndex.do(s, t.agentProcess, writeIndexArg{t.Endpoint, "fill", "producer", 1 << 20, true})
			if !testutil.Until(func() bool { t.sendTo(1); return !s.leased(t.ID) }) {
				s.Errorf("endpoint %d was not revoked", t.ID)
			}
			if _, err := openEndpoint.try(t.agentProcess, openArg{s.unetd.Socket, endpoint.Request{}}); !errors.Is(err, endpoint.ErrBusy) {
				s.Errorf("another endpoint for the owner of a revoked one: %v, want busy", err)
			}
			t.kill()
		}
		s.row.note("%d endpoints revoked; no owner got another one", count)
	}})
	for _, ahead := range []struct {
		name  string
		ahead uint32
	}{{"1 million", 1_000_000}, {"100 million", 100_000_000}} {
		cases = append(cases, attackCase{"fill ring's producer flipping by " + ahead.name, "between the right value and one far ahead, by a thread of its own, while host B sends as fast as it can: the mux and the kernel may read different values", func(s *caseRun) {
			t := s.invalidFillRing(s.freshAttacker())
			alternateProducer.do(s, t.agentProcess, alternateArg{t.Endpoint, ahead.ahead})
			begin, frames := time.Now(), 0
			var worst time.Duration
			s.wantRevoked(t, func() {
				frames += 200
				worst = max(worst, t.sendTo(200))
			})
			s.row.note("%d frames until then, %s; the longest send to it took %s", frames, rounded(time.Since(begin)), rounded(worst))
			stopTasks.do(s, t.agentProcess, nothing{})
		}})
	}
	return append(cases, attackCase{"fill ring refilled while it is emptied", "an attacker sends one frame to itself, over a fill ring of 65,536 addresses that are none but for the next, which a thread flips; then that puts the producer ahead of the kernel. Each try is another user's", func(s *caseRun) {
		tries, lasts := lengthOf(20, 5, 3), 20*time.Second
		won := 0
		var worst time.Duration
		for range tries {
			t := s.targetOf(s.freshAttacker(), endpoint.Request{Geometry: endpoint.Geometry{FillSize: 1 << 16}})
			sender := openEndpoint.do(s, t.agentProcess, openArg{s.unetd.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))})
			t.sendTo(3000)
			takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
			overwriteRing.do(s, t.agentProcess, overwriteArg{Endpoint: t.Endpoint, Ring: "fill", Addr: math.MaxUint64 - 1})
			frame := ether(linkA, linkA, typeIPv4, ipv4(hostA, hostA, protocolUDP, udp(int(sender.Tags[0].Port), t.port, []byte("x"))))
			took := raceFillRing.do(s, t.agentProcess, raceArg{sender.Endpoint, t.Endpoint, frame, 60 * time.Microsecond, lasts})
			if worst = max(worst, took); took > time.Millisecond {
				won++
			}
			if took > lasts {
				s.Errorf("the kernel was busy for %s, as long as the attacker went on", rounded(took))
			}
			s.awaitRevoked(t, func() { t.sendTo(1) })
			t.kill()
		}
		s.row.note("%d of %d tries kept a processor in the kernel for more than a millisecond, the longest for %s; an attacker would have gone on for %s", won, tries, rounded(worst), lasts)
	}})
}

// raceArg is a frame that endpoint From sends to endpoint To. The producer of To's fill ring is put ahead
// after a time, for at most a time, until the kernel has ended its work.
type raceArg struct {
	From, To     int
	Frame        []byte
	After, Lasts time.Duration
}

// raceFillRing sends a frame while the next entry of the fill ring alternates between a valid
// address and an invalid one. Then it puts the ring's producer ahead, somewhat faster than the
// kernel reads entries. It returns how long the kernel was busy.
var raceFillRing = newCommand("raceFillRing", func(a *agent, arg raceArg) (took time.Duration, err error) {
	from, to := a.endpoints[arg.From], a.endpoints[arg.To]
	full := atomic.LoadUint32(to.fill.consumer) + to.fill.size()
	atomic.StoreUint32(to.fill.producer, full) // as many as there may be
	next := to.fill.at(full - to.fill.size())
	var ready, sent, walked atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		ready.Store(true)
		for !sent.Load() {
		}
		begin := time.Now()
		for time.Since(begin) < arg.After {
			for range 20 {
				atomic.StoreUint64(next, 0)
				atomic.StoreUint64(next, math.MaxUint64-1)
			}
		}
		for ahead := time.Duration(0); ahead < arg.Lasts && !walked.Load(); ahead = time.Since(begin) {
			atomic.StoreUint32(to.fill.producer, full+uint32(ahead)) // an entry a nanosecond
		}
	}()
	for !ready.Load() {
	}
	begin := time.Now()
	sent.Store(true)
	_, err = from.send(func(yield func(outFrame) bool) { yield(outFrame{Frame: arg.Frame}) })
	took = time.Since(begin)
	walked.Store(true)
	<-done
	return took, err
})

// invalidFillRing is an endpoint whose fill ring holds only invalid addresses.
func (s *caseRun) invalidFillRing(uid uint32) *target {
	s.Helper()
	t := s.targetOf(uid, endpoint.Request{Geometry: smallGeometry})
	t.sendTo(100)
	takeReceived.do(s, t.agentProcess, endpointArg{t.Endpoint})
	overwriteRing.do(s, t.agentProcess, overwriteArg{Endpoint: t.Endpoint, Ring: "fill", Addr: math.MaxUint64 - 1})
	return t
}
