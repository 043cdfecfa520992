package frag

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

const (
	kernelMTU   = 1280
	kernelPort  = 7000
	testTimeout = 20 * time.Second
)

// TestFragmentsOfTheKernel reassembles datagrams that a kernel socket has sent.
func TestFragmentsOfTheKernel(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{MTU: kernelMTU, IPv6: true})
	both(t, func(t *testing.T, v6 bool) {
		from, to := addrs(p, v6)
		sender, err := p.A.ListenUDP(netip.AddrPortFrom(from, kernelPort).String())
		testutil.Must(t, err)
		defer sender.Close()
		receiver, err := p.B.ListenUDP(netip.AddrPortFrom(to, kernelPort).String())
		testutil.Must(t, err)
		defer receiver.Close()
		frames := openPacketSocket(t, p.B)
		rng := rand.New(rand.NewPCG(5, 5))
		r := New(Config{})
		for _, n := range []int{2000, 8192, 65000} {
			data := random(rng, n)
			_, err := sender.WriteToUDPAddrPort(data, netip.AddrPortFrom(to, kernelPort))
			testutil.Must(t, err)
			var whole []byte
			for v := Kept; v != Complete; {
				whole, v = readFragment(t, frames, r, v6)
				if v != Kept && v != Complete {
					t.Fatalf("%d bytes: %v", n, v)
				}
				r.check(t)
			}
			got := payload(t, whole)
			if len(got) != 8+n || !bytes.Equal(got[8:], data) {
				t.Fatalf("%d bytes: got %d bytes, or the data differs", n, len(got))
			}
			if sum := udpSum(from, to, got); sum != 0xffff {
				t.Errorf("%d bytes: the UDP checksum gives %#x", n, sum)
			}
		}
	})
}

// TestFragmentsForTheKernel sends datagrams in fragments to a kernel socket and to a Reassembler. Either both accept a
// datagram or both refuse it.
func TestFragmentsForTheKernel(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{MTU: kernelMTU, IPv6: true})
	both(t, func(t *testing.T, v6 bool) {
		from, to := addrs(p, v6)
		receiver, err := p.B.ListenUDP(netip.AddrPortFrom(to, kernelPort).String())
		testutil.Must(t, err)
		defer receiver.Close()
		testutil.Must(t, receiver.SetReadDeadline(time.Now().Add(testTimeout)))
		frames := openPacketSocket(t, p.A)
		rng := rand.New(rand.NewPCG(6, 6))
		ids := NewIDs(rng.Uint32)
		r := New(Config{})
		for _, test := range []struct {
			name   string
			change func(packets [][]byte) [][]byte
		}{
			{"in order", func(p [][]byte) [][]byte { return p }},
			{"reversed", func(p [][]byte) [][]byte { slices.Reverse(p); return p }},
			{"duplicates", func(p [][]byte) [][]byte { return append([][]byte{p[0], p[3], p[0], p[3]}, p[1:]...) }},
			{"the last twice", func(p [][]byte) [][]byte { return append([][]byte{p[len(p)-1]}, p...) }},
			{"one is missing", func(p [][]byte) [][]byte { return append(p[:2:2], p[3:]...) }},
			{"an overlap", func(p [][]byte) [][]byte {
				shifted := slices.Clone(p[1])
				shift(shifted, v6, 8)
				return append([][]byte{p[0], shifted}, p[1:]...)
			}},
			{"in order again", func(p [][]byte) [][]byte { return p }}, // the kernel delivers it next, so it has refused the one before
		} {
			data := random(rng, 8000)
			datagram := append(binary.BigEndian.AppendUint32(nil, 4000<<16|kernelPort), byte((8+len(data))>>8), byte(8+len(data)), 0, 0)
			datagram = append(datagram, data...)
			binary.BigEndian.PutUint16(datagram[6:], ^udpSum(from, to, datagram))
			accepted := false
			for _, b := range test.change(divide(datagram, from, to, ids)) {
				frame := make([]byte, wire.EthernetHeaderLen, wire.EthernetHeaderLen+len(b))
				etherType := wire.EtherTypeIPv4
				if v6 {
					etherType = wire.EtherTypeIPv6
				}
				wire.PutEthernet(frame, p.B.LinkAddr, p.A.LinkAddr, etherType)
				_, err := frames.Write(append(frame, b...))
				testutil.Must(t, err)
				whole, v := input(t, r, 0, b)
				if v == Complete {
					accepted = true
					if !bytes.Equal(payload(t, whole), datagram) {
						t.Errorf("%s: the datagram differs", test.name)
					}
				}
			}
			if want := test.name != "an overlap" && test.name != "one is missing"; accepted != want {
				t.Fatalf("%s: accepted %v", test.name, accepted)
			}
			if !accepted {
				continue
			}
			got := make([]byte, 9000)
			n, _, err := receiver.ReadFromUDPAddrPort(got)
			if err != nil || !bytes.Equal(got[:n], data) {
				t.Fatalf("%s: the kernel has received %d bytes, or the data differs: %v", test.name, n, err)
			}
		}
	})
}

// divide makes the packets of a datagram.
func divide(datagram []byte, from, to netip.Addr, ids *IDs) (packets [][]byte) {
	if from.Is4() {
		id := ids.IPv4()
		for p := range Pieces(len(datagram), kernelMTU-wire.IPv4HeaderLen) {
			b := make([]byte, wire.IPv4HeaderLen)
			wire.PutIPv4(b, wire.IPv4Fields{
				TTL: 64, Protocol: wire.ProtocolUDP, Fragment: p.Field(false), ID: id,
				TotalLen: uint16(len(b) + p.Len), Src: from.As4(), Dst: to.As4(),
			})
			packets = append(packets, append(b, datagram[p.Offset:][:p.Len]...))
		}
		return packets
	}
	id := ids.IPv6()
	const headers = wire.IPv6HeaderLen + wire.IPv6FragmentLen
	for p := range Pieces(len(datagram), kernelMTU-headers) {
		b := make([]byte, headers)
		wire.PutIPv6(b, wire.IPv6Fields{
			PayloadLen: uint16(wire.IPv6FragmentLen + p.Len), Protocol: wire.ProtocolFragment, HopLimit: 64,
			Src: from.As16(), Dst: to.As16(),
		})
		wire.PutIPv6Fragment(b[wire.IPv6HeaderLen:], wire.ProtocolUDP, p.Field(true), id)
		packets = append(packets, append(b, datagram[p.Offset:][:p.Len]...))
	}
	return packets
}

// shift moves a fragment by n bytes towards the start.
func shift(packet []byte, v6 bool, n uint16) {
	if v6 {
		field := packet[wire.IPv6HeaderLen+2:]
		binary.BigEndian.PutUint16(field, binary.BigEndian.Uint16(field)-n)
		return
	}
	binary.BigEndian.PutUint16(packet[6:], binary.BigEndian.Uint16(packet[6:])-n/8)
	packet[10], packet[11] = 0, 0
	binary.BigEndian.PutUint16(packet[10:], ^fold(packet[:wire.IPv4HeaderLen], 0))
}

func addrs(p *netlab.Pair, v6 bool) (a, b netip.Addr) {
	if v6 {
		return p.A.Addr6.Addr(), p.B.Addr6.Addr()
	}
	return p.A.Addr.Addr(), p.B.Addr.Addr()
}

// readFragment gives the next frame that is a fragment to r.
func readFragment(t *testing.T, frames *os.File, r *Reassembler, v6 bool) ([]byte, Verdict) {
	t.Helper()
	b := make([]byte, 2048)
	for {
		n, err := frames.Read(b)
		testutil.Must(t, err)
		var eth wire.Ethernet
		testutil.Must(t, eth.Parse(b[:n]))
		var ip4 wire.IPv4
		var ip6 wire.IPv6
		switch {
		case !v6 && eth.Type == wire.EtherTypeIPv4 && ip4.Parse(eth.Payload) == nil && ip4.Fragment != 0:
			return r.IPv4(0, &ip4, linkA)
		case v6 && eth.Type == wire.EtherTypeIPv6 && ip6.Parse(eth.Payload) == nil && ip6.Fragment != 0:
			return r.IPv6(0, &ip6, linkA)
		}
	}
}

// openPacketSocket is a packet socket on a host's end of the cable.
func openPacketSocket(t *testing.T, h *netlab.Host) *os.File {
	t.Helper()
	f, err := h.OpenFrames()
	testutil.Must(t, err)
	t.Cleanup(func() { f.Close() })
	testutil.Must(t, f.SetDeadline(time.Now().Add(testTimeout)))
	return f
}

// fold is the ones-complement sum of b and of sum, folded to 16 bits (RFC 1071).
func fold(b []byte, sum uint32) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// udpSum is the sum of a UDP datagram with its pseudo-header.
func udpSum(from, to netip.Addr, datagram []byte) uint16 {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	return fold(datagram, uint32(fold(pseudo, 0))+uint32(wire.ProtocolUDP)+uint32(len(datagram)))
}
