package wire

import (
	"encoding/binary"
	"math/bits"
)

const (
	// TCPHeaderLen is the length of a TCP header without options in bytes.
	TCPHeaderLen = 20
	// MaxTCPHeaderLen is the length of the longest header in bytes.
	MaxTCPHeaderLen = 60
)

// TCPFlags are the control bits of a segment (RFC 9293, section 3.1).
type TCPFlags uint8

const (
	TCPFin TCPFlags = 1 << iota
	TCPSyn
	TCPRst
	TCPPsh
	TCPAck
	TCPUrg
	TCPEce // RFC 3168
	TCPCwr // RFC 3168
)

const tcpFlagLetters = "FSRPAUEC"

// String is the letters of the flags that are set, "SA" for SYN and ACK.
func (f TCPFlags) String() string {
	var b [8]byte
	n := 0
	for i := range len(tcpFlagLetters) {
		if f&(1<<i) != 0 {
			b[n] = tcpFlagLetters[i]
			n++
		}
	}
	if n == 0 {
		return "-"
	}
	return string(b[:n])
}

// TCP is a segment (RFC 9293, section 3.1):
//
//	source port(2) destination port(2) sequence number(4)
//	acknowledgment number(4)  data offset|reserved(1) flags(1) window(2)
//	checksum(2) urgent pointer(2)  [options] payload
//
// A segment has no length field: its end is that of the IP payload.
type TCP struct {
	SrcPort, DstPort uint16
	Seq              uint32   // of the first octet, or of the SYN
	Ack              uint32   // meaningless without TCPAck
	Flags            TCPFlags // the reserved bits beside them are ignored, as they must be
	Window           uint16   // not scaled
	Urgent           uint16   // meaningless without TCPUrg
	// Timestamps: the only option is aligned timestamps, as in nearly every segment of a
	// connection (RFC 7323, appendix A). Only then TSVal and TSEcr are set.
	Timestamps   bool
	TSVal, TSEcr uint32
	Segment      []byte // all of it
	Options      []byte // padding included
	Payload      []byte
}

// Parse reads a segment. It checks the data offset: the errors are ErrTruncated and
// ErrLength. It checks
// neither the checksum, see [TCP.Checksum], nor the options, see [TCP.ReadOptions].
func (s *TCP) Parse(b []byte) error {
	if len(b) < TCPHeaderLen {
		return ErrTruncated
	}
	n := int(b[12]>>4) * 4
	if n < TCPHeaderLen {
		return ErrLength
	}
	if n > len(b) {
		return ErrTruncated
	}
	w0, w1 := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	s.SrcPort, s.DstPort, s.Seq = uint16(w0>>48), uint16(w0>>32), uint32(w0)
	s.Ack, s.Flags, s.Window = uint32(w1>>32), TCPFlags(w1>>16), uint16(w1)
	s.Urgent = binary.BigEndian.Uint16(b[18:])
	s.Segment, s.Options, s.Payload = b, b[TCPHeaderLen:n], b[n:]
	if o := s.Options; len(o) == TCPTimestampsLen && binary.BigEndian.Uint32(o) == timestampsPrefix {
		s.Timestamps = true
		s.TSVal, s.TSEcr = binary.BigEndian.Uint32(o[4:]), binary.BigEndian.Uint32(o[8:])
	} else {
		s.Timestamps = false
	}
	return nil
}

// ChecksumState is the result of [TCP.Checksum].
type ChecksumState uint8

const (
	ChecksumBad     ChecksumState = iota
	ChecksumGood                  // verified
	ChecksumPartial               // covers the pseudo-header only
)

func (s ChecksumState) String() string {
	return [...]string{ChecksumBad: "bad", ChecksumGood: "good", ChecksumPartial: "partial"}[s]
}

// Checksum verifies the checksum field of a segment from src to dst. Whether
// [ChecksumPartial] is to be accepted depends on the link, see [ParseUDP]. A correct
// checksum that equals the partial one is good.
func (s *TCP) Checksum(src, dst Addr) ChecksumState {
	pseudo := PseudoHeader(src, dst, ProtocolTCP, uint16(len(s.Segment)))
	if Fold(Sum(s.Segment, pseudo)) == 0xffff {
		return ChecksumGood
	}
	if binary.BigEndian.Uint16(s.Segment[16:]) == Fold(pseudo) {
		return ChecksumPartial
	}
	return ChecksumBad
}

// AcceptPartial reports, without reading the payload, whether the checksum
// field covers the pseudo-header only. If not, [TCP.Checksum] has the answer.
func (s *TCP) AcceptPartial(src, dst Addr) bool {
	return binary.BigEndian.Uint16(s.Segment[16:]) == Fold(PseudoHeader(src, dst, ProtocolTCP, uint16(len(s.Segment))))
}

// TCPFields are the fields of a header. The rest follows from the segment.
type TCPFields struct {
	SrcPort, DstPort uint16
	Seq, Ack         uint32
	Flags            TCPFlags
	Window           uint16
	Urgent           uint16
	// Length of the segment in bytes, which PutTCP adds to the checksum; 0: it is in the sum.
	Length uint16
}

// PutTCP writes the header of a segment to the start of b: [TCPHeaderLen] bytes,
// before options that end at headerLen, a multiple of 4. sum is the unfolded
// sum of everything else that the checksum covers: the pseudo-header, the
// options and the payload. The writers of those return it as they go
// ([PutTCPOptions], [PutTCPTimestamps], [SumCopy]), so no byte is read twice.
func PutTCP(b []byte, f *TCPFields, headerLen int, sum uint64) {
	if headerLen < TCPHeaderLen || headerLen > MaxTCPHeaderLen || headerLen%4 != 0 {
		panic("BUG: wire: impossible length of a TCP header")
	}
	_ = b[19]
	w0 := uint64(f.SrcPort)<<48 | uint64(f.DstPort)<<32 | uint64(f.Seq)
	w1 := uint64(f.Ack)<<32 | uint64(headerLen/4)<<28 | uint64(f.Flags)<<16 | uint64(f.Window)
	sum, c := bits.Add64(sum, bits.ReverseBytes64(w0), 0)
	sum, c = bits.Add64(sum, bits.ReverseBytes64(w1), c)
	sum, c = bits.Add64(sum, uint64(bits.ReverseBytes16(f.Urgent))<<16+uint64(bits.ReverseBytes16(f.Length)), c)
	check := ^Fold(sum + c) // a carry leaves sum below 2^32: c cannot carry again
	binary.BigEndian.PutUint64(b, w0)
	binary.BigEndian.PutUint64(b[8:], w1)
	binary.BigEndian.PutUint32(b[16:], uint32(check)<<16|uint32(f.Urgent))
}

// Kinds of TCP options.
const (
	TCPOptionEnd           uint8 = 0 // RFC 9293
	TCPOptionNop           uint8 = 1 // RFC 9293
	TCPOptionMSS           uint8 = 2 // RFC 9293
	TCPOptionWindowScale   uint8 = 3 // RFC 7323
	TCPOptionSACKPermitted uint8 = 4 // RFC 2018
	TCPOptionSACK          uint8 = 5 // RFC 2018
	TCPOptionTimestamps    uint8 = 8 // RFC 7323
)

const (
	// TCPTimestampsLen is the length of what [PutTCPTimestamps] writes in bytes.
	TCPTimestampsLen = 12
	// MaxSACKBlocks is how many blocks fit in the options of a segment; with timestamps
	// it is one less.
	MaxSACKBlocks = 4

	maxTCPOptionsLen = MaxTCPHeaderLen - TCPHeaderLen
	// The four bytes before the values of aligned timestamps: padding, kind and length
	// (RFC 7323, appendix A).
	timestampsPrefix = uint32(TCPOptionNop)<<24 | uint32(TCPOptionNop)<<16 | uint32(TCPOptionTimestamps)<<8 | 10
)

// SACKBlock is a range of sequence numbers that has been received: from Left up
// to, but not including, Right.
type SACKBlock struct{ Left, Right uint32 }

// TCPOptions are the values of the options that unet supports.
type TCPOptions struct {
	MSS            uint16 // bytes; 0: no such option
	WindowScale    uint8  // shift count as sent, perhaps above 14
	HasWindowScale bool
	SACKPermitted  bool
	HasTimestamps  bool
	SACKBlocks     uint8 // of SACK
	TSVal, TSEcr   uint32
	SACK           [MaxSACKBlocks]SACKBlock
}

// ReadOptions fills o in from the options. An option of the wrong length is ignored; of two
// of one kind the last counts. After one whose length is impossible (RFC 9293, MUST-7)
// nothing more is read. It reports whether all options were well formed.
func (s *TCP) ReadOptions(o *TCPOptions) (ok bool) {
	*o = TCPOptions{}
	ok = true
	for rest := s.Options; len(rest) > 0 && rest[0] != TCPOptionEnd; {
		if rest[0] == TCPOptionNop {
			rest = rest[1:]
			continue
		}
		if len(rest) < 2 || rest[1] < 2 || int(rest[1]) > len(rest) {
			return false
		}
		kind, data := rest[0], rest[2:rest[1]]
		rest = rest[rest[1]:]
		switch {
		case kind == TCPOptionMSS && len(data) == 2:
			o.MSS = binary.BigEndian.Uint16(data)
		case kind == TCPOptionWindowScale && len(data) == 1:
			o.WindowScale, o.HasWindowScale = data[0], true
		case kind == TCPOptionSACKPermitted && len(data) == 0:
			o.SACKPermitted = true
		case kind == TCPOptionTimestamps && len(data) == 8:
			o.TSVal, o.TSEcr = binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])
			o.HasTimestamps = true
		case kind == TCPOptionSACK && len(data) > 0 && len(data)%8 == 0:
			o.SACKBlocks = uint8(len(data) / 8) // 40 bytes of options have room for 4
			for i := range o.SACKBlocks {
				b := data[8*i:]
				o.SACK[i] = SACKBlock{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
			}
		case kind <= TCPOptionSACK, kind == TCPOptionTimestamps:
			ok = false
		}
	}
	return ok
}

// PutTCPTimestamps writes the timestamps option as the only one, after two bytes of
// padding: [TCPTimestampsLen] bytes. It returns their unfolded sum.
func PutTCPTimestamps(b []byte, val, ecr uint32) (sum uint64) {
	_ = b[11]
	w := uint64(timestampsPrefix)<<32 | uint64(val)
	binary.BigEndian.PutUint64(b, w)
	binary.BigEndian.PutUint32(b[8:], ecr)
	sum, c := bits.Add64(bits.ReverseBytes64(w), uint64(bits.ReverseBytes32(ecr)), 0)
	return sum + c
}

// PutTCPOptions writes the options that o has, padded to a multiple of 4, and
// returns their length in bytes and their unfolded sum. b has room for 40
// bytes; SACK blocks that do not fit there are left out, the last first.
func PutTCPOptions(b []byte, o *TCPOptions) (n int, sum uint64) {
	_ = b[maxTCPOptionsLen-1]
	if o.MSS != 0 {
		binary.BigEndian.PutUint32(b, uint32(TCPOptionMSS)<<24|4<<16|uint32(o.MSS))
		n = 4
	}
	switch {
	case o.HasTimestamps && o.SACKPermitted: // it takes the place of the padding
		binary.BigEndian.PutUint32(b[n:], uint32(TCPOptionSACKPermitted)<<24|2<<16|uint32(TCPOptionTimestamps)<<8|10)
	case o.HasTimestamps:
		binary.BigEndian.PutUint32(b[n:], timestampsPrefix)
	case o.SACKPermitted:
		binary.BigEndian.PutUint32(b[n:], uint32(TCPOptionNop)<<24|uint32(TCPOptionNop)<<16|uint32(TCPOptionSACKPermitted)<<8|2)
		n += 4
	}
	if o.HasTimestamps {
		binary.BigEndian.PutUint32(b[n+4:], o.TSVal)
		binary.BigEndian.PutUint32(b[n+8:], o.TSEcr)
		n += TCPTimestampsLen
	}
	if o.HasWindowScale {
		binary.BigEndian.PutUint32(b[n:], uint32(TCPOptionNop)<<24|uint32(TCPOptionWindowScale)<<16|3<<8|uint32(o.WindowScale))
		n += 4
	}
	if k := min(int(o.SACKBlocks), (maxTCPOptionsLen-n-4)/8); k > 0 {
		binary.BigEndian.PutUint32(b[n:], uint32(TCPOptionNop)<<24|uint32(TCPOptionNop)<<16|uint32(TCPOptionSACK)<<8|uint32(2+8*k))
		n += 4
		for _, block := range o.SACK[:k] {
			binary.BigEndian.PutUint32(b[n:], block.Left)
			binary.BigEndian.PutUint32(b[n+4:], block.Right)
			n += 8
		}
	}
	return n, Sum(b[:n], 0)
}
