//go:build linux

package attack

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/queues"
)

// pushArg is descriptors as they are.
type pushArg struct {
	Endpoint int
	Descs    []queues.Desc
	Place    []byte // written to the first frame that is sent from, if any
}

// pushed is how many descriptors the kernel took and refused.
type pushed struct {
	Taken, Refused uint64
	Errno          string // of a kick
}

// push puts descriptors on the TX ring and kicks until the kernel has taken them
// or returns an error.
var push = newCommand("push", func(a *agent, arg pushArg) (p pushed, err error) {
	g := a.endpoints[arg.Endpoint]
	copy(g.mem[firstFrame(g):], arg.Place)
	before, err := statistics(g.fd)
	if err != nil {
		return p, err
	}
	for len(arg.Descs) > 0 && p.Errno == "" {
		at, n := atomic.LoadUint32(g.tx.producer), min(uint32(len(arg.Descs)), g.tx.size())
		for i, d := range arg.Descs[:n] {
			*g.tx.at(at + uint32(i)) = d
		}
		arg.Descs = arg.Descs[n:]
		atomic.StoreUint32(g.tx.producer, at+n)
		err := g.flush()
		p.Taken += uint64(n - g.tx.pending())
		var errno unix.Errno
		if errors.As(err, &errno) {
			// The kernel does not continue until that entry of the ring is another descriptor.
			p.Errno = unix.ErrnoName(errno)
			for i := range g.tx.pending() {
				*g.tx.at(atomic.LoadUint32(g.tx.consumer) + i) = queues.Desc{Addr: math.MaxUint64 - 1, Len: 60}
			}
			err = g.flush()
		}
		if err != nil {
			return p, err
		}
	}
	after, err := statistics(g.fd)
	p.Refused = after.Tx_invalid_descs - before.Tx_invalid_descs
	return p, err
})

// firstFrame is where the part of a segment begins that is sent from.
func firstFrame(g *rawEndpoint) uint64 {
	return uint64(g.grant.Geometry.Prefilled()) * uint64(g.grant.Geometry.FrameSize)
}

func descriptorCases(attacker *attacker) []attackCase {
	return []attackCase{
		{"descriptors outside the segment", "addresses behind its end and up to 2^64-1, frames that run over their chunk, lengths of 0 and up to 2^32-1", func(s *caseRun) {
			geo := attacker.Geometry
			size, chunk := uint64(geo.SegmentSize()), uint64(geo.FrameSize)
			var descs []queues.Desc
			for _, addr := range []uint64{size, size + 1, size - 1, size - 59, 2 * size, 1 << 32, 1 << 47, 1 << 48, 1 << 63, math.MaxUint64 - 59, math.MaxUint64 - 60, math.MaxUint64} {
				descs = append(descs, queues.Desc{Addr: addr, Len: 60})
			}
			for _, off := range []uint64{chunk - 59, chunk - 1} {
				descs = append(descs, queues.Desc{Addr: chunk*uint64(geo.Prefilled()) + off, Len: 60})
			}
			for _, length := range []uint32{0, uint32(chunk) + 1, 1 << 16, 1<<31 - 1, 1 << 31, math.MaxUint32} {
				descs = append(descs, queues.Desc{Addr: chunk * uint64(geo.Prefilled()), Len: length})
			}
			s.refused(attacker, descs)
		}},
		{"reserved option bits", "each of the 31 bits of a descriptor's options that mean nothing here, alone and with others, TX metadata among them", func(s *caseRun) {
			var descs []queues.Desc
			addr := uint64(attacker.Geometry.Prefilled()) * uint64(attacker.Geometry.FrameSize)
			for bit := 1; bit < 32; bit++ {
				descs = append(descs, queues.Desc{Addr: addr, Len: 60, Options: 1 << bit}, queues.Desc{Addr: addr, Len: 60, Options: ^uint32(1) &^ (1 << bit)})
			}
			s.refused(attacker, descs)
		}},
		{"overlapping and repeated descriptors", "the same permitted frame 4,096 times in one ring after another, and frames that begin inside each other", func(s *caseRun) {
			v := s.permitted()
			frame := permittedFrames(v.mark())[0].frame
			addr := uint64(attacker.Geometry.Prefilled()) * uint64(attacker.Geometry.FrameSize)
			descs := make([]queues.Desc, 4096)
			for i := range descs {
				descs[i] = queues.Desc{Addr: addr, Len: uint32(len(frame))}
			}
			p := push.do(s, attacker.agentProcess, pushArg{attacker.Endpoint, descs, frame})
			if !testutil.Until(func() bool { return s.capture.legalFrames(v.number) == len(descs) }) {
				s.Errorf("%d of %d copies of a permitted frame arrived: %+v", s.capture.legalFrames(v.number), len(descs), p)
			}
			s.row.note("%d taken, %d arrived", p.Taken, s.capture.legalFrames(v.number))
			// What begins in the middle of a frame is no permitted frame.
			inside := make([]queues.Desc, 0, 60)
			for i := 1; i < len(frame); i++ {
				inside = append(inside, queues.Desc{Addr: addr + uint64(i), Len: uint32(len(frame) - i)})
			}
			before := s.counters(s)
			p = push.do(s, attacker.agentProcess, pushArg{attacker.Endpoint, inside, frame})
			s.row.note("%d that begin inside it: %d refused, %s", len(inside), p.Refused, unusual(since(before, s.counters(s))))
			drain.do(s, attacker.agentProcess, endpointArg{attacker.Endpoint})
		}},
		{"a packet without an end", "64 descriptors that all say that more is to come, then a permitted frame", func(s *caseRun) {
			addr := uint64(attacker.Geometry.Prefilled()) * uint64(attacker.Geometry.FrameSize)
			descs := make([]queues.Desc, 64)
			for i := range descs {
				descs[i] = queues.Desc{Addr: addr, Len: 100, Options: queues.Continued}
			}
			p := push.do(s, attacker.agentProcess, pushArg{attacker.Endpoint, descs, make([]byte, 100)})
			s.row.note("the kernel took %d and refused %d %s", p.Taken, p.Refused, p.Errno)
			// The next descriptor ends it. A frame after that is an ordinary one.
			push.do(s, attacker.agentProcess, pushArg{attacker.Endpoint, []queues.Desc{{Addr: addr, Len: 60}}, nil})
			v := s.permitted()
			v.add(permittedFrames(v.mark())[0].frame)
			v.send(attacker)
		}},
		{"reading what is beyond a frame", "the attacker's own segment only: every address that the kernel accepts lies in it, and it holds no bytes of others", func(s *caseRun) {
			found := findForeignData.do(s, attacker.agentProcess, endpointArg{attacker.Endpoint})
			if found > 0 {
				s.Errorf("%d places of the attacker's segment hold another endpoint's traffic", found)
			}
		}},
	}
}

// refused pushes descriptors of which the kernel has to refuse every one.
func (s *caseRun) refused(by *attacker, descs []queues.Desc) {
	s.Helper()
	before := s.counters(s)
	frame := permittedFrames(mark(forged, s.newBatch()))[0].frame
	said := map[string]int{}
	for _, d := range descs {
		p := push.do(s, by.agentProcess, pushArg{by.Endpoint, []queues.Desc{d}, frame})
		switch {
		case p.Errno != "":
			said[p.Errno]++
		case p.Refused == 1:
			said["refused"]++
		default:
			s.Errorf("descriptor %+v was not refused", d)
		}
	}
	if counts := unusual(since(before, s.counters(s))); counts != "" {
		s.Errorf("some of them became frames: %s", counts)
	}
	s.row.note("%d descriptors: %s", len(descs), countsText(said))
}

// findForeignData searches an agent's segment for data of bystanders.
var findForeignData = newCommand("findForeignData", func(a *agent, arg endpointArg) (found int, err error) {
	for _, name := range []string{"neighbour\x00", "message\x00"} {
		found += bytes.Count(a.endpoints[arg.Endpoint].mem, []byte(name))
	}
	return found, nil
})

// rebindSocket tries on a bound XSK all settings of a new one.
var rebindSocket = newCommand("rebindSocket", func(a *agent, arg endpointArg) (list []attempt, err error) {
	g := a.endpoints[arg.Endpoint]
	for ifindex := range uint32(8) {
		for _, flags := range []uint16{0, unix.XDP_COPY, unix.XDP_ZEROCOPY, unix.XDP_USE_NEED_WAKEUP} {
			err := unix.Bind(g.fd, &unix.SockaddrXDP{Flags: flags, Ifindex: ifindex})
			addAttempt(&list, fmt.Sprintf("bind to interface %d, flags %#x", ifindex, flags), err)
		}
	}
	err = unix.Bind(g.fd, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: 2, SharedUmemFD: uint32(g.fd)})
	addAttempt(&list, "bind with its own UMEM", err)
	mem, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return list, err
	}
	addAttempt(&list, "XDP_UMEM_REG", setsockopt(g.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, unix.XDPUmemReg{Addr: addressOf(mem), Len: uint64(len(mem)), Size: 2048}))
	for name, option := range map[string]int{
		"XDP_RX_RING": unix.XDP_RX_RING, "XDP_TX_RING": unix.XDP_TX_RING,
		"XDP_UMEM_FILL_RING": unix.XDP_UMEM_FILL_RING, "XDP_UMEM_COMPLETION_RING": unix.XDP_UMEM_COMPLETION_RING,
	} {
		addAttempt(&list, name, unix.SetsockoptInt(g.fd, unix.SOL_XDP, option, 64))
	}
	addAttempt(&list, "connect", unix.Connect(g.fd, &unix.SockaddrXDP{Ifindex: 2}))
	addAttempt(&list, "listen", unix.Listen(g.fd, 1))
	_, _, err = unix.Accept(g.fd)
	addAttempt(&list, "accept", err)
	addAttempt(&list, "SO_BINDTODEVICE", unix.SetsockoptString(g.fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "uplink"))
	addAttempt(&list, "SO_MARK", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_MARK, 1))
	addAttempt(&list, "SO_RCVBUFFORCE", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<30))
	addAttempt(&list, "SO_SNDBUFFORCE", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<30))
	addAttempt(&list, "SO_PREFER_BUSY_POLL", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL, 1))
	addAttempt(&list, "SO_BUSY_POLL", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, 1<<20))
	// SIOCGSKNS would return the network namespace of the socket, in which its port is.
	for _, ioctl := range []struct {
		name    string
		request uint
	}{{"SIOCGSKNS", unix.SIOCGSKNS}, {"SIOCSIFFLAGS", unix.SIOCSIFFLAGS}, {"SIOCSIFHWADDR", unix.SIOCSIFHWADDR}, {"SIOCETHTOOL", unix.SIOCETHTOOL}, {"SIOCBRADDBR", unix.SIOCBRADDBR}} {
		fd, err := unix.IoctlRetInt(g.fd, ioctl.request)
		addAttempt(&list, ioctl.name, err)
		if err == nil && ioctl.request == unix.SIOCGSKNS {
			addAttempt(&list, "setns to the port's namespace", unix.Setns(fd, unix.CLONE_NEWNET))
		}
	}
	return list, nil
})

// setSocketOptions sets options that every socket has. The kernel permits them on the attacker's own socket.
var setSocketOptions = newCommand("setSocketOptions", func(a *agent, arg endpointArg) (list []attempt, err error) {
	g := a.endpoints[arg.Endpoint]
	dropAll := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	program := unix.SockFprog{Len: 1, Filter: &dropAll[0]}
	addAttempt(&list, "SO_ATTACH_FILTER", unix.SetsockoptSockFprog(g.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program))
	addAttempt(&list, "SO_LOCK_FILTER", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
	addAttempt(&list, "SO_SNDBUF", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1))
	addAttempt(&list, "SO_RCVBUF", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	addAttempt(&list, "SO_TIMESTAMPING", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_TX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE))
	addAttempt(&list, "SO_LINGER", unix.SetsockoptLinger(g.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	addAttempt(&list, "SO_PRIORITY", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_PRIORITY, 6))
	addAttempt(&list, "SO_REUSEPORT", unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	addAttempt(&list, "shutdown", unix.Shutdown(g.fd, unix.SHUT_RDWR))
	runtime.KeepAlive(dropAll)
	return list, nil
})

func socketCases() []attackCase {
	return []attackCase{
		{"rebind the XSK", "bind, XDP_UMEM_REG, new rings, connect, SO_BINDTODEVICE, SO_MARK, SIOCGSKNS and other ioctls on the granted socket", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			s.allRefused(rebindSocket.do(s, t.agentProcess, endpointArg{t.Endpoint}), "SO_BUSY_POLL", "SO_PREFER_BUSY_POLL")
			t.wantAnswers(s)
		}},
		{"options of the XSK", "filters that drop everything, tiny buffers, time stamps, shutdown: it is the owner's own socket", func(s *caseRun) {
			t := s.target(endpoint.Request{})
			worked := 0
			list := setSocketOptions.do(s, t.agentProcess, endpointArg{t.Endpoint})
			for _, a := range list {
				if a.Errno == "" {
					worked++
				}
			}
			s.row.note("%d of %d worked", worked, len(list))
			t.sendTo(100)
		}},
	}
}
