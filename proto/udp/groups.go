package udp

import (
	"slices"
	"syscall"

	"github.com/unet-go/unet/wire"
)

// MaxGroups is the number of groups that a socket can be a member of. That of Linux is 20 for IPv4
// (net.ipv4.igmp_max_memberships).
const MaxGroups = 255

// Join makes the socket receive what is sent to a group and its port: a multicast address, or
// 255.255.255.255 for all broadcasts. Errors: EADDRINUSE if it is a member, ENOBUFS if it is a
// member of [MaxGroups] groups.
func (s *Socket) Join(group wire.Addr) error {
	if s.Group(group) != 0 {
		return syscall.EADDRINUSE
	}
	free := slices.Index(s.groups, wire.Addr{})
	switch {
	case free >= 0:
		s.groups[free] = group
	case len(s.groups) < MaxGroups:
		s.groups = append(s.groups, group)
	default:
		return syscall.ENOBUFS
	}
	return nil
}

// Leave ends Join. The error is EADDRNOTAVAIL if the socket is no member.
func (s *Socket) Leave(group wire.Addr) error {
	i := s.Group(group)
	if i == 0 {
		return syscall.EADDRNOTAVAIL
	}
	s.groups[i-1] = wire.Addr{} // others keep their numbers
	return nil
}

// Group is the number of a group in [Datagram].Group, 0 if the socket is no member.
func (s *Socket) Group(group wire.Addr) uint8 {
	return uint8(slices.Index(s.groups, group) + 1)
}

// GroupAt is the inverse of Group. It is the zero value if the socket has left the group.
func (s *Socket) GroupAt(number uint8) wire.Addr {
	if number == 0 {
		return wire.Addr{}
	}
	return s.groups[number-1]
}

// Groups are the groups that the socket is a member of.
func (s *Socket) Groups() (list []wire.Addr) {
	for _, g := range s.groups {
		if g != (wire.Addr{}) {
			list = append(list, g)
		}
	}
	return list
}

// Member is the next socket after one, or with nil the first, that receives what src sends to a group and
// port; nil: there is none.
func (t *Table) Member(after *Socket, src, dst AddrPort) *Socket {
	s := t.first(dst.Port)
	if after != nil {
		s = after.next
	}
	for ; s != nil; s = s.next {
		if s.Group(dst.Addr) != 0 && (!s.Connected() || s.remote == src) {
			return s
		}
	}
	return nil
}
