package attack

// drops are all counters of frames of endpoints that the mux drops for what they are.
var drops = []string{"tx_truncated", "tx_bad_length", "tx_bad_header", "tx_bad_ethertype", "tx_forged_addr", "tx_forged_tag", "tx_forged_arp", "tx_forged_nd", "tx_forged_quote"}

func malformedCases(armed *shooter) []attackCase {
	to := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	return []attackCase{
		{"frames of 0 to 13 bytes", "the first bytes of lawful frames, less than an Ethernet header", func(s *scene) {
			v := s.forge(inKernel, "tx_truncated")
			for _, k := range lawful(v.mark()) {
				for n := range 14 {
					v.add(k.frame[:n])
				}
			}
			v.fire(armed)
		}},
		{"headers that end early", "lawful frames of every kind, cut at every length before the end of their headers", func(s *scene) {
			v := s.forge("tx_truncated", "tx_bad_length")
			for _, k := range lawful(v.mark()) {
				for n := 14; n < k.headers; n++ {
					v.add(k.frame[:n])
				}
			}
			v.fire(armed)
		}},
		{"packets that end early", "lawful IP packets and messages, cut at every length between their headers and their end", func(s *scene) {
			v := s.forge("tx_bad_length")
			for _, k := range lawful(v.mark()) {
				etherType := int(k.frame[atEtherType])<<8 | int(k.frame[atEtherType+1])
				if etherType == typeARP || k.frame[atNextHeader] == protocolICMPv6 && etherType == typeIPv6 {
					continue // the mark is padding there
				}
				for n := k.headers; n < len(k.frame); n++ {
					v.add(k.frame[:n])
				}
			}
			v.fire(armed)
		}},
		{"longer than the uplink's MTU", "frames of 1,515 to 2,048 bytes in one descriptor and of up to 32 KiB in many", func(s *scene) {
			v := s.forge("tx_oversize")
			m := v.mark()
			long := func(total int) []byte {
				return to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, m, make([]byte, total-atTransport4-20-len(m)))))
			}
			for n := 1515; n <= 2048; n += 13 {
				v.add(long(n))
			}
			for n := 2; n <= 16; n++ {
				var cuts []int
				for i := 1; i < n; i++ {
					cuts = append(cuts, 2048*i)
				}
				v.addCut(long(2048*n), cuts...)
			}
			v.fire(armed)
		}},
		{"as long as the uplink's MTU", "frames of exactly 1,514 bytes, in one descriptor and in two", func(s *scene) {
			v := s.allow()
			m := v.mark()
			frame := to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, m, make([]byte, 1500-40-len(m)))))
			v.add(frame)
			v.addCut(frame, 700)
			v.fire(armed)
		}},
		{"VLANs", "lawful frames behind one to six VLAN tags of every EtherType that means one", func(s *scene) {
			v := s.forge("tx_bad_ethertype")
			for _, k := range lawful(v.mark()) {
				for _, outer := range []int{typeVLAN, 0x88a8, 0x9100, 0x9200, 0x9300} {
					tags := []byte{}
					for range 6 {
						tags = join(be16(outer), be16(100), tags)
						v.add(join(k.frame[:atEtherType], tags, k.frame[atEtherType:]))
					}
				}
			}
			v.fire(armed)
		}},
		{"every EtherType", "all 65,536, over a lawful IPv4 packet", func(s *scene) {
			v := s.forge("tx_bad_ethertype", "tx_bad_header", "tx_bad_length", "tx_forged_arp")
			frame := to(typeIPv4, ipv4(attackerAddr, hostB, protocolTCP, tcp(discard, discard, v.mark())))
			v.sweep(armed, frame, atEtherType, 2, 0, 0xffff, [2]uint64{typeIPv4, typeIPv4})
		}},
		{"every protocol", "all IPv4 protocols and IPv6 next headers from an own whole address, over zeros behind one byte: no length of UDP or TCP is true then, extension headers lead on, and the rest, ICMP of an unknown type too, is for the infrastructure", func(s *scene) {
			v := s.forge("tx_bad_length", "tx_truncated", "tx_infrastructure")
			// Where UDP has its length and TCP the length of its header, there are zeros.
			zeros := make([]byte, 20)
			zeros[0] = 255
			v.sweep(armed, to(typeIPv4, ipv4(attackerAddr, hostB, 0, zeros, v.mark())), atProtocol, 1, 0, 255)
			v = s.forge("tx_bad_length", "tx_bad_header", "tx_forged_quote", "tx_infrastructure")
			v.sweep(armed, to(typeIPv6, ipv6(attackerAddr6, hostB6, 0, zeros, v.mark())), atNextHeader, 1, 0, 255)
		}},
		{"lying lengths of IPv4", "all 65,536 total lengths, on a packet with 40 bytes of padding", func(s *scene) {
			v := s.forge("tx_bad_length")
			packet := ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, v.mark()))
			true4 := uint64(len(packet))
			v.sweep(armed, to(typeIPv4, packet, make([]byte, 40)), atTotalLength, 2, 0, 0xffff, [2]uint64{true4, true4 + 40})
		}},
		{"lying header lengths of IPv4", "versions and header lengths 0 to 255 on the first byte; behind any but the true one stand the neighbour's ports", func(s *scene) {
			v := s.forge(drops...)
			trap := []byte{}
			for range 6 { // whatever the header length says, this is found there, or a lie
				trap = join(trap, be16(neighbourPort), be16(24), be16(24), be16(0))
			}
			packet := ipv4(hostA, hostB, protocolUDP, udp(attackerPort, discard, trap, v.mark()))
			v.sweep(armed, to(typeIPv4, packet), atNetwork, 1, 0, 255, [2]uint64{0x45, 0x45})
		}},
		{"lying lengths of IPv6", "all 65,536 payload lengths, on a packet with 40 bytes of padding", func(s *scene) {
			v := s.forge("tx_bad_length")
			packet := ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))
			true6 := uint64(len(packet) - 40)
			v.sweep(armed, to(typeIPv6, packet, make([]byte, 40)), atPayload6, 2, 0, 0xffff, [2]uint64{true6, true6 + 40})
		}},
		{"IP versions", "all first bytes of an IPv6 packet", func(s *scene) {
			v := s.forge("tx_bad_header")
			packet := ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))
			v.sweep(armed, to(typeIPv6, packet), atNetwork, 1, 0, 255, [2]uint64{0x60, 0x6f})
		}},
		{"lying lengths of UDP", "all 65,536 lengths over IPv4 and over IPv6: a datagram may be shorter than its packet, not longer", func(s *scene) {
			v := s.forge("tx_bad_length")
			datagram := udp(attackerPort, discard, v.mark())
			shorter := [2]uint64{8, uint64(len(datagram))}
			v.sweep(armed, to(typeIPv4, ipv4(hostA, hostB, protocolUDP, datagram)), atTransport4+4, 2, 0, 0xffff, shorter)
			v = s.forge("tx_bad_length")
			v.sweep(armed, to(typeIPv6, ipv6(hostA6, hostB6, protocolUDP, udp(attackerPort, discard, v.mark()))), atTransport6+4, 2, 0, 0xffff, shorter)
		}},
		{"lying header lengths of TCP", "all data offsets, over IPv4 and over IPv6", func(s *scene) {
			v := s.forge("tx_bad_length", "tx_bad_header")
			ended := make([]byte, 40) // options of nothing, as long as they can be
			segment := tcp(attackerPort, discard, ended, v.mark())
			v.sweep(armed, to(typeIPv4, ipv4(hostA, hostB, protocolTCP, segment)), atTransport4+12, 1, 0, 255, [2]uint64{0x50, 0xff})
			v = s.forge("tx_bad_length", "tx_bad_header")
			v.sweep(armed, to(typeIPv6, ipv6(hostA6, hostB6, protocolTCP, tcp(attackerPort, discard, ended, v.mark()))), atTransport6+12, 1, 0, 255, [2]uint64{0x50, 0xff})
		}},
		{"lying lengths and versions of messages", "all 65,536 lengths and all versions", func(s *scene) {
			v := s.forge("tx_bad_length")
			frame := to(typeMessage, message(discard, attackerTag, v.mark()))
			v.sweep(armed, frame, atNetwork+2, 2, 0, 0xffff, [2]uint64{0, uint64(markLen)})
			v = s.forge("tx_bad_header")
			v.sweep(armed, to(typeMessage, message(discard, attackerTag, v.mark())), atNetwork, 1, 0, 255, [2]uint64{1, 1})
		}},
	}
}
