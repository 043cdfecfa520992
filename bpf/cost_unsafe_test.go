//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// timed runs p over frame, as if it came in at ifindex if p is an XDP program, and returns the mean time of a run by the kernel's
// clock, to 1 ns. (The system call takes some milliseconds more than the runs.)
func timed(p *ebpf.Program, frame []byte, ifindex, runs int) (time.Duration, error) {
	const testRun = 10 // BPF_PROG_TEST_RUN
	var context bytes.Buffer
	binary.Write(&context, binary.NativeEndian, xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)})
	attr := struct { // in union bpf_attr, linux/bpf.h
		fd, retval, size, sizeOut uint32
		data                      *byte
		dataOut                   uint64
		repeat, duration          uint32
		contextSize, contextOut   uint32
		context                   *byte
	}{
		fd: uint32(p.FD()), size: uint32(len(frame)), data: &frame[0], repeat: uint32(runs),
	}
	if p.Type() == ebpf.XDP {
		attr.contextSize, attr.context = uint32(context.Len()), &context.Bytes()[0]
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, testRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		switch errno {
		case 0:
			return time.Duration(attr.duration), nil
		case unix.EINTR: // a signal of the Go runtime
		default:
			return 0, os.NewSyscallError("BPF_PROG_TEST_RUN", errno)
		}
	}
}
