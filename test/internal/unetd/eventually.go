package unetd

import "time"

// Eventually looks until a condition holds, and reports whether it did before
// [Patience] ended.
func Eventually(holds func() bool) bool {
	for deadline := time.Now().Add(Patience); ; time.Sleep(2 * time.Millisecond) {
		if holds() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
