package plan

import (
	"fmt"
	"slices"

	"github.com/unet-go/unet/bench/internal/transport"
)

// MTUs of the network that bandwidth can ask for.
const (
	minMTU = 576
	maxMTU = 9000
)

// FloodBatch is how many frames a flood hands over at once.
const FloodBatch = 64

// bulk is Combinations for bandwidth: each transport with each write size on a network
// of each MTU. A flood has one size, that of full frames.
func (s Selection) bulk() ([]Combination, error) {
	if len(s.MTUs) == 0 {
		return nil, fmt.Errorf("--mtu is empty")
	}
	var all []Combination
	for _, mtu := range s.MTUs {
		if mtu < minMTU || mtu > maxMTU {
			return nil, fmt.Errorf("--mtu %d: want %d to %d bytes", mtu, minMTU, maxMTU)
		}
		for _, name := range s.Transports {
			t, err := transport.BulkByName(name)
			if err != nil {
				return nil, err
			}
			attach, wait, sizes, batch := []string{transport.None}, t.Waits, s.Sizes, 1
			if t.Granted {
				attach = s.Attach
			}
			if len(t.Waits) > 1 {
				wait = s.Wait
			}
			if t.Dial == nil {
				sizes, batch = []int{transport.FloodPayload(mtu)}, FloodBatch
			}
			for _, size := range sizes {
				c := Combination{Bench: s.Bench, Transport: t, Size: size, MTU: mtu}
				for _, c := range product(c, attach, []string{Pair}, wait, []int{batch}) {
					if !slices.ContainsFunc(all, c.same) { // asked for twice
						all = append(all, c)
					}
				}
			}
		}
	}
	return all, nil
}
