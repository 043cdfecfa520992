//go:build linux

package bpf

import (
	"math/big"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/testutil"
)

const (
	txRateEndpoint = MuxUnetCounterUNET_TX_RATE_ENDPOINT
	txRateUser     = MuxUnetCounterUNET_TX_RATE_USER
)

const limitedUID = 4242

// monotonic is the clock of the programs, in ns.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	testutil.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return uint64(ts.Nano())
}

// putLimit enters a limit; nil: there is none.
func putLimit(t testing.TB, m *ebpf.Map, key int, limit *Limit) {
	t.Helper()
	if limit == nil {
		m.Delete(uint32(key)) // if there is one
		return
	}
	testutil.Must(t, m.Put(uint32(key), limit))
}

// getLimit reads a limit under its lock.
func getLimit(t testing.TB, m *ebpf.Map, key int) (limit Limit) {
	t.Helper()
	testutil.Must(t, m.LookupWithFlags(uint32(key), &limit, ebpf.LookupLock))
	limit.Lock.Val = 0
	return limit
}

// filled is the model of advance in src/limit.h, with integers that cannot overflow. It returns the limit at a later
// time.
func filled(l Limit, at uint64) Limit {
	if int64(at-l.Last) <= 0 {
		return l
	}
	elapsed := new(big.Int).SetUint64(at - l.Last)
	for _, b := range []*Bucket{&l.Packets, &l.Bytes} {
		level := new(big.Int).Mul(elapsed, new(big.Int).SetUint64(b.Rate))
		level.Add(level, new(big.Int).SetUint64(b.Level))
		if full := new(big.Int).SetUint64(b.Full); level.Cmp(full) > 0 {
			level = full
		}
		b.Level = level.Uint64()
	}
	l.Last = at
	return l
}

// takes returns l after a frame of a number of bytes, or false if a bucket has too little for it.
func takes(l Limit, bytes int) (Limit, bool) {
	for b, cost := range map[*Bucket]uint64{&l.Packets: BucketUnit, &l.Bytes: uint64(bytes) * BucketUnit} {
		if b.Rate == 0 {
			continue
		}
		if b.Level < cost {
			return l, false
		}
		b.Level -= cost
	}
	return l, true
}

// randomBucket returns a bucket with any rate from 1 a second on and any level, or no bucket.
func randomBucket(r *rand.Rand) Bucket {
	if r.IntN(4) == 0 {
		return Bucket{}
	}
	b := NewBucket(1+r.Int64N(int64(1)<<r.IntN(62)), 1+r.Int64N(min(MaxBucket, int64(1)<<r.IntN(34))))
	switch r.IntN(4) {
	case 0:
		b.Level = 0
	case 1:
		b.Level = r.Uint64N(b.Full + 1)
	case 2:
		b.Level = r.Uint64N(min(b.Full, 2000*BucketUnit) + 1)
	}
	return b
}

// Each frame takes from the buckets the model's amount. Afterwards Last of a limit is the time at which the
// program has filled its buckets: that of the last tick, or the exact time if the frame was refused.
func TestLimitModel(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		l.reach(l.uplink)
		r := rand.New(rand.NewPCG(1, 2))
		counts := map[Counter]int{}
		for range 4000 {
			random := func() *Limit {
				last := monotonic(t) - r.Uint64N(1<<r.IntN(33))
				if r.IntN(8) == 0 { // another processor has filled it later
					last += 1 << 40
				}
				return &Limit{Uid: limitedUID, Last: last, Packets: randomBucket(r), Bytes: randomBucket(r), Refused: r.Uint64N(9), RefusedUser: r.Uint64N(9)}
			}
			endpoint, user := random(), random()
			if r.IntN(4) == 0 {
				user = nil
			}
			putLimit(t, l.objs.PortLimits, l.a, endpoint)
			putLimit(t, l.objs.UserLimits, limitedUID, user)
			frame := datagram(peerMAC, l.mac, netip.AddrPortFrom(shared, 7000), netip.AddrPortFrom(peer, 1), r.IntN(1400))
			earliest := monotonic(t)
			got, err := l.counted(func() (uint32, error) { return run(l.objs.UnetPortLimited, frame, l.a, 0) })
			testutil.Must(t, err)
			counts[got]++
			latest := monotonic(t)

			gotEndpoint, gotUser := getLimit(t, l.objs.PortLimits, l.a), Limit{}
			full := filled(*endpoint, gotEndpoint.Last)
			wantEndpoint, admitted := takes(full, len(frame))
			want, wantUser := txUplink, gotUser
			if !admitted {
				want, wantEndpoint = txRateEndpoint, full
				wantEndpoint.Refused++
			}
			if user != nil {
				gotUser = getLimit(t, l.objs.UserLimits, limitedUID)
				fullUser := filled(*user, gotUser.Last)
				wantUser = fullUser
				if taken, admitted := takes(fullUser, len(frame)); want == txUplink && admitted {
					wantUser = taken
				} else if want == txUplink {
					want, wantEndpoint = txRateUser, full
					wantEndpoint.RefusedUser++
				}
			}
			if got != want || gotEndpoint != wantEndpoint || gotUser != wantUser {
				t.Fatalf("%s, want %s\nendpoint: %+v becomes %+v, want %+v\nuser: %+v becomes %+v, want %+v",
					CounterName(got), CounterName(want), *endpoint, gotEndpoint, wantEndpoint, user, gotUser, wantUser)
			}
			last := []struct{ before, after uint64 }{{endpoint.Last, gotEndpoint.Last}}
			if user != nil {
				last = append(last, struct{ before, after uint64 }{user.Last, gotUser.Last})
			}
			for _, at := range last {
				if at.after > latest && at.after != at.before || at.after < at.before || got != txUplink && at.after < earliest {
					t.Fatalf("%s: filled at %d, then at %d, and the frame was sent between %d and %d", CounterName(got), at.before, at.after, earliest, latest)
				}
			}
		}
		for _, c := range []Counter{txUplink, txRateEndpoint, txRateUser} {
			if counts[c] < 100 {
				t.Errorf("%d of the frames counted as %s", counts[c], CounterName(c))
			}
		}
	})
}

// The frames to which the limits of an endpoint and of its user apply.
func TestFramesUnderLimits(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		peerGroup, peerGroupMAC := solicitedNode(peer6)
		empty := func(uid uint32) *Limit {
			b := NewBucket(1, 1)
			b.Level = 0
			return &Limit{Uid: uid, Last: monotonic(t) + 1<<40, Packets: b}
		}
		at := netip.AddrPortFrom
		good := datagram(peerMAC, l.mac, at(shared, 7000), at(peer, 1), 64)
		sends := func(name string, p *ebpf.Program, frame []byte, from int, want Counter) {
			t.Helper()
			l.reach(l.uplink, l.a, l.b)
			l.want(name, p, frame, from, 0, want)
		}
		putLimit(t, l.objs.UserLimits, NoUser, empty(0))
		putLimit(t, l.objs.PortLimits, l.a, &Limit{Uid: NoUser})
		sends("no limit", l.objs.UnetPortLimited, good, l.a, txUplink)
		putLimit(t, l.objs.PortLimits, l.a, nil)
		sends("no entry", l.objs.UnetPortLimited, good, l.a, txUplink)
		putLimit(t, l.objs.PortLimits, l.a, empty(limitedUID))
		sends("an empty bucket", l.objs.UnetPortLimited, good, l.a, txRateEndpoint)
		sends("the program without limits", l.objs.UnetPort, good, l.a, txUplink)
		sends("another endpoint", l.objs.UnetPortLimited, arp(bcast, l.mac, l.mac, owned, peer, 1), l.b, txUplink)
		sends("a forged frame", l.objs.UnetPortLimited, datagram(peerMAC, l.mac, at(shared, 7001), at(peer, 1), 64), l.a, txForgedTag)
		if got := getLimit(t, l.objs.PortLimits, l.a).Refused; got != 1 {
			t.Errorf("%d frames refused, want 1", got)
		}
		sends("to another endpoint", l.objs.UnetPortLimited, datagram(l.mac, l.mac, at(shared, 7000), at(owned, 5), 64), l.a, txRateEndpoint)
		putLimit(t, l.objs.PortLimits, l.b, &Limit{Uid: limitedUID})
		putLimit(t, l.objs.UserLimits, limitedUID, empty(0))
		for name, frame := range map[string][]byte{
			"ARP": arp(bcast, l.mac, l.mac, owned, peer, 1), "message": message(peerMAC, l.mac, 1, 8, 64, 64),
			"ND": nd(peerGroupMAC, l.mac, owned6, peerGroup, 135, solicits(peer6, linkOption(layers.ICMPv6OptSourceAddress, l.mac))), "fragment": fragment4(datagram(peerMAC, l.mac, at(owned, 5), at(peer, 1), 64), 32, 100, false),
		} {
			sends(name+" beyond the user's rate", l.objs.UnetPortLimited, frame, l.b, txRateUser)
		}
	})
}

// The bytes of a frame in further buffers count too.
func TestLimitCountsAllBuffers(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		l.reach(l.uplink)
		long := datagram(peerMAC, l.mac, netip.AddrPortFrom(shared, 7000), netip.AddrPortFrom(peer, 1), 1000)
		if _, err := run(l.objs.UnetPort, long, l.a, 100); err != nil {
			t.Skipf("this kernel's test runs cannot choose the first buffer: %v", err)
		}
		before := Limit{Uid: limitedUID, Last: monotonic(t) + 1<<40, Bytes: NewBucket(1, 5000)}
		putLimit(t, l.objs.PortLimits, l.a, &before)
		l.want("several buffers", l.objs.UnetPortLimited, long, l.a, 100, txUplink)
		if got := before.Bytes.Level - getLimit(t, l.objs.PortLimits, l.a).Bytes.Level; got != uint64(len(long))*BucketUnit {
			t.Errorf("%d bytes taken, want %d", got/BucketUnit, len(long))
		}
	})
}

// Two processors take from one user's bucket at the same time, and its level stays exact.
func TestLimitOnTwoProcessors(t *testing.T) {
	inLab(t, true, func(l *lab) {
		claimForPorts(l)
		l.reach(l.uplink)
		before := Limit{Last: monotonic(t), Packets: NewBucket(100_000, 100_000_000)}
		before.Packets.Level = 50_000 * BucketUnit
		putLimit(t, l.objs.PortLimits, l.a, &Limit{Uid: limitedUID})
		putLimit(t, l.objs.PortLimits, l.b, &Limit{Uid: limitedUID})
		putLimit(t, l.objs.UserLimits, limitedUID, &before)
		countersBefore := readCounters(t, l.objs.Counters)
		const turns, runs = 20, 10_000
		var all sync.WaitGroup
		for _, s := range []struct {
			port  int
			frame []byte
		}{
			{l.a, datagram(peerMAC, l.mac, netip.AddrPortFrom(shared, 7000), netip.AddrPortFrom(peer, 1), 64)},
			{l.b, datagram(peerMAC, l.mac, netip.AddrPortFrom(owned, 7000), netip.AddrPortFrom(peer, 1), 64)},
		} {
			all.Go(func() {
				for range turns {
					if _, err := timed(l.objs.UnetPortLimited, s.frame, s.port, runs); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		after, countersAfter := getLimit(t, l.objs.UserLimits, limitedUID), readCounters(t, l.objs.Counters)
		passed, refused := countersAfter[txUplink]-countersBefore[txUplink], countersAfter[txRateUser]-countersBefore[txRateUser]
		inLimits := getLimit(t, l.objs.PortLimits, l.a).RefusedUser + getLimit(t, l.objs.PortLimits, l.b).RefusedUser
		if passed+refused < 2*turns*runs || refused == 0 || refused != inLimits { // timed repeats a turn that a signal has interrupted
			t.Errorf("%d frames passed and %d refused, of %d; the limits have counted %d refused", passed, refused, 2*turns*runs, inLimits)
		}
		if want := before.Packets.Level + (after.Last-before.Last)*before.Packets.Rate - passed*BucketUnit; after.Packets.Level != want {
			t.Errorf("after %d frames in %v the bucket has %d, want %d", passed, time.Duration(after.Last-before.Last), after.Packets.Level, want)
		}
	})
}

// New buckets are full, and a changed bucket keeps its level up to the new size.
func TestBuckets(t *testing.T) {
	b := NewBucket(3, 10)
	if b.FillNs != 3_333_333_334 || b.Level != 10*BucketUnit || b.Full != b.Level {
		t.Errorf("%+v", b)
	}
	if NewBucket(0, 0) != (Bucket{}) {
		t.Error("NewBucket(0, 0) is not the bucket of no limit")
	}
	b.Level = 7
	if got := b.Change(NewBucket(100, 1)); got.Level != 7 || got.Rate != 100 || got.Full != BucketUnit {
		t.Errorf("higher rate: %+v", got)
	}
	b.Level = b.Full
	if got := b.Change(NewBucket(100, 1)); got.Level != got.Full {
		t.Errorf("smaller bucket: %+v", got)
	}
	if got := (Bucket{}).Change(b); got != b {
		t.Errorf("from no limit: %+v", got)
	}
	if l := (Limit{Last: 5, Packets: b}); l.FullAt() != 3_333_333_339 {
		t.Error(l.FullAt())
	}
}

// Take does what the program does for one frame after another.
func TestTakeModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		before := Limit{Last: r.Uint64N(1 << 40), Packets: randomBucket(r), Bytes: randomBucket(r)}
		now, n, size := before.Last+r.Uint64N(1<<r.IntN(33)), r.IntN(40), 1+r.IntN(1500)
		if r.IntN(8) == 0 { // another processor has filled it later
			now = r.Uint64N(before.Last + 1)
		}
		want, taken := filled(before, now), 0
		for range n {
			next, enough := takes(want, size)
			if !enough {
				break
			}
			want = next
			taken++
		}
		got := before
		if of := got.Take(n, size, time.Duration(now)); of != taken || got != want {
			t.Fatalf("%+v, %d frames of %d bytes at %d: %d taken, want %d; becomes %+v, want %+v", before, n, size, now, of, taken, got, want)
		}
	}
}
