//go:build !unetdebug

package unet

// Audit is the method that a build with unetdebug has.
func (h *Host) Audit() (a string) {
	h.stack.Do(func() { a = h.uplinks[0].ep.Audit().String() })
	return a
}
