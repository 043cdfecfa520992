package attack

import (
	"errors"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/test/internal/unetd"
)

// flipArg is how far ahead the producer of a fill ring is put, again and again.
type flipArg struct {
	Gun   int
	Ahead uint32
}

// flip puts the fill ring's producer far ahead and back, as fast as it can, so that
// what looks at it sees one thing and the kernel another.
var flip = teach("flip", func(a *agent, arg flipArg) (nothing, error) {
	g := a.guns[arg.Gun]
	sane := atomic.LoadUint32(g.fill.producer)
	a.begin(func(stop <-chan struct{}) error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			for range 1000 {
				atomic.StoreUint32(g.fill.producer, sane+arg.Ahead)
				atomic.StoreUint32(g.fill.producer, sane)
			}
		}
	})
	return nothing{}, nil
})

// runawayCases are about the one attack that the kernel makes possible: docs/adr/0011.
//
// All frames to these endpoints are short and in one piece. A frame in several
// buffers takes another way through the kernel, and a fill ring that changes at the
// wrong moment makes that crash.
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
			if _, err := openGun.try(t.actor, openArg{s.unetd.Socket, endpoint.Request{}}); !errors.Is(err, control.ErrBusy) {
				s.Errorf("another endpoint for the owner of a revoked one: %v, want busy", err)
			}
			t.kill()
		}
		s.row.note("%d endpoints revoked; nobody got another one", storm)
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

// chaseArg is a frame that one gun sends to another one, when the fill ring of that is
// refilled then, and for how long if the kernel does not stop before.
type chaseArg struct {
	From, To     int
	Frame        []byte
	After, Lasts time.Duration
}

// chase sends a frame while the next entry of the fill ring is now a frame and now
// not, and then puts the ring's producer ahead, somewhat faster than the kernel
// follows. It returns how long the kernel was busy.
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

// runaway is an endpoint whose fill ring holds nothing but addresses that are none.
func (s *scene) runaway(uid uint32) *target {
	s.Helper()
	t := s.targetOf(uid, endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}})
	t.flood(100)
	starve.do(s, t.actor, gunArg{t.Gun})
	litter.do(s, t.actor, litterArg{Gun: t.Gun, Ring: "fill", Addr: math.MaxUint64 - 1})
	return t
}
