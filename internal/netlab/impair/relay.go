//go:build linux

package impair

import (
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/linksim"
)

// relay carries frames over until the link is closed. It is a thread of its own.
func (l *Link) relay() {
	defer close(l.ended)
	addProcessors(1)
	defer addProcessors(-1)
	raisePriority() // the thread ends with the goroutine
	for {
		l.mu.Lock()
		if l.closing {
			l.mu.Unlock()
			return
		}
		busy := l.takeIn()
		busy = l.passOn() || busy
		next, ok := l.next()
		l.mu.Unlock()
		if !busy {
			l.await(next, ok)
		}
	}
}

// raisePriority gives the calling goroutine's thread real-time priority.
func raisePriority() {
	runtime.LockOSThread()
	// An error is ignored: frames are late on a busy machine, which Counters show.
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
}

// takeInBatch is how many frames of one direction are taken before those of the other.
const takeInBatch = 64

// takeIn takes up to a batch of frames from each end and reports whether there were any.
//
// +checklocks:l.mu
func (l *Link) takeIn() (some bool) {
	now := time.Now()
	elapsed, wall := now.Sub(l.start), now.UnixNano()
	for i := range l.directions {
		d := &l.directions[i]
		for range takeInBatch {
			if !d.in.pending() {
				break
			}
			some = true
			r := d.in.peek()
			// The kernel's time of arrival, but in the order of the ring, and not after now.
			d.last = min(max(d.last, elapsed-time.Duration(wall-r.at)), elapsed)
			l.take(d, r)
			d.in.release()
		}
	}
	return some
}

// take gives a frame to the model of its direction.
//
// +checklocks:l.mu
func (l *Link) take(d *direction, r received) {
	if r.cut || d.model.InFlight() >= maxInFlight {
		d.counters.Missed++
		return
	}
	p := l.alloc()
	p.fill(r)
	frame := p.frame()
	if l.spare != nil && l.spare(frame) {
		d.counters.Spared++
		d.send(p)
		l.release(p)
		return
	}
	p.refs = d.model.Send(d.last, linksim.Frame{Size: len(frame), ECT: ect(frame)}, p).Copies
	if p.refs == 0 {
		l.release(p)
	}
}

// passOn sends the frames that are due and reports whether there were any.
//
// +checklocks:l.mu
func (l *Link) passOn() (some bool) {
	for i := range l.directions {
		d := &l.directions[i]
		now := l.now()
		for range takeInBatch {
			a, ok := d.model.Receive(now)
			if !ok {
				break
			}
			some = true
			if a.Mark {
				markCE(a.Item.frame())
			}
			if a.Flip < 0 {
				d.send(a.Item)
			} else if !a.Item.super() { // the segments of a super-frame would have right checksums
				a.Item.completeChecksum()
				flip(a.Item.frame(), a.Flip)
				d.send(a.Item)
				flip(a.Item.frame(), a.Flip)
			}
			late := now - a.At
			d.counters.Passed++
			d.counters.Late += late
			d.counters.LatestLate = max(d.counters.LatestLate, late)
			if a.Item.refs--; a.Item.refs == 0 {
				l.release(a.Item)
			}
		}
	}
	return some
}

func (d *direction) send(p *packet) {
	if d.out.send(p.data) != nil {
		d.counters.Refused++
	}
}

// next is when the next copy is due, in either direction; not ok if none is in flight.
//
// +checklocks:l.mu
func (l *Link) next() (at time.Duration, ok bool) {
	for i := range l.directions {
		if t, inFlight := l.directions[i].model.Next(); inFlight && (!ok || t < at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// await returns when a frame has arrived, at the given time, or when the link is closed.
func (l *Link) await(until time.Duration, timed bool) {
	a, b := l.directions[AtoB].in, l.directions[BtoA].in // +checklocksignore: the ports stay the same
	fds := [...]unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLIN}, {Fd: int32(b.fd), Events: unix.POLLIN}, {Fd: int32(l.wake), Events: unix.POLLIN}}
	var timeout *unix.Timespec
	if timed {
		left := until - l.now()
		if left <= l.spin {
			for l.now() < until && !a.pending() && !b.pending() {
			}
			return
		}
		ts := unix.NsecToTimespec(int64(left - l.spin))
		timeout = &ts
	}
	sleep(fds[:], timeout)
}

// +checklocks:l.mu
func (l *Link) alloc() *packet {
	if n := len(l.free); n > 0 {
		p := l.free[n-1]
		l.free = l.free[:n-1]
		return p
	}
	return &packet{data: make([]byte, 0, 2048)}
}

// +checklocks:l.mu
func (l *Link) release(p *packet) {
	if cap(p.data) <= 16<<10 && len(l.free) < 4096 { // the longest are rare
		l.free = append(l.free, p)
	}
}

func mtu(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.MTU, nil
}
