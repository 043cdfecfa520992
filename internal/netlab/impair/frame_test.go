//go:build linux

package impair

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// sum is the checksum of RFC 1071 over b.
func sum(b []byte) uint16 {
	var s uint64
	for i, x := range b {
		s += uint64(x) << (8 * (1 - i%2))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}

// TestMarkCE compares the updated checksum after a mark with one computed from scratch.
func TestMarkCE(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		frame := make([]byte, 14+40)
		for i := range frame {
			frame[i] = byte(r.Uint32())
		}
		at := 12
		for range r.IntN(3) { // tags
			frame = append(frame, 0, 0, 0, 0)
			binary.BigEndian.PutUint16(frame[at:], []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}[r.IntN(2)])
			at += 4
		}
		ip := frame[at+2:]
		ecn := int(r.Uint32() & 3)
		six := r.IntN(2) == 0
		if six {
			binary.BigEndian.PutUint16(frame[at:], unix.ETH_P_IPV6)
			ip[1] = ip[1]&^0x30 | byte(ecn)<<4
		} else {
			binary.BigEndian.PutUint16(frame[at:], unix.ETH_P_IP)
			ip[1] = ip[1]&^3 | byte(ecn)
			ip[10], ip[11] = 0, 0
			binary.BigEndian.PutUint16(ip[10:], sum(ip[:20]))
		}
		if got := ect(frame); got != (ecn != 0) {
			t.Fatalf("ECN field %d: may be marked: %t", ecn, got)
		}
		want := bytes.Clone(frame)
		markCE(frame)
		w := want[at+2:]
		if six {
			w[1] |= 0x30
		} else {
			w[1] |= 3
			w[10], w[11] = 0, 0
			binary.BigEndian.PutUint16(w[10:], sum(w[:20]))
		}
		if !bytes.Equal(frame, want) {
			t.Fatalf("%x, want %x", frame, want)
		}
	}
	for _, f := range [][]byte{nil, make([]byte, 13), make([]byte, 14), append(make([]byte, 12), 8, 0, 0x45), append(make([]byte, 12), 0x86, 0xdd, 0x60, 0x10), append(make([]byte, 12), 0x81, 0, 0, 1)} {
		before := bytes.Clone(f)
		if markCE(f); ect(f) || !bytes.Equal(f, before) {
			t.Errorf("%x may be marked", before)
		}
	}
}

// TestCompleteChecksum: a checksum that is left to the hardware is computed as TCP and UDP
// define it, also behind a VLAN tag.
func TestCompleteChecksum(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		frame := make([]byte, 14+20+8+r.IntN(50))
		for i := range frame {
			frame[i] = byte(r.Uint32())
		}
		p := &packet{}
		head := make([]byte, vnetHeader)
		head[vnetFlags] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM | unix.VIRTIO_NET_HDR_F_DATA_VALID
		binary.NativeEndian.PutUint16(head[vnetCsumStart:], 34)
		binary.NativeEndian.PutUint16(head[vnetCsumOffset:], 6)
		tagged := r.IntN(2) == 0
		rx := received{data: append(head, frame...)}
		if tagged {
			rx.tpid, rx.vlan = unix.ETH_P_8021Q, 77
			frame = append(append(append([]byte{}, frame[:12]...), 0x81, 0, 0, 77), frame[12:]...)
		}
		p.fill(rx)
		if !bytes.Equal(p.frame(), frame) {
			t.Fatalf("%x, want %x", p.frame(), frame)
		}
		transport := frame[34:]
		if tagged {
			transport = frame[38:]
		}
		pseudo := bytes.Clone(transport[6:8])
		p.completeChecksum()
		transport[6], transport[7] = 0, 0
		whole := append(pseudo, transport...)
		want := sum(whole)
		if want == 0 {
			want = 0xffff
		}
		binary.BigEndian.PutUint16(transport[6:], want)
		if !bytes.Equal(p.frame(), frame) || p.data[vnetFlags] != 0 {
			t.Fatalf("%x, want %x", p.frame(), frame)
		}
	}
}

// TestResolution: ARP and neighbour discovery, and nothing else.
func TestResolution(t *testing.T) {
	ipv6 := func(next uint8, payload ...byte) []byte {
		f := append(make([]byte, 12), 0x86, 0xdd)
		h := make([]byte, 40)
		h[6] = next
		return append(append(f, h...), payload...)
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"nothing", nil, false},
		{"ARP", append(make([]byte, 12), 8, 6), true},
		{"IPv4", append(make([]byte, 12), 8, 0, 0x45), false},
		{"an IPv6 header alone", ipv6(unix.IPPROTO_ICMPV6), false},
		{"a solicitation", ipv6(unix.IPPROTO_ICMPV6, 135), true},
		{"a redirect", ipv6(unix.IPPROTO_ICMPV6, 137), true},
		{"an echo request", ipv6(unix.IPPROTO_ICMPV6, 128), false},
		{"packet too big", ipv6(unix.IPPROTO_ICMPV6, 2), false},
		{"UDP", ipv6(unix.IPPROTO_UDP, 135), false},
	} {
		if got := Resolution(c.frame); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
