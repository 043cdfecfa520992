package stack_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// tagged is a frame with an 802.1Q tag of VLAN 0, a priority only, and the IP ID id. The
// low byte of that stands where the protocol does without the tag.
func tagged(frame []byte, id uint8) []byte {
	b := append([]byte(nil), frame[:12]...)
	b = append(b, byte(wire.EtherTypeVLAN>>8), byte(wire.EtherTypeVLAN&0xff), 0x60, 0)
	b = append(b, frame[12:]...)
	ip := b[18 : 18+wire.IPv4HeaderLen]
	ip[5], ip[10], ip[11] = id, 0, 0
	sum := ^wire.Fold(wire.Sum(ip, 0))
	ip[10], ip[11] = byte(sum>>8), byte(sum)
	return b
}

// What a packet of several parts carries is not to be read as if there were no tag: a
// datagram would be taken for TCP, and its memory for that of a frame.
func TestTaggedParts(t *testing.T) {
	payload := bytes.Repeat([]byte("unet"), 2000)
	for _, id := range []uint8{0, wire.ProtocolTCP, wire.ProtocolUDP} {
		s, l, c := newScripted(t, nil)
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		u.SetReadDeadline(c.now().Add(1))
		for _, p := range [][]byte{payload, payload[:10]} {
			for range 3 {
				l.Inject(parts(tagged(datagramFrame(9, 7, p), id), 0)...)
			}
			s.Poll(c.now())
			for range 3 {
				d, err := u.Borrow()
				if err != nil || !bytes.Equal(d.Payload, p) {
					t.Fatalf("id %d: %d bytes, %v", id, len(d.Payload), err)
				}
				u.Return(&d)
			}
		}
	}
}

// A TCP peer all of whose frames are tagged.
func TestTaggedTCP(t *testing.T) {
	a, b, la, lb := newPair(t, stack.Config{})
	frames := make(chan []byte, 10000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		id := uint8(0)
		for f := range frames {
			id++
			b := tagged(f, id)
			cut := min(len(b), 20+int(id)) // anywhere in the headers and behind
			if cut == len(b) {
				la.Inject(stack.Frame{Data: b})
			} else {
				la.Inject(stack.Frame{Data: b[:cut], More: true}, stack.Frame{Data: b[cut:]})
			}
		}
	}()
	lb.Filter(func(f []byte) bool {
		if eth, err := wire.ParseEthernet(f); err != nil || eth.Type() != wire.EtherTypeIPv4 {
			return true
		}
		frames <- append([]byte(nil), f...)
		return false
	})
	client, server := connect(t, a, b, stack.TCPOptions{})
	text := bytes.Repeat([]byte("0123456789"), 20_000)
	go func() {
		writeAll(t, client, text)
		client.Close()
	}()
	if got, err := io.ReadAll(server); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	server.Close()
	lb.Filter(nil)
	close(frames)
	<-done
}
