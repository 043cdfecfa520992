package stack

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/unet-go/unet/wire"
)

const (
	// batchSize is the number of frames that are taken from the link at once:
	// enough for a packet of 64 KiB in parts of 1.7 KiB.
	batchSize = 64
	// framesPerClock is after how many frames, received and sent, the clock is read while each
	// batch has frames.
	framesPerClock = 128
	// batchesPerInput bounds the batches that are taken in before anything is sent.
	batchesPerInput = 16
	// batchesPerPoll bounds the calls of input by a dial that finds no port.
	batchesPerPoll = 64
)

// advance sets the time and does what is due then. What waits to be received goes
// first: it may be what a timer waits for. It returns the number of frames that were received. mu is held, as in all of
// this file.
//
// +checklocks:s.mu
func (s *Stack) advance(now instant) (got int) {
	s.now = max(s.now, now)
	if s.now >= s.timerAt || s.now >= s.role.deadline() {
		got = s.input()
		s.runDue()
	}
	return got
}

// runDue runs the timers that are due.
//
// +checklocks:s.mu
func (s *Stack) runDue() {
	if s.now >= s.timerAt {
		s.runTimers()
		s.settle()
		if s.unflushed {
			s.flush()
		}
	}
	if s.now >= s.role.deadline() {
		s.role.wakeExpired(s.now)
	}
}

// input gives one batch of received frames to the protocols, sends what that makes ready,
// and returns how many frames there were. While writers wait, it takes in all that has
// arrived: acknowledgments decide which connections have the next turns.
//
// +checklocks:s.mu
func (s *Stack) input() int {
	n := s.receive()
	if n == 0 {
		return 0
	}
	for last, more := n, 1; last == batchSize && s.writers > 0 && more < batchesPerInput; more++ {
		last = s.receive()
		n += last
	}
	if frames := s.count[framesReceived] + s.count[framesSent]; frames-s.framesAtClock >= framesPerClock {
		s.framesAtClock = frames
		s.readClock()
		s.runDue()
	}
	if s.unsettled {
		s.settle()
	}
	if s.unflushed {
		s.flush()
	}
	if s.publisher.quiet {
		s.startPublishing()
	}
	return n
}

// receive gives one batch of received frames to the protocols and returns how many there
// were. The caller sends what that makes ready, with settle and flush.
//
// +checklocks:s.mu
func (s *Stack) receive() int {
	if s.closed {
		return 0
	}
	n := s.link.Borrow(s.batch[:])
	var p packet
	for i := 0; i < n; {
		f := &s.batch[i]
		if f.More || f.GSOSize != 0 {
			i += s.inputParts(s.batch[i:n])
			continue
		}
		p.data, p.frame, p.memory, p.noChecksum, p.uplink = f.Data, f.ID, memoryFrame, f.NoChecksum, &s.uplinks[uplinkIn(f.ID)]
		switch {
		case !f.Volatile:
		case isTCP(f.Data) || s.isForPort(f.Data):
			p.memory = memoryBorrowed
		case len(f.Data) <= wire.EthernetHeaderLen+p.uplink.mtu: // a socket keeps it
			p.data, p.memory = bytes.Clone(f.Data), memoryHeap
		default: // nobody sends such a datagram, and queues do not count its padding
			s.count[frameLong]++
			s.link.Return(*f)
			i++
			continue
		}
		if !s.inputPacket(&p) {
			s.link.Return(*f)
		}
		i++
	}
	s.count[framesReceived] += uint64(n)
	return n
}

// inputParts takes the first packet in frames, which has several or is a super-frame, and
// returns how many frames it has. It copies the bytes together and returns the frames at
// once. A TCP packet is copied to a buffer that the next one overwrites, since the engine
// copies its data to a reader or a queue, and so is one for a UDPPort. Others, which are
// rare, get memory of their own.
//
// +checklocks:s.mu
func (s *Stack) inputParts(frames []Frame) int {
	n, size := 0, 0
	for {
		size += len(frames[n].Data)
		n++
		if !frames[n-1].More {
			break
		}
		if n == len(frames) {
			s.count[frameParts]++
			s.returnAll(frames)
			return n
		}
	}
	p := packet{memory: memoryHeap, gso: frames[0].GSOSize, uplink: &s.uplinks[uplinkIn(frames[0].ID)]}
	if n > 1 {
		s.count[multiPart]++
	}
	if p.gso != 0 {
		s.count[superFrames]++
	}
	if size <= maxGathered && (p.gso == 0 && isTCP(frames[0].Data) || s.isForPort(frames[0].Data)) {
		if s.gathered == nil {
			s.gathered = make([]byte, 0, maxGathered)
		}
		p.data, p.memory = s.gathered, memoryBorrowed
	} else {
		p.data = make([]byte, 0, size)
	}
	for _, f := range frames[:n] {
		p.data = append(p.data, f.Data...)
	}
	s.returnAll(frames[:n])
	s.inputPacket(&p)
	return n
}

// isTCP reports whether a packet that begins with b is TCP. Over IPv6 it is false behind extension headers.
func isTCP(b []byte) bool {
	var eth wire.Ethernet
	if eth.Parse(b) != nil {
		return false
	}
	protocol := 9 // where it is in the header
	switch eth.Type {
	case wire.EtherTypeIPv4:
	case wire.EtherTypeIPv6:
		protocol = 6
	default:
		return false
	}
	return len(eth.Payload) > protocol && eth.Payload[protocol] == wire.ProtocolTCP
}

// maxGathered is the longest packet there is, of IPv6, with its link header and a tag, in bytes.
const maxGathered = wire.EthernetHeaderLen + 4 + wire.IPv6HeaderLen + math.MaxUint16

func (s *Stack) returnAll(frames []Frame) {
	for _, f := range frames {
		s.link.Return(f)
	}
}

// giveBack returns the memory of a datagram or segment that a socket has kept: the frame
// with that ID, or with heap the copy of that number.
//
// +checklocks:s.mu
func (s *Stack) giveBack(frame uint64, heap bool) {
	if heap {
		s.freeCopy(frame)
		return
	}
	s.lent--
	if !s.closed {
		s.link.Return(Frame{ID: frame})
	}
}

// memory says who owns the bytes of a received packet, and so whether they may be kept.
type memory uint8

const (
	memoryBorrowed memory = iota // a later packet overwrites them
	memoryFrame                  // of a frame, which a socket may keep
	memoryHeap                   // of the Go heap, and not written again
)

// packet is a received packet.
type packet struct {
	data   []byte // from the Ethernet header on
	memory memory // of data
	frame  uint64 // ID of the frame that data lies in, with memoryFrame
	gso    uint16 // see Frame.GSOSize
	uplink *uplink

	reassembled bool // of fragments
	noChecksum  bool // see Frame.NoChecksum

	eth wire.Ethernet
	ip  wire.IPv4
	ip6 *wire.IPv6 // instead of ip, if dst is not IPv4

	src, dst wire.Addr
	payload  []byte // of the IP packet
	ecn      uint8
}

// inputPacket reads the headers of a packet, each once, and hands it to its protocol. It
// reports whether the frame is kept; otherwise it is still the caller's.
//
// +checklocks:s.mu
func (s *Stack) inputPacket(p *packet) (kept bool) {
	eth, ip := &p.eth, &p.ip
	if err := eth.Parse(p.data); err != nil {
		s.countEthernet(err)
		return false
	}
	group := eth.Dst != p.uplink.addr
	switch {
	case eth.Tagged && eth.TCI&0x0fff != 0: // VLAN 0: a priority only
		s.count[frameVLAN]++
		return false
	case group && !eth.Dst.IsGroup():
		s.count[frameDestination]++
		return false
	}
	from := binary.BigEndian.Uint64(p.data[6:14])
	*s.heard.place(from) = from&^0xffff | uint64(s.now>>tickBits)&0xffff
	switch eth.Type {
	case wire.EtherTypeIPv4:
	case wire.EtherTypeARP:
		s.inputARP(p)
		return false
	case wire.EtherTypeIPv6:
		if s.own.Load().ipv6 {
			return s.inputIPv6(p, group)
		}
		fallthrough
	default:
		s.count[frameType]++
		return false
	}
	if err := ip.Parse(eth.Payload); err != nil {
		s.refuseIPv4(p, err)
		return false
	}
	p.src, p.dst, p.payload, p.ecn = wire.AddrFrom4(ip.Src), wire.AddrFrom4(ip.Dst), ip.Payload, ip.TOS&wire.ECNMask
	switch {
	case p.dst != s.recent && !s.isRecent(p.dst):
		if s.isGroup(p.dst) && ip.Fragment == 0 && ip.Protocol == wire.ProtocolUDP && !s.impossibleSource(p.src) {
			return s.inputGroup(p)
		}
		s.count[ipv4Destination]++
	case group:
		s.count[ipv4LinkGroup]++
	// Our own address may be shared with other endpoints of this host, which send from it.
	case s.impossibleSource(p.src), s.ownedAddress && s.isOurs(p.src):
		s.count[ipv4Source]++
	case ip.Fragment != 0:
		s.inputFragment(p)
	case ip.Protocol == wire.ProtocolUDP:
		return s.inputUDP(p, nil, 0)
	case ip.Protocol == wire.ProtocolTCP:
		return s.inputTCP(p)
	case ip.Protocol == wire.ProtocolICMP:
		s.inputICMP(p)
	default:
		s.count[ipv4Protocol]++
		s.sendICMPError(p, wire.ICMPUnreachable, wire.ICMPProtocolUnreachable, 0)
	}
	return false
}

// reply reserves a frame of u for an answer of the stack's own and cuts it to n
// bytes. If there is none, no answer is sent: a reply never waits.
//
// +checklocks:s.mu
func (s *Stack) reply(u *uplink, n int) (Frame, bool) {
	f, ok := u.link.Reserve(0)
	if !ok {
		s.count[replyNoFrame]++
		return Frame{}, false
	}
	if n > len(f.Data) {
		s.count[replyNoFrame]++
		u.link.Cancel(f)
		return Frame{}, false
	}
	f.Data = f.Data[:n]
	return f, true
}

// transmit queues a frame of the stack's own.
//
// +checklocks:s.mu
func (s *Stack) transmit(u *uplink, f Frame) bool {
	if !s.send(u, f) {
		s.count[replyNoFrame]++
		u.link.Cancel(f)
		return false
	}
	return true
}

// send queues a frame on u. If the queue is full, it kicks and tries again. false: it is still full.
//
// +checklocks:s.mu
func (s *Stack) send(u *uplink, f Frame) bool {
	if !u.link.Send(f) {
		s.kick(u)
		if !u.link.Send(f) {
			return false
		}
	}
	s.count[framesSent]++
	s.unflushed, u.unflushed = true, true
	return true
}

// flush kicks the uplinks on which frames were sent.
//
// +checklocks:s.mu
func (s *Stack) flush() {
	s.unflushed = false
	if s.publisher.quiet {
		s.startPublishing()
	}
	for i := range s.uplinks {
		if u := &s.uplinks[i]; u.unflushed {
			s.kick(u)
		}
	}
}
