//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// frameErrors are all errors of a frame, by counter. The program may count any of them.
type frameErrors []Counter

// addIf adds an error if the frame has it, and returns whether it has.
func (f *frameErrors) addIf(wrong bool, c Counter) bool {
	if wrong {
		*f = append(*f, c)
	}
	return wrong
}

// errorsOf are the errors of a frame that an endpoint sends. A frame without errors is allowed.
func (b *tagTable) errorsOf(from holder, frame []byte) (f frameErrors) {
	f.addIf(len(frame) > 14+b.mtu, txOversize)
	if f.addIf(len(frame) < 14, txTruncated) {
		return f
	}
	f.addIf(!bytes.Equal(frame[6:12], b.link[:]), txForgedLink)
	p := frame[14:]
	b.checkGroup(&f, from, frame)
	switch be16(frame, 12) {
	case 0x0800:
		b.checkIP(&f, from, p, 4)
	case 0x86dd:
		b.checkIP(&f, from, p, 6)
	case 0x88b5:
		if f.addIf(len(p) < 12, txTruncated) {
			return f
		}
		f.addIf(p[0] != 1, txBadHeader)
		f.addIf(12+be16(p, 2) > len(p), txBadLength)
		f.addIf(b.messageHolder(binary.BigEndian.Uint32(p[8:])) != from, txForgedTag)
	case 0x0806:
		if f.addIf(len(p) < 28, txTruncated) {
			return f
		}
		f.addIf(!isARP(p), txBadHeader)
		sender, target := netip.AddrFrom4([4]byte(p[14:18])), netip.AddrFrom4([4]byte(p[24:28]))
		probe := sender.IsUnspecified() && be16(p, 6) == 1
		f.addIf(!bytes.Equal(p[8:14], b.link[:]), txForgedARP)
		f.addIf(b.addrHolder(sender) != from && !(probe && b.addrHolder(target) == from), txForgedARP)
	default:
		f.addIf(true, txBadType)
	}
	return f
}

// checkGroup adds the errors of frames to groups and broadcast addresses, and to their MAC addresses, by RFC 1112, 6.4, and
// RFC 2464, 7.
func (b *tagTable) checkGroup(f *frameErrors, from holder, frame []byte) {
	dst, p := frame[:6], frame[14:]
	if bytes.Equal(dst, b.link[:]) {
		return // this host has other rules
	}
	switch kind := be16(frame, 12); {
	case kind == 0x0800 && len(p) >= 20:
		to := netip.AddrFrom4([4]byte(p[16:20]))
		right := dst[0]&1 == 0 // to one host
		switch {
		case to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) || to == subnetBroadcast:
			f.addIf(b.addrHolder(netip.AddrFrom4([4]byte(p[12:16]))) != from, txBroadcast)
			right = bytes.Equal(dst, bcast)
		case to.IsMulticast():
			right = bytes.Equal(dst, []byte{1, 0, 0x5e, p[17] &^ 0x80, p[18], p[19]})
		}
		f.addIf(!right, txForgedGroup)
	case kind == 0x86dd && len(p) >= 40:
		right := dst[0]&1 == 0
		if p[24] == 0xff {
			right = bytes.Equal(dst, append([]byte{0x33, 0x33}, p[36:40]...))
		}
		f.addIf(!right, txForgedGroup)
	}
}

// plainPort reports whether any host may send a datagram with these ports: not from ports of DHCP servers
// (67, 547) and routers (RIP: 520, 521), and not to DHCP clients (68, 546).
func plainPort(src, dst uint16) bool {
	return src != 67 && src != 547 && src != 520 && src != 521 && dst != 68 && dst != 546
}

// checkIP adds the errors of an IP packet.
func (b *tagTable) checkIP(f *frameErrors, from holder, p []byte, version int) {
	h, ok := parseHeaders(p, version)
	if f.addIf(h.cutOff, txTruncated) {
		return
	}
	if f.addIf(!ok, txBadHeader) {
		return
	}
	f.addIf(h.jumbo || h.length > len(p) || version == 4 && h.length < h.head, txBadLength)
	if h.fragmentCut {
		f.addIf(true, txTruncated)
		f.addIf(true, txBadLength)
		return
	}
	if version == 4 && h.first && h.inner == 1 {
		if f.addIf(len(p) < h.head+8, txTruncated) || f.addIf(h.length < h.head+8, txBadLength) {
			return
		}
		switch t := p[h.head]; t {
		case 4, 5, 9, 10: // source quench, redirect, router discovery
			f.addIf(true, txForgedQuote)
		case 3, 11, 12:
			f.checkICMPError(p, h, 4)
		case 0, 8: // echo
		default:
			f.addIf(!b.infrastructure[from], txInfrastructure)
		}
	}
	if version == 6 && h.first {
		switch h.inner {
		case 0, 43, 44, 51, 60, 135, 139, 140, 253, 254:
			f.addIf(true, txBadHeader)
			return
		case 58:
			if f.addIf(len(p) < h.head+8, txTruncated) || f.addIf(h.length < h.head+8, txBadLength) {
				return
			}
			t := p[h.head]
			if t >= 133 && t <= 137 {
				b.checkND(f, from, p, h)
				return
			}
			if t < 128 {
				f.checkICMPError(p, h, 6)
			}
			f.addIf(t > 129 && !b.infrastructure[from], txInfrastructure)
		}
	}
	icmp := byte(1)
	if version == 6 {
		icmp = 58
	}
	if h.inner != 17 && h.inner != 6 && h.inner != icmp && (h.first || version == 4) { // the next header in a later IPv6 fragment is not used
		f.addIf(!b.infrastructure[from], txInfrastructure)
	}
	if h.first && (h.inner == 17 || h.inner == 6) {
		port, to, cut, badLength := transport(p, h)
		if f.addIf(cut, txTruncated) {
			return
		}
		f.addIf(badLength, txBadLength)
		owner := b.portHolder(h.inner == 6, h.src, port)
		f.addIf(owner != noHolder && owner != from, txForgedTag)
		if h.inner == 17 && to == 4791 { // only the RDMA device of the source address sends there
			device := b.portHolder(false, h.src, 4791)
			if device == noHolder {
				device = b.addrHolder(h.src)
			}
			f.addIf(device != from, txForgedRDMA)
		}
		plain := h.inner != 17 || plainPort(port, to)
		if owner == from && !h.fragment && !h.options && (plain || b.addrHolder(h.src) == noHolder) {
			return
		}
		f.addIf(!plain && !b.infrastructure[from], txInfrastructure)
	}
	f.addIf(b.addrHolder(h.src) != from, txForgedAddr)
}

// checkICMPError adds the errors of an ICMP error, by RFC 1122 and RFC 4443: it is about a packet that was sent to its
// source, and is not a fragment.
func (f *frameErrors) checkICMPError(p []byte, h headers, version int) {
	f.addIf(h.fragment, txForgedQuote)
	fixed := 20
	if version == 6 {
		fixed = 40
	}
	if f.addIf(h.length < h.head+8+fixed, txForgedQuote) || f.addIf(len(p) < h.head+8+fixed, txTruncated) {
		return
	}
	q, ok := parseHeaders(p[h.head+8:], version)
	f.addIf(!ok || q.dst != h.src, txForgedQuote)
}

// checkND adds the errors of a neighbour discovery message, by RFC 4861 for a host that is no router.
func (b *tagTable) checkND(f *frameErrors, from holder, p []byte, h headers) {
	body := p[h.head:max(h.head, min(h.length, len(p)))]
	forged := h.fragment || h.hopLimit != 255 || body[0] != 135 && body[0] != 136
	switch h.length - h.head {
	case 24, 32:
		if f.addIf(len(body) < h.length-h.head, txTruncated) {
			break
		}
		target := netip.AddrFrom16([16]byte(body[8:24]))
		group, _ := solicitedNode(target)
		optionType := byte(1)
		switch {
		case body[0] == 136:
			optionType = 2
			forged = forged || b.addrHolder(target) != from || b.addrHolder(h.src) != from || body[4]&0x80 != 0
		case h.src.IsUnspecified():
			forged = forged || b.addrHolder(target) != from || h.dst != group || len(body) != 24
		default:
			forged = forged || b.addrHolder(h.src) != from
		}
		if len(body) == 32 {
			forged = forged || body[24] != optionType || body[25] != 1 || !bytes.Equal(body[26:], b.link[:])
		}
	default:
		forged = true
	}
	f.addIf(forged, txForgedND)
}
