package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// Uplink is one of several links of a stack. The fields are those of [Config], and Name.
type Uplink struct {
	Link             Link // a [SharedLink]
	LinkAddr         wire.LinkAddr
	Addrs            []netip.Prefix
	MTU              int
	PartialChecksums bool
	Resolver         Resolver // of the routes by this uplink
	Connections      []wire.Connection
	// Name and Index are those of the interface, by which zones of link-local addresses name it.
	Name  string
	Index int
}

// maxUplinks is the most that a stack can have.
const maxUplinks = 255

// uplink is a link of the stack, with what belongs to it. Packets from one of its addresses are sent there.
type uplink struct {
	link     Link          // to reserve frames and send
	paths    PathLink      // the same; nil: it has no paths
	addr     wire.LinkAddr // the source of every frame
	mtu      int           // bytes of IP packet
	complete bool          // a checksum of the pseudo-header only is not accepted
	zone     uint16        // of its link-local addresses in the stack; 0: it is the only uplink
	name     string        // of the interface
	index    string        // its number
	resolver Resolver

	// The stack's mu guards these. An uplink has no path to it, so that is not checked.
	down      bool  // the link carries nothing
	ended     bool  // and will never again
	unflushed bool  // frames were sent since the last kick
	kickErr   error // of the last kick
}

var errUplinks = errors.New("stack: several uplinks need a Name and a SharedLink each, and are 255 at most")

// newUplinks makes the uplinks, and the link to receive by all of them.
func newUplinks(all []Uplink) (list []uplink, link receiver, err error) {
	var links []SharedLink
	list = make([]uplink, len(all))
	for i, u := range all {
		switch {
		case u.Link == nil:
			return nil, nil, errNoLink
		case u.Resolver == nil:
			return nil, nil, errNoResolver
		}
		list[i] = uplink{
			link: u.Link, addr: u.LinkAddr, mtu: min(max(cmp.Or(u.MTU, DefaultMTU), minMTU), math.MaxUint16),
			complete: !u.PartialChecksums, name: u.Name, index: strconv.Itoa(u.Index), resolver: u.Resolver,
		}
		list[i].paths, _ = u.Link.(PathLink)
		if len(all) == 1 {
			return list, u.Link, nil
		}
		list[i].zone = uint16(i + 1)
		shared, ok := u.Link.(SharedLink)
		if !ok || u.Name == "" || len(all) > maxUplinks {
			return nil, nil, errUplinks
		}
		links = append(links, shared)
	}
	return list, newJoined(links), nil
}

// uplinkOf is the uplink of a local address; of another one, or a wildcard, the first. mu is held, as in all methods of a
// Stack here that do not say otherwise.
func (s *Stack) uplinkOf(local wire.Addr) *uplink {
	if len(s.uplinks) == 1 {
		return &s.uplinks[0]
	}
	return &s.uplinks[s.own.Load().number(local)]
}

// scoped is an IPv6 address of a packet of u, with its zone.
func (u *uplink) scoped(a wire.Addr) wire.Addr {
	if u.zone == 0 {
		return a
	}
	return a.WithZone(u.zone)
}

// addrOf converts an address of the caller. Where there are several uplinks, the zone of a link-local address is one of them.
// It needs no lock.
func (s *Stack) addrOf(a netip.Addr) wire.Addr {
	w := wire.AddrFrom(a)
	if u := s.uplinkNamed(a.Zone()); u != nil {
		w = w.WithZone(u.zone)
	}
	return w
}

// uplinkNamed is the one of several uplinks whose interface has that name or number; nil: there is none. It needs no lock.
func (s *Stack) uplinkNamed(name string) *uplink {
	if len(s.uplinks) > 1 && name != "" {
		for i := range s.uplinks { // not copied: mu guards other fields
			if u := &s.uplinks[i]; u.name == name || u.index == name {
				return u
			}
		}
	}
	return nil
}

func (s *Stack) addrPortOf(a netip.AddrPort) wire.AddrPort {
	return wire.AddrPort{Addr: s.addrOf(a.Addr()), Port: a.Port()}
}

// netip is the inverse of addrOf.
func (s *Stack) netip(a wire.Addr) netip.Addr {
	if zone := a.Zone(); zone != 0 && int(zone) <= len(s.uplinks) {
		return a.Netip().WithZone(s.uplinks[zone-1].name)
	}
	return a.Netip()
}

func (s *Stack) netipPort(a wire.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(s.netip(a.Addr), a.Port)
}

// kick starts the transmission of all that was sent on u. If that fails, the frames stay queued and are sent with the
// next kick that succeeds: so their sends have not failed. Until then each send tries the
// kick again first, and returns its error (kickErr).
//
// +checklocks:s.mu
func (s *Stack) kick(u *uplink) error {
	u.unflushed = false
	err := u.link.Flush()
	if err != nil {
		s.count[flushFailed]++
	}
	if err == nil && u.kickErr == nil {
		return nil
	}
	if (err == nil) != (u.kickErr == nil) {
		if s.kickErrs++; err == nil {
			s.kickErrs -= 2
		}
	}
	u.kickErr = err
	for c := range s.udpConns {
		c.setSlow() // +checklocksignore: a socket of this stack
	}
	return err
}

// kickFailed kicks the uplinks again whose last kick has failed: they may work again.
//
// +checklocks:s.mu
func (s *Stack) kickFailed() {
	for i := range s.uplinks {
		if u := &s.uplinks[i]; u.kickErr != nil {
			s.kick(u)
		}
	}
}

// working is nil, or why nothing can be sent on u now, although its link is up.
//
// +checklocks:s.mu
func (s *Stack) working(u *uplink) error {
	if u.kickErr == nil {
		return nil
	}
	return s.kick(u)
}

// failed is an error of u; where there are several uplinks, it has the name.
func (u *uplink) failed(errno syscall.Errno) error {
	if u.zone == 0 {
		return errno
	}
	return fmt.Errorf("%w: %s", errno, u.name)
}

// EndUplink takes one of several uplinks away for good, by its number: its link is as down by SetLink, and is not looked at any more. It must stay
// usable until the stack is closed. What becomes of the addresses is said by SetAddress. The last uplink cannot be taken away.
func (s *Stack) EndUplink(i int) {
	s.SetLink(i, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := &s.uplinks[i]; !u.ended && !s.closed {
		u.ended = s.link.(*joined).remove(i)
	}
}

// askUplinks asks the route service of the source's uplink, or of the destination's. Where neither names one, it asks those of all uplinks until
// one has the route. It is called without the lock.
func (s *Stack) askUplinks(ctx context.Context, r *route) (answer Route, u *uplink, err error) {
	var from netip.Addr
	if r.from != (wire.Addr{}) {
		from = r.from.Netip()
	}
	if len(s.uplinks) == 1 {
		u = &s.uplinks[0]
		answer, err = u.resolver.Resolve(ctx, from, r.to.Netip())
		return answer, u, err
	}
	s.mu.Lock()
	first := r.uplink
	var others []*uplink
	for i := range s.uplinks {
		if o := &s.uplinks[i]; o != first && !o.ended && !from.IsValid() && r.to.Zone() == 0 {
			others = append(others, o)
		}
	}
	s.mu.Unlock()
	answer, err = first.resolver.Resolve(ctx, from, r.to.Netip())
	u = first
	for _, o := range others {
		if !errors.Is(err, syscall.ENETUNREACH) { // it has the route, or has failed to say
			break
		}
		if a, e := o.resolver.Resolve(ctx, from, r.to.Netip()); e == nil || !errors.Is(e, syscall.ENETUNREACH) {
			answer, u, err = a, o, e
		}
	}
	return answer, u, err
}

// chooseSource makes the source of r, which has no address to come from, that which the route service has chosen, if it is one of u, or
// another one of u. The error is for a route that leaves by u, by which the stack has no address to send from.
//
// +checklocks:s.mu
func (s *Stack) chooseSource(r *route, u *uplink, chosen netip.Addr) error {
	a := u.scoped(wire.AddrFrom(chosen))
	switch ours := s.isOurs(a); {
	case ours && s.uplinkOf(a) == u && !slices.Contains(s.own.Load().lost, a):
	case r.uplink == u && (!ours || s.uplinkOf(a) == u):
		return nil
	default:
		if ours {
			a = wire.Addr{}
		} else {
			a = s.sourceOn(u, r.to)
		}
		if a == (wire.Addr{}) {
			return fmt.Errorf("the route leaves by %s, which has not the source %v: %w", u.name, chosen, syscall.ENETUNREACH)
		}
	}
	s.setSource(r, a)
	return nil
}

// receiver is the part of a [Link] for what is received.
type receiver interface {
	Borrow(frames []Frame) int
	Return(f Frame)
	Pending() bool
	Sleep(until time.Time, again bool) error
	Wake()
	Frames() int
}

// joined is the links of several uplinks as one receiver. The ID of
// a frame that it lends has the number of the uplink in bits 48 to 55.
type joined struct {
	all   []SharedLink
	live  atomic.Pointer[liveLinks]
	first int // in live, that Borrow looks at first
}

// liveLinks are those that have not ended.
type liveLinks struct {
	links   []SharedLink
	numbers []int
}

const (
	uplinkShift = 48
	uplinkMask  = maxUplinks << uplinkShift
)

func newJoined(links []SharedLink) *joined {
	j := &joined{all: links}
	live := &liveLinks{links: links}
	for i := range links {
		live.numbers = append(live.numbers, i)
	}
	j.live.Store(live)
	return j
}

// remove takes a link away that has ended. The last one stays: false.
func (j *joined) remove(number int) bool {
	before := j.live.Load()
	if len(before.links) == 1 {
		return false
	}
	live := new(liveLinks)
	for k, i := range before.numbers {
		if i != number {
			live.links, live.numbers = append(live.links, before.links[k]), append(live.numbers, i)
		}
	}
	j.live.Store(live)
	j.all[number].Leave()
	j.Wake()
	return true
}

// Borrow takes frames from one of the links, which take turns.
func (j *joined) Borrow(frames []Frame) (n int) {
	live := j.live.Load()
	for range live.links {
		if j.first++; j.first >= len(live.links) {
			j.first = 0
		}
		if n = live.links[j.first].Borrow(frames); n > 0 {
			for i := range frames[:n] {
				frames[i].ID |= uint64(live.numbers[j.first]) << uplinkShift
			}
			break
		}
	}
	return n
}

func (j *joined) Return(f Frame) {
	from := j.all[uplinkIn(f.ID)]
	f.ID &^= uplinkMask
	from.Return(f)
}

// uplinkIn is the number of the uplink that a frame was received by.
func uplinkIn(id uint64) int { return int(id >> uplinkShift & maxUplinks) }

func (j *joined) Pending() bool {
	for _, l := range j.live.Load().links {
		if l.Pending() {
			return true
		}
	}
	return false
}

func (j *joined) Sleep(until time.Time, again bool) error {
	links := j.live.Load().links
	return links[0].SleepWith(links[1:], until, again)
}

// Wake wakes the link that SleepWith calls last.
func (j *joined) Wake() {
	links := j.live.Load().links
	links[len(links)-1].Wake()
}

func (j *joined) Frames() (n int) {
	for _, l := range j.all {
		n += l.Frames()
	}
	return n
}
