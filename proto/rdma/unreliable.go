package rdma

import "github.com/unet-go/unet/wire"

// behindWindow is how many PSNs before the expected one UC takes for duplicates and for packets
// that came out of order. Farther behind, as far ahead, a message begins anew.
const behindWindow = 256

// unreliable takes a request of UC (section 9.8.2): a message of which a packet is lost, or that
// cannot be executed, is dropped. A first packet begins a new message, whatever was lost
// before it. Packets that come late are dropped, so that messages stay in order.
func (q *QP) unreliable(h *wire.RoCE) {
	r := &q.resp
	p := parts[h.Opcode.Operation()]
	diff := psnDiff(h.PSN, r.expected)
	if diff < 0 && diff >= -behindWindow {
		q.d.counts[Duplicates]++
		return
	}
	if diff != 0 {
		q.d.counts[SequenceGaps]++
	}
	if diff != 0 || r.message != noMessage && p.first {
		if r.message != noMessage {
			q.d.counts[MessagesDropped]++
		}
		r.message, r.dropping = noMessage, true
	}
	r.expected = h.PSN
	if r.dropping && !p.first {
		r.expected = psnAdd(r.expected, 1)
		return
	}
	r.dropping = false
	if v := q.place(h, p); v != nil {
		q.d.counts[v.counter]++
		q.d.counts[MessagesDropped]++
		r.message, r.dropping = noMessage, true
		r.expected = psnAdd(r.expected, 1)
		return
	}
	q.advance(h, p)
}

// grhLen is the room for the network header at the begin of a datagram's receive, in bytes
// (annex A17).
const grhLen = 40

// datagram takes a packet of UD (section 9.8.3). The IPv4 header is put into the last 20 of the
// first 40 bytes of the receive.
func (q *QP) datagram(h *wire.RoCE, p *Packet) {
	r := &q.resp
	n := uint32(len(h.Payload))
	switch {
	case h.QKey != q.attr.QKey:
		q.d.counts[BadQKey]++
	case n > q.mtu:
		q.d.counts[RequestsInvalid]++
	case !q.takeReceive():
		q.d.counts[ReceiverNotReady]++
	case uint64(grhLen+n) > r.recv.length:
		q.d.counts[ReceivesTooShort]++
	default:
		var grh [grhLen]byte
		copy(grh[grhLen-wire.IPv4HeaderLen:], p.IP)
		if !q.scatter(r.recv.list(), 0, grh[:]) || !q.scatter(r.recv.list(), grhLen, h.Payload) {
			q.d.counts[ReceivesUnusable]++
			q.endReceive(StatusLocProtErr)
			return
		}
		q.received(h, parts[h.Opcode.Operation()], &WC{Opcode: WCRecv, Flags: WCGRH, ByteLen: grhLen + n, SrcQP: h.SrcQP})
	}
}
