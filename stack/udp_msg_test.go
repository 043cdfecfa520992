package stack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
)

// message is a control message in the format of Linux on 64-bit machines.
func message(level, kind int, data ...byte) []byte {
	b := binary.NativeEndian.AppendUint64(nil, uint64(16+len(data)))
	b = binary.NativeEndian.AppendUint32(b, uint32(level))
	b = binary.NativeEndian.AppendUint32(b, uint32(kind))
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&7)...)
}

const (
	solIP, solUDP    = 0, 17
	ipTOS, ipPktInfo = 1, 8
	udpSegment       = 103
	controlTruncated = 0x8
)

// ECN bits of a control message are sent in the IP header. The receiver reads them in a control
// message, with the address to which the datagram was sent.
func TestECNOfDatagrams(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{})
	a := testutil.Value(sa.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	b := testutil.Value(sb.DialUDP(ap("0.0.0.0:0"), ap("10.0.0.1:7"), stack.UDPOptions{}))
	buf, oob := make([]byte, 10), make([]byte, 64)
	for _, ecn := range []byte{0, 1, 2, 3, 0} {
		if _, _, err := b.WriteMsgUDP([]byte("x"), message(solIP, ipTOS, ecn), nil); err != nil {
			t.Fatal(err)
		}
		n, oobn, flags, _, err := a.ReadMsgUDP(buf, oob)
		if err != nil || n != 1 || flags != 0 {
			t.Fatalf("%d bytes, flags %x: %v", n, flags, err)
		}
		info := append(append(make([]byte, 4), addrA[:]...), addrA[:]...)
		if want := append(message(solIP, ipTOS, ecn), message(solIP, ipPktInfo, info...)...); !bytes.Equal(oob[:oobn], want) {
			t.Errorf("ECN %d: control messages %x, want %x", ecn, oob[:oobn], want)
		}
	}
	if _, _, err := b.WriteMsgUDP([]byte("x"), message(solIP, ipTOS, 2), nil); err != nil {
		t.Fatal(err)
	}
	if _, oobn, flags, _, err := a.ReadMsgUDP(buf, oob[:24]); err != nil || oobn != 24 || flags != controlTruncated {
		t.Errorf("no room for a message: %d bytes, flags %x, %v", oobn, flags, err)
	}
	msgs := []stack.UDPMessage{{Buf: buf}}
	for _, ecn := range []byte{1, 0} {
		if _, _, err := b.WriteMsgUDP([]byte("x"), message(solIP, ipTOS, ecn), nil); err != nil {
			t.Fatal(err)
		}
		if n, err := a.ReadBatch(msgs); n != 1 || err != nil || msgs[0].ECN != ecn {
			t.Errorf("batch: ECN %d, want %d; %v", msgs[0].ECN, ecn, err)
		}
	}
	if _, _, err := b.WriteMsgUDP([]byte("x"), message(solIP, ipTOS, 3), nil); err != nil {
		t.Fatal(err)
	}
	d, err := a.Borrow()
	if err != nil || d.ECN != 3 {
		t.Errorf("borrowed: ECN %d, %v", d.ECN, err)
	}
	a.Return(&d)
}

// With a control message that is invalid the send fails with EINVAL, and nothing is sent.
func TestInvalidControlMessages(t *testing.T) {
	a, _, _, _ := newPair(t, stack.Config{})
	c := testutil.Value(a.DialUDP(ap("0.0.0.0:0"), ap("10.0.0.2:7"), stack.UDPOptions{}))
	tooLong := message(solIP, ipTOS, 1)
	tooLong[0] = 200
	for name, oob := range map[string][]byte{
		"truncated header":       make([]byte, 15),
		"no length":              make([]byte, 16),
		"longer than the buffer": tooLong,
		"unknown kind":           message(solIP, 99, 1),
		"unknown level":          message(1, 1, 1, 0, 0, 0),
		"TOS of two bytes":       message(solIP, ipTOS, 1, 0),
		"TOS above 255":          message(solIP, ipTOS, 0, 1, 0, 0),
		"another local address":  message(solIP, ipPktInfo, 0, 0, 0, 0, 192, 0, 2, 1, 0, 0, 0, 0),
		"segment of one byte":    message(solUDP, udpSegment, 1),
	} {
		if _, _, err := c.WriteMsgUDP([]byte("x"), oob, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := c.WriteMsgUDP(make([]byte, 129), message(solUDP, udpSegment, 1, 0), nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("more than 128 segments: %v", err)
	}
	if n := c.Counters().Sent; n != 0 {
		t.Errorf("%d sent", n)
	}
	oob := append(message(solIP, ipPktInfo, append(append(make([]byte, 4), addrA[:]...), 0, 0, 0, 0)...), message(solIP, ipTOS, 1, 0, 0, 0)...)
	if _, _, err := c.WriteMsgUDP([]byte("x"), oob, nil); err != nil {
		t.Errorf("the local address of the socket: %v", err)
	}
}

// The pieces of net.Buffers are sent in one segment, and those that were written are removed.
func TestWriteBuffers(t *testing.T) {
	sa, sb, _, _ := newPair(t, stack.Config{})
	c, s := connect(t, sa, sb, stack.TCPOptions{})
	v := net.Buffers{[]byte("ab"), nil, []byte("cd"), []byte("e")}
	before := c.Info().SegmentsSent
	if n, err := c.WriteBuffers(&v); n != 5 || err != nil || len(v) != 0 {
		t.Errorf("%d bytes, %d pieces left, %v", n, len(v), err)
	}
	if sent := c.Info().SegmentsSent - before; sent != 1 {
		t.Errorf("%d segments", sent)
	}
	b := make([]byte, 10)
	if n, err := s.Read(b); string(b[:n]) != "abcde" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	c.CloseWrite()
	v = net.Buffers{[]byte("a")}
	if n, err := c.ReadFrom(&v); n != 0 || !errors.Is(err, syscall.EPIPE) || len(v) != 1 {
		t.Errorf("after CloseWrite: %d, %v, %d left", n, err, len(v))
	}
}
