package tcp

import "github.com/unet-go/unet/wire"

// AddrPort is an IPv4 address and port.
type AddrPort = wire.AddrPort

// tuple names a connection: both its ends, each packed in a word.
type tuple struct{ local, remote uint64 }

func makeTuple(local, remote AddrPort) tuple { return tuple{local.Word(), remote.Word()} }

func (t tuple) localPort() uint16 { return uint16(t.local) }

// usable reports whether a is an address that one host can have. What comes
// from or goes to any other must be left unanswered (RFC 9293, MUST-46, MUST-57).
func usable(a [4]byte) bool { return a[0] != 0 && a[0] < 224 }
