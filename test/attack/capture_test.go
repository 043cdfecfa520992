package attack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// capture listens on host B's end of the cable, without a mux, and so sees all
// that leaves host A's uplink. It also is the host's answer to messages: what is
// for tag peerTag goes back to its sender.
type capture struct {
	conn *os.File
	raw  rawConn
	done chan struct{}

	mu    sync.Mutex
	legal map[uint32]int // frames with a legal mark, by volley
	fouls []string       // frames that should not be here
	seen  uint64
	err   error
}

type rawConn interface {
	Read(func(fd uintptr) bool) error
	Control(func(fd uintptr)) error
}

const (
	captureBuffer = 256 << 20 // bytes; a burst waits there, no frame may be missed
	maxFouls      = 20        // that are kept
)

func startCapture(t testing.TB, h *netlab.Host) *capture {
	t.Helper()
	c := &capture{done: make(chan struct{}), legal: make(map[uint32]int)}
	if err := h.Do(func() (err error) { c.conn, err = packetSocket(h.Interface); return err }); err != nil {
		t.Fatal(err)
	}
	raw, err := c.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.raw = raw
	go c.run()
	t.Cleanup(func() { c.conn.Close(); <-c.done })
	return c
}

// packetSocket hears all that comes in on a device, and can send there.
func packetSocket(device string) (*os.File, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket AF_PACKET", err)
	}
	f := os.NewFile(uintptr(fd), "capture")
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: i.Index}))
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return f, nil
}

// networkOrder is how the kernel wants a protocol.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}

func (c *capture) run() {
	defer close(c.done)
	frame, oob := make([]byte, 128<<10), make([]byte, 128)
	judge := &judge{}
	for {
		var n, oobn int
		var recvErr error
		err := c.raw.Read(func(fd uintptr) bool {
			n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), frame, oob, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			return recvErr != unix.EAGAIN
		})
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err = errors.Join(err, recvErr); err != nil || n > len(frame) {
			c.mu.Lock()
			c.err = fmt.Errorf("capture of %d bytes: %w", n, err)
			c.mu.Unlock()
			return
		}
		c.take(judge, frame[:n], vlanTagged(oob[:oobn]))
	}
}

// vlanTagged: the kernel takes a VLAN tag out of the frame and puts it beside.
func vlanTagged(oob []byte) bool {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 4 {
			return binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0
		}
	}
	return false
}

func (c *capture) take(j *judge, frame []byte, vlan bool) {
	verdict, volley, marked := readMark(frame)
	why := ""
	switch {
	case vlan:
		why = "of a VLAN"
	case marked && verdict != legal:
		why = "marked as forged"
	default:
		why = j.judge(frame, marked)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	switch {
	case why != "" && len(c.fouls) < maxFouls:
		c.fouls = append(c.fouls, fmt.Sprintf("volley %d, %s: %s", volley, why, hex.EncodeToString(frame[:min(len(frame), 128)])))
	case marked:
		c.legal[volley]++
	}
	if reply := reply(frame); why == "" && reply != nil {
		c.raw.Control(func(fd uintptr) { unix.Write(int(fd), reply) }) // a request that gets no answer is noticed by who sent it
	}
}

// legalFrames is how many of a volley's legal frames have come.
func (c *capture) legalFrames(volley uint32) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.legal[volley]
}

// foul takes what should not have come, since the last call.
func (c *capture) foul() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	fouls := c.fouls
	c.fouls = nil
	if c.err != nil {
		fouls = append(fouls, c.err.Error())
	}
	return fouls
}

// missed is how many frames found no room in the buffer, since the last call.
func (c *capture) missed() (n uint32, err error) {
	ctlErr := c.raw.Control(func(fd uintptr) {
		var st *unix.TpacketStats
		if st, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n = st.Drops
		}
	})
	return n, errors.Join(ctlErr, err)
}
