package wire

import "encoding/binary"

// EtherType says what an Ethernet frame carries.
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

// Ethernet is a view of a frame without preamble and check sequence:
//
//	dst(6) src(6) [0x8100(2) tci(2)] type(2) payload
type Ethernet []byte

// ParseEthernet checks that the header is all there. One 802.1Q tag is skipped;
// a second one, or a service tag, is [ErrNestedVLAN].
func ParseEthernet(frame []byte) (Ethernet, error) {
	if len(frame) < EthernetHeaderLen {
		return nil, ErrTruncated
	}
	switch EtherType(binary.BigEndian.Uint16(frame[12:])) {
	case EtherTypeVLAN:
		if len(frame) < EthernetHeaderLen+VLANTagLen {
			return nil, ErrTruncated
		}
		switch EtherType(binary.BigEndian.Uint16(frame[16:])) {
		case EtherTypeVLAN, EtherTypeQinQ:
			return nil, ErrNestedVLAN
		}
	case EtherTypeQinQ:
		return nil, ErrNestedVLAN
	}
	return Ethernet(frame), nil
}

// Dst is the link address the frame is for.
func (e Ethernet) Dst() LinkAddr { return LinkAddr(e[0:6]) }

// Src is the link address of the sender.
func (e Ethernet) Src() LinkAddr { return LinkAddr(e[6:12]) }

func (e Ethernet) outer() EtherType { return EtherType(binary.BigEndian.Uint16(e[12:14])) }

// Type is the EtherType of the payload, the inner one if there is a VLAN tag.
// A value below 0x0600 is the length of an 802.3 frame and no type.
func (e Ethernet) Type() EtherType {
	t := e.outer()
	if t == EtherTypeVLAN {
		t = EtherType(binary.BigEndian.Uint16(e[16:18]))
	}
	return t
}

// VLAN returns the tag control information (priority, drop eligible, and in the
// lower 12 bits the VLAN) and whether there is a tag.
func (e Ethernet) VLAN() (tci uint16, tagged bool) {
	if e.outer() != EtherTypeVLAN {
		return 0, false
	}
	return binary.BigEndian.Uint16(e[14:16]), true
}

// HeaderLen is 14, or 18 with a VLAN tag.
func (e Ethernet) HeaderLen() int {
	if e.outer() == EtherTypeVLAN {
		return EthernetHeaderLen + VLANTagLen
	}
	return EthernetHeaderLen
}

// Payload is all that follows the header, padding included.
func (e Ethernet) Payload() []byte { return e[e.HeaderLen():] }

// PutEthernet writes an untagged header of [EthernetHeaderLen] bytes.
func PutEthernet(b []byte, dst, src LinkAddr, t EtherType) {
	_ = b[13]
	copy(b[0:6], dst[:])
	copy(b[6:12], src[:])
	binary.BigEndian.PutUint16(b[12:14], uint16(t))
}
