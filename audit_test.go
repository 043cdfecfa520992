//go:build !unetdebug

package unet

// Audit is as with unetdebug.
func (h *Host) Audit() (a string) {
	h.stack.Do(func() { a = h.ep.Audit().String() })
	return a
}
