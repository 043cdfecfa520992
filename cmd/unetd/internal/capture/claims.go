//go:build linux

package capture

import (
	"encoding/binary"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/wire"
)

// maxExtensions is EXTENSIONS_MAX of bpf/src/headers.h.
const maxExtensions = 16

// claims finds the owner of the tag that claims a frame from the wire, also if the frame is one that no endpoint
// gets: a fragment to a port, or one with a wrong length. Of ICMP errors it does not look at what they quote.
func (t *target) claims(b []byte) (owner bpf.Owner, claimed bool) {
	if len(b) < 14 {
		return owner, false
	}
	kind, b := wire.EtherType(binary.BigEndian.Uint16(b[12:])), b[14:]
	switch {
	case kind == wire.EtherTypeIPv4 && len(b) >= 20:
		addr, header := [4]byte(b[16:]), int(b[0]&0xf)*4
		claimed = hasTag(b[9], b[min(header, len(b)):], func(kind bpf.TagKind, port uint16) bool {
			return t.maps.Tags.Lookup(bpf.Key(kind, addr, port), &owner) == nil
		})
	case kind == wire.EtherTypeIPv6 && len(b) >= 40:
		addr := [16]byte(b[24:])
		next, _, payload := skipExtensions(b[6], b[40:])
		claimed = hasTag(next, payload, func(kind bpf.TagKind, port uint16) bool {
			return t.maps.Tags6.Lookup(bpf.Key6(kind, addr, port), &owner) == nil
		})
	case kind == wire.EtherTypeARP && len(b) >= 28:
		claimed = t.maps.Tags.Lookup(bpf.Key(bpf.TagAddr, [4]byte(b[24:]), 0), &owner) == nil
	case kind == wire.EtherTypeUNet && len(b) >= 8:
		claimed = t.maps.Tags.Lookup(bpf.MessageKey(binary.BigEndian.Uint32(b[4:])), &owner) == nil
	}
	return owner, claimed && !owner.Suspended()
}

// isOwner reports whether owner is the captured endpoint.
func (t *target) isOwner(owner bpf.Owner) bool {
	return owner.Port == t.owner.Port && (owner.Port != 0 || owner.Queue == t.owner.Queue)
}

// hasTag looks for a tag of a packet's port, of its block, and of the owned address.
func hasTag(protocol byte, l4 []byte, has func(bpf.TagKind, uint16) bool) bool {
	if len(l4) >= 4 && (protocol == wire.ProtocolUDP || protocol == wire.ProtocolTCP) {
		one, block := bpf.TagUDP, bpf.TagUDPBlock
		if protocol == wire.ProtocolTCP {
			one, block = bpf.TagTCP, bpf.TagTCPBlock
		}
		port := binary.BigEndian.Uint16(l4[2:])
		if has(one, port) || has(block, port-port%bpf.BlockPorts) {
			return true
		}
	}
	return has(bpf.TagAddr, 0)
}

// skipExtensions finds the first header of an IPv6 packet that is no extension header, and whether the packet is a
// fragment.
func skipExtensions(next byte, b []byte) (_ byte, fragment bool, rest []byte) {
	for range maxExtensions {
		if len(b) < 8 {
			break
		}
		length := 0
		switch next {
		case 0, 43, 60, 135, 139, 140: // hop by hop, routing, destination options, mobility, HIP, shim6
			length = (int(b[1]) + 1) * 8
		case wire.ProtocolFragment:
			length = wire.IPv6FragmentLen
			place := binary.BigEndian.Uint16(b[2:])
			fragment = fragment || place&0xfff9 != 0
			if place&0xfff8 != 0 { // not the first: what follows is no header
				return b[0], fragment, b[length:]
			}
		case 51: // authentication
			length = (int(b[1]) + 2) * 4
		default:
			return next, fragment, b
		}
		next, b = b[0], b[min(length, len(b)):]
	}
	return next, fragment, b
}
