package tcp

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelCount is a counter of the kernel's host, as in /proc/net/snmp and
// /proc/net/netstat.
func (s *scene) kernelCount(t *testing.T, group, name string) uint64 {
	t.Helper()
	n, err := s.B.Counted(group + name)
	must(t, err)
	return n
}

// kernelSockets are the states of the TCP sockets of the kernel's host, listeners
// left out, and how many are in each.
func (s *scene) kernelSockets(t *testing.T) map[string]int {
	t.Helper()
	states := make(map[string]int)
	must(t, s.B.Do(func() error {
		all, err := netlink.SocketDiagTCP(unix.AF_INET)
		for _, sock := range all {
			if sock.State != netlink.TCP_LISTEN {
				states[kernelStates[sock.State]]++
			}
		}
		return err
	}))
	return states
}

// kernelStates are the kernel's names, by number.
var kernelStates = [...]string{
	netlink.TCP_ESTABLISHED: "ESTABLISHED", netlink.TCP_SYN_SENT: "SYN-SENT", netlink.TCP_SYN_RECV: "SYN-RECEIVED",
	netlink.TCP_FIN_WAIT1: "FIN-WAIT-1", netlink.TCP_FIN_WAIT2: "FIN-WAIT-2", netlink.TCP_TIME_WAIT: "TIME-WAIT",
	netlink.TCP_CLOSE: "CLOSED", netlink.TCP_CLOSE_WAIT: "CLOSE-WAIT", netlink.TCP_LAST_ACK: "LAST-ACK",
	netlink.TCP_LISTEN: "LISTEN", netlink.TCP_CLOSING: "CLOSING", netlink.TCP_NEW_SYN_REC: "NEW-SYN-RECEIVED",
}

// info is the kernel's view of a connection.
func info(t *testing.T, kernel *net.TCPConn) *unix.TCPInfo {
	t.Helper()
	raw, err := kernel.SyscallConn()
	must(t, err)
	var i *unix.TCPInfo
	var optErr error
	must(t, raw.Control(func(fd uintptr) { i, optErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	must(t, optErr)
	return i
}

// holderArg makes this test binary a process that holds a connection of the
// kernel's: it listens, accepts one connection, reads as much of it as it is told
// on its command line, and waits for its end.
const holderArg = "hold-a-connection"

func holder() {
	err := func() error {
		l, err := net.Listen("tcp", os.Args[2])
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(os.Args[3])
		if err != nil {
			return err
		}
		fmt.Println("listening")
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(n)); err != nil {
			return err
		}
		fmt.Println("holding")
		select {}
	}()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
