package stack

import (
	"encoding/binary"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/wait"
	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// Never is the deadline that does not come.
const Never = int64(never)

// UDPHandler is a protocol above UDP that runs in the stack, at one port. Its methods are
// called under the stack's lock, by the goroutine that polls or that has called
// [UDPPort.Run]. They must not block, nor call what takes the lock. Times are nanoseconds
// since the stack was made.
type UDPHandler interface {
	// Datagram takes a received datagram. p and its memory are lent until it returns. It
	// must not send; but Send may call it, if the destination is the stack's own address.
	Datagram(now int64, p *UDPPacket)
	// Run sends what is ready, and returns when it is to be called again at the latest,
	// or Never. The stack calls it then, after a batch of frames with datagrams for the
	// port, and when Reserve, which has returned nil, may succeed.
	Run(now int64) (deadline int64)
	// Failed tells, once, that the port is closed or the link has failed: err is what
	// waiting goroutines are to return, and the handler wakes them. Run is not called
	// any more.
	Failed(err error)
}

// UDPPacket is a datagram for a [UDPHandler].
type UDPPacket struct {
	// Packet is the datagram from its IPv4 header to the end of the payload. In one of a
	// super-frame the header is that which the sender's kernel would have given it, except
	// for the checksums.
	Packet  []byte
	Payload []byte // the end of Packet
	Src     wire.AddrPort4
	ECN     uint8 // of the IPv4 header, see [wire.ECNMask]
}

// UDPPort is a port at which a [UDPHandler] receives, and from which it sends. All methods
// but Lock, Close and Local are called with the lock held.
type UDPPort struct {
	stack    *Stack
	udp      *udp.Socket // its queue is empty between two frames
	handler  UDPHandler
	local    netip.AddrPort
	mtu      int
	released func()
	err      error // why the handler's Failed was called
	closed   bool

	touched bool             // on Stack.touchedPorts
	record  *wire.Connection // the published one; nil: none
	timer   timer            // for Run
	polls   uint32
	packet  UDPPacket // what Datagram is lent

	// From Reserve to Send: the memory of one packet.
	frame    Frame
	route    *route // of the last packet that went to the link
	reserved reservedRoom
	room     []byte // for a packet that does not go to the link
	unsent   Frame  // a packet that the link had no room for
	stuck    bool   // the link takes nothing now; with unsent.Data, that frame is first
}

// reservedRoom is where a packet goes for which Reserve has given memory.
type reservedRoom uint8

const (
	reservedNone  reservedRoom = iota
	reservedFrame              // to the link, or to the packets held for a route
	reservedLoop               // to the handler
	reservedLost               // nowhere
)

// Event is something that goroutines wait for at a [UDPPort]. The zero value is ready.
type Event struct{ event }

// OpenUDPPort makes h the receiver of all datagrams to a port; released is as
// [UDPOptions].Released. The errors are those of ListenUDP. ICMP errors about packets from
// the port change the route's MTU, and have no other effect.
func (s *Stack) OpenUDPPort(local netip.AddrPort, h UDPHandler, released func()) (*UDPPort, error) {
	l := wire.AddrPortFrom(local)
	switch {
	case !l.Addr.Is4():
		return nil, syscall.EAFNOSUPPORT
	case !s.isOurs(l.Addr):
		return nil, syscall.EADDRNOTAVAIL
	}
	p := &UDPPort{stack: s, handler: h, local: local, released: released}
	p.timer.owner = p
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.broken != nil {
		return nil, s.ended()
	}
	var err error
	// No packet fills this queue: it is emptied after each.
	p.udp, err = s.udp.Open(l, udp.AddrPort{}, udp.Options{QueueDatagrams: math.MaxUint16 + 1, QueueBytes: math.MaxUint16, Owner: p})
	if err != nil {
		return nil, err
	}
	u := s.uplinkOf(p.udp.Local().Addr)
	p.local, p.mtu = p.udp.Local().Netip(), u.mtu
	if f, ok := u.link.Reserve(wire.EthernetHeaderLen + u.mtu); ok {
		p.mtu = min(p.mtu, len(f.Data)-wire.EthernetHeaderLen)
		u.link.Cancel(f)
	}
	p.record = s.publisher.recordUDP(p.udp)
	s.udpPorts[p] = struct{}{}
	return p, nil
}

// Local is the port's address.
func (p *UDPPort) Local() netip.AddrPort { return p.local }

// MTU is the length in bytes of the longest IP packet that the link sends. It does not change.
func (p *UDPPort) MTU() int { return p.mtu }

// Close gives the port back. The handler's Failed, and a second Close, get net.ErrClosed, or
// the error of Stack.Fail.
func (p *UDPPort) Close() error {
	p.stack.mu.Lock()
	defer p.stack.mu.Unlock()
	if p.closed {
		return p.stack.ended()
	}
	p.close()
	return nil
}

// close needs the lock.
//
// +checklocks:p.stack.mu
func (p *UDPPort) close() {
	s := p.stack
	p.closed = true
	if s.unflushed {
		s.flush()
	}
	p.fail(s.ended())
	s.udp.Close(p.udp)
	s.publisher.records.Put(p.record)
	delete(s.udpPorts, p)
	if p.released != nil {
		p.released()
	}
}

// fail ends the port's traffic.
//
// +checklocks:p.stack.mu
func (p *UDPPort) fail(err error) {
	if p.err != nil {
		return
	}
	p.err = err
	p.stack.stopTimer(&p.timer)
	if p.unsent.Data != nil {
		p.route.uplink.link.Cancel(p.unsent)
		p.unsent = Frame{}
	}
	p.handler.Failed(err)
}

// Lock takes the stack's lock.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Lock() { p.stack.mu.Lock() }

// Unlock sends what Run has made ready, with one kick, and releases the lock.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Unlock() {
	if p.stack.unflushed {
		p.stack.flush()
	}
	p.stack.mu.Unlock()
}

// Err is why the port neither sends nor receives any more, or nil.
func (p *UDPPort) Err() error { return p.err }

// Now reads the clock.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Now() int64 { return int64(p.stack.readClock()) }

// Deadline converts a time to one of the handler's; the zero time is Never.
func (p *UDPPort) Deadline(t time.Time) int64 { return int64(p.stack.deadline(t)) }

// Run calls the handler's Run, as the poll loop does. The clock is as last read.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Run() {
	s := p.stack
	if p.err != nil {
		return
	}
	p.stuck = false
	if p.unsent.Data != nil {
		p.queue(p.unsent)
	}
	at := never
	if !p.stuck {
		at = instant(p.handler.Run(int64(s.now)))
	}
	if p.stuck {
		at = min(at, s.now+instant(sendPause))
	}
	if t := &p.timer; at < never && (t.slot == 0 || at < t.at) && p.err == nil {
		s.startTimer(t, at)
	}
}

// expired calls the handler at its deadline, or later if the deadline was moved.
//
// +checklocks:p.stack.mu
func (p *UDPPort) expired(*Stack) { p.Run() }

// Poll takes in what has arrived and does what is due. It does not wait, but releases the
// lock if goroutines that it has woken are to run. Callers poll in a loop: the caretaker
// leaves the link to them.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Poll() {
	s := p.stack
	s.role.visit()
	if p.polls++; s.input() == 0 && p.polls%pollsPerClock == 0 && !s.closed {
		s.advance(s.look())
	}
	if s.role.hasWoken() {
		p.Unlock()
		wait.Yield()
		s.mu.Lock()
	}
}

// pollsPerClock is how many calls of Poll that find nothing read the clock once.
const pollsPerClock = 32

// Wait returns when e has been signalled or the deadline has passed, or without a reason:
// the caller checks again what it waits for, after Err. It waits as the sockets do: this
// goroutine polls, or another one does.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Wait(e *Event, deadline int64) {
	p.stack.waitFor(&e.event, instant(deadline))
}

// Signal wakes one goroutine that waits for e. It reports whether that is the goroutine
// that polls, which goes on at once when the batch has been handled.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Signal(e *Event) (polls bool) {
	p.stack.role.signal(&e.event)
	return p.stack.role.waitsFor(&e.event)
}

// Broadcast wakes all of them.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Broadcast(e *Event) { p.stack.role.broadcast(&e.event) }

// Reserve gives memory for one packet to dst of n bytes at most, from the IPv4 header on. The
// handler writes all of the packet, whose source is the port's address, and calls Send, or else
// Cancel. nil:
// the link takes nothing now; then Run is called again. A packet that cannot be sent, since
// there is no route or it exceeds the path's MTU, is taken and lost, as in the network.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Reserve(dst [4]byte, n int) []byte {
	s, r, to := p.stack, p.route, wire.AddrFrom4(dst)
	if p.stuck {
		return nil
	}
	if r == nil || r.to != to || r.state != routeReady || r.uplink.down || r.uplink.kickErr != nil {
		if r = p.findRoute(to); r == nil {
			if p.stuck {
				return nil
			}
			return p.other(n)
		}
	}
	if n > r.maxPayload+wire.IPv4HeaderLen+wire.UDPHeaderLen {
		p.reserved = reservedLost
		return p.other(n)
	}
	n += wire.EthernetHeaderLen
	u := r.uplink
	f, ok := u.link.Reserve(n)
	if !ok {
		s.kick(u)
		if f, ok = u.link.Reserve(n); !ok {
			s.count[sendBlocked]++
			p.stuck = true
			return nil
		}
	}
	if n > len(f.Data) {
		u.link.Cancel(f)
		p.reserved = reservedLost
		return p.other(n)
	}
	p.route, p.frame, p.reserved = r, f, reservedFrame
	return f.Data[wire.EthernetHeaderLen:n]
}

// findRoute returns the route to dst. nil: p.stuck, or p.reserved says where the packet goes.
//
// +checklocks:p.stack.mu
func (p *UDPPort) findRoute(dst wire.Addr) *route {
	s, from := p.stack, p.udp.Local().Addr
	p.reserved = reservedLost
	switch {
	case dst == from:
		p.reserved = reservedLoop
		return nil
	case p.err != nil || s.broken != nil || s.unsendable(from, dst) != nil:
		return nil
	case s.working(s.uplinkOf(from)) != nil:
		p.stuck = true
		return nil
	}
	r, err := s.usableRoute(from, dst)
	if err != nil {
		return nil
	}
	return r
}

// other is memory for a packet that does not go to the link.
func (p *UDPPort) other(n int) []byte {
	if n > len(p.room) {
		p.room = make([]byte, n)
	}
	return p.room[:n]
}

// Send takes the packet that was written to the first n bytes of what Reserve has given.
//
// +checklocksignore: called by other packages, under Lock
func (p *UDPPort) Send(n int) {
	s := p.stack
	switch p.takeReserved() {
	case reservedLoop:
		p.loop(p.room[:n])
	case reservedLost:
		s.count[portLost]++
	case reservedFrame:
		f, r := p.frame, p.route
		f.Data = f.Data[:wire.EthernetHeaderLen+n]
		*(*[wire.EthernetHeaderLen]byte)(f.Data) = [wire.EthernetHeaderLen]byte(r.headers.bytes[:])
		r.sent++
		if r.state != routeReady {
			s.hold(r, f, p.udp)
			return
		}
		p.queue(f)
	}
}

// Cancel gives back what Reserve has given: there is no packet.
func (p *UDPPort) Cancel() {
	if p.takeReserved() == reservedFrame {
		p.route.uplink.link.Cancel(p.frame)
	}
}

// takeReserved ends what Reserve has begun.
func (p *UDPPort) takeReserved() reservedRoom {
	reserved := p.reserved
	if reserved == reservedNone {
		panic("BUG: stack: a packet is sent or cancelled at a port for which no memory was reserved")
	}
	p.reserved = reservedNone
	return reserved
}

// queue queues a frame on the link, or keeps it as the next to be queued.
//
// +checklocks:p.stack.mu
func (p *UDPPort) queue(f Frame) {
	s := p.stack
	if !s.send(p.route.uplink, f) {
		s.count[sendBlocked]++
		p.unsent, p.stuck = f, true
		return
	}
	p.unsent = Frame{}
	p.udp.CountSent()
}

// loop delivers a packet from the port to itself.
//
// +checklocks:p.stack.mu
func (p *UDPPort) loop(b []byte) {
	s, pk := p.stack, packet{}
	if pk.ip.Parse(b) != nil || len(pk.ip.Payload) < wire.UDPHeaderLen || binary.BigEndian.Uint16(pk.ip.Payload[2:]) != p.local.Port() {
		s.count[portLost]++ // no other socket is reached
		return
	}
	if _, n, _ := s.udp.Process(&udp.Inbound{Src: wire.AddrFrom4(pk.ip.Src), Dst: wire.AddrFrom4(pk.ip.Dst), Data: pk.ip.Payload, Heap: true}); n == 0 {
		return
	}
	s.count[loopedBack]++
	p.udp.CountSent()
	p.input(&pk)
}

// input hands the datagrams of a packet, which the engine has queued, to the handler. It
// writes the headers of a super-frame's datagrams where they belong: over the end of the
// datagram before, which has been handled.
//
// +checklocks:p.stack.mu
func (p *UDPPort) input(pk *packet) {
	ip, u := &pk.ip, &p.packet
	u.ECN = ip.TOS & wire.ECNMask
	ipLen := len(ip.Packet) - len(ip.Payload)
	head := ipLen + wire.UDPHeaderLen // of both headers, bytes
	var headers [60 + wire.UDPHeaderLen]byte
	if pk.gso != 0 {
		copy(headers[:], ip.Packet[:head])
	}
	var d udp.Datagram
	for i, at := 0, 0; p.udp.Pop(&d); i++ {
		n := head + len(d.Payload)
		u.Packet, u.Src = ip.Packet[at:at+n:at+n], wire.AddrPort4{Addr: d.From.Addr.As4(), Port: d.From.Port}
		if pk.gso != 0 {
			copy(u.Packet, headers[:head])
			binary.BigEndian.PutUint16(u.Packet[2:], uint16(n))
			if id := binary.BigEndian.Uint16(u.Packet[4:]); id != 0 { // 0 with DF: RFC 6864, atomic
				binary.BigEndian.PutUint16(u.Packet[4:], id+uint16(i))
			}
			binary.BigEndian.PutUint16(u.Packet[ipLen+4:], uint16(n-ipLen))
		}
		u.Payload = u.Packet[head:]
		at += len(d.Payload)
		if p.err == nil {
			p.handler.Datagram(int64(p.stack.now), u)
		}
	}
	u.Packet, u.Payload = nil, nil
}

// discard drops what the engine has queued.
func (p *UDPPort) discard() {
	for p.udp.Pop(new(udp.Datagram)) {
	}
}

// touch makes the next settle call Run.
//
// +checklocks:p.stack.mu
func (p *UDPPort) touch() {
	s := p.stack
	if p.touched {
		return
	}
	p.touched = true
	s.touchedPorts = append(s.touchedPorts, p)
	s.noteUnsettled()
}

// runPorts calls Run of the ports that have received datagrams.
//
// +checklocks:s.mu
func (s *Stack) runPorts() {
	for _, p := range s.touchedPorts {
		p.touched = false
		p.Run() // +checklocksignore: a port of this stack
	}
	s.touchedPorts = s.touchedPorts[:0]
}

// isForPort reports whether a packet that begins with b is a datagram for a UDPPort. One to a group
// is none, whatever its port: a socket that is a member keeps its memory.
//
// +checklocks:s.mu
func (s *Stack) isForPort(b []byte) bool {
	var eth wire.Ethernet
	if len(s.udpPorts) == 0 || eth.Parse(b) != nil || eth.Type != wire.EtherTypeIPv4 {
		return false
	}
	ip := eth.Payload
	if len(ip) < wire.IPv4HeaderLen || ip[9] != wire.ProtocolUDP {
		return false
	}
	dst := netip.AddrFrom4([4]byte(ip[16:]))
	head := int(ip[0]&15) * 4
	if len(ip) < head+wire.UDPHeaderLen {
		return false
	}
	for p := range s.udpPorts {
		if p.local == netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ip[head+2:])) {
			return true
		}
	}
	return false
}
