package attack

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/queues"
)

// pokeArg is a value for an index of a ring.
type pokeArg struct {
	Gun   int
	Ring  string // fill, completion, rx or tx
	Index string // producer, consumer or flags
	Value uint32
	Ahead bool // Value is added to what the index is
}

// index finds a ring's.
func (g *gun) index(ring, index string) (*uint32, error) {
	byName := map[string]map[string]*uint32{
		"fill":       {"producer": g.fill.producer, "consumer": g.fill.consumer, "flags": g.fill.flags},
		"completion": {"producer": g.completion.producer, "consumer": g.completion.consumer, "flags": g.completion.flags},
		"rx":         {"producer": g.rx.producer, "consumer": g.rx.consumer, "flags": g.rx.flags},
		"tx":         {"producer": g.tx.producer, "consumer": g.tx.consumer, "flags": g.tx.flags},
	}
	if p := byName[ring][index]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("BUG: no index %s of ring %s", index, ring)
}

// poke writes an index and returns what it was.
var poke = teach("poke", func(a *agent, arg pokeArg) (was uint32, err error) {
	p, err := a.guns[arg.Gun].index(arg.Ring, arg.Index)
	if err != nil {
		return 0, err
	}
	was = atomic.LoadUint32(p)
	if arg.Ahead {
		arg.Value += was
	}
	atomic.StoreUint32(p, arg.Value)
	return was, nil
})

// litterArg is an address for all entries of the fill ring or of the TX ring.
type litterArg struct {
	Gun  int
	Ring string
	Addr uint64
	Len  uint32 // of TX descriptors
}

// litter overwrites all entries of a ring.
var litter = teach("litter", func(a *agent, arg litterArg) (nothing, error) {
	g := a.guns[arg.Gun]
	switch arg.Ring {
	case "fill":
		for i := range g.fill.entries {
			g.fill.entries[i] = arg.Addr
		}
	case "tx":
		for i := range g.tx.entries {
			g.tx.entries[i] = queues.Desc{Addr: arg.Addr, Len: arg.Len}
		}
	default:
		return nothing{}, fmt.Errorf("BUG: ring %s", arg.Ring)
	}
	return nothing{}, nil
})

// kickArg is for how long to kick.
type kickArg struct {
	Gun int
	For time.Duration
}

// kicked is how long the kernel took for kicks, and for how many descriptors.
type kicked struct {
	Kicks int
	Taken uint32
	Worst time.Duration
}

// kickFor kicks again and again, until the ring is empty or time is over.
var kickFor = teach("kick", func(a *agent, arg kickArg) (k kicked, err error) {
	g := a.guns[arg.Gun]
	before := g.tx.pending()
	for end := time.Now().Add(arg.For); time.Now().Before(end) && g.tx.pending() > 0; k.Kicks++ {
		begin := time.Now()
		kick(g.fd)
		k.Worst = max(k.Worst, time.Since(begin))
	}
	k.Taken = before - g.tx.pending()
	return k, nil
})

// ask is XDP_STATISTICS.
var ask = teach("statistics", func(a *agent, arg gunArg) (unix.XDPStatistics, error) {
	return statistics(a.guns[arg.Gun].fd)
})

// starve takes frames off the RX ring and gives none back.
var starve = teach("starve", func(a *agent, arg gunArg) (taken uint32, err error) {
	g := a.guns[arg.Gun]
	taken = g.rx.pending()
	atomic.StoreUint32(g.rx.consumer, atomic.LoadUint32(g.rx.producer))
	return taken, nil
})

// feed puts all frames of the lower half of the segment on the fill ring, as many
// as fit.
var feed = teach("feed", func(a *agent, arg gunArg) (nothing, error) {
	g := a.guns[arg.Gun]
	for i := g.fill.pending(); i < g.fill.size(); i++ {
		at := atomic.LoadUint32(g.fill.producer)
		*g.fill.at(at) = uint64(at%g.grant.Geometry.Prefilled()) * uint64(g.grant.Geometry.FrameSize)
		atomic.StoreUint32(g.fill.producer, at+1)
	}
	return nothing{}, nil
})

// scramble writes random numbers over all indices, again and again, until the
// agent rests. It kicks in between.
var scramble = teach("scramble", func(a *agent, arg scrambleArg) (nothing, error) {
	g := a.guns[arg.Gun]
	random := rand.New(rand.NewPCG(arg.Seed, 1))
	a.begin(func(stop <-chan struct{}) error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			for _, ring := range arg.Rings {
				for _, index := range []string{"producer", "consumer", "flags"} {
					p, err := g.index(ring, index)
					if err != nil {
						return err
					}
					// Near where it is: far away is what other cases do.
					atomic.StoreUint32(p, atomic.LoadUint32(p)+random.Uint32N(4096)-2048)
				}
			}
			kick(g.fd)
		}
	})
	return nothing{}, nil
})

type scrambleArg struct {
	Gun   int
	Rings []string
	Seed  uint64
}
