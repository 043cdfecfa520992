package bpf

import (
	"encoding/binary"
)

// UDPKey is the tag table's key of a UDP address and port.
func UDPKey(addr [4]byte, port uint16) MuxUnetTag {
	var p [2]byte
	binary.BigEndian.PutUint16(p[:], port)
	return MuxUnetTag{Kind: MuxUnetTagKindUNET_TAG_UDP, Port: binary.NativeEndian.Uint16(p[:]), Value: binary.NativeEndian.Uint32(addr[:])}
}

// AddrKey is the tag table's key of a whole address.
func AddrKey(addr [4]byte) MuxUnetTag {
	return MuxUnetTag{Kind: MuxUnetTagKindUNET_TAG_ADDR, Value: binary.NativeEndian.Uint32(addr[:])}
}

// MessageKey is the tag table's key of a message tag.
func MessageKey(tag uint32) MuxUnetTag {
	var t [4]byte
	binary.BigEndian.PutUint32(t[:], tag)
	return MuxUnetTag{Kind: MuxUnetTagKindUNET_TAG_MESSAGE, Value: binary.NativeEndian.Uint32(t[:])}
}

// Config is what the programs are told before they are loaded. linkAddr is the
// uplink's, ifindex and netnsCookie say where it is, mtu counts bytes of IP
// packet, generic is the attach mode.
func Config(linkAddr [6]byte, ifindex int, netnsCookie uint64, mtu uint32, generic bool) MuxUnetConfig {
	c := MuxUnetConfig{
		LinkHead: binary.NativeEndian.Uint32(linkAddr[:4]),
		LinkTail: binary.NativeEndian.Uint16(linkAddr[4:]),
		Uplink:   uint32(ifindex),
		MaxFrame: mtu + ethernetHeaderLen,
		Netns:    netnsCookie,
	}
	if generic {
		c.Generic = 1
	}
	return c
}

const ethernetHeaderLen = 14
