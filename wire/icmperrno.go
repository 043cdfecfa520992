package wire

import "syscall"

// unreachableErrnos are the errnos of ICMPUnreachable, by code, as Linux has them
// (net/ipv4/icmp.c, icmp_err_convert).
var unreachableErrnos = [...]struct {
	errno syscall.Errno
	hard  bool
}{
	0:  {syscall.ENETUNREACH, false},
	1:  {syscall.EHOSTUNREACH, false},
	2:  {syscall.ENOPROTOOPT, true},
	3:  {syscall.ECONNREFUSED, true},
	4:  {syscall.EMSGSIZE, false},
	5:  {syscall.EOPNOTSUPP, false},   // source route failed
	6:  {syscall.ENETUNREACH, true},   // network unknown
	7:  {syscall.EHOSTDOWN, true},     // host unknown
	8:  {errNoNet, true},              // source host isolated
	9:  {syscall.ENETUNREACH, true},   // network prohibited
	10: {syscall.EHOSTUNREACH, true},  // host prohibited
	11: {syscall.ENETUNREACH, false},  // network, for this type of service
	12: {syscall.EHOSTUNREACH, false}, // host, likewise
	13: {syscall.EHOSTUNREACH, true},  // prohibited
	14: {syscall.EHOSTUNREACH, true},  // precedence violation
	15: {syscall.EHOSTUNREACH, true},  // precedence cutoff
}

// Errno is the errno of an ICMP error for the sender of the packet that it quotes, as in
// Linux. hard says that the condition does not pass by itself (RFC 1122, section
// 4.2.3.9). It is 0 for all other messages: source quench (RFC 6633), redirects, unknown
// codes.
func (m ICMPv4) Errno() (errno syscall.Errno, hard bool) {
	switch code := int(m.Code()); {
	case m.Type() == ICMPParameterProblem:
		return syscall.EPROTO, true
	case m.Type() == ICMPTimeExceeded:
		return syscall.EHOSTUNREACH, false
	case m.Type() == ICMPUnreachable && code < len(unreachableErrnos):
		e := unreachableErrnos[code]
		return e.errno, e.hard
	}
	return 0, false
}
