package tcp

import (
	"cmp"
	"syscall"
	"time"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// State is the state of a connection (RFC 9293, section 3.3.2).
type State uint8

const (
	Closed State = iota
	Listen
	SynSent
	SynReceived
	Established
	FinWait1
	FinWait2
	CloseWait
	Closing
	LastAck
	TimeWait
)

var stateNames = [...]string{"CLOSED", "LISTEN", "SYN-SENT", "SYN-RECEIVED", "ESTABLISHED",
	"FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT", "CLOSING", "LAST-ACK", "TIME-WAIT"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid state"
}

// synchronized reports whether both sides have the other's sequence numbers.
func (s State) synchronized() bool { return s >= Established }

// Conn is one connection. [Table.Dial] makes it, or a SYN to a listener, and then
// [Listener.Accept] returns it. It is a sender and a receiver, which share the state, the
// options and the timers.
//
// Fields that most segments use come first: a server with many connections reads
// each from memory.
type Conn struct {
	// Owner is for the driver, which finds its own socket by it when
	// [Table.NextEvent] returns the connection or it is [Table.Ready]. The engine
	// never reads it.
	Owner any
	// PeerLink is for the driver, too: the source MAC address of the SYN, if the peer
	// opened the connection.
	PeerLink wire.LinkAddr
	// MaxLen is an upper bound of the length of the segment that Emit writes next, in bytes.
	// Emit works with less room too.
	MaxLen int
	// ECT: the IP header of the segment that Emit has just written must have the
	// codepoint ECT(0), which permits routers to mark the packet (RFC 3168).
	ECT bool

	table   *Table
	id      tuple
	pseudo  uint64 // sum of the pseudo-header, without the length
	headers int    // length of the IP and the TCP header without options, bytes
	next    plan   // as of the last update
	inTable

	state       State
	quiet       bool // the published record is up to date
	finQueued   bool // a FIN follows the last byte of the send queue
	finAcked    bool
	resetQueued bool // a RST is to be sent, and nothing after it
	hasPeerFin  bool
	gotFin      bool // RCV.NXT is past the peer's FIN
	wantsRead   bool // Read has found nothing since the last Readable
	wantsWrite  bool // Write has found no room since the last Writable
	readClosed  bool // CloseRead was called
	writeClosed bool // CloseWrite was called
	closed      bool // Close was called
	passive     bool // opened by the peer

	// Options that both sides agreed on.
	scaling, timestamps, sack bool
	sndScale, rcvScale        uint8

	sender
	receiver
	timers

	stat       connStats
	opts       Options
	listener   *Listener // that made it, until it is accepted
	challenges challenges
	errTaken   bool          // Read or Write has returned err
	err        syscall.Errno // why the connection has ended
	soft       syscall.Errno // the last ICMP error
	softAt     Time          // when it was received
}

// inTable is a connection's place in the lists and the heap of its table (table.go,
// timers.go).
type inTable struct {
	readyNext, readyPrev *Conn
	eventNext            *Conn
	timer                timerheap.Timer[Time, Conn]
	events               Events
	onReady, onEvents    bool
	inserted             bool
	held                 bool        // see Hold
	pair                 *pairUse    // its entry in Table.pairs; nil: opened by the peer
	waiting              links[Conn] // its place in a queue of its listener
	changed              links[Conn] // its place in published.changed
}

// sender is the sending half. The names of the sequence variables are RFC 9293's
// (section 3.3.1). SND.NXT is set back when a SYN is sent again or the window closes;
// sndMax is the highest value that it has had, and the upper bound of a valid
// acknowledgment.
type sender struct {
	sndUna         seq.Number
	sndNxt         seq.Number
	sndMax         seq.Number
	sndWL1, sndWL2 seq.Number
	sndWnd         uint32 // bytes, scaled
	maxSndWnd      uint32 // the largest value of sndWnd so far, bytes
	iss            seq.Number
	record         *wire.Connection // the published record, never nil; its Next is always sndMax
	send           sendQueue
	mss            int  // most data in a segment, bytes, after the timestamps
	flushed        bool // corked bytes may be sent
	paced          bool // new data waits for paceAt
	paceNext       Time // when the data sent so far no longer exceeds the pacing rate (congestion.go)

	// Round-trip times and retransmission (rto.go).
	timing            bool // a segment is timed
	sampled           bool // srtt is valid
	backoff           uint8
	rtxFor            rtxPurpose
	persisting        bool // the retransmission timer is the persist timer
	windowProbeDue    bool
	synRetries        uint8
	doubted           bool // the last timeout may have been spurious: not known yet
	timedSeq          seq.Number
	timedAt           Time
	srtt, rttvar, rto time.Duration
	minRTT            time.Duration // the least of about the last 10 s (minRTTWindow)
	minRTTAt          Time
	peerDelay         time.Duration // lower bound of rto, because the peer delays its ACKs
	progressAt        Time          // when SND.UNA last advanced, or data was sent with nothing in flight
	retransmitTS      uint32        // our timestamp when the retransmission timer last expired
	retransmitSeq     seq.Number    // SND.UNA at that time

	// Loss recovery and congestion control.
	board scoreboard
	rack  rack
	recovery
	explicit
	window     int // bytes that may be in flight
	congestion Congestion
	cubic      cubic // congestion points to it, unless Config.NewCongestion is set

	// The path's MTU (pathmtu.go).
	peerMSS uint16 // the MSS option of the peer's SYN, bytes
	path    pathMTU
}

// receiver is the receiving half. RCV.WND is rcvAdv - RCV.NXT.
type receiver struct {
	rcvNxt      seq.Number
	rcvAdv      seq.Number // right edge of the window that was advertised
	lastAckSent seq.Number
	ackPending  uint32 // bytes of data that are not acknowledged
	pendingAt   Time   // when the first of them was received
	unacked     uint8  // in how many segments
	ackNow      bool   // an ACK is to be sent
	ackInVain   bool   // the last one has waited, and there has been no answer since
	sums        peerSums
	interactive uint8  // answers that came soon, less those that came late (steps.go)
	ackWaited   Time   // how long acknowledgments of data have waited, smoothed
	tsRecent    uint32 // the peer's timestamp, to be echoed
	tsOffset    uint32 // added to our clock in timestamps, ms
	tsRecentAt  Time
	recv        queue
	post        []byte // the buffer of a reader that waits
	posted      int    // bytes of post that are filled
	growth      growth // of the receive buffer
	dataAt      Time   // when the last data was received in order; 0: answered since
	outOfOrder  oooQueue
	peerFin     seq.Number // sequence number of the peer's FIN
	irs         seq.Number
	dsack       wire.SACKBlock // received twice and not yet reported: D-SACK
}

// timers are the instants at which [Table.Expire] does something (timers.go), and what
// the keepalive needs. Never: not armed.
type timers struct {
	rtxAt, ackAt, corkAt, keepAt, waitAt, paceAt Time
	heardAt                                      Time  // when the last acceptable segment was received
	keepaliveDue                                 bool  // a keepalive probe is to be sent
	keepaliveProbes                              uint8 // probes sent and not answered
}

type connStats struct {
	segmentsIn, segmentsOut           uint64
	bytesIn, bytesOut                 uint64
	bytesRetransmitted, retransmitted uint64
	timeouts, duplicateAcks           uint64
	recoveries                        uint64
	outOfOrder                        uint64
}

// newConn makes a connection that is not in the table or any list yet.
func (t *Table) newConn(now Time, id tuple, o Options) *Conn {
	c := &Conn{
		Owner: o.Owner, table: t, id: id, opts: o,
		pseudo:     wire.PseudoHeader(id.local, id.remote, wire.ProtocolTCP, 0),
		headers:    id.headers(),
		timers:     timers{rtxAt: Never, ackAt: Never, corkAt: Never, keepAt: Never, waitAt: Never, paceAt: Never, heardAt: now},
		receiver:   receiver{interactive: answersForInteractive},
		challenges: newChallenges(now),
	}
	c.timer.Init(c)
	c.record, c.rto, c.progressAt = &t.published.none, t.cfg.InitialRTO, now
	c.peerMSS, c.path = defaultMSS, pathMTU{mtu: o.MTU, search: search{searchAt: Never}}
	c.growth.nextAt, c.tsOffset = Never, t.timestampOffset(id)
	return c
}

// Local and Remote are the ends of the connection.
func (c *Conn) Local() AddrPort  { return AddrPort{Addr: c.id.local, Port: c.id.localPort()} }
func (c *Conn) Remote() AddrPort { return AddrPort{Addr: c.id.remote, Port: c.id.remotePort()} }

// Listener is the listener that made the connection, until it is accepted; then nil.
func (c *Conn) Listener() *Listener { return c.listener }

// State is the state that RFC 9293 gives the connection.
func (c *Conn) State() State { return c.state }

// Err is why the connection has ended, a syscall.Errno: ECONNREFUSED, ECONNRESET, or
// ECONNABORTED after Abort. If the peer does not answer it is ETIMEDOUT, or the error of
// an ICMP message that has arrived meanwhile, such as EHOSTUNREACH. It is nil while the
// connection exists and after an orderly end.
func (c *Conn) Err() error {
	if c.err == 0 {
		return nil
	}
	return c.err
}

// SoftErr is the last ICMP error that did not end the connection, or nil (RFC
// 5461, RFC 5927).
func (c *Conn) SoftErr() error {
	if c.soft == 0 {
		return nil
	}
	return c.soft
}

// begin sets the initial sequence number and the window scale that the SYN offers.
func (c *Conn) begin(iss seq.Number) {
	c.iss, c.sndUna, c.sndNxt, c.sndMax, c.board.end = iss, iss, iss, iss, iss
	c.rcvScale = scaleFor(c.table.mostReceive(&c.opts))
}

// scaleFor is the least window scale with which the window field can express n bytes.
func scaleFor(n int) (shift uint8) {
	for n>>shift > 0xffff && shift < 14 {
		shift++
	}
	return shift
}

// agree sets the variables that the peer's SYN decides: sequence number, window, options.
func (c *Conn) agree(now Time, s *segment) {
	c.irs = s.seq
	c.rcvNxt = s.seq.Add(1)
	c.lastAckSent = c.rcvNxt
	c.rcvAdv = c.rcvNxt.Add(c.synWindow())
	c.sndWnd, c.maxSndWnd = uint32(s.Window), uint32(s.Window) // a SYN's window is never scaled
	c.sndWL1, c.sndWL2 = s.seq, s.ack
	cfg := &c.table.cfg
	o := &s.options
	c.peerMSS = cmp.Or(o.MSS, defaultMSS)
	c.scaling = o.HasWindowScale && !cfg.NoWindowScale
	c.timestamps = o.HasTimestamps && !cfg.NoTimestamps
	c.sack = o.SACKPermitted && !cfg.NoSACK
	if c.scaling {
		c.sndScale = min(o.WindowScale, 14)
	} else {
		c.sndScale, c.rcvScale = 0, 0
	}
	if c.timestamps {
		c.tsRecent, c.tsRecentAt = o.TSVal, now
	}
	c.agreeECN(s)
	c.path.mtu = min(c.path.mtu, c.ceiling())
	c.setMSS()
}

// rcvMSS is the MSS that our SYN offers: that of SetAdvMSS, or the route's MTU without the fixed headers; options
// are not subtracted (RFC 6691, section 2).
func (c *Conn) rcvMSS() int {
	if c.path.advMSS != 0 {
		return int(c.path.advMSS)
	}
	return c.opts.MTU - c.headers
}

// SetAdvMSS sets the MSS that our SYN offers, in bytes; 0: that of the MTU. It has an effect until the
// connection is established.
func (c *Conn) SetAdvMSS(mss uint16) {
	if !c.state.synchronized() {
		c.path.advMSS = mss
	}
}

// becomeEstablished enters ESTABLISHED at the end of the handshake, or FIN-WAIT-1 if
// the application has closed the connection already.
func (c *Conn) becomeEstablished(now Time) {
	t := c.table
	t.counts[Handshakes]++
	c.publish()
	c.waitAt = Never
	c.progressAt = now
	if c.synRetries > 0 && !c.sampled {
		c.rto = max(c.rto, 3*time.Second) // RFC 6298, section 5.7
	}
	if t.cfg.NewCongestion != nil {
		c.congestion = t.cfg.NewCongestion(c.mss)
	} else {
		c.cubic = newCubic(c.mss)
		c.congestion = &c.cubic
	}
	if c.synRetries > 1 { // RFC 6928, section 2
		c.congestion.Collapse()
	}
	c.window = c.congestion.Window()
	c.recoverSeq = c.iss
	c.rack.end, c.rack.fack, c.rack.reoWndMult = c.sndUna, c.sndUna, 1
	c.state = Established
	if c.finQueued {
		c.state = FinWait1
	}
	c.startKeepAlive(now)
	c.startGrowth(now)
	if l := c.listener; l != nil {
		l.established(c)
		return
	}
	c.notify(Connected | Writable)
}

// fail ends the connection and sends nothing. err is the error that ends it; 0: none, the
// application has closed it.
func (c *Conn) fail(err syscall.Errno) {
	if c.state == Closed {
		return
	}
	if c.err = err; err != 0 {
		c.table.counts[Failed]++
	}
	c.finish(Closed)
}

// abort ends the connection with a RST.
func (c *Conn) abort(err syscall.Errno) {
	if c.state == Closed {
		return
	}
	c.resetQueued = c.state >= SynReceived && c.state != TimeWait
	c.fail(err)
}

// finish removes the connection from the table. state is CLOSED, or TIME-WAIT if a record
// stays in the table (timewait.go). Received data can still be read.
func (c *Conn) finish(state State) {
	t := c.table
	if l := c.listener; l != nil && c.state == SynReceived {
		l.syns.remove(c) // c.listener stays: there is no owner to notify
	}
	c.state = state
	t.remove(c)
	c.unpublish()
	c.send.acknowledge(&t.pool, c.send.bytes)
	c.board.clear(&t.spans, c.sndUna)
	c.outOfOrder.clear(t)
	c.rtxAt, c.ackAt, c.corkAt, c.keepAt, c.waitAt, c.paceAt = Never, Never, Never, Never, Never, Never
	c.ackNow, c.keepaliveDue, c.windowProbeDue = false, false, false
	t.timers.Set(&c.timer, Never)
	t.setDeadline()
	if c.closed {
		c.discard()
	}
	c.next = c.makePlan()
	c.setReady(c.next.action != nothing)
	c.notify(Readable | Writable | Finished)
}

// discard frees the data that was received and not read.
func (c *Conn) discard() {
	c.recv.clear(&c.table.pool)
	c.post = nil
}

// Info is the state of a connection at a moment, as Linux has it in TCP_INFO. Sizes are
// in bytes.
type Info struct {
	State         State
	Local, Remote AddrPort

	Timestamps, WindowScale, SACK, ECN bool // agreed on
	SendScale, ReceiveScale            uint8
	SendMSS, ReceiveMSS                int
	PathMTU                            int // bytes of IP packet that we send at most

	RTT, RTTVar, RTO time.Duration // RTT is smoothed; 0: not measured yet
	Backoff          int           // timeouts of the retransmission timer in a row

	SendWindow       uint32 // the peer's
	ReceiveWindow    uint32 // ours, as advertised
	SendBuffer       int    // bound of data written and not acknowledged
	ReceiveBuffer    int    // bound of data received and not read
	CongestionWindow int
	InFlight         int
	Unsent           int // written, not yet sent
	Buffered         int // received, not yet read
	OutOfOrder       int // received out of order
	Sacked           int // part of InFlight that the peer has received out of order
	Lost             int // part of InFlight that is lost and not yet sent again

	SegmentsReceived, SegmentsSent uint64
	BytesReceived, BytesAcked      uint64
	BytesRetransmitted             uint64
	Retransmissions                uint64 // segments
	Timeouts                       uint64
	Recoveries                     uint64 // fast recoveries
	DuplicateAcks                  uint64
	OutOfOrderSegments             uint64

	SoftErr error // the last ICMP error that did not end the connection, a syscall.Errno; or nil
}

// Info returns the state of the connection.
func (c *Conn) Info() Info {
	i := Info{
		State: c.state, Local: c.Local(), Remote: c.Remote(),
		Timestamps: c.timestamps, WindowScale: c.scaling, SACK: c.sack, ECN: c.ecn,
		SendScale: c.sndScale, ReceiveScale: c.rcvScale, SendMSS: c.mss, ReceiveMSS: c.rcvMSS(), PathMTU: c.path.mtu,
		RTT: c.srtt, RTTVar: c.rttvar, RTO: c.rto, Backoff: int(c.backoff),
		SendWindow: c.sndWnd, ReceiveWindow: c.rcvAdv.From(c.rcvNxt),
		SendBuffer: c.opts.SendBuffer, ReceiveBuffer: c.opts.ReceiveBuffer,
		CongestionWindow: c.window, Buffered: c.recv.bytes, Sacked: c.board.sacked, Lost: c.board.lost,
		SegmentsReceived: c.stat.segmentsIn, SegmentsSent: c.stat.segmentsOut,
		BytesReceived: c.stat.bytesIn, BytesAcked: c.stat.bytesOut,
		BytesRetransmitted: c.stat.bytesRetransmitted, Retransmissions: c.stat.retransmitted,
		Timeouts: c.stat.timeouts, Recoveries: c.stat.recoveries, DuplicateAcks: c.stat.duplicateAcks, OutOfOrderSegments: c.stat.outOfOrder,
		SoftErr: c.SoftErr(),
	}
	if c.state != Closed && c.state != TimeWait {
		i.InFlight = int(c.sndMax.From(c.sndUna))
		i.Unsent = max(0, c.send.bytes-int(c.sndNxt.From(c.sndUna)))
	}
	for _, r := range c.outOfOrder.runs {
		i.OutOfOrder += int(r.right.From(r.left))
	}
	return i
}

// AddrPort is an address and port.
type AddrPort = wire.AddrPort

// tuple identifies a connection: its two ends, with both ports in one word, the local one in
// the lower 16 bits and the remote one above.
type tuple struct {
	local, remote wire.Addr
	ports         uint64
}

func makeTuple(local, remote AddrPort) tuple {
	return tuple{local.Addr, remote.Addr, uint64(remote.Port)<<16 | uint64(local.Port)}
}

func (t *tuple) localPort() uint16  { return uint16(t.ports) }
func (t *tuple) remotePort() uint16 { return uint16(t.ports >> 16) }

// is reports whether t and o are equal, without a call of the function that Go makes for == of
// a struct of this size.
func (t *tuple) is(o *tuple) bool {
	return t.ports == o.ports && t.remote == o.remote && t.local == o.local
}

// toItself reports whether both ends are the same.
func (t *tuple) toItself() bool { return t.local == t.remote && t.localPort() == t.remotePort() }

// headers is the length of the IP header and the TCP header without options, bytes.
func (t *tuple) headers() int {
	if t.local.Is4() {
		return wire.IPv4HeaderLen + wire.TCPHeaderLen
	}
	return wire.IPv6HeaderLen + wire.TCPHeaderLen
}

// hashed is a keyed hash of id and other words for one use.
func (t *Table) hashed(use uint64, id *tuple, words ...uint64) uint64 {
	l0, l1 := id.local.Words()
	r0, r1 := id.remote.Words()
	all := append(make([]uint64, 0, 8), use, l0, l1, r0, r1, id.ports) // on the stack
	return t.hash.sum(append(all, words...)...)
}
