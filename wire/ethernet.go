package wire

import "encoding/binary"

// EtherType is the protocol of the payload of an Ethernet frame.
type EtherType uint16

// EtherTypes. EtherTypeUNet is the first of the two that IEEE 802 sets aside
// for local experiments.
const (
	EtherTypeIPv4 EtherType = 0x0800
	EtherTypeARP  EtherType = 0x0806
	EtherTypeVLAN EtherType = 0x8100 // 802.1Q customer tag
	EtherTypeIPv6 EtherType = 0x86dd
	EtherTypeQinQ EtherType = 0x88a8 // 802.1ad service tag
	EtherTypeUNet EtherType = 0x88b5 // U-Net messages
)

// Lengths in bytes.
const (
	EthernetHeaderLen = 14
	VLANTagLen        = 4
)

// Ethernet is the header of a frame without preamble and check sequence:
//
//	dst(6) src(6) [0x8100(2) tci(2)] type(2) payload
type Ethernet struct {
	Dst, Src LinkAddr
	// Type is the EtherType of the payload, the inner one if there is a VLAN tag.
	// A value below 0x0600 is the length of an 802.3 frame and no type.
	Type   EtherType
	Tagged bool
	TCI    uint16 // of the VLAN tag: priority, drop eligible, and in the lower 12 bits the VLAN
	// Payload is all that follows the header, padding included.
	Payload []byte
}

// Parse reads the header of a frame. One 802.1Q tag is skipped; a second one, or a
// service tag, is [ErrNestedVLAN].
func (e *Ethernet) Parse(frame []byte) error {
	if len(frame) < EthernetHeaderLen {
		return ErrTruncated
	}
	e.Dst = LinkAddr(frame[0:6])
	e.Src = LinkAddr(frame[6:12])
	e.Type = EtherType(binary.BigEndian.Uint16(frame[12:14]))
	e.Tagged = false
	e.Payload = frame[EthernetHeaderLen:]
	if e.Type == EtherTypeVLAN {
		if len(frame) < EthernetHeaderLen+VLANTagLen {
			return ErrTruncated
		}
		e.Tagged, e.TCI = true, binary.BigEndian.Uint16(frame[14:16])
		e.Type = EtherType(binary.BigEndian.Uint16(frame[16:18]))
		e.Payload = frame[EthernetHeaderLen+VLANTagLen:]
		if e.Type == EtherTypeVLAN {
			return ErrNestedVLAN
		}
	}
	if e.Type == EtherTypeQinQ {
		return ErrNestedVLAN
	}
	return nil
}

// PutEthernet writes an untagged header of [EthernetHeaderLen] bytes.
func PutEthernet(b []byte, dst, src LinkAddr, t EtherType) {
	_ = b[13]
	copy(b[0:6], dst[:])
	copy(b[6:12], src[:])
	binary.BigEndian.PutUint16(b[12:14], uint16(t))
}

// ARP operations (RFC 826).
const (
	ARPRequest uint16 = 1
	ARPReply   uint16 = 2
)

// ARPLen is the length of an ARP packet for IPv4 over Ethernet in bytes.
const ARPLen = 28

// What every such packet begins with: hardware Ethernet (1), protocol IPv4,
// addresses of 6 and 4 bytes.
const arpPrefix = 1<<48 | 0x0800<<32 | 6<<24 | 4<<16

// ARP is a view of an address resolution packet for IPv4 over Ethernet
// (RFC 826):
//
//	hardware(2)=1 protocol(2)=0x0800 hlen(1)=6 plen(1)=4 operation(2)
//	sender MAC(6) sender address(4) target MAC(6) target address(4)
type ARP []byte

// ParseARP checks the length and that the packet is about IPv4 over Ethernet.
// The view is cut to 28 bytes. The operation is not checked.
func ParseARP(b []byte) (ARP, error) {
	if len(b) < ARPLen {
		return nil, ErrTruncated
	}
	if binary.BigEndian.Uint64(b)&^0xffff != arpPrefix {
		return nil, ErrAddressFamily
	}
	return ARP(b[:ARPLen:ARPLen]), nil
}

// Op is the operation, [ARPRequest] or [ARPReply].
func (a ARP) Op() uint16 { return binary.BigEndian.Uint16(a[6:8]) }

// SenderLink is the MAC address of the sender.
func (a ARP) SenderLink() LinkAddr { return LinkAddr(a[8:14]) }

// SenderAddr is the IPv4 address of the sender; zero in an ARP probe (RFC 5227).
func (a ARP) SenderAddr() [4]byte { return [4]byte(a[14:18]) }

// TargetLink is the MAC address of the target; meaningless in a request.
func (a ARP) TargetLink() LinkAddr { return LinkAddr(a[18:24]) }

// TargetAddr is the IPv4 address that a request is for.
func (a ARP) TargetAddr() [4]byte { return [4]byte(a[24:28]) }

// ARPFields are the variable parts of an ARP packet.
type ARPFields struct {
	Op         uint16
	SenderLink LinkAddr
	SenderAddr [4]byte
	TargetLink LinkAddr
	TargetAddr [4]byte
}

// PutARP writes a packet of [ARPLen] bytes.
func PutARP(b []byte, f ARPFields) {
	_ = b[27]
	binary.BigEndian.PutUint64(b, arpPrefix|uint64(f.Op))
	copy(b[8:14], f.SenderLink[:])
	copy(b[14:18], f.SenderAddr[:])
	copy(b[18:24], f.TargetLink[:])
	copy(b[24:28], f.TargetAddr[:])
}

const (
	// MessageVersion is the version of the message format that this package
	// reads and writes.
	MessageVersion = 1
	// MessageHeaderLen is the length of the message header in bytes.
	MessageHeaderLen = 12
	// MaxMessagePayload is what the length field can state, in bytes. A link's
	// MTU usually allows less.
	MaxMessagePayload = 0xffff
)

// Message is a view of a U-Net message, the payload of an Ethernet frame of
// type [EtherTypeUNet]. docs/message-format.md specifies it.
//
//	version(1)=1 flags(1)=0 length(2) destination tag(4) source tag(4) payload
type Message []byte

// ParseMessage checks version, flags and length. The view is cut to the length,
// so that the padding of a short Ethernet frame is gone.
func ParseMessage(b []byte) (Message, error) {
	if len(b) < MessageHeaderLen {
		return nil, ErrTruncated
	}
	if b[0] != MessageVersion {
		return nil, ErrVersion
	}
	if b[1] != 0 {
		return nil, ErrReserved
	}
	n := MessageHeaderLen + int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b) {
		return nil, ErrTruncated
	}
	return Message(b[:n:n]), nil
}

// Dst is the tag of the endpoint that the message is for.
func (m Message) Dst() uint32 { return binary.BigEndian.Uint32(m[4:8]) }

// Src is the tag that an answer goes to.
func (m Message) Src() uint32 { return binary.BigEndian.Uint32(m[8:12]) }

// Payload is what the message carries.
func (m Message) Payload() []byte { return m[MessageHeaderLen:] }

// PutMessage writes a header of [MessageHeaderLen] bytes. length is that of the
// payload, [MaxMessagePayload] bytes at most.
func PutMessage(b []byte, dst, src uint32, length int) {
	if uint(length) > MaxMessagePayload {
		panic("BUG: wire: message longer than its length field")
	}
	_ = b[11]
	binary.BigEndian.PutUint32(b, MessageVersion<<24|uint32(length))
	binary.BigEndian.PutUint64(b[4:], uint64(dst)<<32|uint64(src))
}
