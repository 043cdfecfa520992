//go:build linux

package attack

import (
	"errors"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// longKickArg is a frame to fill the TX ring of an endpoint with, a number of times.
type longKickArg struct {
	Endpoint int
	Frame    []byte
	Times    int
}

// longKickResult is the time of the system calls that took a whole ring, by the thread's own clock.
type longKickResult struct {
	Frames        uint32 // that the longest call took
	Median, Worst time.Duration
}

// longKick sends as many frames as it can with one system call: the owner of a socket may raise its
// budget up to the size of the TX ring (XDP_MAX_TX_SKB_BUDGET, Linux 6.17).
var longKick = newCommand("longKick", func(a *agent, arg longKickArg) (r longKickResult, err error) {
	g := a.endpoints[arg.Endpoint]
	size := g.tx.size()
	err = unix.SetsockoptInt(g.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, int(size))
	if err != nil && !errors.Is(err, unix.ENOPROTOOPT) && !errors.Is(err, unix.EACCES) {
		return r, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took []time.Duration
	for range arg.Times {
		at := atomic.LoadUint32(g.tx.producer)
		for i := range size {
			g.put(at+i, outFrame{Frame: arg.Frame})
		}
		atomic.StoreUint32(g.tx.producer, at+size)
		begin := threadTime()
		kick(g.fd)
		took = append(took, threadTime()-begin)
		if n := size - g.tx.pending(); took[len(took)-1] >= r.Worst {
			r.Worst, r.Frames = took[len(took)-1], n
		}
		if err := g.flush(); err != nil {
			return r, err
		}
	}
	slices.Sort(took)
	r.Median = took[len(took)/2]
	return r, nil
})

// threadTime is the time that the calling thread has had a processor.
func threadTime() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // cannot fail
	return time.Duration(t.Nano())
}

// maxTx is the largest transmit ring of an owner who is not trusted, in entries (ADR 50).
const maxTx = 256

func longKickCases() []attackCase {
	return []attackCase{
		{"a whole transmit ring in one call", "transmit rings of all sizes, their budget (XDP_MAX_TX_SKB_BUDGET) as large as the ring, and short and long frames to host B, to an endpoint and to the host", func(s *caseRun) {
			a := startAgent(s, s.pair.A, attackerID)
			geometry := func(size uint32) endpoint.Geometry {
				return endpoint.Geometry{FillSize: 256, RxSize: 256, TxSize: size, CompletionSize: 1 << 16}
			}
			for size := uint32(2 * maxTx); size <= 1<<16; size *= 2 {
				if _, err := openEndpoint.try(a, openArg{s.unetd.Socket, endpoint.Request{Geometry: geometry(size)}}); !errors.Is(err, endpoint.ErrGeometry) {
					s.Errorf("a transmit ring of %d entries: %v", size, err)
				}
			}
			other := s.target(endpoint.Request{})
			t := s.target(endpoint.Request{Geometry: geometry(maxTx)})
			for _, c := range []struct {
				name string
				to   net.Addr
				size int
			}{
				{"short, to host B", nil, 0}, {"long, to host B", nil, 1400},
				{"to an endpoint", &net.UDPAddr{Port: other.port}, 0}, {"to the host", &net.UDPAddr{Port: discard}, 0},
			} {
				payload := append(s.permitted().mark(), make([]byte, c.size)...)
				frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(t.port, discard, payload)))
				if to, ok := c.to.(*net.UDPAddr); ok {
					frame = ether(linkA, linkA, typeIPv4, ipv4(hostA, hostA, protocolUDP, udp(t.port, to.Port, []byte("x"))))
				}
				r := longKick.do(s, t.agentProcess, longKickArg{t.Endpoint, frame, 20})
				if r.Frames > maxTx {
					s.Errorf("one call took %d frames", r.Frames)
				}
				s.row.note("%s: %d frames, p50 %s, worst %s, %d ns a frame", c.name, r.Frames, rounded(r.Median), rounded(r.Worst), r.Median.Nanoseconds()/int64(max(r.Frames, 1)))
			}
		}},
		{"the largest rings over small segments", "endpoints of 32 KiB with rings of 65,536 entries, until the memory that the policy gives is used up", func(s *caseRun) {
			a := startAgent(s, s.pair.A, ringsID)
			const field = "VmallocUsed"
			before, err := memoryOf("/proc/meminfo", field)
			if err != nil {
				s.Fatal(err)
			}
			req := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 16, FillSize: 1 << 16, RxSize: 1 << 16, CompletionSize: 1 << 16}}
			opened := 0
			for ; ; opened++ {
				if _, err = openEndpoint.try(a, openArg{s.unetd.Socket, req}); err != nil {
					break
				}
			}
			after, memErr := memoryOf("/proc/meminfo", field)
			if memErr != nil {
				s.Fatal(memErr)
			}
			if most := ringsMemory / (2 << 20); !errors.Is(err, endpoint.ErrBusy) || opened == 0 || opened > most {
				s.Errorf("%d endpoints, want at most %d; then %v", opened, most, err)
			}
			s.row.note("%d endpoints of at most %d MiB; %s of the machine %+d KiB; then: %v", opened, ringsMemory>>20, field, after-before, err)
		}},
	}
}
