package tcp

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
)

// transfer is the result of a bulk transfer one way over a lossy link.
type transfer struct {
	elapsed                time.Duration
	timeouts, fast, undone uint64
	retransmitted, lost    uint64 // bytes, and segments with data
}

// runTransfer sends n bytes as fast as the windows permit to a reader that reads at once.
func runTransfer(t *testing.T, seed uint64, cfg Config, link linkModel, n int) transfer {
	net := newNetwork(t, seed, [2]Config{cfg, cfg})
	o := Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20}
	net.setLink(linkModel{delay: link.delay})
	a, b := net.connect(net.listen(o), o)
	net.setLink(link)
	start := net.now
	sent, got := 0, 0
	data, to := patternBytes(0, 0, n), make([]byte, 64<<10)
	for got < n {
		if sent < n {
			k, err := a.Write(net.now, data[sent:])
			if err != nil {
				net.fatalf("%v", err)
			}
			sent += k
		}
		net.step(Never)
		for {
			k, _ := b.Read(net.now, to)
			if k == 0 {
				break
			}
			if !bytes.Equal(to[:k], data[got:got+k]) {
				net.fatalf("%d bytes from %d on are wrong", k, got)
			}
			got += k
		}
		if net.now > start.add(time.Hour) {
			net.fatalf("%d of %d bytes after an hour", got, n)
		}
	}
	tab := net.hosts[0].tab
	return transfer{elapsed: time.Duration(net.now - start), timeouts: tab.Count(Timeouts), fast: tab.Count(FastRecoveries),
		undone: tab.Count(RecoveriesUndone), retransmitted: tab.Count(BytesRetransmitted), lost: net.lost}
}

// Loss in a stream is detected and repaired without a timeout, or with few, and little data is sent
// again that has arrived. Without SACK the loss of a retransmission needs a timeout, and all that is in
// flight is sent again.
func TestLossRepairedWithoutTimeout(t *testing.T) {
	skipUnderRace(t)
	const n = 2 << 20
	for _, c := range []struct {
		name     string
		link     linkModel
		cfg      Config
		timeouts uint64 // of one transfer, at most
		again    uint64 // bytes that a timeout sends again although they have arrived, at most
	}{
		{"1%, LAN", linkModel{loss: 0.01, delay: 20 * time.Microsecond}, Config{}, 0, 0},
		{"1%, 1 ms", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, 0, 0},
		{"0.1%, 20 ms", linkModel{loss: 0.001, delay: 10 * time.Millisecond}, Config{}, 0, 0},
		{"5%, 20 ms", linkModel{loss: 0.05, delay: 10 * time.Millisecond}, Config{}, 6, 0},
		{"1%, no timestamps", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NoTimestamps: true}, 0, 0},
		{"1%, no SACK", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NoSACK: true}, 2, 300_000},
		{"Reno", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NewCongestion: NewReno}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lost, fast, timeouts uint64
			for seed := range uint64(20) {
				r := runTransfer(t, seed, c.cfg, c.link, n)
				lost += r.lost
				fast += r.fast
				timeouts += r.timeouts
				if r.timeouts > c.timeouts || r.retransmitted > (r.lost+4+r.lost/20)*1460+r.timeouts*c.again || r.lost > 4 && r.fast == 0 {
					t.Errorf("seed %d: %+v", seed, r)
				}
			}
			t.Logf("%d segments lost, %d fast recoveries, %d timeouts", lost, fast, timeouts)
			if lost == 0 || fast == 0 {
				t.Errorf("%d segments were lost, and there were %d fast recoveries: want some", lost, fast)
			}
		})
	}
}

// Reordering of less than a quarter of a round trip causes one recovery at most, and recoveries that
// more reordering causes are undone.
func TestReorderingIsNotLoss(t *testing.T) {
	skipUnderRace(t)
	for _, c := range []struct {
		jitter time.Duration
		fast   uint64
	}{{100 * time.Microsecond, 1}, {2 * time.Millisecond, 1000}} {
		for seed := range uint64(5) {
			r := runTransfer(t, seed, Config{}, linkModel{delay: 2 * time.Millisecond, jitter: c.jitter}, 2<<20)
			t.Logf("jitter %v, seed %d: %+v", c.jitter, seed, r)
			if r.timeouts > 0 || r.fast > c.fast || r.undone+1 < r.fast {
				t.Errorf("jitter %v, seed %d: %+v", c.jitter, seed, r)
			}
		}
	}
}

// Where segments are lost but not late and not duplicated, and all acknowledgments arrive, each recovery
// is needed and none is undone, also if it begins while retransmissions of the one before are in
// flight.
func TestNeededRecoveryIsNotUndone(t *testing.T) {
	for seed := range uint64(20) {
		rule := linksim.Rule{Delay: 20 * time.Millisecond, Rate: 300e6, Loss: 0.01}
		b := newBulk(t, seed, rule, linksim.Rule{Delay: rule.Delay}, 1, NewCubic)
		b.run(5*time.Second, 1)
		tab := b.net.hosts[0].tab
		if tab.Count(FastRecoveries) == 0 || tab.Count(RecoveriesUndone) != 0 {
			t.Errorf("seed %d: %d of %d recoveries were undone", seed, tab.Count(RecoveriesUndone), tab.Count(FastRecoveries))
		}
	}
}

// A connection sends 200 kB after every half second without data through bottlenecks with short
// queues. With pacing at most half as many segments are lost as without it, and a burst takes at most
// 2 % longer.
func TestPacing(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name string
		rule linksim.Rule
	}{
		{"20 Mb/s, 20 ms, queue of 15 kB", linksim.Rule{Delay: 10 * ms, Rate: 20e6, Queue: 15_000}},
		{"20 Mb/s, 20 ms, queue of 150 kB", linksim.Rule{Delay: 10 * ms, Rate: 20e6}},
		{"100 Mb/s, 10 ms, queue of 30 kB", linksim.Rule{Delay: 5 * ms, Rate: 100e6, Queue: 30_000}},
		{"100 Mb/s, 2 ms, queue of 15 kB", linksim.Rule{Delay: ms, Rate: 100e6, Queue: 15_000}},
	} {
		var lost [2]uint64
		var took [2]time.Duration
		for i, off := range []bool{true, false} {
			b := newBulkWith(t, Config{noPacing: off}, 1, c.rule, linksim.Rule{Delay: c.rule.Delay}, 1)
			f := b.flows[0]
			for range 20 {
				f.quota += 200_000
				start := b.net.now
				for f.got < f.quota {
					b.run(ms/4, 1)
				}
				took[i] += time.Duration(b.net.now-start) / 20
				b.run(500*ms, 1)
			}
			lost[i] = b.net.lost
		}
		t.Logf("%s: %d segments lost and %v for 200 kB without pacing, %d and %v with it", c.name, lost[0], took[0], lost[1], took[1])
		if lost[1] > lost[0]/2 || took[1] > took[0]+took[0]/50 {
			t.Errorf("%s: with pacing more than half as much is lost, or bursts take longer", c.name)
		}
	}
}

// In a LAN segments are not paced.
func TestNoPacingInLAN(t *testing.T) {
	b := newBulkWith(t, Config{}, 1, linksim.Rule{Delay: 300 * time.Microsecond}, linksim.Rule{Delay: 300 * time.Microsecond}, 1)
	b.run(5*time.Millisecond, 1)
	if c := b.flows[0].from; c.paceNext != 0 || c.paced || b.flows[0].acked() < 1e5 {
		t.Errorf("paced until %v, %d bytes acknowledged", c.paceNext, b.flows[0].acked())
	}
}

// Two flows share a drop-tail bottleneck fairly. The second begins when the first uses all of it. The
// log says how long the second takes to get 40 %, its share after that, and Jain's index.
func TestFairness(t *testing.T) {
	skipUnderRace(t)
	for _, c := range []struct {
		name     string
		rule     linksim.Rule
		controls []func(int) Congestion
		from, to float64 // the second flow's share of the bottleneck, after five seconds
	}{
		{"two CUBIC, 20 ms", linksim.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two CUBIC, 20 ms, deep", linksim.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 200_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two CUBIC, 2 ms", linksim.Rule{Delay: time.Millisecond, Rate: 100e6, Queue: 50_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two Reno, 20 ms", linksim.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewReno}, 0.4, 0.6},
		{"CUBIC beside Reno, 20 ms", linksim.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewReno, NewCubic}, 0.35, 0.65},
		{"CUBIC beside Reno, 2 ms", linksim.Rule{Delay: time.Millisecond, Rate: 100e6, Queue: 50_000}, []func(int) Congestion{NewReno, NewCubic}, 0.35, 0.65},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBulk(t, 1, c.rule, linksim.Rule{Delay: c.rule.Delay}, 2, c.controls...)
			const interval = 250 * time.Millisecond
			b.run(8*interval, 1)
			last := [2]int{b.flows[0].acked(), b.flows[1].acked()}
			var total [2]float64
			converged := time.Duration(0)
			for i := range 60 {
				b.run(interval, 2)
				var got [2]float64
				for k, f := range b.flows {
					got[k] = float64(f.acked() - last[k])
					last[k] = f.acked()
				}
				if converged == 0 && got[1] >= 0.4*(got[0]+got[1]) {
					converged = time.Duration(i+1) * interval
				}
				if i >= 20 {
					total[0] += got[0]
					total[1] += got[1]
				}
			}
			sum := total[0] + total[1]
			share := total[1] / sum
			use := sum * 8 / (40 * interval.Seconds()) / float64(c.rule.Rate)
			t.Logf("40 %% after %v, then %.0f %%, Jain's index %.3f, %.0f %% of the line used", converged, share*100, sum*sum/2/(total[0]*total[0]+total[1]*total[1]), use*100)
			if share < c.from || share > c.to || use < 0.85 {
				t.Errorf("the second flow has %.0f %% of %.0f %% of the line", share*100, use*100)
			}
		})
	}
}

// bulk is flows from the first host to the second. They send as much as they can, and all data is read
// at once.
type bulk struct {
	net   *network
	flows []*bulkFlow
	buf   []byte
}

// bulkFlow is one flow.
type bulkFlow struct {
	from, to  *Conn
	sent, got int
	quota     int // how many bytes may have been sent; 0: no limit
}

// newBulk makes a network with n flows, whose congestion control is each of congestion in turn. During
// the handshakes the link only delays. rule is for the data, and back for the acknowledgments.
func newBulk(t testing.TB, seed uint64, rule, back linksim.Rule, n int, congestion ...func(int) Congestion) *bulk {
	made := 0
	return newBulkWith(t, Config{NewCongestion: func(mss int) Congestion {
		c := congestion[made%len(congestion)]
		made++
		return c(mss)
	}}, seed, rule, back, n)
}

func newBulkWith(t testing.TB, cfg Config, seed uint64, rule, back linksim.Rule, n int) *bulk {
	b := &bulk{net: newNetwork(t, seed, [2]Config{cfg, {}}), buf: make([]byte, 256<<10)}
	net := b.net
	net.noTrace = true
	net.setLink(linkModel{delay: rule.Delay})
	o := Options{SendBuffer: 8 << 20, ReceiveBuffer: 8 << 20}
	l := net.listen(o)
	for range n {
		from, to := net.connect(l, o)
		b.flows = append(b.flows, &bulkFlow{from: from, to: to})
	}
	for net.step(net.now.add(2 * rule.Delay)) {
	}
	net.impair(0, rule)
	net.impair(1, back)
	return b
}

// run runs the network for d. The first n flows send.
func (b *bulk) run(d time.Duration, n int) {
	net := b.net
	for limit := net.now.add(d); ; {
		for _, f := range b.flows[:n] {
			for f.quota == 0 || f.sent < f.quota {
				p := b.buf
				if f.quota > 0 {
					p = p[:min(len(p), f.quota-f.sent)]
				}
				k, err := f.from.Write(net.now, p)
				if err != nil {
					net.fatalf("%v", err)
				}
				if f.sent += k; k < len(p) {
					break
				}
			}
		}
		if !net.step(limit) {
			return
		}
		for _, f := range b.flows {
			for {
				k, _ := f.to.Read(net.now, b.buf)
				if f.got += k; k == 0 {
					break
				}
			}
		}
	}
}

// acked is how many bytes of a flow have been acknowledged.
func (f *bulkFlow) acked() int { return int(f.from.Info().BytesAcked) }

// The throughput of a bulk transfer is compared with what each kind of link permits. For lossy links
// that is the response function of Reno (Mathis et al., The Macroscopic Behavior of the TCP Congestion
// Avoidance Algorithm, 1997): MSS/RTT * 1.22/sqrt(p). CUBIC has the window of Reno there (RFC 9438,
// section 4.3). With -v it prints the figures.
func TestThroughput(t *testing.T) {
	skipUnderRace(t)
	const ms, mss = time.Millisecond, 1448
	lan := linksim.Rule{Delay: 500 * time.Microsecond, Rate: 200e6}
	path := linksim.Rule{Delay: 10 * ms, Rate: 20e6}
	with := func(r linksim.Rule, f func(r *linksim.Rule)) linksim.Rule { f(&r); return r }
	const full = 0.94 // of the link's rate; less because of slow start
	for _, c := range []struct {
		name      string
		rule      linksim.Rule
		time      time.Duration
		low, high float64 // share of the link's rate; 0: by the response function
		timeouts  int     // at most
	}{
		{"1 ms", lan, 500 * ms, full, 1, 0},
		{"1 ms, 0.1 % loss", with(lan, func(r *linksim.Rule) { r.Loss = 0.001 }), 500 * ms, 0, 0, 2},
		{"1 ms, 1 % loss", with(lan, func(r *linksim.Rule) { r.Loss = 0.01 }), 500 * ms, 0, 0, 2},
		{"1 ms, 5 % loss", with(lan, func(r *linksim.Rule) { r.Loss = 0.05 }), 500 * ms, 0, 0, 4},
		{"20 ms", path, 5 * time.Second, full, 1, 0},
		{"20 ms, 0.1 % loss", with(path, func(r *linksim.Rule) { r.Loss = 0.001 }), 5 * time.Second, 0, 0, 2},
		{"20 ms, 1 % loss", with(path, func(r *linksim.Rule) { r.Loss = 0.01 }), 5 * time.Second, 0, 0, 2},
		{"20 ms, 5 % loss", with(path, func(r *linksim.Rule) { r.Loss = 0.05 }), 5 * time.Second, 0, 0, 4},
		// The queue holds a third of what the path does (50 kB): the link is idle after each loss.
		{"20 ms, queue of 15 kB", with(path, func(r *linksim.Rule) { r.Queue = 15_000 }), 5 * time.Second, 0.8, 1, 0},
		{"20 ms, queue of 1 MB", with(path, func(r *linksim.Rule) { r.Queue = 1_000_000 }), 5 * time.Second, 0.9, 1, 0},
		{"20 ms, 5 % are up to 2 ms late", with(path, func(r *linksim.Rule) { r.Reorder, r.HoldBack = 0.05, 2*ms }), 5 * time.Second, full, 1, 0},
		// Later than RACK's reordering window: recoveries that are undone.
		{"20 ms, 5 % are up to 30 ms late", with(path, func(r *linksim.Rule) { r.Reorder, r.HoldBack = 0.05, 30*ms }), 5 * time.Second, 0.85, 1, 1},
		{"20 ms, bursts of 10, 1 % loss", with(path, func(r *linksim.Rule) { r.Burst = linksim.Burst{Enter: 0.001, Leave: 0.1} }), 5 * time.Second, 0.9, 1, 2},
		// Up for 4 s of 5; the timeout has doubled to 1 s at most when the link is back.
		{"20 ms, down for 1 s after 1 s", with(path, func(r *linksim.Rule) { r.Blackout = linksim.Blackout{After: time.Second, Length: time.Second} }), 5 * time.Second, 0.55, 0.8, 6},
	} {
		capacity := float64(c.rule.Rate) / 8 * c.time.Seconds() // bytes
		if c.high == 0 {
			model := mss / (2 * c.rule.Delay).Seconds() * 1.22 / math.Sqrt(c.rule.Loss) * c.time.Seconds() / capacity
			c.low, c.high = min(0.6*model, full), min(1.35*model, 1)
		}
		for _, control := range []struct {
			name string
			make func(int) Congestion
		}{{"CUBIC", NewCubic}, {"Reno", NewReno}} {
			b := newBulk(t, 1, c.rule, linksim.Rule{Delay: c.rule.Delay}, 1, control.make)
			b.run(c.time, 1)
			f := b.flows[0]
			info, share := f.from.Info(), float64(f.acked())/capacity
			t.Logf("%-31s %-5s %3.0f %% (%3.0f to %3.0f), %3d segments lost, %6d bytes sent again, %d timeouts, %d recoveries, %d undone, %d loss probes", c.name, control.name,
				100*share, 100*c.low, 100*c.high, b.net.lost, info.BytesRetransmitted, info.Timeouts, info.Recoveries,
				b.net.hosts[0].tab.Count(RecoveriesUndone), b.net.hosts[0].tab.Count(LossProbes))
			if share < c.low || share > c.high {
				t.Errorf("%s, %s: %.1f %% of the link, want %.1f to %.1f", c.name, control.name, 100*share, 100*c.low, 100*c.high)
			}
			if int(info.Timeouts) > c.timeouts {
				t.Errorf("%s, %s: %d timeouts, want %d at most", c.name, control.name, info.Timeouts, c.timeouts)
			}
			if lossless := b.net.lost == 0 && c.rule.Reorder == 0; lossless && info.BytesRetransmitted > 0 {
				t.Errorf("%s, %s: %d bytes sent again, none were lost", c.name, control.name, info.BytesRetransmitted)
			}
		}
	}
}

// pick chooses one of several values.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// randomRule is a random rule for one direction, of all that a rule can have.
func randomRule(r *rand.Rand) linksim.Rule {
	rule := linksim.Rule{
		Loss:  pick(r, 0, 0, 0.001, 0.01, 0.05, 0.2),
		Delay: pick(r, 0, 20*time.Microsecond, time.Millisecond, 10*time.Millisecond, 50*time.Millisecond),
	}
	if r.IntN(3) == 0 { // later by a quarter of the delay, by the delay, or by five times the delay
		rule.Reorder, rule.HoldBack = pick(r, 0.02, 0.3, 1), max(rule.Delay, 50*time.Microsecond)*pick[time.Duration](r, 1, 4, 20)/4
	}
	if r.IntN(4) == 0 {
		rule.Jitter = max(rule.Delay, 50*time.Microsecond) / pick[time.Duration](r, 1, 8)
	}
	if r.IntN(4) == 0 {
		rule.Duplicate = pick(r, 0.01, 0.3)
	}
	if r.IntN(5) == 0 {
		rule.Corrupt = pick(r, 0.001, 0.05)
	}
	if r.IntN(5) == 0 {
		rule.Burst = linksim.Burst{Enter: 0.01, Leave: 0.5, Keep: pick(r, 0, 0.3)}
	}
	if r.IntN(3) == 0 {
		rule.Rate, rule.Queue = pick[int64](r, 1e6, 20e6, 500e6), pick(r, 3000, 20_000, 0)
		if r.IntN(3) == 0 {
			rule.MarkAbove = 5000
		}
	}
	if r.IntN(8) == 0 {
		rule.Blackout = linksim.Blackout{After: time.Duration(r.IntN(int(200 * time.Millisecond))), Length: pick(r, 20*time.Millisecond, time.Second, 5*time.Second)}
		if rule.Blackout.Length < 5*time.Second && r.IntN(2) == 0 {
			rule.Blackout.Every = 7 * time.Second // of which no multiple is a minute, the longest timeout
		}
	}
	return rule
}

// Transfers one way, both ways, and of requests and answers, over links with random loss, delay,
// reordering, duplication, corruption, bursts, rate, queue and blackouts, different in each direction,
// with random buffers, options and congestion control.
func TestTransfers(t *testing.T) { eachSeed(t, 100, testTransfers) }

func testTransfers(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 79))
	cfg, o := [2]Config{}, [2]Options{}
	for i := range o {
		cfg[i] = Config{
			NoTimestamps:  r.IntN(5) == 0,
			NoSACK:        r.IntN(5) == 0,
			NoWindowScale: r.IntN(8) == 0,
			NewCongestion: pick(r, nil, nil, NewReno),
		}
		o[i] = Options{
			MTU:           pick(r, 576, 1500, 9000),
			ReceiveBuffer: pick(r, 2048, 16384, 200_000, 1<<20),
			SendBuffer:    pick(r, 2048, 30000, 1<<20),
			Nagle:         r.IntN(6) == 0,
			AdaptiveAck:   r.IntN(3) == 0,
			UserTimeout:   -1,
			KeepAlive:     KeepAlive{Enable: r.IntN(4) == 0, Count: 100},
		}
	}
	net := newNetwork(t, seed, cfg)
	for i := range net.hosts {
		net.hosts[i].memory = Memory(r.IntN(3))
		net.impair(i, randomRule(r))
	}
	apps := [2]*blockingApp{}
	for i := range apps {
		apps[i] = &blockingApp{app: app{h: net.hosts[i], total: r.IntN(pick(r, 100, 10_000, 400_000))}, lends: r.IntN(3) == 0, posts: r.IntN(2) == 0}
	}
	switch r.IntN(3) {
	case 0: // one way
		apps[r.IntN(2)].total = 0
	case 1: // requests and answers
		turn := pick(r, 1, 100, 5000)
		n := 1 + r.IntN(60)
		for _, a := range apps {
			a.turnBytes, a.total = turn, turn*n
		}
	}
	runBlocking(net, apps, o)
}
