package wire

import "encoding/binary"

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
//	sender link(6) sender address(4) target link(6) target address(4)
type ARP []byte

// ParseARP checks the length and that the packet is about IPv4 over Ethernet.
// The view is cut to 28 bytes. The operation may be any.
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

// SenderLink is the link address of the sender.
func (a ARP) SenderLink() LinkAddr { return LinkAddr(a[8:14]) }

// SenderAddr is the IPv4 address of the sender; zero in a probe (RFC 5227).
func (a ARP) SenderAddr() [4]byte { return [4]byte(a[14:18]) }

// TargetLink is the link address of the target; meaningless in a request.
func (a ARP) TargetLink() LinkAddr { return LinkAddr(a[18:24]) }

// TargetAddr is the IPv4 address that a request asks about.
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
