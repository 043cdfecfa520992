//go:build linux && unetdebug

package mempath

// beforeStep is called before each access to a word, or to a bell (nil), for a test that tries all schedules. It is
// set while no path is in use.
var beforeStep func(w *uint64)

func step(w *uint64) {
	if beforeStep != nil {
		beforeStep(w)
	}
}
