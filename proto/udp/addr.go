package udp

import "github.com/unet-go/unet/wire"

// AddrPort is an IPv4 address and port.
type AddrPort = wire.AddrPort

// key packs an address and port into one word, for the map of a port.
func key(addr *[4]byte, port uint16) uint64 { return AddrPort{Addr: *addr, Port: port}.Word() }
