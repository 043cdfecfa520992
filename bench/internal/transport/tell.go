package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/bench/internal/workload"
)

// Tell writes into a report what a connection knows of itself: how many bytes it has sent
// again, how often its timer has run out (a kernel before 6.7 does not say), and its
// smoothed round-trip time.
func Tell(s workload.Stream, r *workload.Report) error {
	switch c := s.(type) {
	case *unet.TCPConn:
		i := c.Info()
		r.Retransmitted, r.Timeouts, r.RTT = int64(i.BytesRetransmitted), int64(i.Timeouts), i.RTT
		return nil
	case *net.TCPConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var info *unix.TCPInfo
		var failed error
		err = raw.Control(func(fd uintptr) {
			info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		if err != nil || failed != nil {
			return errors.Join(err, os.NewSyscallError("getsockopt", failed))
		}
		r.Retransmitted, r.Timeouts, r.RTT = int64(info.Bytes_retrans), int64(info.Total_rto), time.Duration(info.Rtt)*time.Microsecond
		return nil
	}
	return fmt.Errorf("BUG: %T does not say what it has sent again", s)
}
