//go:build linux

package route

// Waiting is the number of waiters for neighbours.
func (r *Resolver) Waiting() int {
	r.watch.mu.Lock()
	defer r.watch.mu.Unlock()
	return len(r.watch.waiters)
}

// DropEvents acts as if the kernel had reported lost events.
func (r *Resolver) DropEvents() { r.watch.notifier.lost() }

// Probes is the number of hops with a noted probe.
func (r *Resolver) Probes() int {
	r.probes.probed.mu.Lock()
	defer r.probes.probed.mu.Unlock()
	return len(r.probes.probed.at)
}
