//go:build linux

package impair

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// port is a packet socket on one end of the cut cable. The kernel puts frames into a ring
// (packet(7), PACKET_RX_RING, TPACKET_V2): one slot a frame, with its time of arrival. No
// system call is needed to take it.
type port struct {
	fd   int
	ring []byte
	slot int          // bytes
	next atomic.Int64 // the next slot; a relay that spins reads it without a lock
}

// vnetHeader is the length of the struct virtio_net_hdr before each frame, which marks
// partial checksums and super-frames, in both directions.
const vnetHeader = 10

// slotOverhead is more than the kernel puts before a frame in its slot.
const slotOverhead = 128

// openPort opens the end of that name, in the namespace of the calling thread. No
// frame may be longer than the given length.
func openPort(name string, longest int) (*port, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_PACKET", err)
	}
	p := &port{fd: fd, slot: 2048}
	for p.slot < longest+slotOverhead {
		p.slot *= 2
	}
	block := max(p.slot, 64<<10)
	size := max(8<<20, 512*p.slot) // frames wait here until the relay has woken up
	req := unix.TpacketReq{Block_size: uint32(block), Block_nr: uint32(size / block), Frame_size: uint32(p.slot), Frame_nr: uint32(size / p.slot)}
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size),
		unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req))
	if err == nil {
		p.ring, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket on %s: %w", name, err), p.close())
	}
	return p, nil
}

func (p *port) close() error {
	var err error
	if p.ring != nil {
		err = unix.Munmap(p.ring)
	}
	return errors.Join(err, unix.Close(p.fd))
}

func (p *port) header() *unix.Tpacket2Hdr {
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&p.ring[int(p.next.Load())*p.slot]))
}

// pending reports whether a frame waits in the ring.
func (p *port) pending() bool {
	return atomic.LoadUint32(&p.header().Status)&unix.TP_STATUS_USER != 0
}

// received is a frame in the ring.
type received struct {
	data []byte // struct virtio_net_hdr and the frame
	cut  bool   // it was longer than its slot
	at   int64  // arrival, in nanoseconds of CLOCK_REALTIME
	vlan uint16 // the tag that was taken from it
	tpid uint16 // the tag's EtherType; 0: there was none
}

// peek returns the next frame in the ring, which is valid until release. There has
// to be one.
func (p *port) peek() (r received) {
	h := p.header()
	start := int(p.next.Load())*p.slot + int(h.Mac)
	r.data = p.ring[start-vnetHeader : start+int(h.Snaplen)]
	r.cut = h.Snaplen < h.Len
	r.at = int64(h.Sec)*1e9 + int64(h.Nsec)
	if h.Status&unix.TP_STATUS_VLAN_VALID != 0 {
		r.vlan, r.tpid = h.Vlan_tci, unix.ETH_P_8021Q
		if h.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			r.tpid = h.Vlan_tpid
		}
	}
	return r
}

// release returns the slot of the frame that peek has returned to the kernel.
func (p *port) release() {
	atomic.StoreUint32(&p.header().Status, unix.TP_STATUS_KERNEL)
	p.next.Store((p.next.Load() + 1) % int64(len(p.ring)/p.slot))
}

// missed is how many frames the kernel dropped since the last call, because the ring was full.
func (p *port) missed() uint64 {
	st, err := unix.GetsockoptTpacketStats(p.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		panic("BUG: statistics of a packet socket: " + err.Error())
	}
	return uint64(st.Drops)
}

// send sends a frame, after its struct virtio_net_hdr. The receive path of the host runs in
// this system call.
func (p *port) send(b []byte) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(p.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// sleep is ppoll by a raw system call, so that the thread keeps its processor of the Go
// runtime: to get one back takes milliseconds if all of them are busy. A signal ends the
// sleep, and the runtime sends one to stop the thread for garbage collection.
func sleep(fds []unix.PollFd, timeout *unix.Timespec) {
	unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0)
}

var processors sync.Mutex

// addProcessors changes how many processors the runtime has.
func addProcessors(n int) {
	processors.Lock()
	defer processors.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}
