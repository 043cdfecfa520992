package stack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/unet-go/unet/proto/udp"
	"github.com/unet-go/unet/wire"
)

// Groups claims groups for a socket. Join may block; Leave is called under the stack's lock and must not.
// The group is a multicast address without a zone, or 255.255.255.255 for all broadcasts. The interface is as
// given to JoinGroup; nil: the uplink by which the kernel would have the socket join. Join returns the number of the uplink.
type Groups interface {
	Join(on *net.Interface, group netip.AddrPort) (uplink int, err error)
	Leave(uplink int, group netip.AddrPort)
}

// joinedGroup is a group that a socket has joined on an uplink. It then receives what comes to the group by any uplink.
type joinedGroup struct {
	group  wire.Addr
	uplink int
}

var (
	limitedBroadcast = wire.AddrFrom4([4]byte{255, 255, 255, 255})

	errGroupSends  = fmt.Errorf("%w: a socket of ListenMulticastUDP only receives: send from one of ListenPacket, which may join the group too", syscall.EOPNOTSUPP)
	errNoBroadcast = fmt.Errorf("%w: call SetBroadcast(true) first", syscall.EACCES)
	errSources     = fmt.Errorf("%w: membership is of all sources of a group (RFC 1112): use JoinGroup, and compare the sender", errors.ErrUnsupported)
)

// isGroup reports whether a is a multicast or broadcast address.
func (s *Stack) isGroup(a wire.Addr) bool {
	return a.IsMulticast() || a == limitedBroadcast || s.isBroadcast(a)
}

// membership is the group that sockets join to receive what is sent to a, for which isGroup is true.
func membership(a wire.Addr) wire.Addr {
	if a.IsMulticast() {
		return a
	}
	return limitedBroadcast
}

// inputGroup hands a UDP packet to a group to all sockets that are members. The first one gets the frame, the others
// get copies. There are no ICMP errors (RFC 1122, section 3.2.2).
//
// +checklocks:s.mu
func (s *Stack) inputGroup(p *packet) (kept bool) {
	if len(p.payload) < wire.UDPHeaderLen {
		return s.inputUDP(p, nil, 0) // counts the wrong length
	}
	src := udp.AddrPort{Addr: p.src, Port: binary.BigEndian.Uint16(p.payload)}
	dst := udp.AddrPort{Addr: membership(p.dst), Port: binary.BigEndian.Uint16(p.payload[2:])}
	first := s.udp.Member(nil, src, dst)
	if first == nil {
		s.count[groupNoMember]++
		return false
	}
	for sock := s.udp.Member(first, src, dst); sock != nil; sock = s.udp.Member(sock, src, dst) {
		in := udp.Inbound{Src: p.src, Dst: p.dst, Data: slices.Clone(p.payload), Heap: true, GSOSize: p.gso, ECN: p.ecn, To: sock, Group: sock.Group(dst.Addr)}
		s.pushToMember(&in)
	}
	return s.inputUDP(p, first, first.Group(dst.Addr))
}

// pushToMember hands memory of its own to a member.
//
// +checklocks:s.mu
func (s *Stack) pushToMember(in *udp.Inbound) {
	sock, n, _ := s.udp.Process(in)
	for range n {
		s.role.signal(&sock.Owner.(*UDPConn).readable)
	}
}

const maxGroupRoutes = 1024

// groupRoute is the route from an address, or, if that is zero, any, to a group: its MAC address follows from the address (RFC 1112, section 6.4; RFC
// 2464, section 7). ENETUNREACH: the stack has no address of its family.
//
// +checklocks:s.mu
func (s *Stack) groupRoute(from, dst wire.Addr) (*route, error) {
	if s.asksForGroup(ends{from, dst}) {
		r, err := s.usableRoute(from, dst)
		switch {
		case err != nil:
			return nil, err
		case !r.resolved():
			return nil, errNoRoom // its sender waits
		}
		from = r.source
	}
	if from == (wire.Addr{}) {
		if from = s.source(dst); from == (wire.Addr{}) {
			return nil, syscall.ENETUNREACH
		}
	}
	by := ends{from, dst}
	if r := s.groupRoutes[by]; r != nil {
		return r, nil
	}
	if s.groupRoutes == nil || len(s.groupRoutes) >= maxGroupRoutes {
		s.groupRoutes = map[ends]*route{} // sockets keep theirs
	}
	link := wire.Broadcast
	if dst.IsMulticast() {
		link = wire.GroupLink(dst)
	}
	u := s.uplinkOf(from)
	r := &route{state: routeReady, group: true, ends: by, source: from, uplink: u, mtu: u.mtu, due: never}
	r.headers = makeHeaders(u.addr, link, from, dst)
	r.setMTU()
	s.groupRoutes[by] = r
	return r, nil
}

// asksForGroup reports whether the route service says by which of several uplinks packets to a group leave. The broadcast address of a
// subnet says that itself. mu is held.
//
// +checklocks:s.mu
func (s *Stack) asksForGroup(by ends) bool {
	return len(s.uplinks) > 1 && by.from == (wire.Addr{}) && !s.unserved && (by.to.IsMulticast() || by.to == limitedBroadcast)
}

// groupSource is the source of what is sent to a group whose zone names one of several uplinks; zero: it does not.
func (s *Stack) groupSource(group netip.Addr) wire.Addr {
	if u := s.uplinkNamed(group.Zone()); u != nil && group.IsMulticast() {
		return s.sourceOn(u, wire.AddrFrom(group))
	}
	return wire.Addr{}
}

// toGroup sets the TTL or hop limit of a frame to a group. It returns a copy of the datagram, for
// loopToGroup, if a socket of this stack is to get it.
//
// +checklocks:c.stack.mu
func (c *UDPConn) toGroup(frame []byte, flow *wire.UDPFlow) (looped []byte) {
	ip, head := frame[wire.EthernetHeaderLen:], headersLen(flow.Dst)
	if hops := c.multicastHops; hops > 1 && flow.Dst.IsMulticast() {
		if head == headersLen6 {
			ip[7] = hops
		} else { // RFC 1624
			sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(hops-ip[8])<<8
			ip[8] = hops
			binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
		}
	}
	src, dst := udp.AddrPort{Addr: flow.Src, Port: flow.SrcPort}, udp.AddrPort{Addr: membership(flow.Dst), Port: flow.DstPort}
	if c.noLoop || c.stack.udp.Member(nil, src, dst) == nil {
		return nil
	}
	return slices.Clone(frame[head:])
}

// loopToGroup hands a datagram that has been sent to a group to the members on this stack. Other endpoints and
// programs get it from the mux.
//
// +checklocks:c.stack.mu
func (c *UDPConn) loopToGroup(flow *wire.UDPFlow, datagram []byte) {
	s := c.stack
	src, dst := udp.AddrPort{Addr: flow.Src, Port: flow.SrcPort}, udp.AddrPort{Addr: membership(flow.Dst), Port: flow.DstPort}
	for sock := s.udp.Member(nil, src, dst); sock != nil; sock = s.udp.Member(sock, src, dst) {
		s.pushToMember(&udp.Inbound{Src: flow.Src, Dst: flow.Dst, Data: slices.Clone(datagram), Heap: true, ECN: c.tos & wire.ECNMask, To: sock, Group: sock.Group(dst.Addr)})
		s.count[loopedBack]++
	}
}

// ListenGroup makes a socket that only receives what is sent to a group and port, on the stack's link.
func (s *Stack) ListenGroup(on *net.Interface, group netip.AddrPort, o UDPOptions) (*UDPConn, error) {
	g := wire.AddrPortFrom(netip.AddrPortFrom(group.Addr().WithZone(""), group.Port()))
	if !g.Addr.IsMulticast() || g.Port == 0 {
		return nil, syscall.EINVAL
	}
	c := s.newUDPConn(&o)
	if err := c.open(g, udp.AddrPort{}, o); err != nil {
		return nil, err
	}
	if err := c.join(on, g.Addr); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// JoinGroup makes the socket receive what is sent to a multicast group and its port. The group is a *net.UDPAddr, whose
// port is not used, or a *net.IPAddr. The interface is one of the host's, or nil. On several interfaces the socket joins with a call
// for each. Several sockets and hosts may be members:
// each gets every datagram. Errors: those of the claim of the tag udp:GROUP:PORT; EADDRINUSE if the socket is a
// member; EINVAL if group is none of the socket's family.
//
// A socket that has not joined a group gets nothing of it (Linux: IP_MULTICAST_ALL is off).
func (c *UDPConn) JoinGroup(on *net.Interface, group net.Addr) error {
	a, on, err := c.groupOf(on, group)
	if err == nil {
		err = c.join(on, a)
	}
	return c.failToSet(group, err)
}

// LeaveGroup ends JoinGroup. The error is EADDRNOTAVAIL if the socket is no member.
func (c *UDPConn) LeaveGroup(on *net.Interface, group net.Addr) error {
	a, on, err := c.groupOf(on, group)
	if err == nil {
		err = c.leave(on, a)
	}
	return c.failToSet(group, err)
}

// JoinSourceSpecificGroup fails with errors.ErrUnsupported: a member receives from all sources.
func (c *UDPConn) JoinSourceSpecificGroup(_ *net.Interface, group, _ net.Addr) error {
	return c.failToSet(group, errSources)
}

func (c *UDPConn) failToSet(group net.Addr, err error) error {
	if err == nil {
		return nil
	}
	return opError("set", c.network, "setsockopt", c.local, group, err)
}

// groupOf converts the address of a multicast group that the socket can join. Without an interface, its zone says on which of several uplinks.
func (c *UDPConn) groupOf(on *net.Interface, group net.Addr) (wire.Addr, *net.Interface, error) {
	var ip net.IP
	var zone string
	switch g := group.(type) {
	case *net.UDPAddr:
		ip, zone = g.IP, g.Zone
	case *net.IPAddr:
		ip, zone = g.IP, g.Zone
	}
	if u := c.stack.uplinkNamed(zone); on == nil && u != nil {
		on = &net.Interface{Name: u.name}
	}
	n, _ := netip.AddrFromSlice(ip)
	a := wire.AddrFrom(n.Unmap())
	local := c.udp.Local().Addr
	switch {
	case !a.IsMulticast(), local.IsWildcard() && !local.Takes(a), !local.IsWildcard() && local.Is4() != a.Is4():
		return a, nil, syscall.EINVAL
	}
	return a, on, nil
}

// join claims a group and enters it.
func (c *UDPConn) join(on *net.Interface, group wire.Addr) (err error) {
	s, j := c.stack, joinedGroup{group: group}
	tag := netip.AddrPortFrom(group.Netip(), c.udp.Local().Port)
	if c.groups != nil {
		if j.uplink, err = c.groups.Join(on, tag); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.closed:
		err = s.ended()
	case slices.Contains(c.joined, j):
		err = syscall.EADDRINUSE
	case c.udp.Group(group) == 0:
		err = c.udp.Join(group)
	}
	switch {
	case err == nil:
		c.joined = append(c.joined, j)
	case c.groups != nil:
		c.groups.Leave(j.uplink, tag)
	}
	return err
}

// leave ends the membership on an interface, or one, if that is nil.
func (c *UDPConn) leave(on *net.Interface, group wire.Addr) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return s.ended()
	}
	var u *uplink
	if on != nil {
		u = s.uplinkNamed(on.Name)
	}
	i := slices.IndexFunc(c.joined, func(j joinedGroup) bool { return j.group == group && (u == nil || u == &s.uplinks[j.uplink]) })
	if i < 0 {
		return syscall.EADDRNOTAVAIL
	}
	c.leaveOne(c.joined[i])
	if c.joined = slices.Delete(c.joined, i, i+1); slices.ContainsFunc(c.joined, func(j joinedGroup) bool { return j.group == group }) {
		return nil
	}
	return c.udp.Leave(group)
}

// leaveOne gives a group back.
func (c *UDPConn) leaveOne(j joinedGroup) {
	if c.groups != nil {
		c.groups.Leave(j.uplink, netip.AddrPortFrom(j.group.Netip(), c.udp.Local().Port))
	}
}

// leaveAll gives the groups of a closed socket back.
func (c *UDPConn) leaveAll() {
	for _, j := range c.joined {
		c.leaveOne(j)
	}
	c.joined = nil
}

// SetMulticastTTL sets the TTL, or the hop limit, of what the socket sends to multicast groups: 1 to 255. It
// is 1 at first (RFC 1112, section 6.1).
func (c *UDPConn) SetMulticastTTL(ttl int) error {
	if ttl < 1 || ttl > 255 {
		return c.failToSet(nil, syscall.EINVAL)
	}
	return c.set(func() { c.multicastHops = uint8(ttl) })
}

// SetMulticastHopLimit is SetMulticastTTL.
func (c *UDPConn) SetMulticastHopLimit(hops int) error { return c.SetMulticastTTL(hops) }

// SetMulticastLoopback sets whether members on this stack receive what the socket sends to groups; at first they do.
// Other endpoints of the machine receive it in any case.
func (c *UDPConn) SetMulticastLoopback(on bool) error { return c.set(func() { c.noLoop = !on }) }

// SetBroadcast permits the socket to send to broadcast addresses, and makes it receive broadcasts to its port:
// 255.255.255.255 and the broadcast address of the subnet, on all interfaces of the host. It claims the tag udp:255.255.255.255:PORT.
func (c *UDPConn) SetBroadcast(on bool) error {
	var err error
	local := c.udp.Local().Addr
	switch {
	case !local.Is4() && local != (wire.Addr{}), local.IsMulticast(), !c.stack.own.Load().ipv4:
		err = syscall.EINVAL
	case on:
		err = c.joinBroadcasts()
	default:
		for c.leave(nil, limitedBroadcast) == nil {
		}
	}
	if err != nil {
		return c.failToSet(nil, err)
	}
	return c.set(func() { c.broadcasts, c.route = on, nil })
}

// joinBroadcasts joins the broadcasts of all uplinks that permit it. The error is that of the first if none does.
func (c *UDPConn) joinBroadcasts() (err error) {
	s, joined := c.stack, false
	for i := range s.uplinks {
		var on *net.Interface
		if len(s.uplinks) > 1 {
			on = &net.Interface{Name: s.uplinks[i].name}
		}
		e := c.join(on, limitedBroadcast)
		joined = joined || e == nil || e == syscall.EADDRINUSE // it is on
		err = cmp.Or(err, e)
	}
	if joined {
		return nil
	}
	return err
}

// set changes an option of an open socket.
func (c *UDPConn) set(change func()) error {
	s := c.stack
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return opError("set", c.network, "setsockopt", nil, c.local, s.ended())
	}
	change()
	return nil
}
