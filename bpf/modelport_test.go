//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// faults are all errors of a frame, by counter. The program may count any of them.
type faults []Counter

func (f *faults) when(wrong bool, c Counter) bool {
	if wrong {
		*f = append(*f, c)
	}
	return wrong
}

// sends are the errors of a frame that an endpoint sends; none: it is allowed.
func (b *book) sends(from who, frame []byte) (f faults) {
	f.when(len(frame) > 14+b.mtu, txOversize)
	if f.when(len(frame) < 14, txTruncated) {
		return f
	}
	f.when(!bytes.Equal(frame[6:12], b.link[:]), txForgedLink)
	p := frame[14:]
	b.sendsToGroup(&f, from, frame)
	switch be16(frame, 12) {
	case 0x0800:
		b.sendsIP(&f, from, p, 4)
	case 0x86dd:
		b.sendsIP(&f, from, p, 6)
	case 0x88b5:
		if f.when(len(p) < 12, txTruncated) {
			return f
		}
		f.when(p[0] != 1, txBadHeader)
		f.when(12+be16(p, 2) > len(p), txBadLength)
		f.when(b.holdsMessage(binary.BigEndian.Uint32(p[8:])) != from, txForgedTag)
	case 0x0806:
		if f.when(len(p) < 28, txTruncated) {
			return f
		}
		f.when(!isARP(p), txBadHeader)
		sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
		probe := sender.IsUnspecified() && be16(p, 6) == 1
		f.when(!bytes.Equal(p[8:14], b.link[:]), txForgedARP)
		f.when(b.holdsAddr(sender) != from && !(probe && b.holdsAddr(target) == from), txForgedARP)
	default:
		f.when(true, txBadType)
	}
	return f
}

// sendsToGroup is about frames to group MAC addresses, by RFC 1112, 6.4, and RFC 2464, 7.
func (b *book) sendsToGroup(f *faults, from who, frame []byte) {
	dst, p := frame[:6], frame[14:]
	if dst[0]&1 == 0 {
		return
	}
	switch kind := be16(frame, 12); {
	case kind == 0x0800 && len(p) >= 20 && bytes.Equal(dst, bcast):
		to := netip.AddrFrom4([4]byte(p[16:20]))
		f.when(to != netip.AddrFrom4([4]byte{255, 255, 255, 255}) && to != subnetBroadcast, txForgedGroup)
		f.when(b.holdsAddr(netip.AddrFrom4([4]byte(p[12:16]))) != from, txBroadcast)
	case kind == 0x0800 && len(p) >= 20:
		f.when(p[16] < 224 || p[16] > 239 || !bytes.Equal(dst, []byte{1, 0, 0x5e, p[17] &^ 0x80, p[18], p[19]}), txForgedGroup)
	case kind == 0x86dd && len(p) >= 40:
		f.when(p[24] != 0xff || !bytes.Equal(dst, append([]byte{0x33, 0x33}, p[36:40]...)), txForgedGroup)
	}
}

// plainPort reports whether any host may send a datagram with these ports: not from ports of DHCP servers
// (67, 547) and routers (RIP: 520, 521), and not to DHCP clients (68, 546).
func plainPort(src, dst uint16) bool {
	return src != 67 && src != 547 && src != 520 && src != 521 && dst != 68 && dst != 546
}

func (b *book) sendsIP(f *faults, from who, p []byte, version int) {
	h, ok := takeApart(p, version)
	if f.when(h.cutOff, txTruncated) {
		return
	}
	if f.when(!ok, txBadHeader) {
		return
	}
	f.when(h.jumbo || h.length > len(p) || version == 4 && h.length < h.head, txBadLength)
	if h.fragmentCut {
		f.when(true, txTruncated)
		f.when(true, txBadLength)
		return
	}
	if version == 4 && h.first && h.inner == 1 {
		if f.when(len(p) < h.head+8, txTruncated) || f.when(h.length < h.head+8, txBadLength) {
			return
		}
		switch t := p[h.head]; t {
		case 4, 5, 9, 10: // source quench, redirect, router discovery
			f.when(true, txForgedQuote)
		case 3, 11, 12:
			f.sendsError(p, h, 4)
		case 0, 8: // echo
		default:
			f.when(!b.infrastructure[from], txInfrastructure)
		}
	}
	if version == 6 && h.first {
		switch h.inner {
		case 0, 43, 44, 51, 60, 135, 139, 140, 253, 254:
			f.when(true, txBadHeader)
			return
		case 58:
			if f.when(len(p) < h.head+8, txTruncated) || f.when(h.length < h.head+8, txBadLength) {
				return
			}
			t := p[h.head]
			if t >= 133 && t <= 137 {
				b.sendsND(f, from, p, h)
				return
			}
			if t < 128 {
				f.sendsError(p, h, 6)
			}
			f.when(t > 129 && !b.infrastructure[from], txInfrastructure)
		}
	}
	icmp := byte(1)
	if version == 6 {
		icmp = 58
	}
	if h.inner != 17 && h.inner != 6 && h.inner != icmp && (h.first || version == 4) { // the next header in a later IPv6 fragment is not used
		f.when(!b.infrastructure[from], txInfrastructure)
	}
	if h.first && (h.inner == 17 || h.inner == 6) {
		port, to, cut, badLength := transport(p, h)
		if f.when(cut, txTruncated) {
			return
		}
		f.when(badLength, txBadLength)
		holder := b.holdsPort(h.inner == 6, h.src, port)
		f.when(holder != nobody && holder != from, txForgedTag)
		plain := h.inner != 17 || plainPort(port, to)
		if holder == from && !h.fragment && !h.options && (plain || b.holdsAddr(h.src) == nobody) {
			return
		}
		f.when(!plain && !b.infrastructure[from], txInfrastructure)
	}
	f.when(b.holdsAddr(h.src) != from, txForgedAddr)
}

// sendsError is RFC 1122 and RFC 4443 for a host: an error is about a packet to the source of the error,
// and is not a fragment.
func (f *faults) sendsError(p []byte, h headers, version int) {
	f.when(h.fragment, txForgedQuote)
	fixed := 20
	if version == 6 {
		fixed = 40
	}
	if f.when(h.length < h.head+8+fixed, txForgedQuote) || f.when(len(p) < h.head+8+fixed, txTruncated) {
		return
	}
	q, ok := takeApart(p[h.head+8:], version)
	f.when(!ok || q.dst != h.src, txForgedQuote)
}

// sendsND is RFC 4861 for a host that is no router.
func (b *book) sendsND(f *faults, from who, p []byte, h headers) {
	body := p[h.head:max(h.head, min(h.length, len(p)))]
	forged := h.fragment || h.hopLimit != 255 || body[0] != 135 && body[0] != 136
	switch h.length - h.head {
	case 24, 32:
		if f.when(len(body) < h.length-h.head, txTruncated) {
			break
		}
		target := netip.AddrFrom16([16]byte(body[8:24]))
		group, _ := solicitedNode(target)
		optionType := byte(1)
		switch {
		case body[0] == 136:
			optionType = 2
			forged = forged || b.holdsAddr(target) != from || b.holdsAddr(h.src) != from || body[4]&0x80 != 0
		case h.src.IsUnspecified():
			forged = forged || b.holdsAddr(target) != from || h.dst != group || len(body) != 24
		default:
			forged = forged || b.holdsAddr(h.src) != from
		}
		if len(body) == 32 {
			forged = forged || body[24] != optionType || body[25] != 1 || !bytes.Equal(body[26:], b.link[:])
		}
	default:
		forged = true
	}
	f.when(forged, txForgedND)
}
