//go:build linux

package mux

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/wire"
)

// When a lease has ended and its tags are free, the mux sends a RST (RFC 9293, section
// 3.10.7.4) to each peer of its TCP connections, according to the records that the process
// has published (ADR 26). A record may be wrong. So a RST is sent only if the lease could have
// sent it: from an address and port that it held and that no other lease has claimed since, to
// a destination with a route, once for each record.
//
// If the sequence number of a RST is in the peer's window but is not the next one, the peer
// answers with an ACK (RFC 5961, section 3.2), which no tag claims. On an address of the host
// the kernel answers it with a RST; on a whole address the mux does so, for a second, if the peer is
// not the kernel of this host.

const (
	resetTime     = 3 * time.Second       // limit for all connections of a lease
	hopTime       = 50 * time.Millisecond // limit of the discovery of a neighbour
	maxSilentHops = 32                    // after this number of failed discoveries only known neighbours are used
	answerTime    = time.Second           // the time in which ACKs to a whole address are answered
	resetPause    = time.Millisecond      // until the next attempt when the device's queue is full
)

// tablePart is the size of one read of a table, in bytes.
const tablePart = 4096 * wire.ConnectionLen

// flow is the two ends of a connection.
type flow struct{ local, remote netip.AddrPort }

// resetter ends the connections of one lease.
type resetter struct {
	m      *Mux
	until  time.Time                    // end of resetTime, or of answerTime
	held   map[endpoint.Tag]bool        // tags that the lease held, in effect
	hops   map[netip.Addr]wire.LinkAddr // by destination; the uplink's: this host's kernel; zero: no route
	silent int                          // number of neighbours that did not answer
	sent   int

	answers  map[flow]bool // connections on whole addresses
	answerer *os.File      // receives frames for these addresses; nil: there are none
}

// resetConnections sends a RST to the peer of each connection in a table. held are the tags in
// effect that its lease held.
func (m *Mux) resetConnections(table *os.File, held map[endpoint.Tag]bool) {
	r := &resetter{
		m: m, until: time.Now().Add(resetTime),
		held: held, hops: map[netip.Addr]wire.LinkAddr{}, answers: map[flow]bool{},
	}
	err := readConnections(table, r.reset)
	if r.sent > 0 || err != nil {
		m.log.Debug("connections reset", "sent", r.sent, "error", err)
	}
	if r.answerer != nil {
		m.running.Go(r.answer)
	}
}

// readConnections calls f with each record of a table that is not empty, until f returns an
// error.
func readConnections(table *os.File, f func(wire.Connection) error) error {
	part := make([]byte, tablePart)
	for at := int64(0); ; {
		// Most of a table is a hole. ReadAt, since a process that shares the file can move its offset.
		data, err := table.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		at = max(at, data-data%wire.ConnectionLen)
		n, err := table.ReadAt(part, at)
		for b := part[:n]; len(b) >= wire.ConnectionLen; b = b[wire.ConnectionLen:] {
			if c := wire.ParseConnection(b); c.RemotePort != 0 {
				if err := f(c); err != nil {
					return err
				}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		at += int64(n)
	}
}

// reset sends one RST, if the lease could have sent it. An error ends the resets.
func (r *resetter) reset(c wire.Connection) error {
	f := flow{
		netip.AddrPortFrom(netip.AddrFrom4(c.Local), c.LocalPort),
		netip.AddrPortFrom(netip.AddrFrom4(c.Remote), c.RemotePort),
	}
	whole := r.held[endpoint.AddrTag(f.local.Addr())]
	if c.LocalPort == 0 || !whole && !r.held[endpoint.TCPTag(f.local)] && !r.held[endpoint.TCPTag(f.local).AsBlock()] {
		return nil
	}
	if time.Now().After(r.until) {
		return os.ErrDeadlineExceeded
	}
	to, ifindex, ok := r.route(f)
	if !ok {
		return nil
	}
	if whole {
		if err := r.listen(); err != nil {
			return err
		}
		r.answers[f] = true
	}
	return r.send(ifindex, to, f, wire.TCPFields{Seq: c.Next, Flags: wire.TCPRst})
}

// route is the next hop of a RST and the device that it leaves by: the uplink, the port of an
// endpoint of this host, or the pair to this host's kernel (bpf/src/host.h). An endpoint on a queue
// of the uplink cannot be reached.
func (r *resetter) route(f flow) (to wire.LinkAddr, ifindex int, ok bool) {
	m := r.m
	m.mu.Lock()
	claimed, peer := m.tags.ofTCP(f.local), m.tags.ofTCP(f.remote)
	m.mu.Unlock()
	switch {
	case claimed != nil:
		return to, 0, false
	case peer != nil && !peer.suspended:
		port := peer.by.at.owner.Port
		return m.up.addr, int(port), port != 0
	}
	dst := f.remote.Addr()
	to, known := r.hops[dst]
	if !known {
		to = r.resolve(dst)
		r.hops[dst] = to
	}
	if to != m.up.addr {
		return to, m.up.ifindex, to != wire.LinkAddr{}
	}
	up, err := m.nl.LinkByName(upName(m.up.ifindex))
	if err != nil {
		return to, 0, false
	}
	return to, up.Attrs().Index, true
}

// resolve returns the MAC address of the next hop to a host; zero: there is none.
func (r *resetter) resolve(dst netip.Addr) (to wire.LinkAddr) {
	if r.silent >= maxSilentHops {
		to, _, _ = r.m.routes.Neighbour(dst)
		return to
	}
	// While the mux is being closed only neighbours in the kernel's table are found.
	ctx, cancel := context.WithTimeout(r.m.ctx, hopTime)
	defer cancel()
	found, err := r.m.routes.Resolve(ctx, dst)
	if err != nil {
		r.silent++
		return to
	}
	if found.LinkAddr.IsGroup() {
		return to
	}
	return found.LinkAddr
}

// send sends a segment without data. It waits while the device's queue is full.
func (r *resetter) send(ifindex int, to wire.LinkAddr, f flow, h wire.TCPFields) error {
	const ip, tcp = wire.EthernetHeaderLen, wire.EthernetHeaderLen + wire.IPv4HeaderLen
	var frame [tcp + wire.TCPHeaderLen]byte
	src, dst := f.local.Addr().As4(), f.remote.Addr().As4()
	h.SrcPort, h.DstPort = f.local.Port(), f.remote.Port()
	wire.PutEthernet(frame[:], to, r.m.up.addr, wire.EtherTypeIPv4)
	wire.PutIPv4(frame[ip:], wire.IPv4Fields{
		TTL: 64, Protocol: wire.ProtocolTCP, DontFragment: true, TotalLen: uint16(len(frame) - ip), Src: src, Dst: dst,
	})
	wire.PutTCP(frame[tcp:], &h, wire.TCPHeaderLen, wire.PseudoHeader(wire.AddrFrom4(src), wire.AddrFrom4(dst), wire.ProtocolTCP, wire.TCPHeaderLen))
	for {
		err := unix.Sendto(r.m.sender, frame[:], unix.MSG_DONTWAIT, &unix.SockaddrLinklayer{Ifindex: ifindex})
		if err != unix.EAGAIN && err != unix.ENOBUFS {
			if err == nil {
				r.sent++
			}
			return nil // sent, or the device is down or gone, which need not concern the other peers
		}
		if time.Now().After(r.until) {
			return os.ErrDeadlineExceeded
		}
		time.Sleep(resetPause)
	}
}

// listen opens a socket that receives TCP segments to the whole addresses that the lease held.
func (r *resetter) listen() (err error) {
	if r.answerer != nil {
		return nil
	}
	const protocol, dst = wire.EthernetHeaderLen + 9, wire.EthernetHeaderLen + 16 // in a frame
	ret := func(bytes uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: bytes} }
	unless := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: 1}
	}
	when := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: 1}
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: protocol}, when(uint32(wire.ProtocolTCP)), ret(0),
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dst},
	}
	for t := range r.held {
		if t.Kind == endpoint.TagAddr && t.Addr.Is4() {
			a := t.Addr.As4()
			filter = append(filter, unless(uint32(a[0])<<24|uint32(a[1])<<16|uint32(a[2])<<8|uint32(a[3])), ret(maxAnswered))
		}
	}
	r.answerer, err = route.Listen(r.m.ns, r.m.up.ifindex, "answers", wire.EtherTypeIPv4, append(filter, ret(0)))
	return err
}

// maxAnswered is the longest frame that is read, in bytes: a super-frame.
const maxAnswered = 1<<16 + wire.EthernetHeaderLen

// answer answers segments of connections that have ended (RFC 9293, section 3.10.7.1).
func (r *resetter) answer() {
	defer r.answerer.Close()
	r.until = time.Now().Add(answerTime)
	if r.answerer.SetDeadline(r.until) != nil {
		return
	}
	defer context.AfterFunc(r.m.ctx, func() { r.answerer.SetDeadline(time.Unix(1, 0)) })()
	for frame := make([]byte, maxAnswered); ; {
		n, err := r.answerer.Read(frame)
		if err != nil {
			return
		}
		to, f, h, ok := answerTo(frame[:n])
		if ok && r.answers[f] {
			if r.send(r.m.up.ifindex, to, f, h) != nil {
				return
			}
		}
	}
}

// answerTo is the RST that answers a segment of no connection.
func answerTo(frame []byte) (to wire.LinkAddr, f flow, h wire.TCPFields, ok bool) {
	var eth wire.Ethernet
	if eth.Parse(frame) != nil || eth.Type != wire.EtherTypeIPv4 {
		return to, f, h, false
	}
	var ip wire.IPv4
	if ip.Parse(eth.Payload) != nil || ip.Protocol != wire.ProtocolTCP || ip.Fragment != 0 {
		return to, f, h, false
	}
	var s wire.TCP
	if err := s.Parse(ip.Payload); err != nil || s.Flags&wire.TCPRst != 0 {
		return to, f, h, false
	}
	f = flow{netip.AddrPortFrom(netip.AddrFrom4(ip.Dst), s.DstPort), netip.AddrPortFrom(netip.AddrFrom4(ip.Src), s.SrcPort)}
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
