//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// Counters of the deliver program.
const (
	delivered = MuxUnetCounterUNET_DELIVER_SOCKET
	noSocket  = MuxUnetCounterUNET_DELIVER_NO_SOCKET
	badFill   = MuxUnetCounterUNET_DELIVER_BAD_FILL
	tooLong   = MuxUnetCounterUNET_DELIVER_TOO_LONG
)

// Frames are redirected to the socket in the slot of the port, and dropped if there is none.
func TestDeliver(t *testing.T) {
	for _, generic := range []bool{true, false} {
		inLab(t, generic, testDeliver)
	}
}

func testDeliver(l *lab) {
	frame := toSocket(64)
	for name, p := range l.deliverPrograms() {
		l.want(name+", no socket", p, frame, l.uplink, 0, noSocket)
	}
	sock := openSocket(l.t, l.uplink)
	for name, p := range l.deliverPrograms() {
		l.want(name+", a socket in no slot", p, frame, l.uplink, 0, noSocket)
	}
	l.deliverTo(sock)
	for name, p := range l.deliverPrograms() {
		l.want(name+", socket", p, frame, l.uplink, 0, delivered)
		l.want(name+", another slot's port", p, frame, l.a, 0, noSocket)
	}
}

// deliverPrograms are the deliver programs by the owners or frames that they are for.
func (l *lab) deliverPrograms() map[string]*ebpf.Program {
	return map[string]*ebpf.Program{"trusted": l.objs.UnetDeliver, "linear": l.objs.UnetDeliverLinear, "whole": l.objs.UnetDeliverWhole}
}

// toSocket is a frame with n bytes of payload.
func toSocket(n int) []byte {
	return datagram(peerMAC, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 1), n)
}

// deliverTo enters a socket in the slot of the uplink, which is a port here.
func (l *lab) deliverTo(sock *os.File) {
	l.t.Helper()
	testutil.Must(l.t, l.objs.PortSockets.Put(l.slot(), uint32(sock.Fd())))
}

func (l *lab) slot() uint32 { return uint32(l.uplink - FirstIfindex) }

// fillRing is a socket's fill ring in the owner's mapping, and the kernel's state of it, by the BTF of
// the kernel.
type fillRing struct {
	mem                       []byte
	producer, consumer, first uint32 // offsets
}

// mapFillRing maps the fill ring of a socket.
func mapFillRing(t testing.TB, sock *os.File) *fillRing {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	testutil.Must(t, err)
	var ring, umem *btf.Struct
	testutil.Must(t, kernel.TypeByName("xdp_ring", &ring))
	testutil.Must(t, kernel.TypeByName("xdp_umem_ring", &umem))
	f := &fillRing{producer: offset(t, ring, "producer"), consumer: offset(t, ring, "consumer"), first: offset(t, umem, "desc")}
	f.mem, err = unix.Mmap(int(sock.Fd()), unix.XDP_UMEM_PGOFF_FILL_RING, int(f.first)+8*socketFill, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	testutil.Must(t, err)
	t.Cleanup(func() { unix.Munmap(f.mem) })
	return f
}

// offset is where a member of a struct is.
func offset(t testing.TB, s *btf.Struct, member string) uint32 {
	t.Helper()
	for _, m := range s.Members {
		if m.Name == member {
			return m.Offset.Bytes()
		}
	}
	t.Fatalf("struct %s has no member %s", s.Name, member)
	return 0
}

func (f *fillRing) setProducer(n uint32) { binary.NativeEndian.PutUint32(f.mem[f.producer:], n) }
func (f *fillRing) consumed() uint32     { return binary.NativeEndian.Uint32(f.mem[f.consumer:]) }
func (f *fillRing) setEntry(i int, addr uint64) {
	binary.NativeEndian.PutUint64(f.mem[int(f.first)+8*i:], addr)
}

// setEntries sets all entries to frames, or to an address that is no frame.
func (f *fillRing) setEntries(frames bool) {
	for i := range socketFill {
		if frames {
			f.setEntry(i, uint64(i%socketFrames)*socketFrame)
		} else {
			f.setEntry(i, socketBytes)
		}
	}
}

// No frame is redirected to a socket with an invalid fill ring. Test runs redirect nothing, so the kernel
// takes no entry from the ring here.
func TestFillRing(t *testing.T) {
	for _, generic := range []bool{true, false} {
		inLab(t, generic, testFillRing)
	}
}

func testFillRing(l *lab) {
	sock := openSocket(l.t, l.uplink)
	l.deliverTo(sock)
	fill := mapFillRing(l.t, sock)
	alarms, err := ringbuf.NewReader(l.objs.Alarms)
	testutil.Must(l.t, err)
	defer alarms.Close()

	const header = 14 + 20 + 8
	short, full := toSocket(64), toSocket(socketRoom-header)
	two, twelve := toSocket(socketRoom-header+1), toSocket(12*socketRoom-header)
	for _, c := range []struct {
		name     string
		producer uint32
		bad      []int // entries that are no frames
		frame    []byte
		linear   int
		counter  Counter // for a trusted owner
		others   Counter // for any other
	}{
		{"full ring", socketFill, nil, short, 0, delivered, delivered},
		{"empty ring", 0, nil, short, 0, delivered, delivered},
		{"one entry too many", socketFill + 1, nil, short, 0, badFill, badFill},
		{"100 million entries", 100_000_000, nil, short, 0, badFill, badFill},
		{"producer behind the consumer", ^uint32(0), nil, short, 0, badFill, badFill},
		{"producer far behind", 1 << 31, nil, short, 0, badFill, badFill},
		{"one buffer, no frame in the first entry", socketFill, []int{0}, short, 0, badFill, badFill},
		{"one buffer, no frame in the only entry", 1, []int{0}, short, 0, badFill, badFill},
		{"one buffer, no frame in the second entry", socketFill, []int{1}, short, 0, delivered, delivered},
		{"one buffer, no frame in an entry that the kernel has not been given", 0, []int{0}, short, 0, delivered, delivered},
		{"as much as one buffer takes", socketFill, nil, full, 0, delivered, delivered},
		{"as much as one buffer takes, no frame in the first entry", socketFill, []int{0}, full, 0, badFill, badFill},
		{"two buffers", socketFill, nil, two, 0, delivered, tooLong},
		{"two buffers, no frame in the first", socketFill, []int{0}, two, 0, badFill, tooLong},
		{"two buffers, no frame in the second", socketFill, []int{1}, two, 0, badFill, tooLong},
		{"two buffers, no frame in the third", socketFill, []int{2}, two, 0, delivered, tooLong},
		{"short, but in two pieces", socketFill, []int{1}, short, 50, delivered, tooLong},
		{"short, but in two pieces, no frame in the first entry", socketFill, []int{0}, short, 50, badFill, tooLong},
		{"twelve buffers", socketFill, []int{12}, twelve, 1000, delivered, tooLong},
		{"twelve buffers, no frame in the last", socketFill, []int{11}, twelve, 1000, badFill, tooLong},
		{"twelve buffers, one entry too many", socketFill + 1, nil, twelve, 1000, badFill, tooLong},
	} {
		fill.setEntries(true)
		for _, i := range c.bad {
			fill.setEntry(i, socketBytes)
		}
		fill.setProducer(c.producer)
		for program, p := range l.deliverPrograms() {
			name, counter := program+", "+c.name, c.counter
			if program != "trusted" {
				counter = c.others
			}
			if program == "linear" && c.linear != 0 {
				continue // the kernel runs it on no such frame
			}
			l.want(name, p, c.frame, l.uplink, c.linear, counter)
			l.wantAlarm(name, alarms, counter == badFill)
		}
	}
	l.wantAll(delivered, delivered)

	// An endpoint can raise more alarms than the ring buffer has room for.
	fill.setProducer(socketFill + 1)
	for range 1000 {
		l.want("many alarms", l.objs.UnetDeliver, short, l.uplink, 0, badFill)
	}
	l.wantAlarm("many alarms", alarms, true)
	fill.setProducer(socketFill)
	l.want("a valid ring again", l.objs.UnetDeliver, short, l.uplink, 0, delivered)
}

// receiver is a socket without checks of its fill ring, for small frames.
type receiver struct {
	*lab
	fill  *fillRing
	small []byte
	from  *netlab.Host
}

// inReceiver runs f with a receiver in a namespace of its own.
func inReceiver(t *testing.T, f func(r *receiver)) {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{})
	testutil.Must(t, pair.A.Do(func() error {
		l := openLab(t, netlab.Interface, func(mac [6]byte, ifindex int) MuxUnetConfig { return Config(mac, ifindex, 0, testMTU, true, false) })
		sock := openSocket(t, l.uplink)
		l.deliverTo(sock)
		unchecked, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
			asm.LoadMapPtr(asm.R1, l.objs.PortSockets.FD()), asm.Mov.Imm(asm.R2, int32(l.slot())), asm.Mov.Imm(asm.R3, drop),
			asm.FnRedirectMap.Call(), asm.Return(),
		}})
		testutil.Must(t, err)
		defer unchecked.Close()
		xdp, err := link.AttachXDP(link.XDPOptions{Program: unchecked, Interface: l.uplink, Flags: link.XDPGenericMode})
		testutil.Must(t, err)
		defer xdp.Close()
		f(&receiver{l, mapFillRing(t, sock), datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 1), netip.AddrPortFrom(shared, 1), 64), pair.B})
		return nil
	}))
}

// receive lets the kernel receive a frame, and waits until it has taken a number of entries from the
// ring in total.
func (r *receiver) receive(taken uint32) {
	r.t.Helper()
	transmit(r.t, r.from, r.small, 1)
	testutil.Eventually(r.t, "a frame for the socket", func() bool { return r.fill.consumed() == taken })
}

// An owner that changes the ring after the check of a frame is detected at the next frame, by the kernel's count of
// invalid entries.
func TestFillRingChangedAfterCheck(t *testing.T) {
	inReceiver(t, func(r *receiver) {
		r.receive(1)
		r.want("a valid ring", r.objs.UnetDeliver, r.small, r.uplink, 0, delivered)
	})
	inReceiver(t, func(r *receiver) {
		r.fill.setEntries(true)
		r.fill.setProducer(socketFill + 8)
		r.receive(1)
		r.fill.setProducer(socketFill)
		r.want("the kernel has seen more entries than there are", r.objs.UnetDeliver, r.small, r.uplink, 0, badFill)
	})
	inReceiver(t, func(r *receiver) {
		r.fill.setEntries(false)
		const limit = 64
		r.fill.setProducer(limit)
		r.receive(limit)
		r.want("the kernel has skipped as many entries as are permitted", r.objs.UnetDeliver, r.small, r.uplink, 0, delivered)
		r.fill.setProducer(limit + 1)
		r.receive(limit + 1)
		r.fill.setEntries(true)
		r.want("the kernel has skipped one more", r.objs.UnetDeliver, r.small, r.uplink, 0, badFill)
	})
}

// wantAlarm checks that there is an alarm about the fill ring, or none.
func (l *lab) wantAlarm(name string, alarms *ringbuf.Reader, want bool) {
	l.t.Helper()
	alarms.SetDeadline(time.Now()) // does not block
	record, err := alarms.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if want {
			l.t.Errorf("%s: no alarm", name)
		}
		return
	}
	testutil.Must(l.t, err)
	var got Alarm
	if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &got); err != nil {
		l.t.Fatal(err)
	}
	if !want || got.Kind != AlarmFill || got.Slot != l.slot() {
		l.t.Errorf("%s: alarm %+v", name, got)
	}
}
