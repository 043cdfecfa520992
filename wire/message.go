package wire

import "encoding/binary"

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
