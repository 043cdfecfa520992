package verbs

// Waiting is how many requests wait for Accept.
func (l *Listener) Waiting() int {
	l.ctx.port.Lock()
	defer l.ctx.port.Unlock()
	return len(l.requests)
}
