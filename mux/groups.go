//go:build linux

package mux

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux/internal/tables"
)

// The tag of a UDP port of a multicast group, or of the address 255.255.255.255, which stands for
// all broadcasts, can be held by several endpoints. Each gets a copy of a datagram, and the kernel's
// programs get theirs (bpf/src/group.h, ADR 39). A socket of this process is a member of the
// group while the tag is held, so the kernel reports the membership (IGMP, MLD) and the interface
// accepts the group's frames.

// groupsPerUID is the number of tags of groups that one user may hold; uid 0 may hold more. Each takes a socket, two maps
// and reports on the network.
const groupsPerUID = 64

// group is a tag of a group that is held.
type group struct {
	members map[*Lease]struct{}
	users   *share.Shares // of the members
	joined  int           // descriptor of the member socket; -1: none
}

func newGroup(t endpoint.Tag, joined int) *group {
	return &group{members: map[*Lease]struct{}{}, users: share.New(share.Limits{What: fmt.Sprintf("endpoints with %v", t), Total: bpf.GroupPorts}), joined: joined}
}

// groups are the tags of groups that are held, guarded by the mux's mu.
type groups struct {
	held   map[endpoint.Tag]*group
	users  *ledger
	uplink uint32 // its ifindex
	maps   *tables.Tables
}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// isGroup reports whether several endpoints may hold the tag.
func isGroup(t endpoint.Tag) bool {
	return t.Kind == endpoint.TagUDP && (t.Addr.IsMulticast() || t.Addr == limitedBroadcast)
}

// notClaimable is the reason why no endpoint can hold a tag of a group; "": it can.
func notClaimable(t endpoint.Tag) string {
	switch {
	case t.Block || t.Port == 0:
		return "a group is claimed for one port: name it"
	case t.Addr.Zone() != "":
		return "a tag has no zone: leave it out"
	case t.Addr.Is6() && t.Addr.As16()[1]&0xf <= 1:
		return "a group of this scope never leaves a host (RFC 4291, 2.7)"
	}
	return ""
}

// addGroup adds a tag of a group. m.mu is held and the calling thread is in the uplink's namespace.
//
// +checklocks:c.m.mu
func (c *claiming) addGroup(t endpoint.Tag) error {
	m, l := c.m, c.l
	if why := notClaimable(t); why != "" {
		return denied(t, "%s", why)
	}
	if l.attach != endpoint.AttachPort {
		return denied(t, "an endpoint on a queue gets no groups: attach it to a port")
	}
	g := m.groups.held[t]
	switch {
	case g == nil:
	case g.has(l):
		return held(t, "this endpoint holds it already")
	default:
		if err := g.users.Room(share.ByUID(l.uid), 1); err != nil {
			return err
		}
	}
	if err := m.users.groups.Room(share.ByUID(l.uid), 1); err != nil {
		return err
	}
	if g == nil {
		var err error
		if g, err = m.groups.open(t, c.r); err != nil {
			return fmt.Errorf("claim %v: %w", t, err)
		}
	}
	if g.joined < 0 { // of broadcast, or taken over without success
		var err error
		if g.joined, err = c.r.join(t.Addr); err != nil {
			return fmt.Errorf("claim %v: %w", t, err)
		}
	}
	if err := m.groups.addMember(t, g, l); err != nil {
		return errors.Join(fmt.Errorf("claim %v: %w", t, err), m.groups.closeIfEmpty(t, g))
	}
	if err := m.progs.Maps.CountMembers(t, len(g.members)); err != nil {
		return errors.Join(fmt.Errorf("claim %v: %w", t, err), m.groups.leave(l, t))
	}
	return nil
}

func (g *group) has(l *Lease) bool {
	_, is := g.members[l]
	return is
}

// open makes the kernel's entries of a tag that nobody holds, and joins the group. m.mu is held and
// the calling thread is in the uplink's namespace.
func (gs *groups) open(t endpoint.Tag, r *reserver) (*group, error) {
	if len(gs.held) >= bpf.Groups {
		return nil, fmt.Errorf("%w: it has room for %d tags of groups", ErrTableFull, bpf.Groups)
	}
	fd, err := r.join(t.Addr)
	if err != nil {
		return nil, err
	}
	g := newGroup(t, fd)
	if err := gs.maps.CountTag(t, 1); err != nil {
		return nil, errors.Join(err, g.leave())
	}
	if err := gs.maps.PutGroup(t, gs.uplink); err != nil {
		return nil, errors.Join(err, gs.maps.DeleteGroup(t), g.leave())
	}
	gs.held[t] = g
	return g, nil
}

func (g *group) leave() error {
	if g.joined < 0 {
		return nil
	}
	fd := g.joined
	g.joined = -1
	return unix.Close(fd)
}

// join returns a socket that is a member of a group on the uplink; -1 for broadcast. Each group has a
// socket of its own: net.ipv4.igmp_max_memberships limits the groups of a socket.
func (r *reserver) join(a netip.Addr) (fd int, err error) {
	if !a.IsMulticast() {
		return -1, nil
	}
	if r.room <= 0 {
		return -1, fmt.Errorf("%w: each group takes a descriptor, and %d are in use for ports and groups: raise the limit (ulimit -n, LimitNOFILE)", ErrTableFull, r.limit)
	}
	domain := unix.AF_INET
	if a.Is6() {
		domain = unix.AF_INET6
	}
	if fd, err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if a.Is6() {
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: a.As16(), Interface: uint32(r.ifindex)})
	} else {
		err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: a.As4(), Ifindex: int32(r.ifindex)})
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("join group %v: %w", a, err), unix.Close(fd))
	}
	r.room--
	return fd, nil
}

// addMember gives a port, once CountMembers has counted it, copies of the group's datagrams. m.mu is held.
func (gs *groups) addMember(t endpoint.Tag, g *group, l *Lease) error {
	port := l.at.owner.Port
	if err := gs.maps.PutMember(t, port); err != nil {
		return errors.Join(err, gs.maps.DeleteMember(t, port))
	}
	g.members[l] = struct{}{}
	l.tags[t] = struct{}{}
	gs.users.count(l.uid, Usage{Tags: costOf(t)})
	gs.users.groups.Add(share.ByUID(l.uid), 1)
	g.users.Add(share.ByUID(l.uid), 1)
	return nil
}

// leave gives back a tag of a group that l holds. m.mu is held.
func (gs *groups) leave(l *Lease, t endpoint.Tag) error {
	g := gs.held[t]
	port := l.at.owner.Port
	if err := gs.maps.DeleteMember(t, port); err != nil {
		return fmt.Errorf("give %v back: %w", t, err)
	}
	delete(g.members, l)
	delete(l.tags, t)
	gs.users.uncount(l.uid, Usage{Tags: costOf(t)})
	gs.users.groups.Return(share.ByUID(l.uid), 1)
	g.users.Return(share.ByUID(l.uid), 1)
	if len(g.members) > 0 {
		return gs.maps.CountMembers(t, len(g.members))
	}
	return gs.closeIfEmpty(t, g)
}

// closeIfEmpty leaves a group without members. m.mu is held.
func (gs *groups) closeIfEmpty(t endpoint.Tag, g *group) error {
	if len(g.members) > 0 {
		return nil
	}
	delete(gs.held, t)
	return errors.Join(gs.maps.DeleteGroup(t), g.leave())
}

// readmit takes over a tag of a group and joins the group again. It is held also if the join
// fails. alive are the leases by their ports. m.mu is held and the calling thread is in the
// uplink's namespace.
func (gs *groups) readmit(t endpoint.Tag, ports []uint32, alive map[uint32]*Lease, r *reserver) error {
	g := newGroup(t, -1)
	var err error
	for _, port := range ports {
		l := alive[port]
		if l == nil {
			err = errors.Join(err, gs.maps.DeleteMember(t, port))
			continue
		}
		err = errors.Join(err, gs.addMember(t, g, l)) // in both sets: the other process may have stopped between them
	}
	if len(g.members) == 0 {
		return errors.Join(err, gs.maps.DeleteGroup(t))
	}
	err = errors.Join(err, gs.maps.CountMembers(t, len(g.members))) // at the end: the members receive meanwhile
	gs.held[t] = g
	var jerr error
	g.joined, jerr = r.join(t.Addr)
	return errors.Join(err, jerr)
}

// close leaves all groups. The kernel's tables stay as they are. m.mu is held.
func (gs *groups) close() error {
	var err error
	for _, g := range gs.held {
		err = errors.Join(err, g.leave())
	}
	gs.held = nil
	return err
}
