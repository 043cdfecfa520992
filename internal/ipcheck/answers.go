package ipcheck

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Answers collects what the host has sent to its peer from the addresses of [Peers], and its advertisements to all
// nodes. Questions of address resolution are left out.
type Answers struct {
	Peers  Peers
	list   []string
	pieces map[string][]piece
	ended  bool
}

type piece struct {
	offset int
	more   bool
	data   []byte
}

// Add takes a frame that the host may have sent.
func (a *Answers) Add(frame []byte) {
	p := &a.Peers
	if len(frame) < ethernetHeader || !bytes.Equal(frame[6:12], p.Host.Link[:]) || !bytes.Equal(frame[:6], p.Peer.Link[:]) && frame[0]&1 == 0 {
		return
	}
	ip := frame[ethernetHeader:]
	switch {
	case frame[12] == 0x08 && frame[13] == 6 && len(ip) >= arpLen:
		a.arp(ip)
	case frame[12] == 0x08 && frame[13] == 0 && len(ip) >= 20:
		head, total := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		src, dst := netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		if total > len(ip) || head > total || sum(ip[:head], 0) != 0xffff {
			a.list = append(a.list, fmt.Sprintf("malformed %x", ip))
			return
		}
		field := binary.BigEndian.Uint16(ip[6:])
		a.fragment(src, dst, ip[9], uint32(binary.BigEndian.Uint16(ip[4:])), piece{int(field&0x1fff) * 8, field&moreFragments != 0, ip[head:total]})
	case frame[12] == 0x86 && frame[13] == 0xdd && len(ip) >= ipv6Header:
		total := ipv6Header + int(binary.BigEndian.Uint16(ip[4:]))
		src, dst := netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		if total > len(ip) {
			a.list = append(a.list, fmt.Sprintf("malformed %x", ip))
			return
		}
		next, body, id, field := ip[6], ip[ipv6Header:total], uint32(0), uint16(0)
		if next == protoFragment {
			next, field, id, body = body[0], binary.BigEndian.Uint16(body[2:]), binary.BigEndian.Uint32(body[4:]), body[8:]
		}
		a.fragment(src, dst, next, id, piece{int(field &^ 7), field&1 != 0, body})
	}
}

// Ended reports whether the answer to [Peers.Sentinel] has come.
func (a *Answers) Ended() bool { return a.ended }

// Result is what has come, as [Check.Want] has it, and forgets it. An announcement that was not wanted is left out.
func (a *Answers) Result(want string) string {
	list := slices.DeleteFunc(a.list, func(line string) bool { return line == Announcement && line != want })
	a.list, a.pieces = nil, nil
	if len(list) == 0 {
		return None
	}
	return strings.Join(slices.Compact(list), ", ")
}

// arp describes a reply.
func (a *Answers) arp(b []byte) {
	if b[7] != arpReply {
		return
	}
	line := "arp reply"
	if !bytes.Equal(b[8:14], a.Peers.Host.Link[:]) || !bytes.Equal(b[14:18], a.Peers.Host.V4.AsSlice()) {
		line += fmt.Sprintf(" damaged %x", b)
	}
	if !bytes.Equal(b[18:24], a.Peers.Peer.Link[:]) {
		line += " to " + net.HardwareAddr(b[18:24]).String()
	}
	a.list = append(a.list, line)
}

// fragment puts the pieces of a packet together.
func (a *Answers) fragment(src, dst netip.Addr, protocol byte, id uint32, p piece) {
	if p.offset == 0 && !p.more {
		a.packet(src, dst, protocol, p.data)
		return
	}
	if a.pieces == nil {
		a.pieces = map[string][]piece{}
	}
	key := fmt.Sprint(src, protocol, id)
	p.data = bytes.Clone(p.data) // the frame is the caller's
	all := append(a.pieces[key], p)
	slices.SortFunc(all, func(x, y piece) int { return x.offset - y.offset })
	a.pieces[key] = all
	var whole []byte
	for _, p := range all {
		if p.offset != len(whole) {
			return
		}
		whole = append(whole, p.data...)
	}
	if !all[len(all)-1].more {
		delete(a.pieces, key)
		a.packet(src, dst, protocol, whole)
	}
}

// packet describes a whole packet.
func (a *Answers) packet(src, dst netip.Addr, protocol byte, b []byte) {
	line := "malformed"
	checked := uint32(0)
	if protocol != protoICMP {
		checked = pseudo(src, dst, protocol, len(b))
	}
	switch {
	case src != a.Peers.Host.V4 && src != a.Peers.Host.V6:
		return
	case len(b) < 8 || sum(b, checked) != 0xffff:
	case protocol == protoICMPv6 && b[0] >= 130 && b[0] != advertisement: // listener and neighbour discovery
		return
	case protocol == protoICMPv6 && b[0] == advertisement:
		line = fmt.Sprintf("advertisement %#x", b[4])
		want := slices.Concat(a.Peers.Host.V6.AsSlice(), []byte{2, 1}, a.Peers.Host.Link[:])
		switch {
		case bytes.Equal(b[8:], want[:16]):
			line += " without link"
		case !bytes.Equal(b[8:], want):
			line += fmt.Sprintf(" of %x", b[8:])
		}
		if dst != a.Peers.Peer.V6 {
			line += " to " + dst.String()
		}
	case protocol == protoICMP && b[0] == 0, protocol == protoICMPv6 && b[0] == 129:
		line = fmt.Sprintf("echo reply %d", len(b)-8)
		if binary.BigEndian.Uint32(b[4:]) != echoID || !bytes.Equal(b[8:], text(len(b)-8)) || b[1] != 0 {
			line += " damaged"
		}
	case protocol == protoICMP, protocol == protoICMPv6:
		line = fmt.Sprintf("error %d/%d", b[0], b[1])
		word := binary.BigEndian.Uint32(b[4:])
		if protocol == protoICMP && b[0] == 12 {
			line += fmt.Sprintf(" pointer %d", word>>24)
		} else if protocol == protoICMPv6 && b[0] == 4 {
			line += fmt.Sprintf(" pointer %d", word)
		}
		at, least := 8+12, 8+20+8 // RFC 792: the header and 8 bytes
		if protocol == protoICMPv6 {
			at, least = 8+8, 8+ipv6Header
		}
		if len(b) < least || !bytes.Equal(b[at:at+len(dst.AsSlice())], dst.AsSlice()) {
			line += " with a wrong quote"
		}
	case protocol == protoTCP:
		line = "tcp"
		for i, flag := range "FSRPA" {
			if b[13]>>i&1 != 0 {
				line += " " + string(flag)
			}
		}
	case protocol == protoUDP && len(b)-8 == sentinelLen:
		a.ended = true
		return
	case protocol == protoUDP:
		line = fmt.Sprintf("udp %d", len(b)-8)
		if !bytes.Equal(b[8:], text(len(b)-8)) {
			line += " damaged"
		}
	}
	a.list = append(a.list, line)
}
