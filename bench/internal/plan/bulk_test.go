package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func bulkSelection() Selection {
	return Selection{
		Bench: workload.Bandwidth, Transports: []string{"floor", "tcp", "kernel-tcp", "kernel-tcp"},
		Attach: []string{"port", "queue"}, Places: []string{Pair}, Wait: []string{"spin", "block"},
		Sizes: []int{1, 64 << 10}, Batches: []int{1}, MTUs: []int{1500, 9000}, Rounds: 1, N: 1, Limit: time.Second,
	}
}

func TestBulkIsCombinedByMTU(t *testing.T) {
	s := bulkSelection()
	all, err := s.Combinations()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, c := range all {
		count[c.Transport.Name]++
		if j := s.Job(c); j.MTU != c.MTU || j.Checked {
			t.Errorf("%v: job %+v", c, j)
		}
		if j := s.CountingJob(c); !j.Checked || j.Limit >= s.Limit {
			t.Errorf("%v: counting job %+v", c, j)
		}
		if c.Transport.Name == transport.Floor && c.Size != transport.FloodPayload(c.MTU) {
			t.Errorf("%v: not of full frames", c)
		}
	}
	// tcp: MTU x attach x wait x size; floor spins and has one size; the kernel has no
	// attachment.
	for name, want := range map[string]int{"tcp": 16, "floor": 4, "kernel-tcp": 4} {
		if count[name] != want {
			t.Errorf("%s: %d combinations, want %d", name, count[name], want)
		}
	}
	for want, change := range map[string]func(*Selection){
		"has no transport \"udp\"": func(s *Selection) { s.Transports = []string{"udp"} },
		"--mtu is empty":           func(s *Selection) { s.MTUs = nil },
		"--mtu 9001":               func(s *Selection) { s.MTUs = []int{1500, 9001} },
		"--size 0":                 func(s *Selection) { s.Sizes = []int{0} },
		"--limit":                  func(s *Selection) { s.Limit = 0 },
	} {
		s := bulkSelection()
		change(&s)
		if _, err := s.Combinations(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
