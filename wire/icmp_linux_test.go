package wire

import (
	"syscall"
	"testing"
)

// The table icmp_err_convert of net/ipv4/icmp.c, and the errors of net/ipv4/tcp_ipv4.c and
// udp.c for the other types.
func TestICMPErrno(t *testing.T) {
	for _, c := range []struct {
		typ, code uint8
		want      syscall.Errno
		hard      bool
	}{
		{3, 0, syscall.ENETUNREACH, false},
		{3, 1, syscall.EHOSTUNREACH, false},
		{3, 2, syscall.ENOPROTOOPT, true},
		{3, 3, syscall.ECONNREFUSED, true},
		{3, 4, syscall.EMSGSIZE, false},
		{3, 5, syscall.EOPNOTSUPP, false},
		{3, 6, syscall.ENETUNREACH, true},
		{3, 7, syscall.EHOSTDOWN, true},
		{3, 8, syscall.ENONET, true},
		{3, 9, syscall.ENETUNREACH, true},
		{3, 10, syscall.EHOSTUNREACH, true},
		{3, 11, syscall.ENETUNREACH, false},
		{3, 12, syscall.EHOSTUNREACH, false},
		{3, 13, syscall.EHOSTUNREACH, true},
		{3, 14, syscall.EHOSTUNREACH, true},
		{3, 15, syscall.EHOSTUNREACH, true},
		{3, 16, 0, false},
		{3, 255, 0, false},
		{11, 0, syscall.EHOSTUNREACH, false},
		{11, 1, syscall.EHOSTUNREACH, false},
		{12, 0, syscall.EPROTO, true},
		{4, 0, 0, false}, // source quench
		{5, 1, 0, false}, // redirect
		{0, 0, 0, false},
		{8, 0, 0, false},
	} {
		m := ICMPv4{c.typ, c.code, 0, 0, 0, 0, 0, 0}
		if got, hard := m.Errno(); got != c.want || hard != c.hard {
			t.Errorf("type %d, code %d: %v, hard %t; want %v, %t", c.typ, c.code, got, hard, c.want, c.hard)
		}
	}
}
