package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// transfer is bulk one way over a link that loses, and what came of it.
type transfer struct {
	elapsed                time.Duration
	timeouts, fast, undone uint64
	retransmitted, lost    uint64 // bytes, and segments with text
}

// runTransfer sends n bytes as fast as the windows allow to a reader that always
// reads.
func runTransfer(t *testing.T, seed uint64, cfg Config, link linkModel, n int) transfer {
	w := newWorld(t, seed, [2]Config{cfg, cfg})
	o := Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20}
	l, err := w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	a, err := w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o)
	if err != nil {
		t.Fatal(err)
	}
	w.link = linkModel{delay: link.delay}
	var b *Conn
	for b == nil {
		w.step(Never)
		b = l.Accept()
	}
	w.link = link
	start := w.now
	sent, got := 0, 0
	p, to := make([]byte, 64<<10), make([]byte, 64<<10)
	for got < n {
		for sent < n {
			for i := range p {
				p[i] = pattern(0, sent+i)
			}
			k, err := a.Write(w.now, p[:min(len(p), n-sent)])
			if err != nil {
				w.fatalf("%v", err)
			}
			if sent += k; k < len(p) {
				break
			}
		}
		w.step(Never)
		for {
			k, _ := b.Read(w.now, to)
			if k == 0 {
				break
			}
			for i, x := range to[:k] {
				if x != pattern(0, got+i) {
					w.fatalf("byte %d", got+i)
				}
			}
			got += k
		}
		if w.now > start.add(time.Hour) {
			w.fatalf("%d of %d bytes after an hour", got, n)
		}
	}
	tab := w.hosts[0].tab
	return transfer{elapsed: time.Duration(w.now - start), timeouts: tab.Count(Timeouts), fast: tab.Count(FastRecoveries),
		undone: tab.Count(RecoveriesUndone), retransmitted: tab.Count(BytesRetransmitted), lost: w.lost}
}

// Loss in the middle of a stream is found and repaired without a timeout, and little
// is sent again that had arrived.
func TestLossWithoutTimeouts(t *testing.T) {
	oneGoroutine(t)
	const n = 2 << 20
	for _, c := range []struct {
		name     string
		link     linkModel
		cfg      Config
		timeouts uint64
	}{
		{"1%, LAN", linkModel{loss: 0.01, delay: 20 * time.Microsecond}, Config{}, 0},
		{"1%, 1 ms", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, 0},
		{"0.1%, 20 ms", linkModel{loss: 0.001, delay: 10 * time.Millisecond}, Config{}, 0},
		{"5%, 20 ms", linkModel{loss: 0.05, delay: 10 * time.Millisecond}, Config{}, 6},
		{"1%, no timestamps", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NoTimestamps: true}, 0},
		{"1%, no SACK", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NoSACK: true}, 1},
		{"Reno", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{NewCongestion: NewReno}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(20) {
				r := runTransfer(t, seed, c.cfg, c.link, n)
				if r.timeouts > c.timeouts || r.retransmitted > (r.lost+4+r.lost/20)*1460 || r.lost > 4 && r.fast == 0 {
					t.Errorf("seed %d: %+v", seed, r)
				}
			}
		})
	}
}

// Reordering of less than a quarter of a round trip costs next to nothing, and what is
// taken for loss is taken back.
func TestReorderingIsNotLoss(t *testing.T) {
	oneGoroutine(t)
	for _, c := range []struct {
		jitter time.Duration
		fast   uint64
	}{{100 * time.Microsecond, 1}, {2 * time.Millisecond, 1000}} {
		for seed := range uint64(5) {
			r := runTransfer(t, seed, Config{}, linkModel{delay: 2 * time.Millisecond, jitter: c.jitter}, 2<<20)
			if r.timeouts > 0 || r.fast > c.fast || r.undone+1 < r.fast {
				t.Errorf("jitter %v, seed %d: %+v", c.jitter, seed, r)
			}
		}
	}
}

// TestNothingIsUndoneInVain: where segments are lost and neither late nor doubled, and
// acknowledgments arrive, each recovery was needed, also one that begins while what the
// one before has sent again is on its way.
func TestNothingIsUndoneInVain(t *testing.T) {
	for seed := range uint64(20) {
		rule := fate.Rule{Delay: 20 * time.Millisecond, Rate: 300e6, Loss: 0.01}
		b := newBulk(t, seed, rule, fate.Rule{Delay: rule.Delay}, 1, NewCubic)
		b.run(5*time.Second, 1)
		tab := b.w.hosts[0].tab
		if tab.Count(FastRecoveries) == 0 || tab.Count(RecoveriesUndone) != 0 {
			t.Errorf("seed %d: %d of %d recoveries were undone", seed, tab.Count(RecoveriesUndone), tab.Count(FastRecoveries))
		}
	}
}
