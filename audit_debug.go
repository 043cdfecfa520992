//go:build unetdebug

package unet

// Audit lists the number of frames of the segment that each owner has (segment.Audit).
func (h *Host) Audit() (a string) {
	h.stack.Do(func() { a = h.uplinks[0].ep.Audit().String() })
	return a
}
