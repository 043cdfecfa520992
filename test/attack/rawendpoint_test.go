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

// rawEndpoint is an endpoint that an attacker uses directly: the descriptors that it was granted, and
// its memory, without package datapath.
type rawEndpoint struct {
	grant *endpoint.Grant
	lease *control.Lease
	fd    int // of grant.XSK
	mem   []byte
	rings

	nextFrame uint32 // frame of the segment to send from
}

// smallGeometry is that of an endpoint with few frames, 128 KiB.
var smallGeometry = endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}

// openArg describes an endpoint to request at unetd's socket.
type openArg struct {
	Socket  string
	Request endpoint.Request
}

// timeout bounds an agent's requests to unetd.
func timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), requestTimeout)
}

// openedEndpoint describes an agent's endpoint to the test.
type openedEndpoint struct {
	Endpoint int // number of the endpoint in the agent
	ID       uint64
	Geometry endpoint.Geometry
	Identity endpoint.Identity
	Tags     []endpoint.Tag
}

var openEndpoint = newCommand("openEndpoint", func(a *agent, arg openArg) (openedEndpoint, error) {
	ctx, cancel := timeout()
	defer cancel()
	grant, lease, err := control.Open(ctx, arg.Socket, arg.Request)
	if err != nil {
		return openedEndpoint{}, err
	}
	g := &rawEndpoint{grant: grant, lease: lease, fd: int(grant.XSK.Fd())}
	if g.rings, err = mapRings(g.fd, grant.Geometry); err != nil {
		return openedEndpoint{}, err
	}
	g.mem, err = unix.Mmap(int(grant.Segment.Fd()), 0, int(grant.Geometry.SegmentSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return openedEndpoint{}, os.NewSyscallError("mmap of the segment", err)
	}
	g.nextFrame = grant.Geometry.Prefilled()
	a.endpoints = append(a.endpoints, g)
	return openedEndpoint{len(a.endpoints) - 1, grant.ID, grant.Geometry, grant.Identity, grant.Tags}, nil
})

// outFrame is a frame, and where it is cut into descriptors.
type outFrame struct {
	Frame []byte `json:"f"`
	Cuts  []int  `json:"c,omitempty"`
}

type sendArg struct {
	Endpoint int
	Frames   []outFrame
}

// sendResult counts what happened to frames, as far as their sender can see it.
type sendResult struct {
	Frames  uint64 // that the kernel took off the ring
	Refused uint64 // descriptors that it found invalid
	Errno   string // of a kick that failed
}

// frame is the memory of the next frame to send from. Frames are used in turn, so that no
// descriptor on the ring refers to it. Frames for the fill ring are not used.
func (g *rawEndpoint) frame() (addr uint64, mem []byte) {
	geo := g.grant.Geometry
	addr = uint64(g.nextFrame) * uint64(geo.FrameSize)
	if g.nextFrame++; g.nextFrame == geo.FrameCount {
		g.nextFrame = geo.Prefilled()
	}
	return addr, g.mem[addr : addr+uint64(geo.FrameSize)]
}

// put puts a frame on the TX ring, in one descriptor for each of its parts. It does not submit them.
func (g *rawEndpoint) put(at uint32, s outFrame) (descs uint32) {
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

// stuckTimeout is how long the kernel may leave descriptors on the TX ring.
const stuckTimeout = 10 * time.Second

// flush kicks until the kernel has taken all that was submitted, and takes the completions.
func (g *rawEndpoint) flush() error {
	for deadline := time.Now().Add(stuckTimeout); ; {
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

func (g *rawEndpoint) reap() {
	atomic.StoreUint32(g.completion.consumer, atomic.LoadUint32(g.completion.producer))
}

// sendFrames sends frames, a ring at a time.
var sendFrames = newCommand("sendFrames", func(a *agent, arg sendArg) (result sendResult, err error) {
	return a.endpoints[arg.Endpoint].send(func(yield func(outFrame) bool) {
		for _, s := range arg.Frames {
			if !yield(s) {
				return
			}
		}
	})
})

func (g *rawEndpoint) send(frames func(func(outFrame) bool)) (result sendResult, err error) {
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
	for s := range frames {
		if loaded+uint32(len(s.Cuts))+1 > g.tx.size() {
			if err = submit(); err != nil {
				break
			}
		}
		loaded += g.put(at+loaded, s)
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
	Endpoint    int
	Frame       []byte
	At, Bytes   int
	First, Last uint64
	Legal       [][2]uint64 // the values with which the frame may leave
}

// sweep sends a frame once for each value.
var sweep = newCommand("sweep", func(a *agent, arg sweepArg) (sendResult, error) {
	return a.endpoints[arg.Endpoint].send(func(yield func(outFrame) bool) {
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
			if !yield(outFrame{Frame: arg.Frame}) {
				return
			}
		}
	})
})

// receivedCount is what a raw endpoint has received.
type receivedCount struct {
	Frames int
	Bytes  int
}

type endpointArg struct{ Endpoint int }

// drain takes all frames off the RX ring and gives their memory back.
var drain = newCommand("drain", func(a *agent, arg endpointArg) (receivedCount, error) {
	return a.endpoints[arg.Endpoint].receiveAll(), nil
})

func (g *rawEndpoint) receiveAll() (got receivedCount) {
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

// closeEndpoint closes a lease and all that was granted with it.
var closeEndpoint = newCommand("closeEndpoint", func(a *agent, arg endpointArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	return nothing{}, errors.Join(g.lease.Close(), g.close())
})

// close unmaps the rings and the segment, and closes the descriptors. A mapped ring would keep
// the socket open.
func (g *rawEndpoint) close() error {
	return errors.Join(g.unmapRings(), unix.Munmap(g.mem), g.grant.Close())
}

// keepCompletionsArg is a frame to send repeatedly.
type keepCompletionsArg struct {
	Endpoint int
	Frame    []byte
	Times    int
}

// sendWithoutCompletions sends without ever taking a completion, and returns how many frames were
// completed. It stops when the kernel takes no more frames.
var sendWithoutCompletions = newCommand("sendWithoutCompletions", func(a *agent, arg keepCompletionsArg) (completed uint32, err error) {
	g := a.endpoints[arg.Endpoint]
	for still := 0; still < 100; still++ {
		if arg.Times > 0 && g.tx.pending() < g.tx.size() {
			at := atomic.LoadUint32(g.tx.producer)
			g.put(at, outFrame{Frame: arg.Frame})
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

// flushEndpoint takes completions and kicks until the TX ring is empty.
var flushEndpoint = newCommand("flushEndpoint", func(a *agent, arg endpointArg) (nothing, error) {
	return nothing{}, a.endpoints[arg.Endpoint].flush()
})

// awaitLeaseEnd waits until a lease has ended and returns the reason.
var awaitLeaseEnd = newCommand("awaitLeaseEnd", func(a *agent, arg endpointArg) (why string, err error) {
	l := a.endpoints[arg.Endpoint].lease
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

// writeIndexArg is a value for an index of a ring.
type writeIndexArg struct {
	Endpoint int
	Ring     string // fill, completion, rx or tx
	Index    string // producer, consumer or flags
	Value    uint32
	Ahead    bool // Value is added to what the index is
}

// index finds a ring's.
func (g *rawEndpoint) index(ring, index string) (*uint32, error) {
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

// writeIndex writes an index and returns what it was.
var writeIndex = newCommand("writeIndex", func(a *agent, arg writeIndexArg) (was uint32, err error) {
	p, err := a.endpoints[arg.Endpoint].index(arg.Ring, arg.Index)
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

// overwriteArg is an address for all entries of the fill ring or of the TX ring.
type overwriteArg struct {
	Endpoint int
	Ring     string
	Addr     uint64
	Len      uint32 // of TX descriptors
}

// overwriteRing overwrites all entries of a ring.
var overwriteRing = newCommand("overwriteRing", func(a *agent, arg overwriteArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
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
	Endpoint int
	For      time.Duration
}

// kicked is how long the kernel took for kicks, and for how many descriptors.
type kicked struct {
	Kicks int
	Taken uint32
	Worst time.Duration
}

// kickFor kicks until the ring is empty or the time is over.
var kickFor = newCommand("kickFor", func(a *agent, arg kickArg) (k kicked, err error) {
	g := a.endpoints[arg.Endpoint]
	before := g.tx.pending()
	for end := time.Now().Add(arg.For); time.Now().Before(end) && g.tx.pending() > 0; k.Kicks++ {
		begin := time.Now()
		kick(g.fd)
		k.Worst = max(k.Worst, time.Since(begin))
	}
	k.Taken = before - g.tx.pending()
	return k, nil
})

// readStatistics is XDP_STATISTICS.
var readStatistics = newCommand("readStatistics", func(a *agent, arg endpointArg) (unix.XDPStatistics, error) {
	return statistics(a.endpoints[arg.Endpoint].fd)
})

// takeReceived takes frames off the RX ring and gives none back.
var takeReceived = newCommand("takeReceived", func(a *agent, arg endpointArg) (taken uint32, err error) {
	g := a.endpoints[arg.Endpoint]
	taken = g.rx.pending()
	atomic.StoreUint32(g.rx.consumer, atomic.LoadUint32(g.rx.producer))
	return taken, nil
})

// refill puts all frames of the lower half of the segment on the fill ring, as many
// as fit.
var refill = newCommand("refill", func(a *agent, arg endpointArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	for i := g.fill.pending(); i < g.fill.size(); i++ {
		at := atomic.LoadUint32(g.fill.producer)
		*g.fill.at(at) = uint64(at%g.grant.Geometry.Prefilled()) * uint64(g.grant.Geometry.FrameSize)
		atomic.StoreUint32(g.fill.producer, at+1)
	}
	return nothing{}, nil
})

// scrambleIndices repeatedly writes random numbers over all indices, until the
// agent rests. It kicks in between.
var scrambleIndices = newCommand("scrambleIndices", func(a *agent, arg scrambleArg) (nothing, error) {
	g := a.endpoints[arg.Endpoint]
	random := rand.New(rand.NewPCG(arg.Seed, 1))
	a.repeatTask(func(_ <-chan struct{}) error {
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
	Endpoint int
	Rings    []string
	Seed     uint64
}
