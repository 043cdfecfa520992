package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/transport"
	"github.com/unet-go/unet/bench/internal/workload"
)

func selection() Selection {
	return Selection{
		Bench: workload.OneWay, Transports: []string{"msg", "kernel-udp", "go-udp"},
		Attach: []string{"port", "queue"}, Places: []string{workload.Pair}, Wait: []string{"spin", "block"}, Sizes: []int{64}, Batches: []int{1, 32},
		Rounds: 1, Effort: workload.Effort{N: 10, Limit: time.Second, Window: 64, Credit: 16},
	}
}

func TestFlagsThatDoNotApplyAreNotCombined(t *testing.T) {
	s := selection()
	s.Transports = append(s.Transports, "kernel-udp", "floor")
	all, err := s.Cases()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, c := range all {
		count[c.Transport]++
		tr, err := transport.ByName(c.Bench, c.Transport)
		if err != nil {
			t.Fatal(err)
		}
		if (c.Attach == "none") == tr.Granted {
			t.Errorf("%v: attachment %q", c, c.Attach)
		}
		if !slices.Contains(tr.Waits, c.Wait) {
			t.Errorf("%v: waits by %q", c, c.Wait)
		}
		if c.Batch != 1 && !tr.Batches {
			t.Errorf("%v: in batches", c)
		}
	}
	// msg: attach x wait x batch; floor spins; the kernel has no attachment;
	// go-udp has no batches either.
	for name, want := range map[string]int{"msg": 8, "floor": 4, "kernel-udp": 2, "go-udp": 1} {
		if count[name] != want {
			t.Errorf("%s: %d combinations, want %d", name, count[name], want)
		}
	}
}

// TestPlaces: kernel sockets are measured where endpoints are, and each transport only where it exists. One that was named and is
// measured nowhere is an error.
func TestPlaces(t *testing.T) {
	for want, places := range map[string][]string{
		"msg pair, kernel-udp pair, kernel-udp-mux pair, netstack-udp pair":                                           {workload.Pair},
		"msg crowd, kernel-udp pair, kernel-udp-mux pair, netstack-udp pair":                                          {workload.Crowd},
		"msg local, kernel-udp local, unix local":                                                                     {workload.Local},
		"msg crowd, msg local, kernel-udp pair, kernel-udp local, kernel-udp-mux pair, netstack-udp pair, unix local": {workload.Crowd, workload.Local},
	} {
		s := selection()
		s.Bench, s.Batches, s.Wait, s.Places, s.Attach = workload.RTT, []int{1}, []string{"spin"}, places, []string{"port"}
		s.Transports = []string{transport.Message, transport.KernelUDP, transport.KernelUDPMux, transport.NetstackUDP, transport.Unix}
		all, err := s.Cases()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range all {
			got = append(got, c.Transport+" "+c.Place)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%v: %v, want %s", places, got, want)
		}
	}
	for _, c := range []struct{ transport, attach, place string }{
		{transport.Floor, "queue", workload.Local}, {transport.NetstackTCP, "port", workload.Local}, {transport.KernelUDPMux, "port", workload.Local}, {transport.Unix, "port", workload.Pair}, {transport.GoUnix, "port", workload.Crowd},
	} {
		s := selection()
		s.Named, s.Transports, s.Attach, s.Places = true, []string{transport.KernelUDP, c.transport}, []string{c.attach}, []string{c.place}
		if _, err := s.Cases(); err == nil || !strings.Contains(err.Error(), "transport "+c.transport) || !strings.Contains(err.Error(), "--place "+c.place) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestBadSelectionsNameTheirFlag(t *testing.T) {
	for want, change := range map[string]func(*Selection){
		"unknown transport": func(s *Selection) { s.Transports = []string{"carrier-pigeon"} },
		"attachment":        func(s *Selection) { s.Attach = []string{"glue"} },
		"place":             func(s *Selection) { s.Places = []string{"elsewhere"} },
		"wait mode":         func(s *Selection) { s.Wait = []string{"sleep"} },
		"--size 15":         func(s *Selection) { s.Sizes = []int{64, 15} },
		"--size 1473":       func(s *Selection) { s.Sizes = []int{1473} },
		"--batch 0":         func(s *Selection) { s.Batches = []int{0} },
		"--batch 257":       func(s *Selection) { s.Batches = []int{257} },
		"--rounds":          func(s *Selection) { s.Rounds = 0 },
		"--n":               func(s *Selection) { s.N = 0 },
		"--warm-up":         func(s *Selection) { s.WarmUp = -1 },
		"--limit":           func(s *Selection) { s.Limit = -1 },
		"--transport":       func(s *Selection) { s.Transports = nil },
		"--window":          func(s *Selection) { s.Window = 8 },
		"--window ":         func(s *Selection) { s.Batches = []int{128} },
	} {
		s := selection()
		change(&s)
		if _, err := s.Cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestConnectingIsForTransportsOfTCP(t *testing.T) {
	good := selection()
	good.Bench, good.Transports, good.Batches = workload.Connect, []string{"tcp", "kernel-tcp", "go-tcp"}, []int{1}
	good.Connections, good.Address, good.N, good.WarmUp = 4, workload.Own, 2000, 100
	all, err := good.Cases()
	if err != nil || len(all) != 2*2+2 { // tcp: attach x wait
		t.Fatalf("%d combinations, %v", len(all), err)
	}
	if e := good.Counting(); e.Limit != good.Limit || e.N >= good.N || e.Connections != 4 || e.Address != workload.Own {
		t.Errorf("counting %+v", e)
	}
	for want, change := range map[string]func(*Selection){
		"tcp, kernel-tcp, go-tcp": func(s *Selection) { s.Transports = []string{"tcp", "udp"} },
		"--connections 0":         func(s *Selection) { s.Connections = 0 },
		"--connections 257":       func(s *Selection) { s.Connections = 257 },
		"--n 19901":               func(s *Selection) { s.N = 19_901 },
		"--address":               func(s *Selection) { s.Address = "borrowed" },
	} {
		s := good
		change(&s)
		if _, err := s.Cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestOrderIsARepeatableShuffle(t *testing.T) {
	a, b := Order(20, 1, 1), Order(20, 1, 1)
	if !slices.Equal(a, b) {
		t.Error("the same seed and round gave two orders")
	}
	if slices.Equal(a, Order(20, 1, 2)) || slices.Equal(a, Order(20, 2, 1)) {
		t.Error("another round or seed gave the same order")
	}
	slices.Sort(a)
	for i, v := range a {
		if i != v {
			t.Fatalf("not a permutation: %v", a)
		}
	}
}

func TestCountingIsShorterThanMeasuring(t *testing.T) {
	s := selection()
	s.N, s.Limit, s.WarmUp, s.Rest = 1_000_000, 5*time.Second, 10_000, time.Second
	if c := s.Counting(); c.N >= s.N || c.Limit >= s.Limit || c.WarmUp >= s.WarmUp || c.Rest > 0 {
		t.Errorf("counting %+v of %+v", c, s.Effort)
	}
	for wait, rest := range map[string]time.Duration{"spin": 0, "block": time.Second} {
		if e := s.EffortOf(workload.Case{Wait: wait}); e.Rest != rest || e.N != s.N {
			t.Errorf("who waits by %s: %+v", wait, e)
		}
	}
}

func bulkSelection() Selection {
	return Selection{
		Bench: workload.Bandwidth, Transports: []string{"floor", "tcp", "kernel-tcp", "kernel-tcp"},
		Attach: []string{"port", "queue"}, Places: []string{workload.Pair}, Wait: []string{"spin", "block"},
		Sizes: []int{1, 64 << 10}, Batches: []int{1}, MTUs: []int{1500, 9000}, Rounds: 1, Effort: workload.Effort{N: 1, Limit: time.Second},
	}
}

func TestBulkIsCombinedByMTU(t *testing.T) {
	s := bulkSelection()
	all, err := s.Cases()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, c := range all {
		count[c.Transport]++
		if c.Transport == transport.Floor && c.Size != transport.FloodPayload(c.MTU) {
			t.Errorf("%v: not of full frames", c)
		}
	}
	if e := s.Counting(); !e.Checked || e.Limit >= s.Limit {
		t.Errorf("counting %+v", e)
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
		if _, err := s.Cases(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestOperationsAreCombined(t *testing.T) {
	s := selection()
	s.Bench, s.Transports, s.Wait = workload.RDMA, []string{transport.RCWrite, transport.RCFetchAdd}, []string{"spin"}
	s.Sizes, s.Batches = []int{64, 4096}, []int{1, 32}
	s.Depths = []int{1, 16}
	all, err := s.Cases()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, c := range all {
		count[c.Transport]++
		if c.Batch > c.Depth || c.Transport == transport.RCFetchAdd && c.Size != 8 {
			t.Errorf("%v", c)
		}
	}
	// Lists are 1 of depth 1, and 1 and 16 of depth 16; an atomic has one size.
	if count[transport.RCWrite] != 2*2*3 || count[transport.RCFetchAdd] != 2*3 {
		t.Errorf("%v", count)
	}
	for name, change := range map[string]func(*Selection){
		"no operation": func(s *Selection) { s.Transports = []string{transport.UDP} },
		"--mtu":        func(s *Selection) { s.MTUs = []int{1} },
		"--size":       func(s *Selection) { s.Sizes = []int{0} },
		"--depth 4097": func(s *Selection) { s.Depths = []int{4097} },
	} {
		bad := s
		change(&bad)
		if _, err := bad.Cases(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
