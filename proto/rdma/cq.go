package rdma

import (
	"fmt"
	"syscall"
)

// WC is a work completion (ibv_wc).
type WC struct {
	WRID            uint64
	Status          Status
	Opcode          WCOpcode
	Flags           WCFlags
	ByteLen         uint32 // bytes received, or read
	ImmData         uint32
	InvalidatedRKey uint32
	QPNum           uint32
	SrcQP           uint32 // UD: the sender
}

// CQ is a completion queue.
type CQ struct {
	Data any // the driver's

	d          *Device
	ring       []WC
	head, tail uint32 // counts; the ring's length is a power of two
	size       uint32
	armed      arming
	overrun    bool
	uses       int
	events
}

type arming uint8

const (
	disarmed arming = iota
	armedSolicited
	armedAll
)

// CreateCQ makes a queue for cqe completions. Error: EINVAL unless cqe is 1 to Config.MaxCQE.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	if cqe < 1 || cqe > d.cfg.MaxCQE {
		return nil, fmt.Errorf("rdma: create CQ: %d entries, 1 to %d are allowed: %w", cqe, d.cfg.MaxCQE, syscall.EINVAL)
	}
	c := &CQ{d: d, ring: make([]WC, powerOfTwo(cqe)), size: uint32(cqe)}
	c.events.of.CQ = c
	return c, nil
}

// Close ends the queue. Error: EBUSY if a queue pair uses it.
func (c *CQ) Close() error {
	if c.uses > 0 {
		return fmt.Errorf("rdma: close CQ: queue pairs use it: %w", syscall.EBUSY)
	}
	c.pending = 0
	return nil
}

// Poll moves completions into wcs, the oldest first, and returns how many.
func (c *CQ) Poll(wcs []WC) int {
	n := min(c.tail-c.head, uint32(len(wcs)))
	for i := range n {
		wcs[i] = c.ring[(c.head+i)&uint32(len(c.ring)-1)]
	}
	c.head += n
	return int(n)
}

// Len is how many completions Poll would return.
func (c *CQ) Len() int { return int(c.tail - c.head) }

// ReqNotify arms the queue: the next completion causes one [EventCompletion]. With
// solicitedOnly, the next one of a receive whose sender set the solicited bit, or one with an
// error. Completions that are in the queue already cause none: poll after arming.
func (c *CQ) ReqNotify(solicitedOnly bool) {
	if !solicitedOnly {
		c.armed = armedAll
	} else if c.armed == disarmed {
		c.armed = armedSolicited
	}
}

// push adds a completion. If there is no room, the queue has overrun: its queue pairs go to ERR.
func (c *CQ) push(wc *WC, solicited bool) {
	if c.overrun {
		return
	}
	if c.tail-c.head == c.size {
		c.overrun = true
		c.d.counts[CQOverruns]++
		c.d.raise(&c.events, EventCQErr)
		for _, q := range c.d.qps {
			if q.sendCQ == c || q.recvCQ == c {
				q.enterError()
				q.changed()
			}
		}
		return
	}
	c.ring[c.tail&uint32(len(c.ring)-1)] = *wc
	c.tail++
	if c.armed == armedAll || c.armed == armedSolicited && (solicited || wc.Status != StatusSuccess) {
		c.armed = disarmed
		c.d.raise(&c.events, EventCompletion)
	}
}

// Event is something that Device.NextEvent reports about one object.
type Event struct {
	Type EventType
	CQ   *CQ
	QP   *QP
	SRQ  *SRQ
}

// events is what an object has to report. It is a node of the device's list.
type events struct {
	pending uint16 // a bit for each EventType
	linked  bool
	next    *events
	of      Event
}

func (d *Device) raise(e *events, t EventType) {
	e.pending |= 1 << t
	if !e.linked {
		e.linked, e.next = true, nil
		if d.lastEvent == nil {
			d.firstEvent = e
		} else {
			d.lastEvent.next = e
		}
		d.lastEvent = e
	}
}

// NextEvent takes the next event. Events of one type and object that nobody has taken are one.
func (d *Device) NextEvent() (Event, bool) {
	for e := d.firstEvent; e != nil; e = d.firstEvent {
		for t := EventType(0); e.pending != 0; t++ {
			if e.pending&(1<<t) != 0 {
				e.pending &^= 1 << t
				ev := e.of
				ev.Type = t
				return ev, true
			}
		}
		e.linked = false
		if d.firstEvent = e.next; d.firstEvent == nil {
			d.lastEvent = nil
		}
	}
	return Event{}, false
}

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}
