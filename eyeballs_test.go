package unet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestInterleaveAddressFamilies(t *testing.T) {
	for _, c := range []struct{ list, want []string }{
		{[]string{"fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2", "10.0.0.3"}, []string{"fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2", "10.0.0.3"}},
		{[]string{"10.0.0.1", "fd00::1", "fd00::2"}, []string{"10.0.0.1", "fd00::1", "fd00::2"}},
		{[]string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1", "10.0.0.2"}},
		{nil, nil},
	} {
		var list []netip.AddrPort
		for _, a := range c.list {
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr(a), 80))
		}
		var got []string
		for _, a := range interleave(list) {
			got = append(got, a.Addr().String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v became %v, want %v", c.list, got, c.want)
		}
	}
}

// Each attempt to connect takes some time and fails or succeeds. Checked are the connection that is
// used, when each attempt begins, and which connections are dropped.
func TestDialRace(t *testing.T) {
	type plan struct {
		after time.Duration
		fails bool
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		plans   []plan
		limit   time.Duration // of the context; 0: none
		want    string
		begun   []time.Duration
		dropped []int
	}{
		{"one", []plan{{10 * ms, false}}, 0, "0", []time.Duration{0}, nil},
		{"the first answers in time", []plan{{200 * ms, false}, {1 * ms, false}}, 0, "0", []time.Duration{0}, nil},
		{"the first fails at once", []plan{{1 * ms, true}, {1 * ms, false}}, 0, "1", []time.Duration{0, 1 * ms}, nil},
		{"the first gets no answer", []plan{{10_000 * ms, true}, {1 * ms, false}}, 0, "1", []time.Duration{0, 250 * ms}, nil},
		{"two get no answer", []plan{{10_000 * ms, true}, {10_000 * ms, true}, {1 * ms, false}}, 0, "2", []time.Duration{0, 250 * ms, 500 * ms}, nil},
		{"a failure starts no attempt while another runs", []plan{{10_000 * ms, true}, {1 * ms, true}, {1 * ms, false}}, 0, "2", []time.Duration{0, 250 * ms, 500 * ms}, nil},
		{"the delay begins with the attempt", []plan{{100 * ms, true}, {10_000 * ms, true}, {1 * ms, false}}, 0, "2", []time.Duration{0, 100 * ms, 350 * ms}, nil},
		{"all fail", []plan{{300 * ms, true}, {1 * ms, true}}, 0, "failure 0", []time.Duration{0, 250 * ms}, nil},
		{"two succeed at a time", []plan{{260 * ms, false}, {20 * ms, false}}, 0, "0", []time.Duration{0, 250 * ms}, []int{1}},
		{"the context ends", []plan{{10_000 * ms, true}, {10_000 * ms, true}, {1 * ms, false}}, 300 * ms, "context deadline exceeded", []time.Duration{0, 250 * ms}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if c.limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.limit)
					defer cancel()
				}
				start := time.Now()
				var mu sync.Mutex // guards begun and dropped
				var begun []time.Duration
				var dropped []int
				got, err := race(ctx, len(c.plans), func(ctx context.Context, i int) (int, error) {
					mu.Lock()
					begun = append(begun, time.Since(start))
					mu.Unlock()
					p := c.plans[i]
					if !p.fails && i > 0 && c.dropped != nil { // it succeeds although its context has ended
						time.Sleep(p.after)
						return i, nil
					}
					select {
					case <-time.After(p.after):
					case <-ctx.Done():
						return 0, context.Cause(ctx)
					}
					if p.fails {
						return 0, fmt.Errorf("failure %d", i)
					}
					return i, nil
				}, func(i int) { mu.Lock(); dropped = append(dropped, i); mu.Unlock() })
				synctest.Wait()
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				result := fmt.Sprint(got)
				if err != nil {
					result = err.Error()
				}
				if result != c.want || !slices.Equal(begun, c.begun) || !slices.Equal(dropped, c.dropped) {
					t.Errorf("%s, begun at %v, dropped %v; want %s, %v, %v", result, begun, dropped, c.want, c.begun, c.dropped)
				}
				if c.limit > 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}
