// Package soak runs seeded tests for a long time, and prints the command that repeats what
// fails. Only tests import it: it defines the flags -seed, -seeds and -soak.
package soak

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
	seedCount = flag.Uint64("seeds", 0, "how many seeds to simulate; 0: the number that the test has")
	soakFor   = flag.Duration("soak", 0, "how long TestSoak runs simulations")
)

// EachSeed runs f for n seeds, a twentieth with -short, or for those that the flags say, until
// one fails. Each is a subtest with the seed as its name.
func EachSeed(t *testing.T, n uint64, f func(t *testing.T, seed uint64)) {
	if *seedCount > 0 {
		n = *seedCount
	} else if testing.Short() {
		n = max(n/20, 1)
	}
	for seed := *firstSeed; seed < *firstSeed+n && !t.Failed(); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { f(t, seed) })
	}
}

// Run runs the named tests, which use EachSeed, with new seeds for as long as -soak says, in one
// process for each processor. pkg is the path of their package, for the command that
// repeats what fails. Without -seed the first seed comes from the clock; without -soak the
// test is skipped.
func Run(t *testing.T, pkg string, tests ...string) {
	if *soakFor == 0 {
		t.Skip("for `make soak`")
	}
	s := soak{pkg: pkg, tests: pattern(tests), start: time.Now(), next: *firstSeed}
	if s.next == 0 {
		s.next = uint64(s.start.Unix()) * 1000
	}
	if none := missing(t, tests); len(none) > 0 {
		t.Fatalf("package %s has no tests of these names: %v", pkg, none)
	}
	first := s.next
	fmt.Printf("soak: %s, %v from seed %d, %d processes\n", pkg, *soakFor, first, runtime.NumCPU())
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

// pattern is the argument of -test.run that selects these tests.
func pattern(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// missing returns those of the tests that this binary does not have. A process that is told to run
// them would run nothing and not fail.
func missing(t *testing.T, tests []string) []string {
	t.Helper()
	out, err := exec.Command(os.Args[0], "-test.list", pattern(tests)).Output()
	if err != nil {
		t.Fatal("list tests:", err)
	}
	has := strings.Fields(string(out))
	return slices.DeleteFunc(slices.Clone(tests), func(name string) bool { return slices.Contains(has, name) })
}

// soak is what the workers share.
type soak struct {
	pkg   string
	tests string
	start time.Time
	mu    sync.Mutex
	// +checklocks:mu
	next uint64 // seed
	// +checklocks:mu
	ran      uint64   // seeds
	findings []string // +checklocks:mu
}

const (
	chunk       = 50 // seeds of one process
	maxFindings = 20 // are enough
)

var failedSeed = regexp.MustCompile(`(Test\w+)/(\d+)`)

func (s *soak) work() {
	for {
		s.mu.Lock()
		seed := s.next
		s.next += chunk
		over := time.Since(s.start) > *soakFor || len(s.findings) >= maxFindings
		s.mu.Unlock()
		if over {
			return
		}
		s.runChunk(seed)
	}
}

// runChunk simulates a chunk of seeds, in more than one process if seeds fail.
func (s *soak) runChunk(seed uint64) {
	for end := seed + chunk; seed < end; {
		seed += s.run(seed, end-seed)
	}
}

// run simulates n seeds and returns how many have ended. After a failure it leaves the seeds that
// follow to the next run.
func (s *soak) run(seed, n uint64) uint64 {
	cmd := exec.Command(os.Args[0], "-test.run", s.tests, "-test.timeout", "10m", "-seed", fmt.Sprint(seed), "-seeds", fmt.Sprint(n))
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
		found[fmt.Sprintf("go test %s -run '^%s$' -seed %s -seeds 1", s.pkg, m[1], m[2])] = true
	}
	if len(found) == 0 { // the output names no test and seed
		found[fmt.Sprintf("go test %s -seed %d -seeds %d: %v", s.pkg, seed, n, err)] = true
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
