package transport

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/cmd/unetbench/internal/workload"
)

// Retransmitted is how many bytes a connection has sent again, and how often its timer
// has run out (a kernel before 6.7 does not say).
func Retransmitted(s workload.Stream) (bytes, timeouts int64, err error) {
	switch c := s.(type) {
	case *unet.TCPConn:
		i := c.Info()
		return int64(i.BytesRetransmitted), int64(i.Timeouts), nil
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return 0, 0, err
		}
		var info *unix.TCPInfo
		var failed error
		err = raw.Control(func(fd uintptr) {
			info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		if err != nil || failed != nil {
			return 0, 0, os.NewSyscallError("getsockopt", failed)
		}
		return int64(info.Bytes_retrans), int64(info.Total_rto), nil
	}
	return 0, 0, fmt.Errorf("BUG: %T does not say what it has sent again", s)
}
