//go:build linux

package attack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/queues"
)

// gun is an endpoint that an attacker uses directly: the descriptors that it was granted, and
// its memory, without package datapath.
type gun struct {
	grant *endpoint.Grant
	lease *control.Lease
	fd    int // of grant.XSK
	mem   []byte
	rings

	next uint32 // frame of the segment to send from
}

// openArg describes an endpoint to request at unetd's socket.
type openArg struct {
	Socket  string
	Request endpoint.Request
}

// timeout bounds an agent's requests to unetd.
func timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), tripTimeout)
}

// granted describes an agent's endpoint to the test.
type granted struct {
	Gun      int // number of the endpoint in the agent
	ID       uint64
	Geometry endpoint.Geometry
	Identity endpoint.Identity
	Tags     []endpoint.Tag
}

var openGun = teach("open", func(a *agent, arg openArg) (granted, error) {
	ctx, cancel := timeout()
	defer cancel()
	grant, lease, err := control.Open(ctx, arg.Socket, arg.Request)
	if err != nil {
		return granted{}, err
	}
	g := &gun{grant: grant, lease: lease, fd: int(grant.XSK.Fd())}
	if g.rings, err = mapRings(g.fd, grant.Geometry); err != nil {
		return granted{}, err
	}
	g.mem, err = unix.Mmap(int(grant.Segment.Fd()), 0, int(grant.Geometry.SegmentSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return granted{}, os.NewSyscallError("mmap of the segment", err)
	}
	g.next = grant.Geometry.Prefilled()
	a.guns = append(a.guns, g)
	return granted{len(a.guns) - 1, grant.ID, grant.Geometry, grant.Identity, grant.Tags}, nil
})

// shot is a frame, and where it is cut into descriptors.
type shot struct {
	Frame []byte `json:"f"`
	Cuts  []int  `json:"c,omitempty"`
}

type fireArg struct {
	Gun   int
	Shots []shot
}

// fired counts what happened to frames, as far as their sender can see it.
type fired struct {
	Frames  uint64 // that the kernel took off the ring
	Refused uint64 // descriptors that it found invalid
	Errno   string // of a kick that failed
}

// frame is the memory of the next frame to send from. Frames are used in turn, so that no
// descriptor on the ring refers to it. Frames for the fill ring are not used.
func (g *gun) frame() (addr uint64, mem []byte) {
	geo := g.grant.Geometry
	addr = uint64(g.next) * uint64(geo.FrameSize)
	if g.next++; g.next == geo.FrameCount {
		g.next = geo.Prefilled()
	}
	return addr, g.mem[addr : addr+uint64(geo.FrameSize)]
}

// load puts a frame on the TX ring, in one descriptor for each of its parts. It does not submit them.
func (g *gun) load(at uint32, s shot) (descs uint32) {
	from := 0
	for i := range len(s.Cuts) + 1 {
		to, options := len(s.Frame), uint32(0)
		if i < len(s.Cuts) {
			to, options = s.Cuts[i], queues.Continued
		}
		addr, mem := g.frame()
		copy(mem, s.Frame[from:to])
		*g.tx.at(at + descs) = queues.Desc{Addr: addr, Len: uint32(to - from), Options: options}
		from = to
		descs++
	}
	return descs
}

// stuck is how long the kernel may leave descriptors on the TX ring.
const stuck = 10 * time.Second

// flush kicks until the kernel has taken all that was submitted, and takes the completions.
func (g *gun) flush() error {
	for deadline := time.Now().Add(stuck); ; {
		errno := kick(g.fd)
		g.reap()
		switch {
		case errno != 0 && errno != unix.EAGAIN && errno != unix.EBUSY && errno != unix.ENOBUFS && errno != unix.EINTR:
			return os.NewSyscallError("sendto", errno)
		case g.tx.pending() == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the kernel leaves %d descriptors on the TX ring", g.tx.pending())
		}
	}
}

func (g *gun) reap() {
	atomic.StoreUint32(g.completion.consumer, atomic.LoadUint32(g.completion.producer))
}

// fire sends frames, a ring at a time.
var fire = teach("fire", func(a *agent, arg fireArg) (result fired, err error) {
	return a.guns[arg.Gun].fire(func(yield func(shot) bool) {
		for _, s := range arg.Shots {
			if !yield(s) {
				return
			}
		}
	})
})

func (g *gun) fire(shots func(func(shot) bool)) (result fired, err error) {
	before, err := statistics(g.fd)
	if err != nil {
		return result, err
	}
	at := atomic.LoadUint32(g.tx.producer)
	loaded := uint32(0)
	submit := func() error {
		at += loaded
		loaded = 0
		atomic.StoreUint32(g.tx.producer, at)
		return g.flush()
	}
	for s := range shots {
		if loaded+uint32(len(s.Cuts))+1 > g.tx.size() {
			if err = submit(); err != nil {
				break
			}
		}
		loaded += g.load(at+loaded, s)
		result.Frames++
	}
	if err == nil {
		err = submit()
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		result.Errno, err = unix.ErrnoName(errno), nil
	}
	after, statErr := statistics(g.fd)
	result.Refused = after.Tx_invalid_descs - before.Tx_invalid_descs
	return result, errors.Join(err, statErr)
}

// sweepArg is a frame in which a number, big-endian, takes all values of a range.
type sweepArg struct {
	Gun         int
	Frame       []byte
	At, Bytes   int
	First, Last uint64
	Legal       [][2]uint64 // the values with which the frame may leave
}

// sweep sends a frame once for each value.
var sweep = teach("sweep", func(a *agent, arg sweepArg) (fired, error) {
	return a.guns[arg.Gun].fire(func(yield func(shot) bool) {
		for v := arg.First; v <= arg.Last; v++ {
			for i := range arg.Bytes {
				arg.Frame[arg.At+i] = byte(v >> (8 * (arg.Bytes - 1 - i)))
			}
			verdict := forged
			for _, r := range arg.Legal {
				if v >= r[0] && v <= r[1] {
					verdict = legal
				}
			}
			stamp(arg.Frame, verdict)
			if !yield(shot{Frame: arg.Frame}) {
				return
			}
		}
	})
})

// received counts the frames that a gun has received, by their marks.
type received struct {
	Frames int
	Bytes  int
}

type gunArg struct{ Gun int }

// drain takes all frames off the RX ring and gives their memory back.
var drain = teach("drain", func(a *agent, arg gunArg) (received, error) {
	return a.guns[arg.Gun].drain(), nil
})

func (g *gun) drain() (got received) {
	size := uint64(g.grant.Geometry.FrameSize)
	for g.rx.pending() > 0 {
		at := atomic.LoadUint32(g.rx.consumer)
		d := *g.rx.at(at)
		atomic.StoreUint32(g.rx.consumer, at+1)
		got.Frames++
		got.Bytes += int(d.Len)
		to := atomic.LoadUint32(g.fill.producer)
		*g.fill.at(to) = d.Addr / size * size
		atomic.StoreUint32(g.fill.producer, to+1)
	}
	return got
}

// dropGun closes a lease and all that was granted with it.
var dropGun = teach("drop", func(a *agent, arg gunArg) (nothing, error) {
	g := a.guns[arg.Gun]
	return nothing{}, errors.Join(g.lease.Close(), g.letGo())
})

// letGo unmaps the rings and the segment, and closes the descriptors. A mapped ring would keep
// the socket open.
func (g *gun) letGo() error {
	return errors.Join(g.unmapRings(), unix.Munmap(g.mem), g.grant.Close())
}

// hoardArg is a frame to send repeatedly.
type hoardArg struct {
	Gun   int
	Frame []byte
	Times int
}

// hoard sends without ever taking a completion, and returns how many frames were
// completed. It stops when the kernel takes no more frames.
var hoard = teach("hoard", func(a *agent, arg hoardArg) (completed uint32, err error) {
	g := a.guns[arg.Gun]
	for still := 0; still < 100; still++ {
		if arg.Times > 0 && g.tx.pending() < g.tx.size() {
			at := atomic.LoadUint32(g.tx.producer)
			g.load(at, shot{Frame: arg.Frame})
			atomic.StoreUint32(g.tx.producer, at+1)
			arg.Times--
		}
		before := g.tx.pending()
		kick(g.fd)
		if g.tx.pending() < before {
			still = 0
		}
	}
	return g.completion.pending(), nil
})

// flushGun takes completions and kicks until the TX ring is empty.
var flushGun = teach("flush", func(a *agent, arg gunArg) (nothing, error) {
	return nothing{}, a.guns[arg.Gun].flush()
})

// lost waits until a lease has ended and returns the reason.
var lost = teach("lost", func(a *agent, arg gunArg) (why string, err error) {
	l := a.guns[arg.Gun].lease
	select {
	case <-l.Done():
		if l.Err() == nil {
			return "", errors.New("the lease has ended and does not say why")
		}
		return l.Err().Error(), nil
	case <-time.After(30 * time.Second):
		return "", errors.New("the lease goes on")
	}
})

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

// kickFor kicks until the ring is empty or the time is over.
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

// scramble repeatedly writes random numbers over all indices, until the
// agent rests. It kicks in between.
var scramble = teach("scramble", func(a *agent, arg scrambleArg) (nothing, error) {
	g := a.guns[arg.Gun]
	random := rand.New(rand.NewPCG(arg.Seed, 1))
	a.repeat(func(_ <-chan struct{}) error {
		for _, ring := range arg.Rings {
			for _, index := range []string{"producer", "consumer", "flags"} {
				p, err := g.index(ring, index)
				if err != nil {
					return err
				}
				// A value near the current one: other cases write distant ones.
				atomic.StoreUint32(p, atomic.LoadUint32(p)+random.Uint32N(4096)-2048)
			}
		}
		kick(g.fd)
		return nil
	})
	return nothing{}, nil
})

type scrambleArg struct {
	Gun   int
	Rings []string
	Seed  uint64
}
