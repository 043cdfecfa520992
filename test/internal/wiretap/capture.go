//go:build linux

package wiretap

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// Config says where frames are captured, and of which stack.
type Config struct {
	Host      *netlab.Host // where frames are captured
	Interface string       // and on which interface
	Ours      *netlab.Host // the host of our stack
	Addrs     []netip.Addr // of our stack; nil: those of its host

	// Impaired is set if the capture is on our side of an impaired link: frames to us
	// may be corrupted, and these are left out.
	Impaired bool
}

// Capture writes all frames that go by to a file, and shows them to a judge.
type Capture struct {
	Judge *Judge

	conn     *os.File
	raw      syscall.RawConn
	done     chan struct{}
	err      error
	linkOurs net.HardwareAddr
	impaired bool

	path    string
	file    *os.File
	buffer  *bufio.Writer
	pcap    *pcapgo.Writer
	written int
	frames  int
	decoder *decoder
}

const (
	captureBuffer = 512 << 20 // bytes; a burst waits there, no frame may be missed
	captureWhole  = 48 << 20  // bytes; after so many only headers are written
	captureHeader = 14 + 60 + 60
)

// Start begins a capture, which [Capture.Verdict] ends.
func Start(t *testing.T, cfg Config) *Capture {
	t.Helper()
	addrs := cfg.Addrs
	if addrs == nil {
		addrs = []netip.Addr{cfg.Ours.Addr.Addr(), cfg.Ours.Addr6.Addr()}
	}
	c := &Capture{
		done: make(chan struct{}), linkOurs: cfg.Ours.LinkAddr[:], path: filepath.Join(t.TempDir(), "capture.pcap"),
		Judge: newJudge(addrs), impaired: cfg.Impaired,
	}
	must(t, cfg.Host.Do(func() error {
		i, err := net.InterfaceByName(cfg.Interface)
		if err != nil {
			return err
		}
		c.decoder = newDecoder(i.MTU)
		c.conn, err = packetSocket(i.Index)
		return err
	}))
	t.Cleanup(func() { c.conn.Close() })
	var err error
	c.raw, err = c.conn.SyscallConn()
	must(t, err)
	c.file, err = os.Create(c.path)
	must(t, err)
	t.Cleanup(func() { c.file.Close() })
	c.buffer = bufio.NewWriterSize(c.file, 1<<20)
	c.pcap = pcapgo.NewWriterNanos(c.buffer)
	must(t, c.pcap.WriteFileHeader(1<<18, layers.LinkTypeEthernet))
	go func() {
		defer close(c.done)
		c.err = c.run()
	}()
	return c
}

// packetSocket receives all frames that come in and go out on an interface.
func packetSocket(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_PACKET", err)
	}
	f := os.NewFile(uintptr(fd), "capture")
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return f, nil
}

// run takes frames until the deadline that ends the capture, and then what is
// still there.
func (c *Capture) run() error {
	frame, oob := make([]byte, 128<<10), make([]byte, 128)
	for more := true; more; {
		var n, oobn int
		var from unix.Sockaddr
		var recvErr error
		recv := func(fd uintptr) {
			n, oobn, _, from, recvErr = unix.Recvmsg(int(fd), frame, oob, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		}
		err := c.raw.Read(func(fd uintptr) bool { recv(fd); return recvErr != unix.EAGAIN })
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if err = c.raw.Control(recv); recvErr == unix.EAGAIN {
				return c.buffer.Flush()
			}
		}
		if err = errors.Join(err, recvErr); err == nil && n > len(frame) {
			err = fmt.Errorf("a frame of %d bytes", n)
		}
		if err == nil {
			out, _ := from.(*unix.SockaddrLinklayer)
			err = c.take(frame[:n], timestamp(oob[:oobn]), out != nil && out.Pkttype == unix.PACKET_OUTGOING)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// timestamp is when the kernel saw a frame.
func timestamp(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < 16 {
		return time.Time{}
	}
	d := messages[0].Data
	return time.Unix(int64(binary.NativeEndian.Uint64(d)), int64(binary.NativeEndian.Uint64(d[8:])))
}

// take takes a frame that comes in at the interface, or goes out there.
func (c *Capture) take(frame []byte, at time.Time, out bool) error {
	ours := len(frame) >= 12 && string(frame[6:12]) == string(c.linkOurs)
	checksums := ours || c.impaired
	s, ok := c.decoder.decode(frame, checksums)
	if c.impaired && out && (ours || !ok || s.fragment || len(s.violations) > 0) {
		return nil // damaged, as a fragment may be, or nothing to judge
	}
	c.frames++
	if ok {
		s.frame = c.frames
		c.Judge.take(&s)
	}
	length := len(frame)
	if c.written += length; c.written > captureWhole {
		frame = frame[:min(length, captureHeader)]
	}
	return c.pcap.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: length}, frame)
}

// Verdict ends the capture and reports what there is to object to. counted is what
// our stack has counted; lossless, that no frame of ours was lost before the capture.
func (c *Capture) Verdict(t *testing.T, counted map[string]uint64, lossless bool) {
	t.Helper()
	must(t, c.conn.SetReadDeadline(time.Now()))
	<-c.done
	must(t, c.err)
	var missed uint32
	var optErr error
	must(t, c.raw.Control(func(fd uintptr) {
		var st *unix.TpacketStats
		if st, optErr = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); optErr == nil {
			missed = st.Drops
		}
	}))
	must(t, optErr)
	if missed > 0 {
		t.Errorf("the capture has missed %d frames", missed)
		return
	}
	if c.Judge.segments+c.Judge.Datagrams == 0 {
		t.Error("the capture has no segment and no datagram of ours")
	}
	t.Logf("%d frames: %v", c.frames, c.Judge)
	report(t, "judge", c.Judge, lossless)
	c.explain(t, counted)
	consultOracle(t, c, lossless)
}

func report(t *testing.T, who string, j *Judge, lossless bool) {
	t.Helper()
	if j.violationCount > 0 {
		t.Errorf("%s: %d violations in our segments", who, j.violationCount)
	}
	for _, f := range j.violations {
		t.Errorf("%s: %s", who, f)
	}
	if !lossless || j.gapCount == 0 {
		return
	}
	t.Errorf("%s: %d gaps between our segments", who, j.gapCount)
	for _, g := range j.gaps {
		t.Errorf("%s: %s", who, g)
	}
}

// explain checks the reasons of our retransmissions: the retransmission timer,
// which first sends a loss probe, the persist timer, or an indication of the kernel.
// (The first expires without a loss if the kernel delays an acknowledgment
// for longer, or if the machine is busy.)
func (c *Capture) explain(t *testing.T, counted map[string]uint64) {
	t.Helper()
	j := c.Judge
	timeouts, probes, again := counted["tcp_timeouts"], counted["tcp_window_probes"], counted["tcp_bytes_retransmitted"]
	tails, recoveries := counted["tcp_loss_probes"], counted["tcp_fast_recoveries"]
	t.Logf("counted by us: %d timeouts, %d loss probes, %d recoveries, %d probes, %d bytes sent again", timeouts, tails, recoveries, probes, again)
	if uint64(j.againBytes) > again+probes {
		t.Errorf("%d bytes were sent again, we have counted %d and %d probes", j.againBytes, again, probes)
	}
	if j.again > 0 && timeouts+tails+recoveries+probes == 0 && !c.impaired {
		t.Errorf("%d segments were sent again, but no timer has run out, and nothing was found lost", j.again)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
