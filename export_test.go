package unet

// Audit says how many frames of the segment each owner has.
func (h *Host) Audit() (a string) {
	h.stack.Do(func() { a = h.ep.Audit().String() })
	return a
}
