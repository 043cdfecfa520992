package wire

import "encoding/binary"

// Connection is what a process publishes about one of its TCP connections, in
// memory that it shares with unetd: what a RST to the peer needs when the process
// has died. Its fields have the byte order of the machine.
type Connection struct {
	Local, Remote         [4]byte
	LocalPort, RemotePort uint16 // RemotePort 0: the record is empty
	Next                  uint32 // the highest SND.NXT so far (RFC 9293, section 3.3.1)
}

// ConnectionLen is the length of a record in memory, in bytes.
const ConnectionLen = 16

// ParseConnection reads a record, which b begins with.
func ParseConnection(b []byte) Connection {
	b = b[:ConnectionLen]
	order := binary.NativeEndian
	return Connection{
		Local: [4]byte(b), Remote: [4]byte(b[4:]),
		LocalPort: order.Uint16(b[8:]), RemotePort: order.Uint16(b[10:]),
		Next: order.Uint32(b[12:]),
	}
}
