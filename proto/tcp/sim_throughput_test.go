package tcp

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

var update = flag.Bool("update", false, "write testdata anew")

// bulk is flows that send as much as they can, from the first host to the second, where
// everything is read at once.
type bulk struct {
	w     *world
	l     *Listener
	flows []*flowUnderTest
	buf   []byte
}

// flowUnderTest is one of them.
type flowUnderTest struct {
	from, to  *Conn
	sent, got int
	quota     int // bytes that may have been sent; 0: as many as possible
}

// newBulk makes a world with n flows between two hosts. congestion is their control, in
// turn. The handshakes find a link that only delays.
func newBulk(t testing.TB, seed uint64, rule, back fate.Rule, n int, congestion ...func(int) Congestion) *bulk {
	made := 0
	return newBulkWith(t, Config{NewCongestion: func(mss int) Congestion {
		c := congestion[made%len(congestion)]
		made++
		return c(mss)
	}}, seed, rule, back, n)
}

func newBulkWith(t testing.TB, cfg Config, seed uint64, rule, back fate.Rule, n int) *bulk {
	b := &bulk{w: newWorld(t, seed, [2]Config{cfg, {}}), buf: make([]byte, 256<<10)}
	w := b.w
	w.quiet = true
	w.link = linkModel{delay: rule.Delay}
	o := Options{SendBuffer: 8 << 20, ReceiveBuffer: 8 << 20}
	var err error
	if b.l, err = w.hosts[1].tab.Listen(AddrPort{Port: 80}, ListenOptions{Options: o}); err != nil {
		t.Fatal(err)
	}
	for range n {
		f := &flowUnderTest{}
		if f.from, err = w.hosts[0].tab.Dial(w.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, o); err != nil {
			t.Fatal(err)
		}
		for f.to == nil {
			w.step(Never)
			f.to = b.l.Accept()
		}
		b.flows = append(b.flows, f)
	}
	for w.step(w.now.add(2 * rule.Delay)) {
	}
	w.impair(0, rule)
	w.impair(1, back)
	return b
}

// run lets the first n flows go on for so long.
func (b *bulk) run(d time.Duration, n int) {
	w := b.w
	for limit := w.now.add(d); ; {
		for _, f := range b.flows[:n] {
			for f.quota == 0 || f.sent < f.quota {
				p := b.buf
				if f.quota > 0 {
					p = p[:min(len(p), f.quota-f.sent)]
				}
				k, err := f.from.Write(w.now, p)
				if err != nil {
					w.fatalf("%v", err)
				}
				if f.sent += k; k < len(p) {
					break
				}
			}
		}
		if !w.step(limit) {
			return
		}
		for _, f := range b.flows {
			for {
				k, _ := f.to.Read(w.now, b.buf)
				if f.got += k; k == 0 {
					break
				}
			}
		}
	}
}

// acked is how many bytes of a flow have been acknowledged.
func (f *flowUnderTest) acked() int { return int(f.from.Info().BytesAcked) }

// TestThroughput pins how fast bulk gets through, interval by interval, over links of
// each kind. What a change of the engine does to it is the difference to the file: look
// at it, and write it anew with
//
//	go test ./proto/tcp -run TestThroughput -update
func TestThroughput(t *testing.T) {
	oneGoroutine(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("another processor may round CUBIC's floats otherwise")
	}
	const ms = time.Millisecond
	lan := fate.Rule{Delay: 500 * time.Microsecond, Rate: 200e6}
	path := fate.Rule{Delay: 10 * ms, Rate: 20e6}
	with := func(r fate.Rule, f func(r *fate.Rule)) fate.Rule { f(&r); return r }
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Bytes acknowledged in each tenth of the time, in units of 1000; then what was lost of what was sent, in segments, how\n"+
		"# much was sent again, timeouts, recoveries, those of them that were undone, and probes. RTT 1 ms is 200 Mb/s for 0.5 s,\n"+
		"# 20 ms is 20 Mb/s for 5 s, unless it says otherwise. Queues hold 150 kB.\n"+
		"%-88s %6s | %4s %6s %4s %4s %4s %5s\n", "# link", "total", "lost", "again", "RTO", "rec", "undo", "probe")
	for _, c := range []struct {
		name string
		rule fate.Rule
		time time.Duration
	}{
		{"1 ms", lan, 500 * ms},
		{"1 ms, 0.1 % loss", with(lan, func(r *fate.Rule) { r.Loss = 0.001 }), 500 * ms},
		{"1 ms, 1 % loss", with(lan, func(r *fate.Rule) { r.Loss = 0.01 }), 500 * ms},
		{"1 ms, 5 % loss", with(lan, func(r *fate.Rule) { r.Loss = 0.05 }), 500 * ms},
		{"20 ms", path, 5 * time.Second},
		{"20 ms, 0.1 % loss", with(path, func(r *fate.Rule) { r.Loss = 0.001 }), 5 * time.Second},
		{"20 ms, 1 % loss", with(path, func(r *fate.Rule) { r.Loss = 0.01 }), 5 * time.Second},
		{"20 ms, 5 % loss", with(path, func(r *fate.Rule) { r.Loss = 0.05 }), 5 * time.Second},
		{"20 ms, queue of 15 kB", with(path, func(r *fate.Rule) { r.Queue = 15_000 }), 5 * time.Second},
		{"20 ms, queue of 1 MB", with(path, func(r *fate.Rule) { r.Queue = 1_000_000 }), 5 * time.Second},
		{"20 ms, 5 % are up to 2 ms late", with(path, func(r *fate.Rule) { r.Reorder, r.HoldBack = 0.05, 2*ms }), 5 * time.Second},
		{"20 ms, 5 % are up to 30 ms late", with(path, func(r *fate.Rule) { r.Reorder, r.HoldBack = 0.05, 30*ms }), 5 * time.Second},
		{"20 ms, bursts of 10, 1 % loss", with(path, func(r *fate.Rule) { r.Burst = fate.Burst{Enter: 0.001, Leave: 0.1} }), 5 * time.Second},
		{"20 ms, down for 1 s after 1 s", with(path, func(r *fate.Rule) { r.Blackout = fate.Blackout{After: time.Second, Length: time.Second} }), 5 * time.Second},
	} {
		for _, control := range []struct {
			name string
			make func(int) Congestion
		}{{"CUBIC", NewCubic}, {"Reno", NewReno}} {
			b := newBulk(t, 1, c.rule, fate.Rule{Delay: c.rule.Delay}, 1, control.make)
			f, last := b.flows[0], 0
			fmt.Fprintf(&out, "%-31s %-5s", c.name, control.name)
			for range 10 {
				b.run(c.time/10, 1)
				fmt.Fprintf(&out, " %4d", (f.acked()-last+500)/1000)
				last = f.acked()
			}
			i, probes := f.from.Info(), b.w.hosts[0].tab.Count(LossProbes)
			fmt.Fprintf(&out, " %7d | %4d %6d %4d %4d %4d %5d\n", (last+500)/1000, b.w.lost, (i.BytesRetransmitted+500)/1000, i.Timeouts, i.Recoveries,
				b.w.hosts[0].tab.Count(RecoveriesUndone), probes)
		}
	}
	golden(t, "throughput.txt", out.Bytes())
}

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := strings.Split(string(want), "\n")
	for i, l := range strings.Split(string(got), "\n") {
		if i >= len(w) || l != w[i] {
			is := ""
			if i < len(w) {
				is = w[i]
			}
			t.Errorf("%s, line %d:\n-%s\n+%s", file, i+1, is, l)
		}
	}
}
