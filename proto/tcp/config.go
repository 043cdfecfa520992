package tcp

import (
	"cmp"
	"time"

	"github.com/unet-go/unet/wire"
)

// Defaults of [Config] and [Options].
const (
	// DefaultBuffer bounds the growth of a connection's buffers where a round trip takes at
	// most a millisecond; DefaultMaxSendBuffer and DefaultMaxReceiveBuffer where it takes
	// longer.
	DefaultBuffer           = 1 << 20 // bytes
	DefaultMaxSendBuffer    = 4 << 20
	DefaultMaxReceiveBuffer = 6 << 20
	// DefaultMemory bounds the buffers of all connections of a table.
	DefaultMemory = 256 << 20 // bytes
	// DefaultMTU is Ethernet's.
	DefaultMTU = 1500 // bytes of IP packet

	// DefaultMinRTO is the least retransmission timeout in a LAN. It is far below the second of
	// RFC 6298, section 2.4, which allows for peers that delay acknowledgments and for clocks
	// with a coarse tick. On a LAN an answer that takes 5 ms longer than usual is lost. A peer
	// that delays its acknowledgments causes a needless retransmission, and then the least
	// timeout of the connection rises to the peer's delay (rto.go). On longer paths ten
	// round trips are allowed for such a delay, at most 200 ms.
	DefaultMinRTO     = 5 * time.Millisecond
	DefaultMaxRTO     = 60 * time.Second // RFC 6298, section 2.5: at least that
	DefaultInitialRTO = time.Second      // RFC 6298, section 2.1

	// DefaultTimeWait is how long TIME-WAIT lasts in a LAN. RFC 9293 has 4 minutes: twice a
	// maximum segment lifetime of 2 minutes. A segment on a LAN lives for milliseconds, and
	// initial sequence numbers (RFC 6528) and timestamps distinguish new connections from old
	// ones. TIME-WAIT then only has to
	// answer a FIN that the peer sends again because our last ACK was lost. In 2 s a peer
	// with Linux's timeouts sends three of those. DefaultTimeWaitFar, Linux's, is for
	// connections whose least round trip took more than 10 ms, or is not known.
	DefaultTimeWait    = 2 * time.Second
	DefaultTimeWaitFar = time.Minute
	// DefaultFinWait is how long a connection that the application has closed
	// waits for the peer to close too.
	DefaultFinWait = 60 * time.Second

	DefaultUserTimeout    = 5 * time.Minute // RFC 9293, section 3.9.1.1
	DefaultConnectTimeout = 3 * time.Minute // RFC 1122, section 4.2.3.5

	// DefaultCork is how long written bytes wait to fill a segment while
	// earlier ones are in flight.
	DefaultCork = 30 * time.Microsecond
	// DefaultAckDelay is how long an adaptive acknowledgment waits at least for data that carries
	// it. It is less than DefaultMinRTO, or a peer with our timeouts would retransmit.
	DefaultAckDelay = 2 * time.Millisecond

	DefaultSynQueue    = 1024 // connections of one listener that have not been established
	DefaultAcceptQueue = 1024 // connections of one listener that have not been accepted

	// DefaultInPlace is the least data of a segment, in bytes, that is queued
	// in its frame. A frame that is queued is not available to the link, so less data is
	// copied out of it.
	DefaultInPlace = 512

	// Go's net package sends keepalive probes after 15 s and then every 15 s, nine times; so
	// does KeepAlive where it leaves a value out.
	DefaultKeepAliveIdle     = 15 * time.Second
	DefaultKeepAliveInterval = 15 * time.Second
	DefaultKeepAliveCount    = 9

	farRound       = 10 * time.Millisecond // the longest least round trip of DefaultTimeWait
	maxBuffer      = 1 << 30               // the largest scaled window (RFC 7323, section 2.3)
	minBuffer      = 2048
	maxTimeWaits   = 1 << 16
	synAckRetries  = 5 // as Linux: 63 s with an initial timeout of 1 s
	defaultMSS     = 536
	minMSS         = 48   // the least MSS of a peer that is used, bytes (Linux: TCP_MIN_SND_MSS)
	firstUser      = 1024 // RFC 6335, section 6
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// PortRange is a set of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// Config of a [Table]. The zero value works, but see Secret.
type Config struct {
	// Secret is the key of all that an attacker must not be able to guess:
	// initial sequence numbers, cookies, ports, timestamp offsets. It must be
	// random, and new for every table. The zero value is for tests.
	Secret [16]byte
	// PartialChecksums accepts checksums that cover the pseudo-header only, as
	// they are on a virtual link and in what GRO has merged, except from peers that
	// send complete ones (see takesPartial). Otherwise they are corruption.
	PartialChecksums bool
	// ReturnFrame gives back a frame that [Table.Process] has kept. It is
	// called once for each, from any method. It must be set if
	// Inbound.Memory is ever [MemoryFrame].
	ReturnFrame func(frame uint64)
	// Connections are records in which the table publishes its connections and listeners, one
	// each while there are free records, for another process: it shows them, and resets the
	// connections if this process dies. nil: nothing is published.
	Connections *wire.Connections

	Memory int // bytes of buffers for all connections
	// MaxSendBuffer and MaxReceiveBuffer bound the growth of the buffers of connections
	// whose Options set no size.
	MaxSendBuffer, MaxReceiveBuffer int // bytes
	MaxTimeWaits                    int // records in TIME-WAIT; a new one replaces the one that would end first
	// Ports are the ephemeral ports, in order of preference: a range is used when the
	// ranges before it have no port left for the destination. nil: the kernel's default,
	// 32768 to 60999, and then all others from 1024 on (RFC 6056, section 3.2).
	Ports   []PortRange
	InPlace int // bytes, see DefaultInPlace

	// MinRTO and TimeWait are those of all connections, however long the round trip; 0: see
	// DefaultMinRTO and DefaultTimeWait.
	MinRTO, TimeWait        time.Duration
	MaxRTO, InitialRTO      time.Duration
	FinWait, ConnectTimeout time.Duration

	// Options of RFC 7323 and RFC 2018 are offered and accepted, unless one of these
	// is set.
	NoTimestamps, NoWindowScale, NoSACK bool

	// ECN is the use of explicit congestion notification.
	ECN ECN

	// NewCongestion makes the congestion control of a connection; nil: CUBIC, as
	// [NewCubic] does.
	NewCongestion func(mss int) Congestion

	noPacing, noPrediction bool // for tests
}

func (c Config) withDefaults() Config {
	c.Memory = cmp.Or(c.Memory, DefaultMemory)
	c.MaxSendBuffer = min(max(cmp.Or(c.MaxSendBuffer, DefaultMaxSendBuffer), minBuffer), maxBuffer)
	c.MaxReceiveBuffer = min(max(cmp.Or(c.MaxReceiveBuffer, DefaultMaxReceiveBuffer), minBuffer), maxBuffer)
	c.MaxTimeWaits = max(cmp.Or(c.MaxTimeWaits, maxTimeWaits), 1)
	if len(c.Ports) == 0 {
		c.Ports = []PortRange{{firstEphemeral, lastEphemeral}, {firstUser, firstEphemeral - 1}, {lastEphemeral + 1, 1<<16 - 1}}
	}
	c.InPlace = cmp.Or(c.InPlace, DefaultInPlace)
	c.MaxRTO = max(cmp.Or(c.MaxRTO, DefaultMaxRTO), c.MinRTO)
	c.InitialRTO = min(max(cmp.Or(c.InitialRTO, DefaultInitialRTO), c.MinRTO), c.MaxRTO)
	c.FinWait = cmp.Or(c.FinWait, DefaultFinWait)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	return c
}

// KeepAlive of a connection (RFC 9293, section 3.8.4). It is off unless Enable
// is set.
type KeepAlive struct {
	Enable   bool
	Idle     time.Duration // without a segment from the peer before the first keepalive probe
	Interval time.Duration // between keepalive probes
	Count    int           // keepalive probes without an answer before the connection fails
}

func (k KeepAlive) withDefaults() KeepAlive {
	k.Idle = cmp.Or(k.Idle, DefaultKeepAliveIdle)
	k.Interval = cmp.Or(k.Interval, DefaultKeepAliveInterval)
	k.Count = cmp.Or(k.Count, DefaultKeepAliveCount)
	return k
}

// Options of a connection, or of all that a listener accepts. The zero value
// works.
type Options struct {
	Owner any // see [Conn.Owner]

	MTU           int // of the path, bytes of IP packet
	SendBuffer    int // bytes; 0: it grows with what the path holds, see receive.go
	ReceiveBuffer int // bytes; 0: likewise

	growSend, growReceive bool // they were 0

	Nagle       bool          // RFC 9293, section 3.7.4
	Cork        time.Duration // see DefaultCork; negative: small writes never wait
	AdaptiveAck bool          // acknowledgments may wait, see steps.go
	AckDelay    time.Duration // for how long at least, less than 500 ms; 0: DefaultAckDelay
	UserTimeout time.Duration // how long data may stay unacknowledged; negative: without limit
	KeepAlive   KeepAlive
}

func (o Options) withDefaults(cfg *Config) Options {
	o.MTU = min(max(cmp.Or(o.MTU, DefaultMTU), 68), 0xffff)
	o.growSend, o.growReceive = o.SendBuffer == 0, o.ReceiveBuffer == 0
	o.SendBuffer = min(max(cmp.Or(o.SendBuffer, min(initialSendBuffer, cfg.MaxSendBuffer)), minBuffer), maxBuffer)
	o.ReceiveBuffer = min(max(cmp.Or(o.ReceiveBuffer, min(initialReceiveBuffer, cfg.MaxReceiveBuffer)), minBuffer), maxBuffer)
	o.Cork = cmp.Or(o.Cork, DefaultCork)
	o.AckDelay = cmp.Or(o.AckDelay, DefaultAckDelay)
	o.UserTimeout = cmp.Or(o.UserTimeout, DefaultUserTimeout)
	o.KeepAlive = o.KeepAlive.withDefaults()
	return o
}
