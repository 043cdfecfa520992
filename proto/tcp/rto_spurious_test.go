package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// talk has two hosts exchange messages of n bytes, one at a time, over a link that loses
// nothing. It returns the sums of both tables' counters.
func talk(t *testing.T, cfg Config, o Options, link fate.Rule, rounds, n int) func(Counter) uint64 {
	w := newWorld(t, 1, [2]Config{cfg, cfg})
	for i := range w.hosts {
		w.impair(i, link)
	}
	l, err := w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o})
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*Conn
	conns[0], err = w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o)
	if err != nil {
		t.Fatal(err)
	}
	for conns[1] == nil {
		w.step(Never)
		conns[1] = l.Accept()
	}
	b := make([]byte, 64<<10)
	for k := range 2 * rounds {
		from, to := conns[k%2], conns[1-k%2]
		for sent, got := 0, 0; got < n; {
			if sent < n {
				k, err := from.Write(w.now, b[:min(len(b), n-sent)])
				if err != nil {
					w.fatalf("%v", err)
				}
				sent += k
			}
			from.Flush(w.now)
			w.step(Never)
			for k := -1; k != 0; got += k {
				k, _ = to.Read(w.now, b)
			}
		}
		w.step(w.now + Time(k%7)*Time(time.Millisecond)) // and a while of nothing
	}
	return func(c Counter) uint64 { return w.hosts[0].tab.Count(c) + w.hosts[1].tab.Count(c) }
}

// The least timeout is never too early where nothing is lost: not for a peer that lets
// an acknowledgment wait for less than that, not on long paths, not where round trips
// vary, and not where a queue grows.
func TestNoSpuriousTimeouts(t *testing.T) {
	oneGoroutine(t)
	links := []fate.Rule{
		{Delay: 10 * time.Microsecond},
		{Delay: 100 * time.Microsecond, Jitter: 3 * time.Millisecond},
		{Delay: 2 * time.Millisecond, Jitter: 500 * time.Microsecond},
		{Delay: 25 * time.Millisecond},
		{Delay: 25 * time.Millisecond, Jitter: 2 * time.Millisecond},
		{Delay: 100 * time.Millisecond},
		{Delay: time.Millisecond, Rate: 20e6, Queue: 1 << 22},
		{Delay: 20 * time.Millisecond, Rate: 100e6, Queue: 1 << 22},
	}
	for i, link := range links {
		for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions} {
			for _, delay := range []time.Duration{0, DefaultAckDelay, 4 * time.Millisecond} {
				o := Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20, AdaptiveAck: delay > 0, AckDelay: delay}
				for _, n := range []int{1, 1000, 5000, 200_000} {
					rounds := 30
					if n > 10000 {
						rounds = 3
					}
					name := fmt.Sprintf("link %d, timestamps %t, SACK %t, ACKs after %v, %d bytes", i, !cfg.NoTimestamps, !cfg.NoSACK, delay, n)
					count := talk(t, cfg, o, link, rounds, n)
					again := count(BytesRetransmitted)
					if link.Jitter > link.Delay {
						again = 0 // two round trips, after which a probe goes, may be less than one
					}
					if count(Timeouts)+count(FastRecoveries)+again > 0 {
						t.Errorf("%s: %d timeouts, %d probes, %d recoveries, %d bytes again", name, count(Timeouts), count(LossProbes), count(FastRecoveries), count(BytesRetransmitted))
					}
				}
			}
		}
	}
}

// A peer that lets acknowledgments wait for longer, as Linux does, is sent something
// twice a few times at most.
func TestDelayedAcksAreLearnt(t *testing.T) {
	for _, cfg := range []Config{{}, {NoTimestamps: true}, {NoSACK: true}, noOptions} {
		for _, delay := range []time.Duration{40 * time.Millisecond, 200 * time.Millisecond} {
			o := Options{AdaptiveAck: true, AckDelay: delay}
			count := talk(t, cfg, o, fate.Rule{Delay: 20 * time.Microsecond}, 100, 2900)
			if again := count(Timeouts) + count(LossProbes); again > 14 {
				t.Errorf("timestamps %t, SACK %t, %v: %d timeouts, %d probes", !cfg.NoTimestamps, !cfg.NoSACK, delay, count(Timeouts), count(LossProbes))
			}
		}
	}
}
