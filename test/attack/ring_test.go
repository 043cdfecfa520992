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
	"github.com/unet-go/unet/test/internal/unetd"
)

// smallRings is an endpoint whose rings are full soon.
func smallRings(tags ...endpoint.Tag) endpoint.Request {
	return endpoint.Request{Tags: tags, Geometry: endpoint.Geometry{FrameCount: 256, FillSize: 64, RxSize: 64, TxSize: 64, CompletionSize: 64}}
}

// target is an attacker's endpoint that host B can send datagrams to.
type target struct {
	*shooter
	port int
	conn net.Conn // host B's
}

// target opens an endpoint with a UDP port of its own.
func (s *scene) target(req endpoint.Request) *target {
	s.Helper()
	return s.targetOf(attackerID, req)
}

func (s *scene) targetOf(uid uint32, req endpoint.Request) *target {
	s.Helper()
	req.Tags = append(req.Tags, endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))
	a := cast(s, s.pair.A, uid)
	for port := attackerPort + 1; ; port++ {
		req.Tags[len(req.Tags)-1].Port = uint16(port)
		g, err := openGun.try(a, openArg{s.unetd.Socket, req})
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
		return &target{&shooter{a, g}, port, conn}
	}
}

// flood sends datagrams to it from host B's kernel and returns how long the longest
// send took: the receive work is done in it.
func (t *target) flood(n int) (worst time.Duration) {
	payload := make([]byte, 64)
	for range n {
		begin := time.Now()
		t.conn.Write(payload) // an error is expected if earlier datagrams were refused
		worst = max(worst, time.Since(begin))
	}
	return worst
}

// answers checks that an endpoint sends and receives as it should.
func (t *target) answers(s *scene) {
	s.Helper()
	drain.do(s, t.actor, gunArg{t.Gun})
	t.flood(10)
	got := 0
	if !unetd.Eventually(func() bool { got += drain.do(s, t.actor, gunArg{t.Gun}).Frames; return got >= 10 }) {
		s.Errorf("afterwards %d of 10 datagrams arrived", got)
	}
	v := s.allow()
	v.add(ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark()))))
	v.fire(t.shooter)
}

func ringCases() []attackCase {
	return []attackCase{
		{"full receive ring", "64 entries that nobody takes, and 3,000 datagrams from host B; then the owner reads again", func(s *scene) {
			t := s.target(smallRings())
			t.flood(3000)
			st := ask.do(s, t.actor, gunArg{t.Gun})
			s.row.note("RX ring full %d times, fill ring empty %d times", st.Rx_ring_full, st.Rx_fill_ring_empty_descs)
			if st.Rx_ring_full+st.Rx_fill_ring_empty_descs == 0 {
				s.Error("nothing was lost")
			}
			t.answers(s)
		}},
		{"starved fill ring", "an owner that takes frames and gives none back, and 3,000 datagrams; then it gives them back", func(s *scene) {
			t := s.target(smallRings())
			for range 30 {
				t.flood(100)
				starve.do(s, t.actor, gunArg{t.Gun})
			}
			st := ask.do(s, t.actor, gunArg{t.Gun})
			s.row.note("fill ring empty %d times", st.Rx_fill_ring_empty_descs)
			if st.Rx_fill_ring_empty_descs == 0 {
				s.Error("the fill ring never was empty")
			}
			feed.do(s, t.actor, gunArg{t.Gun})
			t.answers(s)
		}},
		{"full completion ring", "an owner that sends and never takes completions; then it takes them", func(s *scene) {
			t := s.target(smallRings())
			v := s.allow()
			frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, v.mark())))
			n := hoard.do(s, t.actor, hoardArg{t.Gun, frame, 1000})
			s.row.note("the kernel took %d of 1,000 frames and left the others", n)
			if n > 64 {
				s.Errorf("%d frames were completed into a ring of 64", n)
			}
			if _, err := flushGun.try(t.actor, gunArg{t.Gun}); err != nil {
				s.Errorf("after the completions were taken: %v", err)
			}
			t.answers(s)
		}},
		{"one frame on the whole fill ring", "64 times the same frame to receive into: it is overwritten, which is its owner's loss", func(s *scene) {
			t := s.target(smallRings())
			t.flood(200)
			starve.do(s, t.actor, gunArg{t.Gun})
			litter.do(s, t.actor, litterArg{Gun: t.Gun, Ring: "fill", Addr: 2048})
			poke.do(s, t.actor, pokeArg{t.Gun, "fill", "producer", 64, true})
			t.flood(200)
			st := ask.do(s, t.actor, gunArg{t.Gun})
			s.row.note("%d invalid fill entries", st.Rx_invalid_descs)
			starve.do(s, t.actor, gunArg{t.Gun})
			feed.do(s, t.actor, gunArg{t.Gun})
			t.answers(s)
		}},
		{"invalid frames on the fill ring", "a fill ring of 2,048 entries outside the segment, filled again and again: somebody who does that is up to something", func(s *scene) {
			t := s.targetOf(s.outcast(), endpoint.Request{})
			t.flood(3000)
			starve.do(s, t.actor, gunArg{t.Gun})
			litter.do(s, t.actor, litterArg{Gun: t.Gun, Ring: "fill", Addr: math.MaxUint64 - 1})
			var worst time.Duration
			rounds := 0
			for ; rounds < 200 && s.leased(t.ID); rounds++ {
				if _, err := poke.try(t.actor, pokeArg{t.Gun, "fill", "producer", 2048, true}); err != nil {
					break
				}
				worst = max(worst, t.flood(1))
			}
			s.revoked(t, func() { t.flood(1) })
			s.row.note("after %d rounds; the longest send to it took %s", rounds, rounded(worst))
		}},
		{"transmit ring's producer far ahead", "1 thousand, 1 million and 100 million invalid descriptors, and kicks for half a second", func(s *scene) {
			t := s.target(endpoint.Request{})
			litter.do(s, t.actor, litterArg{t.Gun, "tx", math.MaxUint64 - 1, 60})
			for _, ahead := range []uint32{1000, 1_000_000, 100_000_000} {
				poke.do(s, t.actor, pokeArg{t.Gun, "tx", "producer", ahead, true})
				k := kickFor.do(s, t.actor, kickArg{t.Gun, 500 * time.Millisecond})
				s.row.note("%d ahead: %d kicks, the longest of %s, took %d", ahead, k.Kicks, rounded(k.Worst), k.Taken)
			}
		}},
		{"scrambled indices", "random numbers near the true ones over all indices of the TX, RX and completion rings, with kicks and 20,000 datagrams meanwhile", func(s *scene) {
			t := s.target(smallRings())
			scramble.do(s, t.actor, scrambleArg{t.Gun, []string{"tx", "rx", "completion"}, 42})
			t.flood(lengthOf(100_000, 20_000, 5000))
			rest.do(s, t.actor, nothing{})
			st := ask.do(s, t.actor, gunArg{t.Gun})
			s.row.note("%d invalid TX descriptors, RX ring full %d times", st.Tx_invalid_descs, st.Rx_ring_full)
		}},
	}
}

// leased reports whether unetd has a lease of an endpoint.
func (s *scene) leased(id uint64) bool {
	for _, e := range list(s, s.unetd) {
		if e.ID == id {
			return e.Leased
		}
	}
	return false
}

// revoked waits until unetd has revoked an endpoint, and its owner has got the
// reason.
func (s *scene) revoked(t *target, trigger func()) {
	s.Helper()
	begin := time.Now()
	if why := s.isRevoked(t, trigger); why != "" {
		s.row.note("revoked %s later: %s", rounded(time.Since(begin)), why)
	}
}

// isRevoked returns why an endpoint was revoked. trigger sends it a frame: the mux
// checks an endpoint when there is a frame for it.
func (s *scene) isRevoked(t *target, trigger func()) (why string) {
	s.Helper()
	if !unetd.Eventually(func() bool { trigger(); return !s.leased(t.ID) }) {
		s.Errorf("endpoint %d was not revoked", t.ID)
		return ""
	}
	why, err := lost.try(t.actor, gunArg{t.Gun})
	if err != nil {
		s.Errorf("the owner of the revoked endpoint got no reason: %v", err)
	}
	return why
}

// flipArg is how far ahead the producer of a fill ring is put, repeatedly.
type flipArg struct {
	Gun   int
	Ahead uint32
}

// flip puts the fill ring's producer far ahead and back, as fast as it can, so that
// the mux's check and the kernel read different values.
var flip = teach("flip", func(a *agent, arg flipArg) (nothing, error) {
	g := a.guns[arg.Gun]
	sane := atomic.LoadUint32(g.fill.producer)
	a.repeat(func(_ <-chan struct{}) error {
		for range 1000 {
			atomic.StoreUint32(g.fill.producer, sane+arg.Ahead)
			atomic.StoreUint32(g.fill.producer, sane)
		}
		return nil
	})
	return nothing{}, nil
})

// runawayCases attack the kernel through the fill ring, whose contents it trusts
// (docs/adr/0011).
//
// All frames to these endpoints are short and in one piece. A frame in several
// buffers takes another code path of the kernel, which crashes if the fill ring changes
// at the wrong moment.
func runawayCases() (cases []attackCase) {
	for _, c := range []struct {
		name  string
		ahead uint32
	}{{"1 thousand", 1000}, {"1 million", 1_000_000}, {"100 million", 100_000_000}, {"2^31", 1 << 31}, {"2^32-1", math.MaxUint32}} {
		cases = append(cases, attackCase{"fill ring's producer " + c.name + " ahead", "with invalid addresses; host B sends to it, and the neighbours go on", func(s *scene) {
			t := s.runaway(s.outcast())
			poke.do(s, t.actor, pokeArg{t.Gun, "fill", "producer", c.ahead, true})
			worst := t.flood(1)
			s.revoked(t, func() { worst = max(worst, t.flood(1)) })
			s.row.note("the longest send to it took %s", rounded(worst))
		}})
	}
	cases = append(cases, attackCase{"revocation storm", "endpoints of many users, each with a runaway fill ring as soon as it is there; then each user wants another one", func(s *scene) {
		storm := lengthOf(50, 5, 3)
		for range storm {
			uid := s.outcast()
			t := s.runaway(uid)
			poke.do(s, t.actor, pokeArg{t.Gun, "fill", "producer", 1 << 20, true})
			if !unetd.Eventually(func() bool { t.flood(1); return !s.leased(t.ID) }) {
				s.Errorf("endpoint %d was not revoked", t.ID)
			}
			if _, err := openGun.try(t.actor, openArg{s.unetd.Socket, endpoint.Request{}}); !errors.Is(err, endpoint.ErrBusy) {
				s.Errorf("another endpoint for the owner of a revoked one: %v, want busy", err)
			}
			t.kill()
		}
		s.row.note("%d endpoints revoked; no owner got another one", storm)
	}})
	for _, ahead := range []struct {
		name  string
		ahead uint32
	}{{"1 million", 1_000_000}, {"100 million", 100_000_000}} {
		cases = append(cases, attackCase{"fill ring's producer flipping by " + ahead.name, "between sane and insane, by a thread of its own, while host B sends as fast as it can: a race that the kernel can lose", func(s *scene) {
			t := s.runaway(s.outcast())
			flip.do(s, t.actor, flipArg{t.Gun, ahead.ahead})
			begin, frames := time.Now(), 0
			var worst time.Duration
			s.revoked(t, func() {
				frames += 200
				worst = max(worst, t.flood(200))
			})
			s.row.note("%d frames until then, %s; the longest send to it took %s", frames, rounded(time.Since(begin)), rounded(worst))
			rest.do(s, t.actor, nothing{})
		}})
	}
	return append(cases, attackCase{"fill ring refilled while it is emptied", "an attacker sends one frame to itself, over a fill ring of 65,536 addresses that are none but for the next, which a thread flips; then that puts the producer ahead of the kernel. Each try is another user's", func(s *scene) {
		tries, lasts := lengthOf(20, 5, 3), 20*time.Second
		won := 0
		var worst time.Duration
		for range tries {
			t := s.targetOf(s.outcast(), endpoint.Request{Geometry: endpoint.Geometry{FillSize: 1 << 16}})
			sender := openGun.do(s, t.actor, openArg{s.unetd.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))})
			t.flood(3000)
			starve.do(s, t.actor, gunArg{t.Gun})
			litter.do(s, t.actor, litterArg{Gun: t.Gun, Ring: "fill", Addr: math.MaxUint64 - 1})
			frame := ether(linkA, linkA, typeIPv4, ipv4(hostA, hostA, protocolUDP, udp(int(sender.Tags[0].Port), t.port, []byte("x"))))
			took := chase.do(s, t.actor, chaseArg{sender.Gun, t.Gun, frame, 60 * time.Microsecond, lasts})
			if worst = max(worst, took); took > time.Millisecond {
				won++
			}
			if took > lasts {
				s.Errorf("the kernel was busy for %s, as long as the attacker went on", rounded(took))
			}
			s.isRevoked(t, func() { t.flood(1) })
			t.kill()
		}
		s.row.note("%d of %d tries kept a processor in the kernel for more than a millisecond, the longest for %s; an attacker would have gone on for %s", won, tries, rounded(worst), lasts)
	}})
}

// chaseArg is a frame that gun From sends to gun To. The producer of To's fill ring is put ahead
// after a time, for at most a time, until the kernel has ended its work.
type chaseArg struct {
	From, To     int
	Frame        []byte
	After, Lasts time.Duration
}

// chase sends a frame while the next entry of the fill ring alternates between a valid
// address and an invalid one. Then it puts the ring's producer ahead, somewhat faster than the
// kernel reads entries. It returns how long the kernel was busy.
var chase = teach("chase", func(a *agent, arg chaseArg) (took time.Duration, err error) {
	from, to := a.guns[arg.From], a.guns[arg.To]
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
	_, err = from.fire(func(yield func(shot) bool) { yield(shot{Frame: arg.Frame}) })
	took = time.Since(begin)
	walked.Store(true)
	<-done
	return took, err
})

// runaway is an endpoint whose fill ring holds only invalid addresses.
func (s *scene) runaway(uid uint32) *target {
	s.Helper()
	t := s.targetOf(uid, endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}})
	t.flood(100)
	starve.do(s, t.actor, gunArg{t.Gun})
	litter.do(s, t.actor, litterArg{Gun: t.Gun, Ring: "fill", Addr: math.MaxUint64 - 1})
	return t
}
