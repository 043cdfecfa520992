package tcp

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	firstSeed = flag.Uint64("seed", 0, "the first seed of simulations")
	seedCount = flag.Uint64("seeds", 0, "how many seeds to simulate; 0: as many as the test thinks right")
	soakFor   = flag.Duration("soak", 0, "how long TestSoak runs simulations")
)

// seeded are the tests that use eachSeed.
var seeded = []string{"TestSimulation", "TestTransfers", "TestWakeUps"}

// eachSeed runs f for n seeds, or for those that the flags say, until one fails. There
// is one goroutine, so the race detector only makes it slow: a tenth is enough for it.
func eachSeed(t *testing.T, n uint64, f func(t *testing.T, seed uint64)) {
	if *seedCount > 0 {
		n = *seedCount
	} else if testing.Short() {
		n = max(n/20, 1)
	} else if underRace {
		n = max(n/10, 1)
	}
	for seed := *firstSeed; seed < *firstSeed+n && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { f(t, seed) })
	}
}

// TestSoak runs every seeded test with new seeds for as long as -soak says, in one
// process for each processor, and prints the command that repeats what fails. It is
// what `make soak` runs. Without -seed the first seed comes from the clock.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("for `make soak`")
	}
	s := soak{t: t, start: time.Now(), next: *firstSeed}
	if s.next == 0 {
		s.next = uint64(s.start.Unix()) * 1000
	}
	first := s.next
	fmt.Printf("soak: %v from seed %d, %d processes\n", *soakFor, first, runtime.NumCPU())
	done := make(chan struct{})
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(s.work)
	}
	go func() { workers.Wait(); close(done) }()
	progress := time.NewTicker(30 * time.Second)
	defer progress.Stop()
	for running := true; running; {
		select {
		case <-progress.C:
		case <-done:
			running = false
		}
		s.mu.Lock()
		fmt.Printf("soak: %v of %v, %d seeds from %d, %d findings\n", time.Since(s.start).Round(time.Second), *soakFor, s.ran, first, len(s.findings))
		s.mu.Unlock()
	}
	slices.Sort(s.findings)
	for _, c := range s.findings {
		t.Error(c)
	}
}

// soak is what the workers of TestSoak share.
type soak struct {
	t        *testing.T
	start    time.Time
	mu       sync.Mutex
	next     uint64 // seed
	ran      uint64 // seeds
	findings []string
}

const (
	soakChunk    = 50 // seeds of one process
	soakFindings = 20 // are enough
)

var failedSeed = regexp.MustCompile(`(Test\w+)/(\d+)`)

func (s *soak) work() {
	for {
		s.mu.Lock()
		seed := s.next
		s.next += soakChunk
		over := time.Since(s.start) > *soakFor || len(s.findings) >= soakFindings
		s.mu.Unlock()
		if over {
			return
		}
		for end := seed + soakChunk; seed < end; {
			seed += s.run(seed, end-seed)
		}
	}
}

// run simulates n seeds and returns how many of them it got through: what comes
// behind one that fails is for the next run.
func (s *soak) run(seed, n uint64) uint64 {
	cmd := exec.Command(os.Args[0], "-test.run", "^("+strings.Join(seeded, "|")+")$", "-test.timeout", "10m", "-seed", fmt.Sprint(seed), "-seeds", fmt.Sprint(n))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.ran += n
		return n
	}
	least := seed + n - 1
	found := map[string]bool{}
	for _, m := range failedSeed.FindAllStringSubmatch(string(out), -1) {
		if failed, err := strconv.ParseUint(m[2], 10, 64); err == nil && failed >= seed && failed <= least {
			least = failed
		}
		found[fmt.Sprintf("go test ./proto/tcp -run '^%s$' -seed %s -seeds 1", m[1], m[2])] = true
	}
	if len(found) == 0 { // it has ended before it could say
		found[fmt.Sprintf("go test ./proto/tcp -seed %d -seeds %d: %v", seed, n, err)] = true
	}
	for f := range found {
		if !slices.Contains(s.findings, f) {
			s.findings = append(s.findings, f)
			fmt.Printf("soak: %s\n%s\n", f, lastLines(string(out), 40))
		}
	}
	s.ran += least - seed + 1
	return least - seed + 1
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
