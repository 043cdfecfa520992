//go:build linux

package mux

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/unet-go/unet/bpf"
)

// slots are the places of ports' sockets in their map. They are used in turn, from a random one on, so that a freed
// slot is not used again soon.
type slots struct {
	mu    sync.Mutex
	taken map[uint32]bool // +checklocks:mu
	next  uint32          // +checklocks:mu
}

func newSlots() slots { return slots{taken: map[uint32]bool{}, next: rand.Uint32N(bpf.MaxPorts)} }

// take reserves a slot.
func (s *slots) take() (uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range bpf.MaxPorts {
		slot := s.next
		s.next = (slot + 1) % bpf.MaxPorts
		if !s.taken[slot] {
			s.taken[slot] = true
			return slot, nil
		}
	}
	return 0, fmt.Errorf("%w: %d", ErrTooManyPorts, bpf.MaxPorts)
}

// adopt reserves the slot of a socket of another process.
func (s *slots) adopt(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[slot] = true
}

// free undoes take.
func (s *slots) free(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.taken, slot)
}
