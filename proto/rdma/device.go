package rdma

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"

	"github.com/unet-go/unet/internal/timerheap"
	"github.com/unet-go/unet/wire"
)

// Time is an instant in nanoseconds since an epoch of the driver's choice.
type Time int64

// Never is later than every instant.
const Never Time = math.MaxInt64

// Driver is who calls the engine. An application calls the methods of [PD], [MR], [MW], [AH] and [SRQ] itself,
// from any goroutine: they take the driver's lock. Those of [Device], [QP] and [CQ] are the driver's: it
// holds the lock.
type Driver interface {
	sync.Locker
	// Use is the error of a call on an object that is closed, or whose device has ended. The lock is held.
	Use(op string, closed bool) error
}

// alone is the driver of a device that one goroutine uses.
type alone struct{}

func (alone) Lock()   {}
func (alone) Unlock() {}
func (alone) Use(op string, closed bool) error {
	if closed {
		return fmt.Errorf("rdma: %s: %w", op, net.ErrClosed)
	}
	return nil
}

// Config are the properties and limits of a [Device]. A limit of 0, or less, means its default.
type Config struct {
	Addr    [4]byte     // the device's address; its GID is ::ffff:Addr
	LinkMTU int         // bytes of the longest IP packet; default 1500
	Driver  Driver      // nil if one goroutine uses the device
	Rand    rand.Source // for keys and queue pair numbers: must be unpredictable, as a ChaCha8 with a secret seed is

	Window      int // most packets of one queue pair in flight; default 256; 2 to 1 << 20
	MaxQP       int // queue pairs; default 4096
	MaxKeys     int // memory regions and windows; default 65536
	MaxQPWR     int // work requests in a queue; default 16384
	MaxCQE      int // completions in a CQ; default 1 << 20
	MaxRDAtomic int // READs and atomics in flight of a queue pair, each way; default 16, at most 128
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		p *int
		n int
	}{{&c.LinkMTU, 1500}, {&c.Window, 256}, {&c.MaxQP, 4096}, {&c.MaxKeys, 65536}, {&c.MaxQPWR, 16384}, {&c.MaxCQE, 1 << 20}, {&c.MaxRDAtomic, 16}} {
		if *f.p <= 0 {
			*f.p = f.n
		}
		*f.p = min(*f.p, 1<<30)
	}
	c.MaxRDAtomic, c.Window = min(c.MaxRDAtomic, 128), max(minWindow, min(c.Window, 1<<20))
	return c
}

// Device is everything of one address.
type Device struct {
	cfg     Config
	driver  Driver
	qps     map[uint32]*QP
	all     []*QP              // in the order of their creation
	last    *QP                // of the last packet; nil: none
	keys    map[uint32]*region // by the upper 24 bits
	lastKey *region
	timers  timerheap.Heap[Time, QP]
	counts  [numberOfCounts]uint64

	firstReady, lastReady *QP
	firstEvent, lastEvent *events
	in                    wire.RoCE // of the packet that is being processed
}

// New makes a device without objects.
func New(cfg Config) *Device {
	if cfg.Driver == nil {
		cfg.Driver = alone{}
	}
	return &Device{cfg: cfg.withDefaults(), driver: cfg.Driver, qps: make(map[uint32]*QP), keys: make(map[uint32]*region)}
}

// Config is the device's configuration, with its defaults.
func (d *Device) Config() Config { return d.cfg }

// ActiveMTU is the greatest path MTU that the link carries, 0 if it carries none.
func (d *Device) ActiveMTU() MTU {
	m := MTU4096
	for m > 0 && m.Bytes()+packetOverhead > d.cfg.LinkMTU {
		m--
	}
	return m
}

// RandomPSN is an unpredictable first packet sequence number.
func (d *Device) RandomPSN() uint32 { return uint32(d.cfg.Rand.Uint64()) & psnMask }

// Packet is a datagram for port 4791 of the device's address. Its memory is read during
// Process only.
type Packet struct {
	IP      []byte // from the IP header to the end of the datagram
	Src     [4]byte
	SrcPort uint16
	CE      bool   // congestion was experienced on the way
	Data    []byte // the UDP payload, at the end of IP
}

// Process takes a packet. What it answers, Ready and Emit send.
func (d *Device) Process(now Time, p *Packet) {
	d.counts[PacketsReceived]++
	h := &d.in
	if err := h.Parse(p.Data); err != nil {
		d.counts[BadHeader]++
		return
	}
	q := d.last
	if q == nil || q.num != h.DstQP {
		if q = d.qps[h.DstQP]; q == nil {
			d.counts[NoQP]++
			return
		}
		d.last = q
	}
	if !wire.CheckICRC(p.IP) {
		d.counts[BadICRC]++
		return
	}
	if !q.accepts(h, p) {
		return
	}
	if p.CE && q.typ == RC {
		q.sendCNP(now)
	}
	switch {
	case h.Opcode == wire.OpCNP:
		d.counts[CNPsReceived]++
		q.congested(now)
	case q.typ == RC && isResponse(h.Opcode):
		q.response(now, h)
	default:
		q.request(now, h, p)
	}
	q.update(now)
}

// accepts reports whether the queue pair takes packets of this kind, in its state and from
// this address.
func (q *QP) accepts(h *wire.RoCE, p *Packet) bool {
	c := &q.d.counts
	switch {
	case q.state < StateRTR || q.state == StateErr:
		c[BadState]++
	case h.PKey&0x7fff != defaultPKey&0x7fff:
		c[BadPKey]++
	case h.Opcode != wire.OpCNP && h.Opcode.Transport() != q.transport:
		c[BadTransport]++
	case q.typ <= UC && p.Src != q.attr.AH.Dst:
		c[BadSource]++
	default:
		return true
	}
	return false
}

func isResponse(op wire.Opcode) bool {
	return op >= wire.OpReadResponseFirst && op <= wire.OpAtomicAck
}

// Ready is the next queue pair that has a packet to send and may send it, or nil. It stays the
// next until a packet of it has been emitted. With holdACKs, queue pairs that have only an ACK
// to send do not count: the application may answer, and both leave together.
func (d *Device) Ready(holdACKs bool) *QP {
	q := d.firstReady
	for holdACKs && q != nil && q.onlyACK() && !q.cnpDue && !q.sendable {
		q = q.nextReady
	}
	return q
}

// Deadline is when Expire next has something to do, or [Never]. It may be too early, never too
// late.
func (d *Device) Deadline() Time { return d.timers.First() }

// Expire runs the timers that are due.
func (d *Device) Expire(now Time) {
	for q := d.timers.Due(now); q != nil; q = d.timers.Due(now) {
		if q.deadline() <= now {
			q.expire(now)
			q.update(now)
		}
		if q.timer.At() <= now {
			d.timers.Set(&q.timer, q.deadline())
		}
	}
}

// Close ends all queue pairs: they go to ERR, and what is posted on them is flushed. The device is to be
// used only to take the completions and events.
func (d *Device) Close() {
	for _, q := range d.all {
		q.enterError()
		q.changed()
	}
}

func (d *Device) addQP(q *QP) error {
	if len(d.qps) >= d.cfg.MaxQP {
		return fmt.Errorf("rdma: create QP: the limit of %d is reached: %w", d.cfg.MaxQP, syscall.ENOMEM)
	}
	if q.typ == GSI {
		if d.qps[1] != nil {
			return fmt.Errorf("rdma: create QP: QP 1 exists: %w", syscall.EBUSY)
		}
		q.num = 1
	}
	for q.num < 1 || q.typ != GSI && (q.num < 2 || d.qps[q.num] != nil) {
		q.num = uint32(d.cfg.Rand.Uint64()) & (1<<24 - 1)
		if q.num == 1<<24-1 { // multicast
			q.num = 0
		}
	}
	d.qps[q.num] = q
	d.all = append(d.all, q)
	return nil
}
