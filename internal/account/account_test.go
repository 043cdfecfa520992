package account

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// of makes a list of counters.
func of(values map[string]uint64) (list []endpoint.Counter) {
	for name, v := range values {
		list = append(list, endpoint.Counter{Name: name, Value: v})
	}
	return list
}

// The outcome of each counter of the programs is the one that its description says, and the counters that are
// compared exist.
func TestOutcomesMatchDescriptions(t *testing.T) {
	var names []string
	for i := range bpf.NumCounters {
		name, help := bpf.CounterName(bpf.Counter(i)), bpf.CounterHelp(bpf.Counter(i))
		names = append(names, name)
		f, ok := OutcomeOf(name)
		if !ok {
			t.Errorf("%s has no outcome", name)
		}
		want := Redirected
		switch {
		case strings.HasPrefix(name, "lost_"):
			want = Lost
		case strings.Contains(help, ": dropped"):
			want = Dropped
		case strings.Contains(help, ": left to the kernel"):
			want = Passed
		case strings.Contains(help, "segments it"):
			want = Cut
		}
		if f != want {
			t.Errorf("%s is %s, and its description says %q", name, f, help)
		}
	}
	for _, name := range slices.Concat(inFrom, outFrom) {
		if !slices.Contains(names, name) {
			t.Errorf("counter %s does not exist", name)
		}
	}
	for _, name := range []string{"lease_granted", "lost_deliver_backlog.7", "other"} {
		if f, ok := OutcomeOf(name); ok {
			t.Errorf("%s has outcome %s", name, f)
		}
	}
}

func TestCheckAndTotals(t *testing.T) {
	list := of(map[string]uint64{
		"rx_port": 100, "rx_host": 10, "tx_local": 20, "rx_pass": 7, "rx_fragment": 3, "rx_queue": 50, "rx_cut": 2, "rx_group": 8,
		"deliver_socket": 118, "deliver_too_long": 5, "lost_deliver_backlog": 6, "lost_deliver_backlog.3": 6, "lost_uplink_redirect": 4,
		"lost_deliver_redirect": 40, // after deliver_socket, so not lost on the way to the port
		"lease_granted":         9,
	})
	b := Check(list)
	if b.In != 138 || b.Out != 133 || b.Missing() != 5 {
		t.Errorf("%+v", b)
	}
	totals := Totals(list)
	if rx := totals[0]; rx.Stage != "rx" || rx.Frames != 172 || rx.Of[Redirected] != 160 || rx.Of[Passed] != 7 || rx.Of[Dropped] != 3 || rx.Of[Cut] != 2 {
		t.Errorf("%+v", rx)
	}
	if lost := totals[len(totals)-1]; lost.Frames != 50 {
		t.Errorf("%+v", lost)
	}
}

// Settle distinguishes frames on their way from lost ones.
func TestSettle(t *testing.T) {
	in := func(in, out uint64) []endpoint.Counter {
		return of(map[string]uint64{"rx_port": in, "deliver_socket": out})
	}
	for _, c := range []struct {
		name    string
		read    func(n uint64) []endpoint.Counter
		missing int64
		moving  bool
		within  time.Duration
	}{
		{"at rest", func(uint64) []endpoint.Counter { return in(5, 5) }, 0, false, 0},
		{"on their way", func(n uint64) []endpoint.Counter { return in(9, min(3+n, 9)) }, 0, false, 6 * settlePause},
		{"lost", func(n uint64) []endpoint.Counter { return in(9, 8) }, 1, false, settleQuiet * settlePause},
		{"too many", func(n uint64) []endpoint.Counter { return in(8, 11) }, -3, false, settleQuiet * settlePause},
		{"moving, and 4 lost", func(n uint64) []endpoint.Counter { return in(100+10*n, 96+10*n-3*(n%4)) }, 4, true, settleReads * settlePause},
	} {
		synctest.Test(t, func(t *testing.T) {
			var n uint64
			begin := time.Now()
			v, err := Settle(t.Context(), func() ([]endpoint.Counter, error) { n++; return c.read(n - 1), nil })
			if err != nil || v.Moving != c.moving || v.Missing() != c.missing || v.Balanced() != (c.missing == 0) || time.Since(begin) > c.within {
				t.Errorf("%s: %+v, %v, after %v", c.name, v, err, time.Since(begin))
			}
		})
	}
	broken := errors.New("broken")
	if _, err := Settle(t.Context(), func() ([]endpoint.Counter, error) { return nil, broken }); err != broken {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := Settle(ctx, func() ([]endpoint.Counter, error) { return in(1, 0), nil }); err != broken {
		t.Errorf("%v", err)
	}
}

func TestProven(t *testing.T) {
	in := func(in, out uint64) []endpoint.Counter {
		return of(map[string]uint64{"rx_port": in, "deliver_socket": out})
	}
	for _, c := range []struct {
		first, second []endpoint.Counter
		want          int64
	}{
		{in(5, 5), in(5, 5), 0},
		{in(9, 8), in(9, 8), 1},
		{in(8, 11), in(8, 11), -3},
		{in(100, 120), in(200, 220), 0}, // out was read later than in
		{in(120, 100), in(220, 200), 0}, // in was read later than out
		{in(100, 80), in(110, 90), 10},  // of 20, 10 have arrived since
		{in(100, 150), in(120, 170), -30},
	} {
		if got := Proven(c.first, c.second); got != c.want {
			t.Errorf("%v, %v: %d, want %d", c.first, c.second, got, c.want)
		}
	}
}
