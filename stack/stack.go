package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/wait"
	"github.com/unet-go/unet/proto/frag"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// Defaults of a [Config].
const (
	DefaultMTU = 1500 // bytes of IP packet

	minMTU = 68 // RFC 791
)

// Config of a [Stack]. Link, LinkAddr and Resolver are required, or Uplinks, and Addrs if they are owned.
type Config struct {
	Link     Link
	LinkAddr wire.LinkAddr // the source of every frame
	// Addrs are the stack's addresses, IPv4 and IPv6, with the subnets that are on its link. Where the
	// route service names no source, the first that fits is one. IPv6 needs an MTU of 1280 or more.
	// Shared addresses can come and go: see [Stack.SetAddress].
	Addrs []netip.Prefix
	// OwnedAddress: no other endpoint shares the addresses. Then the stack answers ARP requests,
	// neighbour solicitations and pings, and may send ICMP errors. Otherwise the kernel does.
	OwnedAddress bool
	MTU          int // of the link, bytes of IP packet; the limit of every route
	// PartialChecksums accepts checksums of the pseudo-header only, as they are
	// on a virtual link and in what GRO has merged. Otherwise they are corruption.
	PartialChecksums bool
	// TCPPorts are where connections that are dialled from port 0 get their local port.
	// nil: all ports from 1024 on, see [tcp.Config].
	TCPPorts TCPPorts
	Resolver Resolver // the route service

	Wait       endpoint.WaitMode
	SpinBudget time.Duration // of WaitAdaptive; 50 us by default
	// FrameQuota is the number of frames that the application may hold, in
	// socket queues or in its hands, all sockets together. Datagrams beyond it
	// are copied into memory of their own. 0: a quarter of the link's frames, half of which
	// wait to be filled on most links.
	FrameQuota int
	TCP        TCPConfig
	// Connections is memory in which the sockets are published for another process, one
	// record each while there are free records. The records must be empty at first. It is not
	// touched any more when Close has returned. nil: nothing is published.
	Connections []wire.Connection
	// Uplinks are the links of a stack that has several. The fields above with the same names are not used then.
	Uplinks []Uplink
	// Published is called under the stack's lock after records have been brought up to date:
	// at most ten times a second, and not while the stack is idle. It must be quick. nil: none.
	Published func()

	// Now replaces time.Now, and NoCaretaker leaves out the goroutine that
	// polls while no goroutine waits, for tests.
	Now         func() time.Time
	NoCaretaker bool
}

// TCPConfig is what can be changed about TCP as a whole. With the zero value, timeouts follow the
// round trip of each connection.
type TCPConfig struct {
	MinRTO   time.Duration // the least retransmission timeout; 0: see [tcp.DefaultMinRTO]
	TimeWait time.Duration // how long TIME-WAIT lasts; 0: see [tcp.DefaultTimeWait]
	Memory   int           // bytes that all connections may queue; 0: [tcp.DefaultMemory]
	ECN      tcp.ECN       // explicit congestion notification; 0: if the peer requests it
	// The buffers of connections grow up to these with what a path holds, unless they
	// have been set; 0: [tcp.DefaultMaxSendBuffer], [tcp.DefaultMaxReceiveBuffer].
	MaxSendBuffer, MaxReceiveBuffer int // bytes
	// Congestion is the name of the congestion control of all connections: "cubic", the
	// default, or "reno".
	Congestion string
}

// instant is nanoseconds since the stack was made.
type instant int64

// never is later than every other instant.
const never instant = math.MaxInt64

const second = instant(time.Second)

// Stack is the network stack of one endpoint. All its methods may be called
// from any goroutine.
type Stack struct {
	// first, for its cache line
	// +checklocks:mu
	role pollRole

	mu stackMutex // also guards the link

	link         receiver // the link of the only uplink, or joined
	uplinks      []uplink // the addresses and number do not change
	own          atomic.Pointer[addresses]
	ownedAddress bool
	mtu          int // the largest of an uplink, bytes of IP packet
	ports        TCPPorts
	quota        int
	maxHeld      int // packets
	maxRoutes    int
	clock        func() time.Time // nil: the real one
	epoch        time.Time        // instant 0
	corking      atomic.Bool      // there are corks
	gone         chan struct{}    // closed when Close has done its work
	left         chan struct{}    // role or retrying has changed since closed was set
	ctx          context.Context
	cancel       context.CancelFunc
	unattended   chan struct{} // closed when the caretaker has ended; nil: there is none

	guarded // +checklocks:mu
}

// guarded are the fields of a Stack that its mu guards.
type guarded struct {
	recent      wire.Addr // the one of the own addresses that the last packet was sent to
	groupRoutes map[ends]*route

	fragments     *frag.Reassembler // of received packets
	fragmentTimer fragmentTimer
	ids           *frag.IDs // of packets that were sent in fragments; nil until there is one
	divided       []byte    // the payload of the last such packet
	pieces        []Frame   // its fragments

	udp   *udp.Table
	tcp   *tcp.Table
	count [reasons]uint64

	// Input and output, poll.go and settle.go.
	lent      int         // frames with sockets or the application
	copies    copies      // buffers for datagrams beyond the quota
	unsettled bool        // settle has something to do
	linkFull  bool        // the link takes no more segments; settle tries again later
	stalled   []*tcp.Conn // held since their path was full; the next settle tries again
	unflushed bool        // frames were sent since the last kick
	gathered  []byte      // for a segment that came in several frames
	ip6       wire.IPv6   // of the packet that is being processed, if it is IPv6

	// Time, poll.go.
	now           instant // as last read, never goes back
	timers        armedTimers
	timerAt       instant // when the first is due
	framesAtClock uint64  // framesReceived and framesSent when input last read the clock
	errorTokens   tokens  // for ICMP errors
	publisher     publisher

	// Routes, route.go.
	routes     map[ends]*route
	routeClock []*route // the same, for choosing the one that is replaced
	routeHand  int
	answered   event    // a route is not resolving any more
	resolving  []*route // asked for the first time and not answered, the oldest first
	refreshing int      // goroutines that ask for routes again
	toRefresh  []*route // to be asked for again

	unserved bool              // the route service is gone, answers.go
	answers  map[answer]*route // where answers go meanwhile

	held []heldPacket // the oldest first

	heard         *linkTimes // when a MAC address last sent us a frame
	silent        *linkTimes // when a route to a MAC address was last asked for because it was silent
	silenceTokens tokens     // limits how often that is done

	// Waiting, wait.go and caretaker.go.
	spinner   wait.Spinner // of the application's goroutines; the holder of the role uses it
	caretaker caretaker
	retrying  int // senders that wait for the link to take more

	// TCP, tcp.go and tcp_segments.go.
	writers  int        // that may wait for room
	tcpTimer tcpTimer   // for the engine's next deadline
	corks    []*TCPConn // that may hold small writes back, see uncork
	scratch  []byte     // for segments that do not go to the link
	drained  event      // a connection that was closed has ended

	udpConns     map[*UDPConn]struct{}
	udpPorts     map[*UDPPort]struct{}
	touchedPorts []*UDPPort // that have received since settle
	tcpConns     map[*TCPConn]struct{}
	tcpListeners map[*TCPListener]struct{}

	closing  bool // Close has been called: nothing is opened any more
	closed   bool
	down     int   // uplinks that carry nothing
	broken   error // of a link that has failed for good
	kickErrs int   // uplinks whose last kick has failed

	batch [batchSize]Frame // that are being received; last, so that the fields above lie in the first 4 KiB
}

var (
	errNoLink     = errors.New("stack: no link")
	errNoResolver = errors.New("stack: no resolver")
	errNoAddrs    = errors.New("stack: no address to own")
)

// New makes a stack that is ready to use. It does not own the link: close the
// stack, then the link.
func New(cfg Config) (*Stack, error) {
	if len(cfg.Uplinks) == 0 {
		cfg.Uplinks = []Uplink{{
			Link: cfg.Link, LinkAddr: cfg.LinkAddr, Addrs: cfg.Addrs, MTU: cfg.MTU, PartialChecksums: cfg.PartialChecksums,
			Resolver: cfg.Resolver, Connections: cfg.Connections,
		}}
	}
	uplinks, link, err := newUplinks(cfg.Uplinks)
	if err != nil {
		return nil, err
	}
	var initial []ownAddress
	mtu, partial := 0, false
	for i, u := range cfg.Uplinks {
		for _, p := range u.Addrs {
			initial = append(initial, ownAddress{p, i})
		}
		mtu, partial = max(mtu, uplinks[i].mtu), partial || u.PartialChecksums
	}
	if cfg.OwnedAddress && len(initial) == 0 {
		return nil, errNoAddrs
	}
	own, err := newAddresses(initial, nil, uplinks)
	if err != nil {
		return nil, err
	}
	congestion, err := tcp.CongestionNamed(cfg.TCP.Congestion)
	if err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	s := &Stack{
		link:         link,
		uplinks:      uplinks,
		ownedAddress: cfg.OwnedAddress,
		mtu:          mtu,
		quota:        cmp.Or(cfg.FrameQuota, max(link.Frames()/4, 1)),
		ports:        cfg.TCPPorts,
		clock:        cfg.Now,
		maxRoutes:    maxRoutes,
		left:         make(chan struct{}, 1),
		gone:         make(chan struct{}),
		guarded: guarded{
			udp:          udp.NewTable(udp.Config{PartialChecksums: partial}),
			timerAt:      never,
			routes:       make(map[ends]*route),
			heard:        new(linkTimes),
			silent:       new(linkTimes),
			spinner:      wait.Spinner{Mode: cfg.Wait, Budget: cmp.Or(cfg.SpinBudget, wait.DefaultBudget)},
			udpConns:     make(map[*UDPConn]struct{}),
			udpPorts:     make(map[*UDPPort]struct{}),
			tcpConns:     make(map[*TCPConn]struct{}),
			tcpListeners: make(map[*TCPListener]struct{}),
		},
	}
	s.own.Store(own)
	s.role.init(link)
	if records := s.recordsOf(cfg.Uplinks); records != nil {
		s.publisher = publisher{records: records, published: cfg.Published, quiet: true}
		s.publisher.timer.owner = &s.publisher
	}
	s.tcp = tcp.NewTable(tcp.Config{
		Secret: newSecret(), PartialChecksums: partial, ReturnFrame: s.returnFrame,
		MinRTO: cfg.TCP.MinRTO, TimeWait: cfg.TCP.TimeWait, Memory: cfg.TCP.Memory, ECN: cfg.TCP.ECN,
		MaxSendBuffer: cfg.TCP.MaxSendBuffer, MaxReceiveBuffer: cfg.TCP.MaxReceiveBuffer,
		NewCongestion: congestion, Connections: s.publisher.records,
	})
	s.tcpTimer.owner = &s.tcpTimer
	s.fragments = frag.New(frag.Config{Report: s.reassemblyTimedOut})
	s.fragmentTimer.owner = &s.fragmentTimer
	// Held packets must leave frames to send with.
	s.maxHeld = min(max(s.quota/4, min(s.quota, leastHeld)), maxHeldStack)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if s.epoch = time.Now(); s.clock != nil {
		s.epoch = s.clock()
	}
	if !cfg.NoCaretaker {
		s.unattended = make(chan struct{})
		go s.runCaretaker()
	}
	return s, nil
}

// Close closes all sockets, gives all frames back to the link except those that
// the application has borrowed or reserved, and returns when nothing uses the
// link any more. Payloads still borrowed are valid as long as the link's
// memory is. A second Close, also a concurrent one, returns when the first has returned.
func (s *Stack) Close() error {
	s.mu.Lock()
	again := s.closing
	s.closing = true
	if again {
		s.mu.Unlock()
		<-s.gone
		return nil
	}
	defer close(s.gone)
	s.role.broadcast(&s.answered)
	for c := range s.udpConns {
		c.close() // +checklocksignore: a socket of this stack
	}
	for p := range s.udpPorts {
		p.close() // +checklocksignore: a port of this stack
	}
	s.closeTCP()
	s.closed = true
	s.cancel()
	s.settleHeld(nil, s.ended())
	s.role.dismiss()
	for !s.role.is(roleFree) || s.retrying > 0 {
		s.mu.Unlock()
		<-s.left
		s.mu.Lock()
	}
	s.mu.Unlock()
	if s.unattended != nil {
		<-s.unattended
	}
	return nil
}

// returnFrame is called by the TCP engine with mu held.
//
// +checklocksignore: a callback
func (s *Stack) returnFrame(id uint64) { s.giveBack(id, false) }

// Lent is the number of frames with sockets and the application; after Close,
// with the application alone.
func (s *Stack) Lent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent
}

// Do calls f under the stack's lock, while nothing else uses the link: that is
// how the link's owner reads what the link counts. f must be quick, since all
// that goes through the stack waits for it, and must not call the stack or its
// sockets.
func (s *Stack) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// readClock brings s.now up to date and returns it. mu is held.
//
// +checklocks:s.mu
func (s *Stack) readClock() instant {
	s.now = max(s.now, s.look())
	return s.now
}

// look reads the clock. It needs no lock.
func (s *Stack) look() instant {
	if s.clock != nil {
		return s.instant(s.clock())
	}
	return instant(time.Since(s.epoch))
}

func (s *Stack) instant(t time.Time) instant { return instant(t.Sub(s.epoch)) }

// deadline is the instant of a deadline; the zero time is never.
func (s *Stack) deadline(t time.Time) instant {
	if t.IsZero() {
		return never
	}
	return min(s.instant(t), never-1)
}

// readsPerClock bounds how often a reader that always finds data reads past its deadline.
const readsPerClock = 64

// pastDeadline returns os.ErrDeadlineExceeded if a reader's deadline has passed. The clock
// is read once in readsPerClock calls: a goroutine that waits reads it anyway.
//
// +checklocks:s.mu
func (s *Stack) pastDeadline(at instant, reads *uint32) error {
	if at == never {
		return nil
	}
	if *reads++; *reads%readsPerClock == 0 {
		s.readClock()
	}
	if s.now >= at {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// time is the inverse of instant; never is the zero time.
func (s *Stack) time(i instant) time.Time {
	if i == never {
		return time.Time{}
	}
	return s.epoch.Add(time.Duration(i))
}

// SysError wraps an errno in an [os.SyscallError] with the name of the system call that
// package net would have made. Other errors, and those that are wrapped so already, are
// returned as they are.
func SysError(call string, err error) error {
	var errno syscall.Errno
	var named *os.SyscallError
	if !errors.As(err, &errno) || errors.As(err, &named) {
		return err
	}
	return os.NewSyscallError(call, err)
}

// opError is err as package net has it.
func opError(op, network, call string, source, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: SysError(call, err)}
}

// errMissingAddress is package net's.
var errMissingAddress = errors.New("missing address")
