package route

// Waiting is how many wait for a neighbour.
func (r *Resolver) Waiting() int {
	r.watch.mu.Lock()
	defer r.watch.mu.Unlock()
	return len(r.watch.waiters)
}

// DropEvents acts as if the kernel had said that it has dropped events.
func (r *Resolver) DropEvents() { r.watch.news.lost() }

// Probes is how many hops were asked about lately.
func (r *Resolver) Probes() int {
	r.probes.mu.Lock()
	defer r.probes.mu.Unlock()
	return len(r.probes.probed)
}
