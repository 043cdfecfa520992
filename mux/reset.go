//go:build linux

package mux

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/wire"
)

// When a lease has ended and its tags are free, the mux sends a RST (RFC 9293, section
// 3.10.7.4) to each peer of its TCP connections, according to the records that the process
// has published (ADR 26). A record may be wrong. So a RST is sent only if the lease could have
// sent it: from an address and port that it held and that no other lease has claimed since, to
// a destination with a route, and once for each connection. It is paid like a frame of the endpoint
// (sent.go): a RST beyond the rates of the user is sent later, or after resetTime not at all.
//
// If the sequence number of a RST is in the peer's window but is not the next one, the peer
// answers with an ACK (RFC 5961, section 3.2), which no tag claims. On an address of the host
// the kernel answers it with a RST; on an owned address the mux does so, for a second, if the peer is
// not the kernel of this host.

const (
	resetTime     = 3 * time.Second       // limit for all connections that a lease could have had
	hopTime       = 50 * time.Millisecond // limit of the discovery of a neighbour
	maxSilentHops = 32                    // after this number of failed discoveries only known neighbours are used
	answerTime    = time.Second           // the time in which ACKs to an owned address are answered
	resetPause    = time.Millisecond      // until the next attempt when the device's queue is full, or the rates permit no frame
	maxBatch      = 16                    // RSTs that are paid at once
)

// flow is the two ends of a connection.
type flow struct{ local, remote netip.AddrPort }

// resetter ends the connections of one lease.
type resetter struct {
	l      *Lease
	m      *Mux
	spent  time.Duration                   // on connections that the lease could have had
	until  time.Time                       // end of resetTime, or of answerTime
	held   map[endpoint.Tag]bool           // tags that the lease held, in effect
	hops   map[[2]netip.Addr]wire.LinkAddr // by source and destination; the uplink's: this host's kernel; zero: no route
	silent int                             // number of neighbours that did not answer
	paid   int                             // number of RSTs that are paid and not sent
	batch  int                             // number of RSTs to pay next
	left   int                             // number of records whose RST was not sent within resetTime

	// reset are the hashes of the connections whose RST was sent: a set of flows would take many times the memory.
	reset     map[uint64]struct{}
	seed      maphash.Seed
	answerers map[wire.EtherType]*os.File // receive frames for these addresses
}

// resetConnections sends a RST to the peer of each connection in the table of a lease, whose process
// has published it. held are the tags in effect that the lease held. It then returns; wait waits for the end of
// the answers on owned addresses, if there are any, else it is nil.
func (l *Lease) resetConnections(published *published, held map[endpoint.Tag]bool) (wait func()) {
	m := l.m
	r := &resetter{
		l: l, m: m, batch: 1,
		held: held, hops: map[[2]netip.Addr]wire.LinkAddr{}, answerers: map[wire.EtherType]*os.File{},
		reset: map[uint64]struct{}{}, seed: maphash.MakeSeed(),
	}
	err := published.each(0, func(_ uint32, c wire.Connection) error { return r.end(c) })
	if r.left > 0 {
		m.sender.count(bpf.MuxRate, r.left)
	}
	if len(r.reset) > 0 || r.left > 0 || err != nil {
		m.log.Debug("connections reset", "endpoint", l.id, "sent", len(r.reset), "not_sent", r.left, "error", err)
	}
	if len(r.answerers) == 0 {
		return nil
	}
	r.until = time.Now().Add(answerTime)
	var answering sync.WaitGroup
	for _, a := range r.answerers {
		answering.Go(func() { r.answer(a) })
	}
	return answering.Wait
}

// end sends one RST, if the lease could have sent it. An error ends the resets.
func (r *resetter) end(c wire.Connection) error {
	if c.Protocol != wire.ProtocolTCP || c.RemotePort == 0 || c.Local.Is4() != c.Remote.Is4() || !c.Local.IsHost() || !c.Remote.IsHost() {
		return nil
	}
	f := flow{
		netip.AddrPortFrom(c.Local.Netip(), c.LocalPort),
		netip.AddrPortFrom(c.Remote.Netip(), c.RemotePort),
	}
	owned := r.held[endpoint.AddrTag(f.local.Addr())]
	if !owned && !r.held[endpoint.TCPTag(f.local)] && !r.held[endpoint.TCPTag(f.local).AsBlock()] {
		return nil
	}
	if _, done := r.reset[r.hash(f)]; done {
		return nil // another record of it
	}
	if r.spent >= resetTime {
		r.left++
		return nil
	}
	begin := time.Now()
	r.until = begin.Add(resetTime - r.spent)
	defer func() { r.spent += time.Since(begin) }()
	to, ok := r.route(f)
	if !ok {
		return nil
	}
	if owned {
		if err := r.listen(etherType(f.local.Addr())); err != nil {
			return err
		}
	}
	if !r.pay(f) {
		r.left++
		return nil
	}
	r.reset[r.hash(f)] = struct{}{}
	if r.send(to, f, wire.TCPFields{Seq: c.Next, Flags: wire.TCPRst}) != nil {
		r.left++
	}
	return nil
}

func (r *resetter) hash(f flow) uint64 { return maphash.Comparable(r.seed, f) }

// pay pays a RST, and waits until the rates permit it. It returns false if resetTime is over. It pays for
// several in advance, but at most as many as were sent, since what is left is lost.
func (r *resetter) pay(f flow) bool {
	for r.paid == 0 {
		if r.paid = r.m.rates.pay(r.l, r.batch, frameLen(f)); r.paid > 0 {
			r.batch = min(2*r.batch, maxBatch)
			break
		}
		r.batch = 1
		if time.Now().After(r.until) {
			return false
		}
		time.Sleep(resetPause)
	}
	r.paid--
	return true
}

// resetPath is where a RST is sent: by the uplink, to the port of an endpoint of this host, or to
// this host's kernel by the pair to it (bpf/src/host.h). An endpoint on a queue of the uplink cannot be reached.
type resetPath struct {
	link    wire.LinkAddr
	ifindex int
	counter bpf.Counter
}

// route is the path of a RST. ok is false if there is none.
func (r *resetter) route(f flow) (_ resetPath, ok bool) {
	m := r.m
	m.mu.Lock()
	claimed, peer := m.tags.ofTCP(f.local), m.tags.ofTCP(f.remote)
	m.mu.Unlock()
	switch {
	case claimed != nil:
		return resetPath{}, false
	case peer != nil && !peer.suspended:
		port := peer.by.at.owner.Port
		return resetPath{m.up.Addr, int(port), bpf.MuxLocal}, port != 0
	}
	ends := [2]netip.Addr{f.local.Addr(), f.remote.Addr()}
	to, known := r.hops[ends]
	if !known {
		to = r.resolve(ends[0], ends[1])
		r.hops[ends] = to
	}
	if to != m.up.Addr {
		return resetPath{to, m.up.Index, bpf.MuxUplink}, to != wire.LinkAddr{}
	}
	up, err := m.nl.LinkByName(attach.UpName(m.up.Index))
	if err != nil {
		return resetPath{}, false
	}
	return resetPath{to, up.Attrs().Index, bpf.MuxHost}, true
}

// resolve returns the MAC address of the next hop from one of the lease's addresses to a host; zero: there is none.
func (r *resetter) resolve(src, dst netip.Addr) (to wire.LinkAddr) {
	if r.silent >= maxSilentHops {
		to, _, _ = r.m.routes.Neighbour(dst)
		return to
	}
	// While the mux is being closed only neighbours in the kernel's table are found.
	ctx, cancel := context.WithTimeout(r.m.ctx, hopTime)
	defer cancel()
	found, err := r.m.routes.Resolve(ctx, asksFrom(src, r.held[endpoint.AddrTag(src)]), dst)
	if err != nil {
		r.silent++
		return to
	}
	if found.LinkAddr.IsGroup() {
		return to
	}
	return found.LinkAddr
}

// etherType is that of an address's family.
func etherType(a netip.Addr) wire.EtherType {
	if a.Is4() {
		return wire.EtherTypeIPv4
	}
	return wire.EtherTypeIPv6
}

// frameLen is the length of a RST in bytes.
func frameLen(f flow) int {
	if f.local.Addr().Is4() {
		return wire.EthernetHeaderLen + wire.IPv4HeaderLen + wire.TCPHeaderLen
	}
	return wire.EthernetHeaderLen + wire.IPv6HeaderLen + wire.TCPHeaderLen
}

// send sends a segment without data, which is paid. It waits while the device's queue is full. The error is
// os.ErrDeadlineExceeded.
func (r *resetter) send(to resetPath, f flow, h wire.TCPFields) error {
	const ip = wire.EthernetHeaderLen
	var room [ip + wire.IPv6HeaderLen + wire.TCPHeaderLen]byte
	frame := room[:frameLen(f)]
	src, dst := f.local.Addr(), f.remote.Addr()
	h.SrcPort, h.DstPort = f.local.Port(), f.remote.Port()
	wire.PutEthernet(frame, to.link, r.m.up.Addr, etherType(src))
	if src.Is4() {
		wire.PutIPv4(frame[ip:], wire.IPv4Fields{
			TTL: 64, Protocol: wire.ProtocolTCP, DontFragment: true, TotalLen: uint16(len(frame) - ip), Src: src.As4(), Dst: dst.As4(),
		})
	} else {
		wire.PutIPv6(frame[ip:], wire.IPv6Fields{HopLimit: 64, Protocol: wire.ProtocolTCP, PayloadLen: wire.TCPHeaderLen, Src: src.As16(), Dst: dst.As16()})
	}
	tcp := frame[len(frame)-wire.TCPHeaderLen:]
	wire.PutTCP(tcp, &h, wire.TCPHeaderLen, wire.PseudoHeader(wire.AddrFrom(src), wire.AddrFrom(dst), wire.ProtocolTCP, wire.TCPHeaderLen))
	for {
		if err := r.m.sender.send(frame, to.ifindex, to.counter); err != errFull {
			return nil // sent, or the device is down or gone, which need not concern the other peers
		}
		if time.Now().After(r.until) {
			return os.ErrDeadlineExceeded
		}
		time.Sleep(resetPause)
	}
}

// listen opens a socket that receives TCP segments to the owned addresses of a family that the
// lease held.
func (r *resetter) listen(of wire.EtherType) (err error) {
	if r.answerers[of] != nil {
		return nil
	}
	r.answerers[of], err = route.Listen(r.m.ns, r.m.up.Index, "answers", of, r.filter(of))
	if err != nil {
		delete(r.answerers, of)
	}
	return err
}

// filter accepts TCP segments to the owned addresses of a family.
func (r *resetter) filter(of wire.EtherType) (filter []unix.SockFilter) {
	protocol, dst := uint32(wire.EthernetHeaderLen+9), uint32(wire.EthernetHeaderLen+16) // in a frame
	if of == wire.EtherTypeIPv6 {
		protocol, dst = wire.EthernetHeaderLen+6, wire.EthernetHeaderLen+24
	}
	load := func(size uint16, at uint32) {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: at})
	}
	// unless skips instructions if the value that was loaded is not k.
	unless := func(k uint32, skip int) {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: uint8(skip)})
	}
	ret := func(bytes uint32) {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: bytes})
	}
	load(unix.BPF_B, protocol)
	filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(wire.ProtocolTCP), Jt: 1})
	ret(0)
	for t := range r.held {
		if t.Kind != endpoint.TagAddr || etherType(t.Addr) != of {
			continue
		}
		if len(filter) > maxFilter {
			break
		}
		a := t.Addr.AsSlice()
		for at := 0; at < len(a); at += 4 {
			load(unix.BPF_W, dst+uint32(at))
			unless(binary.BigEndian.Uint32(a[at:]), (len(a)-at)/2-1) // to the next address
		}
		ret(maxAnswered)
	}
	ret(0)
	return filter
}

const (
	// maxAnswered is the longest frame that is read, in bytes: a super-frame.
	maxAnswered = 1<<16 + wire.EthernetHeaderLen
	// maxFilter bounds a filter, in instructions: the kernel's limit is 4096 (BPF_MAXINSNS).
	maxFilter = 4000
)

// answer answers segments of connections that have ended (RFC 9293, section 3.10.7.1).
func (r *resetter) answer(from *os.File) {
	defer from.Close()
	if from.SetDeadline(r.until) != nil {
		return
	}
	defer context.AfterFunc(r.m.ctx, func() { from.SetDeadline(time.Unix(1, 0)) })()
	for frame := make([]byte, maxAnswered); ; {
		n, err := from.Read(frame)
		if err != nil {
			return
		}
		to, f, h, ok := answerTo(frame[:n])
		if _, ended := r.reset[r.hash(f)]; !ok || !ended {
			continue
		}
		if r.m.rates.pay(r.l, 1, frameLen(f)) == 0 {
			r.m.sender.count(bpf.MuxRate, 1)
			continue
		}
		if r.send(resetPath{to, r.m.up.Index, bpf.MuxUplink}, f, h) != nil {
			return
		}
	}
}

// answerTo is the RST that answers a segment of no connection.
func answerTo(frame []byte) (to wire.LinkAddr, f flow, h wire.TCPFields, ok bool) {
	var eth wire.Ethernet
	if eth.Parse(frame) != nil {
		return to, f, h, false
	}
	var src, dst netip.Addr
	var payload []byte
	switch eth.Type {
	case wire.EtherTypeIPv4:
		var ip wire.IPv4
		if ip.Parse(eth.Payload) != nil || ip.Protocol != wire.ProtocolTCP || ip.Fragment != 0 {
			return to, f, h, false
		}
		src, dst, payload = netip.AddrFrom4(ip.Src), netip.AddrFrom4(ip.Dst), ip.Payload
	case wire.EtherTypeIPv6:
		var ip wire.IPv6
		if ip.Parse(eth.Payload) != nil || ip.Protocol != wire.ProtocolTCP || ip.Fragment != 0 {
			return to, f, h, false
		}
		src, dst, payload = netip.AddrFrom16(ip.Src), netip.AddrFrom16(ip.Dst), ip.Payload
	default:
		return to, f, h, false
	}
	var s wire.TCP
	if err := s.Parse(payload); err != nil || s.Flags&wire.TCPRst != 0 {
		return to, f, h, false
	}
	f = flow{netip.AddrPortFrom(dst, s.DstPort), netip.AddrPortFrom(src, s.SrcPort)}
	if s.Flags&wire.TCPAck != 0 {
		return eth.Src, f, wire.TCPFields{Seq: s.Ack, Flags: wire.TCPRst}, true
	}
	length := uint32(len(s.Payload))
	for _, flag := range []wire.TCPFlags{wire.TCPSyn, wire.TCPFin} {
		if s.Flags&flag != 0 {
			length++
		}
	}
	return eth.Src, f, wire.TCPFields{Ack: s.Seq + length, Flags: wire.TCPRst | wire.TCPAck}, true
}
