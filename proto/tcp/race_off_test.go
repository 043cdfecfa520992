//go:build !race

package tcp

import "testing"

const underRace = false

func oneGoroutine(*testing.T) {}
