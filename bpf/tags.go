package bpf

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
)

// Short names of the types that bpf2go makes.
type (
	Tag      = MuxUnetTag
	Tag6     = MuxUnetTag6
	TagKind  = MuxUnetTagKind
	Owner    = MuxUnetOwner
	Endpoint = MuxUnetEndpoint
	State    = MuxUnetState
	Alarm    = MuxUnetAlarm
)

// The kinds of tags.
const (
	TagUDP      = MuxUnetTagKindUNET_TAG_UDP
	TagTCP      = MuxUnetTagKindUNET_TAG_TCP
	TagUDPBlock = MuxUnetTagKindUNET_TAG_UDP_BLOCK
	TagTCPBlock = MuxUnetTagKindUNET_TAG_TCP_BLOCK
	TagAddr     = MuxUnetTagKindUNET_TAG_ADDR
	TagMessage  = MuxUnetTagKindUNET_TAG_MESSAGE
)

// suspended is a bit in the port of a tag's owner. No interface has such a number: ifindexes are 1
// to 2^31-1. So the programs find no port for a suspended tag: unet_uplink passes its frames to
// the kernel (rx_pass_port_gone), and unet_port drops them as forged (tx_forged_tag).
const suspended = 1 << 31

// WithEffect is o as the owner of a tag that is in effect, or of a suspended tag. The endpoint
// keeps a suspended tag, and can neither receive nor send under it.
func (o MuxUnetOwner) WithEffect(effective bool) MuxUnetOwner {
	o.Port &^= suspended
	if !effective {
		o.Port |= suspended
	}
	return o
}

// Suspended reports whether o is the owner of a suspended tag.
func (o MuxUnetOwner) Suspended() bool { return o.Port&suspended != 0 }

// AlarmFill is the kind of an Alarm about a fill ring that is not sound.
const AlarmFill = MuxUnetAlarmKindUNET_ALARM_FILL

// Infrastructure, as the Queue of a port's Owner, permits it to send what only the infrastructure
// of a network sends: see check.h.
const Infrastructure = 1 // UNET_INFRASTRUCTURE

// KernelLink is the MAC address of the devices of a mux out of which only its programs send (UNET_KERNEL_LINK): what
// the kernel itself sends there has it as its source, and is dropped.
var KernelLink = [6]byte{0x02, 'u', 'n', 'e', 't', 0}

// Sizes of the tables.
const (
	MaxPorts     = 4096              // UNET_MAX_PORTS
	FirstIfindex = 2                 // UNET_FIRST_IFINDEX: the inner end of slot 0's port
	BlockPorts   = 64                // UNET_BLOCK_PORTS
	TagCounts    = tagCountsAddr + 1 // UNET_TAG_COUNTS
	Tags         = 128 << 10         // UNET_TAGS
	Groups       = 4096              // UNET_GROUPS
	GroupPorts   = 128               // UNET_GROUP_PORTS

	tagCountsAddr = 1 << 16 / BlockPorts // UNET_TAG_COUNTS_ADDR
)

// Key is the tag table's key of an address, and, depending on the kind, of a port or the first port
// of a block.
func Key(kind TagKind, addr [4]byte, port uint16) Tag {
	return Tag{Kind: kind, Port: networkOrder(port), Value: binary.NativeEndian.Uint32(addr[:])}
}

// Key6 is Key for an IPv6 address.
func Key6(kind TagKind, addr [16]byte, port uint16) Tag6 {
	k := Tag6{Kind: kind, Port: networkOrder(port)}
	for i := range k.Addr {
		k.Addr[i] = binary.NativeEndian.Uint32(addr[4*i:])
	}
	return k
}

// GroupKey is the key of a UDP group, or of broadcast (255.255.255.255), in the tables of groups.
func GroupKey(group netip.AddrPort) Tag6 {
	return Key6(TagUDP, group.Addr().As16(), group.Port())
}

// Values of the map own.
const (
	OwnAddress   = uint8(1) // OWN_ADDRESS
	OwnBroadcast = uint8(2) // OWN_BROADCAST
	OwnHost      = uint8(3) // OWN_HOST
	OwnEndpoint  = uint8(4) // OWN_ENDPOINT
)

// OwnFilter is the value of the map own_filters.
type OwnFilter = MuxOwnFilter

// Add permits look-ups of an address in the map own.
func (f *MuxOwnFilter) Add(addr [16]byte, kind uint8) { f.Kinds[addr[15]] |= 1 << kind }

// MessageKey is the tag table's key of a message tag.
func MessageKey(tag uint32) Tag {
	var t [4]byte
	binary.BigEndian.PutUint32(t[:], tag)
	return Tag{Kind: TagMessage, Value: binary.NativeEndian.Uint32(t[:])}
}

// AddrPort is the inverse of Key.
func (k MuxUnetTag) AddrPort() (addr [4]byte, port uint16) {
	binary.NativeEndian.PutUint32(addr[:], k.Value)
	return addr, networkOrder(k.Port)
}

// Message is the inverse of MessageKey.
func (k MuxUnetTag) Message() uint32 {
	addr, _ := k.AddrPort()
	return binary.BigEndian.Uint32(addr[:])
}

// AddrPort is the inverse of Key6.
func (k MuxUnetTag6) AddrPort() (addr [16]byte, port uint16) {
	for i, word := range k.Addr {
		binary.NativeEndian.PutUint32(addr[4*i:], word)
	}
	return addr, networkOrder(k.Port)
}

// CountOf is the entry of the tag counts in which a tag with an address is counted. port is that of the
// tag, or the first one of its block.
func CountOf(kind TagKind, port uint16) uint32 {
	if kind == TagAddr {
		return tagCountsAddr
	}
	return uint32(port) / BlockPorts
}

// networkOrder converts a number between host and network byte order.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}

// Config is the constants of the programs, set before they are loaded: MAC address, ifindex and
// namespace of the uplink, and its MTU in bytes of IP packet. generic: the programs of ports are
// attached in generic (skb) mode. notesVLAN: UnetNoteVlan is attached. notesVLAN must be true for UnetQueue,
// unless the uplink is a VLAN interface: the kernel has removed the tag of its frames.
func Config(linkAddr [6]byte, ifindex int, netnsCookie uint64, mtu uint32, generic, notesVLAN bool) MuxUnetConfig {
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
	if notesVLAN {
		c.NotesVlan = 1
	}
	return c
}

// CutBy sets the device that segments super-frames. secret is random, and identifies their parts.
func (c *MuxUnetConfig) CutBy(ifindex int, secret [5]byte) {
	c.Cutter = uint32(ifindex)
	c.PartHead = secret[0]&^3 | 2 // locally administered, unicast
	var own [4]byte
	binary.NativeEndian.PutUint32(own[:], c.LinkHead)
	if c.PartHead == own[0] {
		c.PartHead ^= 4
	}
	c.PartTail = binary.NativeEndian.Uint32(secret[1:])
}

const ethernetHeaderLen = 14

// ObjectsHash is the SHA-256 of the compiled programs. Maps that were made for
// programs with another hash may have another layout or meaning.
func ObjectsHash() [32]byte { return sha256.Sum256(_MuxBytes) }
