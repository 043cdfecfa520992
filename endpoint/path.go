package endpoint

import (
	"errors"
	"os"
)

// ErrNoPath is wrapped by the errors of a lease that has no memory path to an endpoint, now or ever. The text says why.
var ErrNoPath = errors.New("no memory path")

// Path is one end of a memory path: memory through which two endpoints of a mux exchange
// frames. Package internal/mempath makes and uses it.
type Path struct {
	ID        uint64   `json:"id"`         // random: no other path of the endpoint has it, also none of a later unetd
	Peer      uint64   `json:"peer"`       // ID of the endpoint at the other end
	Epoch     uint64   `json:"epoch"`      // of this endpoint in the tag table when the path was made; the path ends when it changes
	PeerEpoch uint64   `json:"peer_epoch"` // the same of the other endpoint
	Own       *os.File `json:"-"`          // memory that this end writes: its indices and the ring to the other end
	Other     *os.File `json:"-"`          // memory that the other end writes; read-only
	Ring      *os.File `json:"-"`          // wakes the other end: the write end of a pipe
	Bell      *os.File `json:"-"`          // the other end wakes this one by it: the read end of a pipe
}

// Close closes the descriptors. mempath.Open takes them over.
func (p *Path) Close() error {
	var errs []error
	for _, f := range []*os.File{p.Own, p.Other, p.Ring, p.Bell} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
