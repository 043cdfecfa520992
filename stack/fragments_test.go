package stack_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/frag"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// fragmentFrames are the frames of a datagram from B to A, in packets of that MTU.
func fragmentFrames(v6 bool, id uint16, mtu int, payload []byte) (frames []stack.Frame) {
	if v6 {
		return fragments6(id, mtu, wire.ProtocolUDP, udp6(7, string(payload)))
	}
	b := datagramFrame(9, 7, payload)[wire.EthernetHeaderLen+wire.IPv4HeaderLen:]
	for p := range frag.Pieces(len(b), mtu-wire.IPv4HeaderLen) {
		f := wire.IPv4Fields{Protocol: wire.ProtocolUDP, ID: id, TOS: wire.ECNCapable, Fragment: p.Field(false)}
		frames = append(frames, stack.Frame{Data: ipFrame(f, b[p.Offset:][:p.Len])})
	}
	return frames
}

// fragments6 are the frames of an IPv6 packet from B to A, of which b is the part that is
// fragmented, and its first header of that kind.
func fragments6(id uint16, mtu int, kind uint8, b []byte) (frames []stack.Frame) {
	for p := range frag.Pieces(len(b), mtu-wire.IPv6HeaderLen-wire.IPv6FragmentLen) {
		h := make([]byte, wire.IPv6FragmentLen)
		next := kind
		if p.Offset > 0 { // the receiver ignores the field there (RFC 8200, section 4.5)
			next = wire.ProtocolTCP
		}
		wire.PutIPv6Fragment(h, next, p.Field(true), uint32(id))
		f := wire.IPv6Fields{Protocol: wire.ProtocolFragment, TrafficClass: wire.ECNCapable}
		frames = append(frames, stack.Frame{Data: ip6Frame(f, append(h, b[p.Offset:][:p.Len]...))})
	}
	return frames
}

func TestFragmentsAreReassembled(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("IPv6 ", v6), func(t *testing.T) { testReassembly(t, v6) })
	}
}

func testReassembly(t *testing.T, v6 bool) {
	s, l, c := newScripted(t, withIPv6)
	local, from := ap("10.0.0.1:7"), ap("10.0.0.2:9")
	if v6 {
		local, from = ap("[fd00::1]:7"), ap("[fd00::2]:9")
	}
	u := testutil.Value(s.ListenUDP(local, stack.UDPOptions{}))
	payload := bytes.Repeat([]byte("some bytes"), 6000)
	frames := fragmentFrames(v6, 1, 1500, payload)
	slices.Reverse(frames)
	later := fragmentFrames(v6, 2, 1500, []byte("more"))
	// A VLAN tag of VLAN 0 moves the IP header.
	first := &frames[len(frames)-1]
	first.Data = slices.Insert(first.Data, 12, 0x81, 0, 0x20, 0)
	l.Inject(append(frames, later...)...)
	s.Poll(c.now())
	d := testutil.Value(u.Borrow())
	if !bytes.Equal(d.Payload, payload) || d.From != from || d.ECN != wire.ECNCapable {
		t.Errorf("%d bytes from %v, ECN %d", len(d.Payload), d.From, d.ECN)
	}
	// The reassembler's memory is used again.
	third := bytes.Repeat([]byte("other bytes"), 5000)
	l.Inject(fragmentFrames(v6, 3, 1500, third)...)
	s.Poll(c.now())
	if !bytes.Equal(d.Payload, payload) {
		t.Error("the datagram changed while it was borrowed")
	}
	u.Return(&d)
	buf := make([]byte, 65536)
	for _, want := range [][]byte{[]byte("more"), third} {
		if n, err := udpRecv(u, buf); !bytes.Equal(buf[:n], want) || err != nil {
			t.Errorf("received %d bytes, want %d, or the data differs: %v", n, len(want), err)
		}
	}
	if got := counters(s); got["frag_complete"] != 2 || got["udp_received"] != 3 || got["ipv4_fragment"] != 0 {
		t.Errorf("counters: %v", got)
	}
}

func TestFragmentsTimeOut(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	frames := fragmentFrames(false, 1, 1500, make([]byte, 2000))
	l.Inject(frames[0])
	s.Poll(c.now())
	s.Poll(c.now().Add(frag.TimeoutIPv4))
	if got := counters(s); got["frag_timed_out"] != 1 {
		t.Errorf("counters: %v", got)
	}
	l.Inject(frames[1])
	s.Poll(c.now())
	if got := counters(s); got["frag_kept"] != 2 || got["frag_complete"] != 0 {
		t.Errorf("counters: %v", got)
	}
}

// TestFragmentsOfAConnection sends the segments of a connection in fragments, out of order: all data arrives.
func TestFragmentsOfAConnection(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("IPv6 ", v6), func(t *testing.T) {
			at := ap("10.0.0.2:9")
			if v6 {
				at = ap("[fd00::2]:9")
			}
			a, b, la, lb := newPair6(t, stack.Config{})
			server := testutil.Value(b.ListenTCP(at, stack.TCPListenOptions{}))
			id := uint16(0)
			la.Filter(func(frame []byte) bool { // runs under the pair's lock
				head := 34
				if v6 {
					head = 54
				}
				if len(frame) < head+20 || frame[12] == 8 && frame[13] == 6 {
					return true
				}
				id++
				var parts []stack.Frame
				for p := range frag.Pieces(len(frame)-head, 600) {
					h := slices.Clone(frame[:head])
					if v6 {
						part := make([]byte, wire.IPv6FragmentLen)
						wire.PutIPv6Fragment(part, wire.ProtocolTCP, p.Field(true), uint32(id))
						h[18], h[19], h[20] = byte((8+p.Len)>>8), byte(8+p.Len), wire.ProtocolFragment
						h = append(h, part...)
					} else {
						wire.PutIPv4(h[14:], wire.IPv4Fields{
							TotalLen: uint16(20 + p.Len), TTL: 64, Protocol: wire.ProtocolTCP, ID: id, Fragment: p.Field(false), Src: addrA, Dst: addrB,
						})
					}
					parts = append(parts, stack.Frame{Data: append(h, frame[head:][p.Offset:][:p.Len]...)})
				}
				if len(parts) < 2 {
					return true
				}
				slices.Reverse(parts)
				go lb.Inject(parts...)
				return false
			})
			payload := make([]byte, 200_000)
			for i := range payload {
				payload[i] = byte(i ^ i>>8)
			}
			client := testutil.Value(a.DialTCP(t.Context(), netip.AddrPort{}, at, stack.TCPOptions{}))
			go func() {
				client.Write(payload)
				client.CloseWrite()
			}()
			conn := testutil.Value(server.Accept())
			conn.SetDeadline(time.Now().Add(time.Minute))
			got, err := io.ReadAll(conn)
			if err != nil || !bytes.Equal(got, payload) {
				t.Errorf("%d of %d bytes, or other ones: %v", len(got), len(payload), err)
			}
			if n := counters(b); n["frag_complete"] == 0 {
				t.Errorf("counters: %v", n)
			}
			la.Filter(nil)
		})
	}
}

// A partial checksum, which a virtual link lets pass, is wrong in a segment that was reassembled.
func TestReassembledSegmentHasNoPartialChecksum(t *testing.T) {
	for _, partial := range []bool{false, true} {
		s, l, c := newScripted(t, func(cfg *stack.Config) { withIPv6(cfg); cfg.PartialChecksums = true })
		testutil.Value(s.ListenTCP(ap("[fd00::1]:7"), stack.TCPListenOptions{}))
		pseudo := wire.PseudoHeader(wire.AddrFrom16(globalB), wire.AddrFrom16(globalA), wire.ProtocolTCP, wire.TCPHeaderLen+8)
		b := make([]byte, wire.TCPHeaderLen+8)
		wire.PutTCP(b, &wire.TCPFields{SrcPort: 9, DstPort: 7, Seq: 1, Flags: wire.TCPSyn}, wire.TCPHeaderLen, pseudo)
		if partial {
			sum := wire.Fold(pseudo)
			b[16], b[17] = byte(sum>>8), byte(sum)
		}
		l.Inject(fragments6(1, 72, wire.ProtocolTCP, b)...)
		s.Poll(c.now())
		n := counters(s)
		if n["frag_complete"] != 1 || (n["tcp_bad_checksum"] == 1) != partial {
			t.Errorf("partial %v: counters %v", partial, n)
		}
	}
}

// A wrong checksum, and a port without a socket, are found in the whole datagram.
func TestReassembledDatagramIsChecked(t *testing.T) {
	s, l, c := newScripted(t, withIPv6)
	damaged := fragmentFrames(false, 1, 1500, make([]byte, 2000))
	damaged[1].Data[40] ^= 1
	l.Inject(append(damaged, fragmentFrames(false, 2, 1500, make([]byte, 2000))...)...)
	s.Poll(c.now())
	if got := counters(s); got["udp_checksum"] != 1 || got["udp_no_socket"] != 1 || got["icmp_unreachables_sent"] != 1 {
		t.Errorf("counters: %v", got)
	}
}

func TestFragmentsToASharedAddressAreDropped(t *testing.T) {
	s, l, c := newScripted(t, func(cfg *stack.Config) { withIPv6(cfg); cfg.OwnedAddress = false })
	testutil.Value(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
	l.Inject(fragmentFrames(false, 1, 1500, make([]byte, 2000))...)
	l.Inject(fragmentFrames(true, 1, 1500, make([]byte, 2000))...)
	s.Poll(c.now())
	if got := counters(s); got["ipv4_fragment"] != 2 || got["ipv6_fragment"] != 2 || got["udp_received"] != 0 || got["frag_kept"] != 0 {
		t.Errorf("counters: %v", got)
	}
}

// TestDestinationOptionsInFragments: destination options may stand after the fragment header, which is where
// their reader looks for them. They are checked as in a whole packet.
func TestDestinationOptionsInFragments(t *testing.T) {
	options := func(next, kind uint8, rest []byte) []byte {
		return append([]byte{next, 0, kind, 4, 0, 0, 0, 0}, rest...)
	}
	datagram, segment := udp6(7, string(make([]byte, 3000))), make([]byte, 3000)
	const padN, discard = 1, 0x5e // the second is unknown; its highest bits tell the receiver to discard the packet (RFC 8200, section 4.2)
	for _, test := range []struct {
		name string
		b    []byte
		want string // the counter
	}{
		{"UDP", options(wire.ProtocolUDP, padN, datagram), "udp_received"},
		{"UDP after two headers", options(wire.ProtocolDestination, padN, options(wire.ProtocolUDP, padN, datagram)), "udp_received"},
		{"TCP", options(wire.ProtocolTCP, padN, segment), "tcp_bad_length"},
		{"ICMPv6", options(wire.ProtocolICMPv6, padN, segment), "icmp_checksum"},
		{"an unknown option", options(wire.ProtocolUDP, discard, datagram), "ipv6_extension"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, l, c := newScripted(t, withIPv6)
			testutil.Value(s.ListenUDP(ap("[fd00::1]:7"), stack.UDPOptions{}))
			l.Inject(fragments6(1, 1500, wire.ProtocolDestination, test.b)...)
			s.Poll(c.now())
			got := counters(s)
			if got[test.want] != 1 || got["frag_complete"] != 1 || test.want != "udp_received" && got["udp_received"] != 0 {
				t.Errorf("counters: %v", got)
			}
		})
	}
}

// TestFragmentsAreSent sends datagrams between two owned addresses, of IPv4 and IPv6.
func TestFragmentsAreSent(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("IPv6 ", v6), func(t *testing.T) {
			local, most := ap("10.0.0.2:9"), 65507
			if v6 {
				local, most = ap("[fd00::2]:9"), 65527
			}
			a, b, la, _ := newPair6(t, stack.Config{})
			receiver := testutil.Value(b.ListenUDP(local, stack.UDPOptions{QueueDatagrams: 10}))
			sender := testutil.Value(a.DialUDP(netip.AddrPort{}, local, stack.UDPOptions{}))
			sender.SetDeadline(time.Now().Add(20 * time.Second))
			receiver.SetDeadline(time.Now().Add(20 * time.Second))
			ids := map[uint32]bool{}
			la.Filter(func(frame []byte) bool {
				var p4 wire.IPv4
				var p6 wire.IPv6
				switch {
				case len(frame) > 1514:
					t.Errorf("a frame of %d bytes", len(frame))
				case p4.Parse(frame[14:]) == nil && p4.Fragment != 0:
					if frame[20]&0x40 != 0 || frame[15] != 0 {
						t.Errorf("header %x", frame[14:34])
					}
					ids[uint32(frame[18])<<8|uint32(frame[19])] = true
				case p6.Parse(frame[14:]) == nil && p6.Fragment != 0:
					ids[p6.FragmentID] = true
				}
				return true
			})
			rng := rand.New(rand.NewPCG(8, 8))
			buf := make([]byte, 66000)
			for _, n := range []int{1500, 4000, most, 10} {
				payload := make([]byte, n)
				for i := range payload {
					payload[i] = byte(rng.Uint32())
				}
				if err := udpSend(sender, payload); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				got, err := udpRecv(receiver, buf)
				if err != nil || !bytes.Equal(buf[:got], payload) {
					t.Fatalf("%d bytes: got %d bytes, or the data differs: %v", n, got, err)
				}
			}
			if err := udpSend(sender, make([]byte, most+1)); err != syscall.EMSGSIZE {
				t.Errorf("%d bytes: %v", most+1, err)
			}
			sender.SetDontFragment(true)
			if err := udpSend(sender, make([]byte, 1500)); err != syscall.EMSGSIZE {
				t.Errorf("with SetDontFragment: %v", err)
			}
			la.Filter(nil)
			if len(ids) != 3 {
				t.Errorf("identifications %v", ids)
			}
			if got := counters(a)["udp_sent"]; got != 4 {
				t.Errorf("udp_sent %d", got)
			}
		})
	}
}

// The port program drops fragments from a shared address.
func TestNoFragmentsFromASharedAddress(t *testing.T) {
	s, _, _ := newScripted(t, func(cfg *stack.Config) { cfg.OwnedAddress = false })
	u := testutil.Value(s.DialUDP(ap("10.0.0.1:7"), ap("10.0.0.2:9"), stack.UDPOptions{}))
	if err := udpSend(u, make([]byte, 1473)); err != syscall.EMSGSIZE {
		t.Error(err)
	}
}
