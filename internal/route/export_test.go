package route

// Waiting is how many wait for a neighbour.
func (r *Resolver) Waiting() int {
	r.watch.mu.Lock()
	defer r.watch.mu.Unlock()
	return len(r.watch.waiters)
}
