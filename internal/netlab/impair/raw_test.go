//go:build linux

package impair_test

import (
	"encoding/binary"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
)

const (
	seed        = 7
	testTimeout = 2 * time.Minute
)

// lab is a pair whose cable is a link.
type lab struct {
	*netlab.Pair
	*impair.Link
}

func open(t *testing.T, pair netlab.Config, cfg impair.Config) lab {
	t.Helper()
	pair.Cut = true
	p := netlab.RequirePair(t, pair)
	cfg.Seed = seed
	return lab{p, impair.RequireLink(t, p, cfg)}
}

// hosts returns the hosts that send and receive the frames of a direction.
func (l lab) hosts(d impair.Direction) (from, to *netlab.Host) {
	if d == impair.AtoB {
		return l.A, l.B
	}
	return l.B, l.A
}

// settle waits until a direction has received so many frames and none is in flight. The link
// must have missed none.
func (l lab) settle(t *testing.T, d impair.Direction, frames int) impair.Counters {
	t.Helper()
	var c impair.Counters
	testutil.Eventually(t, "all frames have been passed on or lost", func() bool {
		c = l.Counters(d)
		return c.Frames+c.Missed >= uint64(frames) && c.InFlight == 0
	})
	if c.Frames != uint64(frames) || c.Missed != 0 || c.Refused != 0 || c.Passed != c.Copies() {
		t.Fatalf("%d frames were sent: %+v", frames, c)
	}
	return c
}

// socket is a packet socket on a host's end of the cable.
type socket struct {
	t  *testing.T
	fd int
}

func (l lab) packetSocket(t *testing.T, h *netlab.Host) *socket {
	t.Helper()
	s := &socket{t: t}
	testutil.Must(t, h.Do(func() error {
		i, err := net.InterfaceByName(h.Interface)
		if err != nil {
			return err
		}
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		testutil.Must(t, err)
		t.Cleanup(func() { unix.Close(s.fd) })
		testutil.Must(t, unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
		testutil.Must(t, unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
		testutil.Must(t, unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
		testutil.Must(t, unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(testTimeout / time.Second)}))
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
	}))
	return s
}

func (s *socket) send(frame []byte) {
	s.t.Helper()
	_, err := unix.Write(s.fd, frame)
	testutil.Must(s.t, os.NewSyscallError("write to a packet socket", err))
}

// receive returns the next frame, with the VLAN tag that the kernel has taken off.
func (s *socket) receive() []byte {
	s.t.Helper()
	frame, ok := s.recv(0)
	if !ok {
		s.t.Fatal("no frame")
	}
	return frame
}

// empty reports whether no frame waits.
func (s *socket) empty() bool {
	_, some := s.recv(unix.MSG_DONTWAIT)
	return !some
}

func (s *socket) recv(flags int) ([]byte, bool) {
	s.t.Helper()
	buf, oob := make([]byte, 70000), make([]byte, 128)
	n, oobn, _, _, err := unix.Recvmsg(s.fd, buf, oob, flags)
	for err == unix.EINTR {
		n, oobn, _, _, err = unix.Recvmsg(s.fd, buf, oob, flags)
	}
	if err == unix.EAGAIN {
		return nil, false
	}
	testutil.Must(s.t, err)
	frame := buf[:n]
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	testutil.Must(s.t, err)
	for _, m := range messages { // struct tpacket_auxdata
		if m.Header.Type == unix.PACKET_AUXDATA && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			tci, tpid := binary.NativeEndian.Uint16(m.Data[16:]), binary.NativeEndian.Uint16(m.Data[18:])
			tagged := append([]byte{}, frame[:12]...)
			tagged = binary.BigEndian.AppendUint16(tagged, tpid)
			tagged = binary.BigEndian.AppendUint16(tagged, tci)
			frame = append(tagged, frame[12:]...)
		}
	}
	return frame, true
}

// numbered is frame i of a test, between the hosts, of an EtherType that kernels do not
// handle.
func numbered(from, to *netlab.Host, i, size int) []byte {
	f := append(append([]byte{}, to.LinkAddr[:]...), from.LinkAddr[:]...)
	f = binary.BigEndian.AppendUint16(f, 0x88b5) // for local experiments (IEEE 802)
	f = binary.BigEndian.AppendUint32(f, uint32(i))
	for k := len(f); k < size; k++ {
		f = append(f, byte(i*7+k))
	}
	return f
}
