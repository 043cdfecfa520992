package attack

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
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
		t.conn.Write(payload) // refused datagrams are this test's business
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

// leased reports whether unetd knows an endpoint and its owner.
func (s *scene) leased(id uint64) bool {
	for _, e := range list(s, s.unetd) {
		if e.ID == id {
			return e.Leased
		}
	}
	return false
}

// revoked waits until unetd has taken an endpoint away, and its owner has been
// told.
func (s *scene) revoked(t *target, trigger func()) {
	s.Helper()
	begin := time.Now()
	if why := s.isRevoked(t, trigger); why != "" {
		s.row.note("revoked %s later: %s", rounded(time.Since(begin)), why)
	}
}

// isRevoked says why an endpoint was taken away. trigger sends it something: the mux
// looks at an endpoint when there is something for it.
func (s *scene) isRevoked(t *target, trigger func()) (why string) {
	s.Helper()
	if !unetd.Eventually(func() bool { trigger(); return !s.leased(t.ID) }) {
		s.Errorf("endpoint %d was not revoked", t.ID)
		return ""
	}
	why, err := lost.try(t.actor, gunArg{t.Gun})
	if err != nil {
		s.Errorf("the owner of the revoked endpoint was not told: %v", err)
	}
	return why
}
