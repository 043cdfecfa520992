//go:build linux

package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// A server that was started again listens at once on a port on which closed connections of the one before
// are in TIME-WAIT: package net sets SO_REUSEADDR. So does the reserver, if bind fails without it. Its socket listens, and
// a socket that listens shares its port with no other.
//
// SO_REUSEADDR would share the port with connections, too, which go on when their server has closed its
// listener. Their frames would be the endpoint's. So the port is in use if any socket but those in TIME-WAIT has it.

// listsBound reports whether the kernel lists TCP sockets that are bound, and neither listen nor are connected: from Linux
// 6.8 on (TCP_BOUND_INACTIVE). Before, usesPort would not find them, and no port is reused.
func listsBound() bool {
	if boundListed.Load() {
		return true
	}
	lists := queryBound()
	boundListed.Store(lists)
	return lists
}

var boundListed atomic.Bool // what listsBound has returned; a query that has failed, as without descriptors, is repeated

func queryBound() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return false
	}
	name, err := unix.Getsockname(fd)
	bound, is := name.(*unix.SockaddrInet4)
	if err != nil || !is {
		return false
	}
	lists, err := usesPort(netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(bound.Port)), false)
	return err == nil && lists
}

// errTimeWait is the error that only closed connections have a port, which SO_REUSEADDR does not share: their
// sockets did not have it.
var errTimeWait = errors.New("closed connections are in TIME-WAIT")

// onlyTimeWait returns the error of a socket with SO_REUSEADDR that was to listen at a port. err is that of its
// bind and listen. The port is in use if these succeeded, but share it with a connection that goes on.
func onlyTimeWait(ap netip.AddrPort, err error) error {
	used, uerr := usesPort(ap, err != nil)
	switch {
	case uerr != nil:
		return errors.Join(err, uerr)
	case err == nil && used:
		return os.NewSyscallError("bind", unix.EADDRINUSE)
	case errors.Is(err, unix.EADDRINUSE) && !used:
		return fmt.Errorf("%w: %w", errTimeWait, err)
	}
	return err
}

// States of a TCP socket (include/net/tcp_states.h).
const (
	tcpTimeWait = 6
	tcpListen   = 10
)

// Offsets in struct inet_diag_msg (linux/inet_diag.h) and its length, and that of struct inet_diag_req_v2, in bytes.
const (
	diagState   = 1
	diagPort    = 4
	diagSource  = 8
	diagMsg     = 72
	diagRequest = 56
)

// diagQuery is a struct inet_diag_req_v2 for TCP sockets in all states.
type diagQuery [diagRequest]byte

func (q *diagQuery) Len() int          { return len(q) }
func (q *diagQuery) Serialize() []byte { return q[:] }

// usesPort reports whether a TCP socket of the calling thread's namespace has a port of an address, in any
// state but TIME-WAIT and, unless listeners count, LISTEN.
func usesPort(ap netip.AddrPort, listeners bool) (used bool, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} { // a socket of IPv6 may have an IPv4 address
		q := &diagQuery{family, byte(wire.ProtocolTCP)}
		binary.NativeEndian.PutUint32(q[4:], ^uint32(0))
		binary.BigEndian.PutUint16(q[8:], ap.Port())
		req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		req.AddData(q)
		msgs, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if err != nil {
			return false, fmt.Errorf("sockets of port %d: %w", ap.Port(), err)
		}
		for _, b := range msgs {
			if len(b) < diagMsg || b[diagState] == tcpTimeWait || b[diagState] == tcpListen && !listeners {
				continue
			}
			// The kernel filters by port, but not the sockets that are bound only.
			if binary.BigEndian.Uint16(b[diagPort:]) != ap.Port() {
				continue
			}
			local := netip.AddrFrom16([16]byte(b[diagSource:])).Unmap()
			if b[0] == unix.AF_INET {
				local = netip.AddrFrom4([4]byte(b[diagSource:]))
			}
			if local == ap.Addr() || local.IsUnspecified() {
				return true, nil
			}
		}
	}
	return false, nil
}
