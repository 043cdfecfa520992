package fate

import "math"

// Plausible says whether k of n independent events of probability p can be a
// coincidence. It is wrong about a right model at most once in 1e9 times: the
// bound is Chernoff's, 2 exp(-n D(k/n || p)) with D the relative entropy.
func Plausible(k, n uint64, p float64) bool {
	if n == 0 {
		return k == 0
	}
	share := float64(k) / float64(n)
	entropy := func(a, b float64) float64 { // of events that happen in a share a instead of b
		if a == 0 {
			return 0
		}
		return a * math.Log(a/b) // +Inf if b is 0
	}
	return float64(n)*(entropy(share, p)+entropy(1-share, 1-p)) <= math.Log(2e9)
}
