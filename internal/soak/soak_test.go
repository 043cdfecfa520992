package soak

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// failingSeeds is the environment variable with the seeds for which TestSeeds fails.
const failingSeeds = "SOAK_FAILING_SEEDS"

// TestSeeds is run by the processes of TestRunChunk. Otherwise it does not fail.
func TestSeeds(t *testing.T) {
	fail := strings.Fields(os.Getenv(failingSeeds))
	EachSeed(t, 3, func(t *testing.T, seed uint64) {
		if slices.Contains(fail, fmt.Sprint(seed)) {
			t.Error("this seed is one of", failingSeeds)
		}
	})
}

// Each seed that fails is found once, with the command that repeats it, and all seeds are run.
func TestRunChunk(t *testing.T) {
	for _, c := range []struct {
		fail string
		want []string
	}{
		{"", nil},
		{"7", nil}, // not in the chunk
		{"1000", []string{"1000"}},
		{"1003 1004 1049", []string{"1003", "1004", "1049"}},
	} {
		t.Setenv(failingSeeds, c.fail)
		s := soak{pkg: "./internal/soak", tests: pattern([]string{"TestSeeds"})}
		s.runChunk(1000)
		var want []string
		for _, seed := range c.want {
			want = append(want, "go test ./internal/soak -run '^TestSeeds$' -seed "+seed+" -seeds 1")
		}
		if !slices.Equal(s.findings, want) {
			t.Errorf("seeds %q fail: findings %q, want %q", c.fail, s.findings, want)
		}
		if s.ran != chunk {
			t.Errorf("seeds %q fail: %d seeds have run, want %d", c.fail, s.ran, chunk)
		}
	}
}

// A process that fails without the name of a test and a seed is found too, with the command that
// repeats all its seeds.
func TestRunWithoutSeedInOutput(t *testing.T) {
	s := soak{pkg: "./internal/soak", tests: "("} // not a regular expression
	if n := s.run(1000, 5); n != 5 {
		t.Errorf("%d seeds have ended, want 5", n)
	}
	const want = "go test ./internal/soak -seed 1000 -seeds 5: "
	if len(s.findings) != 1 || !strings.HasPrefix(s.findings[0], want) {
		t.Errorf("findings %q, want one that begins with %q", s.findings, want)
	}
}

func TestMissing(t *testing.T) {
	if got := missing(t, []string{"TestSeeds", "TestSeed", "TestMissing"}); !slices.Equal(got, []string{"TestSeed"}) {
		t.Errorf("missing tests %q, want TestSeed", got)
	}
}

// EachSeed runs the seeds that the flags say, and no more after one that fails.
func TestEachSeed(t *testing.T) {
	first, count := *firstSeed, *seedCount
	defer func() { *firstSeed, *seedCount = first, count }()
	*firstSeed, *seedCount = 20, 4
	var seeds []uint64
	EachSeed(t, 100, func(_ *testing.T, seed uint64) { seeds = append(seeds, seed) })
	if want := []uint64{20, 21, 22, 23}; !slices.Equal(seeds, want) {
		t.Errorf("seeds %d, want %d", seeds, want)
	}
	*firstSeed, *seedCount = 5, 0
	seeds = nil
	EachSeed(t, 40, func(_ *testing.T, seed uint64) { seeds = append(seeds, seed) })
	want := 40
	if testing.Short() {
		want = 2
	}
	if len(seeds) != want || seeds[0] != 5 {
		t.Errorf("%d seeds from %d on, want %d from 5 on", len(seeds), seeds[0], want)
	}
}
