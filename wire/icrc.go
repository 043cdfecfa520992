package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// ICRCLen is the length in bytes of the invariant CRC, the last field of a packet.
const ICRCLen = 4

// The invariant CRC is the CRC-32 of Ethernet, least significant byte first. It covers
// 8 bytes of ones (in place of InfiniBand's local route header) and the packet from the IP
// header to the pad. Fields that may change on the way count as ones: TOS, TTL and header
// checksum of IPv4; traffic class, flow label and hop limit of IPv6; the UDP checksum; the byte of
// the BTH with FECN and BECN (InfiniBand specification, volume 1, annex A17.3.3).
//
// hash/crc32 is fast from 64 bytes on. The headers are fewer, and masked: they go through
// tables as 8-byte words, without a copy. A crcState is the CRC register, not inverted.
type crcState uint32

// afterOnes is the state after the 8 bytes of ones.
var afterOnes = crcState(^crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}))

// crcTables[k][x] is the state that byte x leads to from 0 after k more bytes of zeros.
var crcTables = func() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for k := 1; k < 8; k++ {
		for x, c := range t[k-1] {
			t[k][x] = t[0][byte(c)] ^ c>>8
		}
	}
	return t
}()

// step8 adds 8 bytes, a little-endian word.
func (c crcState) step8(w uint64) crcState {
	w ^= uint64(c)
	t := &crcTables
	return crcState(t[7][byte(w)] ^ t[6][byte(w>>8)] ^ t[5][byte(w>>16)] ^ t[4][byte(w>>24)] ^
		t[3][byte(w>>32)] ^ t[2][byte(w>>40)] ^ t[1][byte(w>>48)] ^ t[0][byte(w>>56)])
}

// step4 adds 4 bytes.
func (c crcState) step4(w uint32) crcState {
	w ^= uint32(c)
	t := &crcTables
	return crcState(t[3][byte(w)] ^ t[2][byte(w>>8)] ^ t[1][byte(w>>16)] ^ t[0][byte(w>>24)])
}

// finish adds b and returns the CRC. From 64 bytes on hash/crc32 gets a multiple of 16 bytes, if
// the length is one of 4: it adds a remainder byte by byte.
func (c crcState) finish(b []byte) uint32 {
	for len(b) >= 8 && (len(b) < 64 || len(b)&8 != 0) {
		c, b = c.step8(binary.LittleEndian.Uint64(b)), b[8:]
	}
	if len(b)&4 != 0 {
		c, b = c.step4(binary.LittleEndian.Uint32(b)), b[4:]
	}
	if len(b) == 0 { // most packets without a payload
		return ^uint32(c)
	}
	return crc32.Update(^uint32(c), crc32.IEEETable, b)
}

// CheckICRC reports whether the invariant CRC of a packet, from its IPv4 or IPv6 header to the end
// of the datagram, is right. A packet that is too short, or has IPv4 options or IPv6 extension
// headers, which RoCEv2 packets have not, fails.
func CheckICRC(packet []byte) bool {
	n := len(packet) - ICRCLen
	if n < RoCEOffset+BTHLen {
		return false
	}
	le := binary.LittleEndian
	c := afterOnes
	switch packet[0] >> 4 {
	case 4:
		if packet[0] != 0x45 {
			return false
		}
		c = c.step8(le.Uint64(packet) | 0xff<<8).step8(le.Uint64(packet[8:]) | 0xffff00ff).step8(le.Uint64(packet[16:]))
		c = c.step8(le.Uint64(packet[24:]) | 0xffff<<16).step8(le.Uint64(packet[32:]) | 0xff)
		packet = packet[40:]
	case 6:
		if n < 60 || packet[6] != ProtocolUDP {
			return false
		}
		c = c.step8(le.Uint64(packet) | 0xff<<56 | 0xffffff0f).step8(le.Uint64(packet[8:])).step8(le.Uint64(packet[16:]))
		c = c.step8(le.Uint64(packet[24:])).step8(le.Uint64(packet[32:])).step8(le.Uint64(packet[40:]) | 0xffff<<48)
		c = c.step8(le.Uint64(packet[48:]) | 0xff<<32)
		packet = packet[56:]
	default:
		return false
	}
	n = len(packet) - ICRCLen
	return c.finish(packet[:n]) == le.Uint32(packet[n:])
}
