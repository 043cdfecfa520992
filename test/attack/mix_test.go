package attack

import (
	"encoding/binary"
	"math/rand/v2"
)

// sample is a frame that is sent many times, each time with another number in it.
type sample struct {
	Name  string
	Frame []byte
	Count int    // how often, in a round of all samples
	Want  string // the counter that counts it
	To    string // who receives it; empty: nobody
}

// sampleMark is a mark and room for a number.
func sampleMark(verdict byte) []byte { return append(mark(verdict, 0), make([]byte, 8)...) }

// numberAt is where a frame's number stands: behind its mark.
func numberAt(frame []byte) int {
	i := indexOfMark(frame)
	if i < 0 || i+markLen+8 > len(frame) {
		return -1
	}
	return i + markLen
}

// mixArg is a number of frames of many kinds in a random order that a seed gives.
type mixArg struct {
	Gun, Frames int
	Seed        uint64
	Samples     []sample
}

// mixed is how many of each were sent.
type mixed struct {
	Sent  []uint64
	Fired fired
}

// mix sends. Frames are numbered from 1.
var mix = teach("mix", func(a *agent, arg mixArg) (m mixed, err error) {
	random := rand.New(rand.NewPCG(arg.Seed, 1))
	var draw, at []int
	for i, s := range arg.Samples {
		for range s.Count {
			draw = append(draw, i)
		}
		at = append(at, numberAt(s.Frame))
	}
	m.Sent = make([]uint64, len(arg.Samples))
	m.Fired, err = a.guns[arg.Gun].fire(func(yield func(shot) bool) {
		for n := 1; n <= arg.Frames; n++ {
			i := draw[random.IntN(len(draw))]
			s := &arg.Samples[i]
			if at[i] >= 0 {
				binary.BigEndian.PutUint64(s.Frame[at[i]:], uint64(n))
			}
			m.Sent[i]++
			if !yield(shot{Frame: s.Frame}) {
				return
			}
		}
	})
	return m, err
})

// samples are lawful frames to each receiver, and every kind of lie to them.
func samples(localPort, remotePort, sinkPort int, localTag, remoteTag uint32) []sample {
	good, bad := sampleMark(legal), sampleMark(forged)
	local := func(etherType int, rest ...[]byte) []byte { return ether(linkA, linkA, etherType, rest...) }
	remote := func(etherType int, rest ...[]byte) []byte { return ether(linkB, linkA, etherType, rest...) }
	u := func(src, dst int, m []byte) []byte { return udp(src, dst, m) }
	lie := edit // to say that a lawful frame is changed
	all := []sample{
		{"local message", local(typeMessage, message(localTag, attackerTag, good)), 6, "tx_local", "local"},
		{"local datagram", local(typeIPv4, ipv4(hostA, hostA, protocolUDP, u(attackerPort, localPort, good))), 6, "tx_local", "local"},
		{"local datagram of an own address", local(typeIPv4, ipv4(attackerAddr, hostA, protocolUDP, u(discard, localPort, good))), 2, "tx_local", "local"},
		{"message", remote(typeMessage, message(remoteTag, attackerTag, good)), 6, "tx_uplink", "remote"},
		{"datagram", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerPort, remotePort, good))), 6, "tx_uplink", "remote"},
		{"datagram over IPv6", remote(typeIPv6, ipv6(hostA6, hostB6, protocolUDP, u(attackerPort, remotePort, good))), 4, "tx_uplink", "remote"},
		{"datagram of a block", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerBlock+9, remotePort, good))), 2, "tx_uplink", "remote"},
		{"datagram to the kernel", remote(typeIPv4, ipv4(hostA, hostB, protocolUDP, u(attackerPort, sinkPort, good))), 1, "tx_uplink", "kernel"},
	}
	for _, to := range []struct {
		frame func(int, ...[]byte) []byte
		tag   uint32
		port  int
		path  path
		path6 path
	}{{local, localTag, localPort, path{hostA, hostA}, path{hostA6, hostA6}}, {remote, remoteTag, remotePort, path{hostA, hostB}, path{hostA6, hostB6}}} {
		message := to.frame(typeMessage, message(to.tag, attackerTag, bad))
		datagram := to.frame(typeIPv4, to.path.v4(protocolUDP, u(attackerPort, to.port, bad)))
		datagram6 := to.frame(typeIPv6, to.path6.v6(protocolUDP, u(attackerPort, to.port, bad)))
		all = append(all,
			sample{"MAC address", lie(message, 6, liarLink[:]...), 1, "tx_forged_link", ""},
			sample{"MAC address of host B", lie(datagram, 6, linkB[:]...), 1, "tx_forged_link", ""},
			sample{"address of the neighbour", lie(datagram, atNetwork+12, neighbourAddr.AsSlice()...), 2, "tx_forged_addr", ""},
			sample{"IPv6 address", lie(datagram6, atNetwork+8, neighbourAddr6.AsSlice()...), 2, "tx_forged_addr", ""},
			sample{"nobody's port", lie(datagram, atTransport4, be16(nobodysPort)...), 1, "tx_forged_addr", ""},
			sample{"the neighbour's port", lie(datagram, atTransport4, be16(neighbourPort)...), 1, "tx_forged_tag", ""},
			sample{"message tag", lie(message, atNetwork+8, be32(neighbourTag)...), 2, "tx_forged_tag", ""},
			sample{"long total length", lie(datagram, atTotalLength, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"long datagram", lie(datagram, atTransport4+4, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"long message", lie(message, atNetwork+2, be16(1400)...), 1, "tx_bad_length", ""},
			sample{"message of version 2", lie(message, atNetwork, 2), 1, "tx_bad_header", ""},
			sample{"IPv5", lie(datagram, atNetwork, 0x55), 1, "tx_bad_header", ""},
			sample{"extension header", lie(datagram6, atNextHeader, 60), 1, "tx_bad_header", ""},
			sample{"VLAN", join(message[:atEtherType], be16(typeVLAN), be16(1), message[atEtherType:]), 1, "tx_bad_ethertype", ""},
			sample{"EtherType", lie(message, atEtherType, be16(0x88b6)...), 1, "tx_bad_ethertype", ""},
			sample{"half a header", message[:atNetwork+6], 1, "tx_truncated", ""},
			sample{"too long", join(message, make([]byte, 1500)), 1, "tx_oversize", ""},
			sample{"ARP for the kernel", to.frame(typeARP, arp(arpReply, linkA, hostA, linkB, hostB), bad), 1, "tx_forged_arp", ""},
			sample{"advertisement", to.frame(typeIPv6, discovery(attackerAddr6, to.path6.dst, neighbourAdvert, 0x60, neighbourAddr6, linkOption(2, linkA)), bad), 1, "tx_forged_nd", ""},
		)
	}
	return append(all,
		sample{"to a tag that nobody has", local(typeMessage, message(localTag+1, attackerTag, bad)), 1, "tx_no_owner", ""},
		sample{"to the kernel of this host", local(typeIPv4, ipv4(attackerAddr, hostA, protocolUDP, u(discard, kernelPort, bad))), 1, "tx_no_owner", ""})
}
