//go:build linux

package attack

import (
	"encoding/binary"
	"errors"

	"github.com/unet-go/unet/internal/testutil"
)

// hiddenCases try to hide the headers of a frame from the mux.
func hiddenCases(attacker *attacker) []attackCase {
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []attackCase{
		{"IPv4 fragments of a shared address", "first, middle and last fragments at many offsets, from the attacker's and from the neighbour's port", func(s *caseRun) {
			v := s.forged("tx_forged_addr", "tx_forged_tag")
			for _, port := range []int{attackerPort, neighbourPort, kernelPort} {
				for _, protocol := range []byte{protocolUDP, protocolTCP, protocolICMP} {
					for _, fragment := range []int{0x2000, 0x2001, 1, 2, 3, 0x1fff, 0x3fff, 0xa000, 0x8001} {
						packet := ipv4(hostA, hostB, protocol, transport(protocol, port, v.mark()))
						binary.BigEndian.PutUint16(packet[6:], uint16(fragment))
						v.add(to(typeIPv4, packet))
					}
				}
			}
			v.send(attacker)
		}},
		{"fragments of an owned address", "all offsets of IPv4 and IPv6 fragments: whoever holds the owned address may send them", func(s *caseRun) {
			v := s.forged()
			packet := ipv4(attackerAddr, hostB, protocolUDP, udp(attackerPort, discard, v.mark()))
			v.sweep(attacker, to(typeIPv4, packet), atNetwork+6, 2, 0, 0x3fff, [2]uint64{0, 0x3fff})
			v = s.forged()
			fragment := join([]byte{protocolUDP, 0}, be16(0), be32(7))
			packet = ipv6(attackerAddr6, hostB6, 44, fragment, udp(attackerPort, discard, v.mark()))
			v.sweep(attacker, to(typeIPv6, packet), atTransport6+2, 2, 0, 0x3fff, [2]uint64{0, 0x3fff})
		}},
		{"IPv4 options", "options of every length before the neighbour's and the attacker's port of the shared address, source routes among them", func(s *caseRun) {
			v := s.forged("tx_forged_addr", "tx_forged_tag")
			for _, port := range []int{attackerPort, neighbourPort} {
				for words := 1; words <= 10; words++ {
					for _, option := range []byte{0, 1, 7, 0x83, 0x89, 0x94} { // end, no-op, record route, source routes, router alert
						packet := ipv4(hostA, hostB, protocolUDP, make([]byte, 4*words), udp(port, discard, v.mark()))
						packet[0] = 0x45 + byte(words)
						packet[20] = option
						if option > 1 {
							packet[21], packet[22] = byte(4*words), 4
						}
						v.add(to(typeIPv4, packet))
					}
				}
			}
			v.send(attacker)
		}},
		{"IPv6 extension headers", "every extension header, up to three deep, before forged ports, neighbour and router advertisements, from own and shared addresses", func(s *caseRun) {
			v := s.forged("tx_bad_header", "tx_forged_addr", "tx_forged_nd")
			forgeExtended(v)
			v.send(attacker)
		}},
		{"neighbour discovery in IPv6 fragments", "solicitations and advertisements, true ones too, in atomic fragments and in two pieces (RFC 6980)", func(s *caseRun) {
			v := s.forged("tx_forged_nd", "tx_forged_addr", "tx_bad_header")
			for _, target := range []path{{attackerAddr6, attackerAddr6}, {attackerAddr6, neighbourAddr6}, {hostA6, hostA6}} {
				for _, more := range []byte{0, 1} {
					nd := icmp6(target.src, hostB6, neighbourAdvert, 0, []byte{0x60, 0, 0, 0}, target.dst.AsSlice(), linkOption(2, linkA))
					v.add(to(typeIPv6, ipv6(target.src, hostB6, 44, []byte{protocolICMPv6, 0, 0, more, 0, 0, 0, 7}, nd), v.mark()))
					// A fragment in a fragment.
					v.add(to(typeIPv6, ipv6(target.src, hostB6, 44, []byte{44, 0, 0, more, 0, 0, 0, 7}, []byte{protocolICMPv6, 0, 0, 0, 0, 0, 0, 8}, nd), v.mark()))
				}
			}
			v.send(attacker)
		}},
		{"headers over several descriptors", "forged and permitted frames of every kind, cut into descriptors at every place in their headers, and into single bytes", func(s *caseRun) {
			v := s.forged(append(drops, "tx_forged_link")...)
			for _, k := range permittedFrames(v.mark()) {
				forgedFrame := edit(k.frame, k.source, k.frame[k.source]^1, k.frame[k.source+1]^0x40)
				for cut := 1; cut < k.headers; cut++ {
					v.addCut(forgedFrame, cut)
					v.addCut(edit(k.frame, 11, 0x66), cut)
				}
				v.addCut(forgedFrame, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
				v.addCut(forgedFrame, 14, 34, 42)
			}
			v.send(attacker)

			// The kernel joins the pieces again, so a permitted frame in pieces is permitted.
			v = s.forged(drops...)
			before := s.counters(s)
			for _, k := range permittedFrames(mark(legal, v.number)) {
				for cut := 1; cut < k.headers; cut++ {
					v.addCut(k.frame, cut)
				}
			}
			result := sendFrames.do(s, attacker.agentProcess, sendArg{attacker.Endpoint, v.frames})
			var dropped uint64
			if !testutil.Until(func() bool {
				dropped = 0
				for name, n := range since(before, s.counters(s)) {
					if isTransmitDrop(name) {
						dropped += n
					}
				}
				return dropped+uint64(s.capture.legalFrames(v.number)) == result.Frames
			}) {
				s.Errorf("of %d permitted frames in pieces %d were dropped and %d arrived", result.Frames, dropped, s.capture.legalFrames(v.number))
			}
			s.row.note("permitted frames in pieces: %d left, %d dropped", s.capture.legalFrames(v.number), dropped)
			drain.do(s, attacker.agentProcess, endpointArg{attacker.Endpoint})
		}},
		{"a frame that changes while it is sent", "one thread sends, another one flips the source between own and neighbour's, in one descriptor and in two", func(s *caseRun) {
			for _, cut := range []int{0, 60} {
				before := s.counters(s)
				number := s.newBatch()
				frames := lengthOf(400_000, 40_000, 10_000)
				result := sendWhileChanging.do(s, attacker.agentProcess, changingArg{attacker.Endpoint, frames, cut,
					to(typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, mark(legal, number)))), atTransport4, neighbourPort ^ attackerPort})
				var counts map[string]uint64
				dropped := func() (n uint64) {
					counts = since(before, s.counters(s))
					return counts["tx_forged_tag"] + counts["tx_forged_addr"] // with one byte of each, the port is neither of both
				}
				if !testutil.Until(func() bool { return dropped()+uint64(s.capture.legalFrames(number)) == result.Frames }) {
					s.Errorf("%d frames: %d left the uplink, %v", result.Frames, s.capture.legalFrames(number), counts)
				}
				s.row.note("%d frames in %d descriptors: %d left with the true port, %d were dropped", result.Frames, min(cut, 1)+1, s.capture.legalFrames(number), dropped())
				drain.do(s, attacker.agentProcess, endpointArg{attacker.Endpoint})
			}
		}},
	}
}

// forgeExtended adds packets whose forged headers are behind extension headers.
func forgeExtended(v *batch) {
	m := v.mark()
	for _, src := range []path{{attackerAddr6, hostB6}, {hostA6, hostB6}} {
		forgedPayloads := map[byte][][]byte{
			protocolUDP: {udp(neighbourPort, discard, m)},
			protocolTCP: {tcp(neighbourPort, discard, m)},
			protocolICMPv6: {
				icmp6(src.src, hostB6, neighbourAdvert, 0, []byte{0x60, 0, 0, 0}, neighbourAddr6.AsSlice(), linkOption(2, linkA)),
				icmp6(src.src, hostB6, routerAdvertisement, 0, []byte{64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, linkOption(1, linkA)),
				icmp6(src.src, hostB6, redirect, 0, make([]byte, 4), attackerAddr6.AsSlice(), hostA6.AsSlice()),
			},
		}
		extensions := []byte{0, 43, 51, 60, 135, 139, 140, 253, 254}
		for last, payloads := range forgedPayloads {
			for _, payload := range payloads {
				for _, first := range extensions {
					for _, second := range append(extensions, 44, last) {
						header := func(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }
						chain := header(second)
						switch {
						case second == 44:
							chain = join(chain, []byte{last, 0, 0, 0, 0, 0, 0, 9})
						case second != last:
							chain = join(chain, header(60), header(last))
						}
						v.add(ether(linkB, linkA, typeIPv6, ipv6(src.src, src.dst, first, chain, payload), m))
						// And behind a fragment header, which the holder of an owned address may send.
						v.add(ether(linkB, linkA, typeIPv6, ipv6(src.src, src.dst, 44, []byte{first, 0, 0, 0, 0, 0, 0, 9}, chain, payload), m))
					}
				}
			}
		}
	}
}

// changingArg is a frame of which two bytes change while it is sent.
type changingArg struct {
	Endpoint, Frames, Cut int
	Frame                 []byte
	At                    int
	Flip                  int // what the bytes are XORed with
}

// sendWhileChanging sends a frame repeatedly from one place in the segment while another
// thread changes it there.
var sendWhileChanging = newCommand("sendWhileChanging", func(a *agent, arg changingArg) (sendResult, error) {
	g := a.endpoints[arg.Endpoint]
	a.repeatTask(func(_ <-chan struct{}) error {
		for at := uint32(g.grant.Geometry.Prefilled()); at < g.grant.Geometry.FrameCount; at++ {
			xor16(g.mem[uint64(at)*uint64(g.grant.Geometry.FrameSize)+uint64(arg.At):], uint16(arg.Flip))
		}
		return nil
	})
	var cuts []int
	if arg.Cut > 0 {
		cuts = []int{arg.Cut}
	}
	result, err := g.send(func(yield func(outFrame) bool) {
		for range arg.Frames {
			if !yield(outFrame{arg.Frame, cuts}) {
				return
			}
		}
	})
	p := a.tasks[len(a.tasks)-1]
	close(p.stop)
	<-p.done
	a.tasks = a.tasks[:len(a.tasks)-1]
	return result, errors.Join(err, p.err)
})

// xor16 changes two bytes at once.
func xor16(b []byte, with uint16) { binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)^with) }
