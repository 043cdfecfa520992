//go:build linux

package capture

import (
	"cmp"
	"slices"

	"github.com/unet-go/unet/bpf"
)

// A window holds packets back for a while: each processor has a perf buffer of its own, so packets come out of
// order; and what an endpoint sends is captured before the program of its port judges it.
type window struct {
	packets []Packet
	sent    map[int]int // by processor: the last packet at a port that can still be dropped, in packets, plus 1
}

const (
	windowTime  = 50_000_000 // ns that a packet is held back
	windowLimit = 8192       // packets
)

func newWindow() *window { return &window{sent: map[int]int{}} }

// add adds a packet. If it was captured at its port before, and was dropped afterwards, it adds why to that. A
// processor handles one frame at a time, so it was the last one. (The kernel may have copied it meanwhile.)
func (w *window) add(p Packet) {
	if p.counter == noCounter {
		w.packets = append(w.packets, p)
		if p.place == bpf.CaptureUnetPlaceUNET_PLACE_PORT {
			w.sent[p.cpu] = len(w.packets)
		}
		return
	}
	if i := w.sent[p.cpu]; i > 0 && w.packets[i-1].ifindex == p.ifindex && bpf.OfPort(bpf.Counter(p.counter)) {
		w.packets[i-1].Comment = p.Comment
	} else {
		w.packets = append(w.packets, p)
	}
	delete(w.sent, p.cpu)
}

// take returns, in order, the packets that were captured at least windowTime before now, and some more if
// there are too many.
func (w *window) take(now uint64) []Packet {
	if len(w.packets) == 0 {
		return nil
	}
	slices.SortStableFunc(w.packets, func(a, b Packet) int { return cmp.Compare(a.at, b.at) })
	n, _ := slices.BinarySearchFunc(w.packets, now, func(p Packet, now uint64) int {
		if p.at+windowTime <= now {
			return -1
		}
		return 1
	})
	n = max(n, len(w.packets)-windowLimit/2)
	out := slices.Clone(w.packets[:n])
	w.packets = slices.Delete(w.packets, 0, n)
	clear(w.sent)
	for i, p := range w.packets {
		if p.place == bpf.CaptureUnetPlaceUNET_PLACE_PORT && p.Comment == "" {
			w.sent[p.cpu] = i + 1
		}
	}
	return out
}
