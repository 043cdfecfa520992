package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/internal/fate"
)

// TestFairness lets flows share a drop-tail bottleneck: the second begins when the first
// has all of it. It logs how long the second takes to get 40 %, what it has then, and
// Jain's index.
func TestFairness(t *testing.T) {
	oneGoroutine(t)
	for _, c := range []struct {
		name     string
		rule     fate.Rule
		controls []func(int) Congestion
		from, to float64 // of the bottleneck, the second flow's share after it has had time to converge
	}{
		{"two CUBIC, 20 ms", fate.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two CUBIC, 20 ms, deep", fate.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 200_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two CUBIC, 2 ms", fate.Rule{Delay: time.Millisecond, Rate: 100e6, Queue: 50_000}, []func(int) Congestion{NewCubic}, 0.4, 0.6},
		{"two Reno, 20 ms", fate.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewReno}, 0.4, 0.6},
		{"CUBIC beside Reno, 20 ms", fate.Rule{Delay: 10 * time.Millisecond, Rate: 20e6, Queue: 50_000}, []func(int) Congestion{NewReno, NewCubic}, 0.35, 0.65},
		{"CUBIC beside Reno, 2 ms", fate.Rule{Delay: time.Millisecond, Rate: 100e6, Queue: 50_000}, []func(int) Congestion{NewReno, NewCubic}, 0.35, 0.65},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBulk(t, 1, c.rule, fate.Rule{Delay: c.rule.Delay}, 2, c.controls...)
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
