package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/test/internal/wiretap"
)

// dropAll is a socket filter that takes nothing.
var dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}

// setDeaf makes a socket of the kernel's drop all that comes, or no more.
func setDeaf(raw syscall.RawConn, deaf bool) error {
	var optErr error
	err := raw.Control(func(fd uintptr) {
		if deaf {
			optErr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(dropAll)), Filter: &dropAll[0]})
		} else {
			optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		}
	})
	return errors.Join(err, optErr)
}

// Both dial, and their SYNs cross (RFC 9293, figure 7). The kernel's socket is deaf
// until we have its SYN, so that ours has not come before.
func TestSimultaneousOpen(t *testing.T) {
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.Crossed == 0 {
			t.Error("the SYNs did not cross")
		}
	}})
	us, them := netip.AddrPortFrom(s.A.Addr.Addr(), 5000), netip.AddrPortFrom(s.B.Addr.Addr(), 6000)
	var raw syscall.RawConn
	deaf := make(chan struct{})
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(them), Timeout: patience,
		Control: func(_, _ string, c syscall.RawConn) error {
			raw = c
			err := setDeaf(c, true)
			close(deaf)
			return err
		},
	}
	dialled := make(chan error, 1)
	var kernel net.Conn
	go func() {
		dialled <- s.B.Do(func() (err error) { kernel, err = dialer.Dial("tcp", us.String()); return err })
	}()
	<-deaf
	eventually(t, "the kernel has dialled", func() bool {
		var i *unix.TCPInfo
		var optErr error
		err := raw.Control(func(fd uintptr) { i, optErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		return err == nil && optErr == nil && i.State == netlink.TCP_SYN_SENT
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	opened := make(chan error, 1)
	var ours net.Conn
	go func() {
		c, err := s.host.DialTCP(ctx, us, them)
		ours = c
		opened <- err
	}()
	// Its first SYN found nobody, the second finds us.
	eventually(t, "the kernel's SYN is heard", func() bool { return s.counters()["tcp_segments_received"] > 0 })
	must(t, setDeaf(raw, false))
	must(t, <-opened)
	defer ours.Close()
	must(t, <-dialled)
	defer kernel.Close()
	for _, c := range []net.Conn{ours, kernel} {
		c.SetDeadline(time.Now().Add(patience))
	}
	must(t, exchange(ours, kernel, 100_000, pieces{100_000, 100_000}))
	eventually(t, "nothing is left", func() bool { return s.idle(t) })
}
