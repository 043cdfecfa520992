package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

const (
	// RoCEPort is the UDP port of RoCEv2.
	RoCEPort = 4791
	// BTHLen is the length of a base transport header in bytes.
	BTHLen = 12
	// RoCEOffset is where the base transport header begins in an IPv4 packet, in bytes.
	RoCEOffset = IPv4HeaderLen + UDPHeaderLen
	// MaxRoCEHeader is the length of the longest headers of a packet that [PutRoCE] writes,
	// BTH and AtomicETH, in bytes.
	MaxRoCEHeader = BTHLen + atomicETHLen
)

// Lengths in bytes of extension headers and of what follows the BTH of a CNP.
const (
	dethLen      = 8
	rethLen      = 16
	atomicETHLen = 28
	aethLen      = 4
	atomicAckLen = 8
	immLen       = 4
	iethLen      = 4
	cnpLen       = 16
)

// Opcode is the first byte of the base transport header: the transport in the upper three bits,
// the operation in the lower five.
type Opcode uint8

// Operations.
const (
	OpSendFirst Opcode = iota
	OpSendMiddle
	OpSendLast
	OpSendLastImm
	OpSendOnly
	OpSendOnlyImm
	OpWriteFirst
	OpWriteMiddle
	OpWriteLast
	OpWriteLastImm
	OpWriteOnly
	OpWriteOnlyImm
	OpReadRequest
	OpReadResponseFirst
	OpReadResponseMiddle
	OpReadResponseLast
	OpReadResponseOnly
	OpAck
	OpAtomicAck
	OpCompareSwap
	OpFetchAdd
	_
	OpSendLastInv
	OpSendOnlyInv
)

// Transports. UC has the SENDs and WRITEs without invalidate, UD has OpSendOnly and
// OpSendOnlyImm.
const (
	TransportRC Opcode = 0 << 5
	TransportUC Opcode = 1 << 5
	TransportUD Opcode = 3 << 5
)

// OpCNP is the whole opcode of a congestion notification packet (annex A17.9).
const OpCNP Opcode = 0x81

// Transport is the upper three bits.
func (op Opcode) Transport() Opcode { return op & 0xe0 }

// Operation is the lower five bits.
func (op Opcode) Operation() Opcode { return op & 0x1f }

var operationNames = [...]string{"SEND_FIRST", "SEND_MIDDLE", "SEND_LAST", "SEND_LAST_IMM", "SEND_ONLY", "SEND_ONLY_IMM",
	"WRITE_FIRST", "WRITE_MIDDLE", "WRITE_LAST", "WRITE_LAST_IMM", "WRITE_ONLY", "WRITE_ONLY_IMM",
	"READ_REQUEST", "READ_RESPONSE_FIRST", "READ_RESPONSE_MIDDLE", "READ_RESPONSE_LAST", "READ_RESPONSE_ONLY",
	"ACK", "ATOMIC_ACK", "COMPARE_SWAP", "FETCH_ADD", "", "SEND_LAST_INV", "SEND_ONLY_INV"}

// String is "RC SEND_ONLY", or a number if the opcode is unknown.
func (op Opcode) String() string {
	switch {
	case op == OpCNP:
		return "CNP"
	case layouts[op] == 0:
		return fmt.Sprintf("opcode %#02x", uint8(op))
	}
	return [...]string{"RC ", "UC ", "", "UD "}[op>>5] + operationNames[op.Operation()]
}

// AETH syndromes.
const (
	SyndromeAck            uint8 = 0x1f // the credit count is not used
	SyndromeRNR            uint8 = 0x20 // the lower five bits are the timer code
	SyndromeNAKSequence    uint8 = 0x60
	SyndromeNAKInvalid     uint8 = 0x61
	SyndromeNAKAccess      uint8 = 0x62
	SyndromeNAKOperational uint8 = 0x63
	SyndromeKind           uint8 = 0x60 // mask of the kind: 0 is an ACK, 0x20 an RNR NAK, 0x60 a NAK
)

// layout is the set of headers after the BTH, in the order of the wire.
type layout uint16

const (
	hasDETH layout = 1 << iota
	hasRETH
	hasAtomicETH
	hasAETH
	hasAtomicAck
	hasImm
	hasIETH
	hasPayload
	isCNP
)

// layouts is the layout of each opcode; 0: unknown.
var layouts = func() (t [256]layout) {
	for op, l := range [...]layout{
		OpSendFirst: hasPayload, OpSendMiddle: hasPayload, OpSendLast: hasPayload, OpSendLastImm: hasImm | hasPayload,
		OpSendOnly: hasPayload, OpSendOnlyImm: hasImm | hasPayload,
		OpWriteFirst: hasRETH | hasPayload, OpWriteMiddle: hasPayload, OpWriteLast: hasPayload, OpWriteLastImm: hasImm | hasPayload,
		OpWriteOnly: hasRETH | hasPayload, OpWriteOnlyImm: hasRETH | hasImm | hasPayload,
		OpReadRequest: hasRETH, OpReadResponseFirst: hasAETH | hasPayload, OpReadResponseMiddle: hasPayload,
		OpReadResponseLast: hasAETH | hasPayload, OpReadResponseOnly: hasAETH | hasPayload,
		OpAck: hasAETH, OpAtomicAck: hasAETH | hasAtomicAck, OpCompareSwap: hasAtomicETH, OpFetchAdd: hasAtomicETH,
		OpSendLastInv: hasIETH | hasPayload, OpSendOnlyInv: hasIETH | hasPayload,
	} {
		op := Opcode(op)
		t[op] = l
		if op <= OpWriteOnlyImm {
			t[TransportUC|op] = l
		}
		if op == OpSendOnly || op == OpSendOnlyImm {
			t[TransportUD|op] = hasDETH | l
		}
	}
	t[OpCNP] = isCNP
	return t
}()

// layoutLens is the length in bytes of all headers of an opcode, the BTH included.
var layoutLens = func() (t [256]uint8) {
	for op, l := range layouts {
		n := BTHLen
		for i, length := range [...]int{dethLen, rethLen, atomicETHLen, aethLen, atomicAckLen, immLen, iethLen, 0, cnpLen} {
			if l>>i&1 != 0 {
				n += length
			}
		}
		t[op] = uint8(n)
	}
	return t
}()

// RoCE is the headers of a RoCEv2 packet: the base transport header,
//
//	opcode(1) SE|MigReq|pad count(2)|version(4) P_Key(2) FECN|BECN|reserved(1)
//	destination QP(3) AckReq|reserved(1) PSN(3)
//
// and the extension headers that its opcode has. Of the others the fields mean nothing.
type RoCE struct {
	Opcode     Opcode
	Solicited  bool
	AckReq     bool
	FECN, BECN bool
	PKey       uint16
	DstQP, PSN uint32 // 24 bits

	// RETH; AtomicETH has the first two. RKey is also what IETH says is to be invalidated.
	VA     uint64
	RKey   uint32
	DMALen uint32 // bytes

	SwapAdd, Compare uint64 // AtomicETH
	Original         uint64 // AtomicAckETH

	// AETH
	Syndrome uint8
	MSN      uint32 // 24 bits

	Imm   uint32 // ImmDt
	QKey  uint32 // DETH
	SrcQP uint32 // DETH, 24 bits

	Payload []byte // without pad
}

// Parse reads the payload of a UDP datagram. Its errors are ErrTruncated, ErrVersion, ErrOpcode and
// ErrLength: a length that is no multiple of 4, a pad that is longer than the payload, a payload
// that the opcode does not have. It does not check the invariant CRC, see [CheckICRC].
func (p *RoCE) Parse(b []byte) error {
	if len(b) < BTHLen+ICRCLen {
		return ErrTruncated
	}
	be := binary.BigEndian
	w := be.Uint64(b)
	if w>>48&15 != 0 {
		return ErrVersion
	}
	op := Opcode(w >> 56)
	l, off := layouts[op], int(layoutLens[op])
	if l == 0 {
		return ErrOpcode
	}
	end := len(b) - ICRCLen
	if off > end {
		return ErrTruncated
	}
	end -= int(w >> 52 & 3)
	if len(b)&3 != 0 || off > end || l&hasPayload == 0 && off != len(b)-ICRCLen {
		return ErrLength
	}
	seq := be.Uint32(b[8:])
	p.Opcode, p.Solicited, p.PKey = op, w>>55&1 != 0, uint16(w>>32)
	p.FECN, p.BECN, p.DstQP = w>>31&1 != 0, w>>30&1 != 0, uint32(w)&0xffffff
	p.AckReq, p.PSN = seq>>31 != 0, seq&0xffffff
	p.Payload = b[off:end:end]

	h := b[BTHLen:off]
	if l&hasDETH != 0 {
		p.QKey, p.SrcQP = be.Uint32(h), be.Uint32(h[4:])&0xffffff
		h = h[dethLen:]
	}
	if l&hasRETH != 0 {
		p.VA, p.RKey, p.DMALen = be.Uint64(h), be.Uint32(h[8:]), be.Uint32(h[12:])
		h = h[rethLen:]
	}
	if l&hasAETH != 0 {
		w := be.Uint32(h)
		p.Syndrome, p.MSN = uint8(w>>24), w&0xffffff
		h = h[aethLen:]
	}
	switch {
	case l&hasAtomicETH != 0:
		p.VA, p.RKey, p.SwapAdd, p.Compare = be.Uint64(h), be.Uint32(h[8:]), be.Uint64(h[12:]), be.Uint64(h[20:])
	case l&hasAtomicAck != 0:
		p.Original = be.Uint64(h)
	case l&hasImm != 0:
		p.Imm = be.Uint32(h)
	case l&hasIETH != 0:
		p.RKey = be.Uint32(h)
	}
	return nil
}

// PutRoCE writes the headers of p, of a known opcode, to b[RoCEOffset:]. b is where an IPv4
// packet begins. It returns the offset in b of the payload, to which the caller copies payloadLen
// bytes before it calls [SealRoCE]. p.Payload is not looked at.
func PutRoCE(b []byte, p *RoCE, payloadLen int) (payload int) {
	l := layouts[p.Opcode]
	if l == 0 || l&hasPayload == 0 && payloadLen != 0 {
		panic("BUG: wire: a packet of " + p.Opcode.String() + " cannot be written")
	}
	payload = RoCEOffset + int(layoutLens[p.Opcode])
	be := binary.BigEndian
	h := b[RoCEOffset:payload]
	// SealRoCE loads what is stored here, in the same pieces: the processor can forward it.
	be.PutUint32(h, uint32(p.Opcode)<<24|bit(p.Solicited)<<23|uint32(-payloadLen&3)<<20|uint32(p.PKey))
	be.PutUint64(h[4:], uint64(bit(p.FECN)<<31|bit(p.BECN)<<30|p.DstQP&0xffffff)<<32|uint64(bit(p.AckReq)<<31|p.PSN&0xffffff))
	h = h[BTHLen:]
	if l&hasDETH != 0 {
		be.PutUint64(h, uint64(p.QKey)<<32|uint64(p.SrcQP&0xffffff))
		h = h[dethLen:]
	}
	if l&hasRETH != 0 {
		be.PutUint64(h, p.VA)
		be.PutUint64(h[8:], uint64(p.RKey)<<32|uint64(p.DMALen))
		h = h[rethLen:]
	}
	if l&hasAETH != 0 {
		be.PutUint32(h, uint32(p.Syndrome)<<24|p.MSN&0xffffff)
		h = h[aethLen:]
	}
	switch {
	case l&hasAtomicETH != 0:
		be.PutUint64(h, p.VA)
		be.PutUint32(h[8:], p.RKey)
		be.PutUint64(h[12:], p.SwapAdd)
		be.PutUint64(h[20:], p.Compare)
	case l&hasAtomicAck != 0:
		be.PutUint64(h, p.Original)
	case l&hasImm != 0:
		be.PutUint32(h, p.Imm)
	case l&hasIETH != 0:
		be.PutUint32(h, p.RKey)
	case l == isCNP:
		clear(h)
	}
	return payload
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// RoCEFlow is what the IPv4 and UDP headers say of a flow.
type RoCEFlow struct {
	Src, Dst [4]byte
	SrcPort  uint16
	TOS      uint8
}

// SealRoCE completes a packet whose headers [PutRoCE] has written and whose payload ends at b[end]: it
// writes the pad, the IPv4 header (DF, ID 0, TTL 64), the UDP header (without a
// checksum) and the invariant CRC, and returns the length of the packet.
func SealRoCE(b []byte, f *RoCEFlow, end int) (n int) {
	data := (end + 3) &^ 3
	n = data + ICRCLen
	if n > 0xffff {
		panic("BUG: wire: packet longer than its length field")
	}
	clear(b[end:data])
	PutIPv4(b, IPv4Fields{TOS: f.TOS, TTL: 64, Protocol: ProtocolUDP, DontFragment: true, TotalLen: uint16(n), Src: f.Src, Dst: f.Dst})
	be, le := binary.BigEndian, binary.LittleEndian
	ports, length := uint64(f.SrcPort)<<16|RoCEPort, uint64(n-IPv4HeaderLen)
	be.PutUint64(b[IPv4HeaderLen:], ports<<32|length<<16)

	// The masked headers again, from the same values: no load waits for these stores.
	src, dst := uint64(be.Uint32(f.Src[:])), uint64(be.Uint32(f.Dst[:]))
	c := afterOnes.step8(bits.ReverseBytes64(0x45ff<<48 | uint64(n)<<32 | ipv4DontFragment))
	c = c.step8(bits.ReverseBytes64(0xff<<56 | uint64(ProtocolUDP)<<48 | 0xffff<<32 | src)).step8(bits.ReverseBytes64(dst<<32 | ports))
	c = c.step8(bits.ReverseBytes64(length<<48 | 0xffff<<32 | uint64(be.Uint32(b[RoCEOffset:]))))
	c = c.step8(le.Uint64(b[RoCEOffset+4:]) | 0xff)
	le.PutUint32(b[data:], c.finish(b[RoCEOffset+BTHLen:data]))
	return n
}
