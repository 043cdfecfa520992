package badday

import (
	"os"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/proto/tcp"
)

// TestECN: a bottleneck marks what is too much for it (RFC 3168), in both directions. The
// two sides agree on that whoever asks, tell each other of the marks and send more slowly,
// so that nothing is lost.
func TestECN(t *testing.T) {
	rule := impair.Rule{Rate: 50e6, Queue: 300_000, MarkAbove: 15_000, Delay: 2 * ms}
	for _, c := range []struct {
		name   string
		dial   bool
		ours   tcp.ECN
		kernel string
	}{
		{"we ask", true, tcp.ECNOn, "2"},
		{"the kernel asks", false, tcp.ECNAccept, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openScene(t, kernel, netlab.Config{}, unet.TCPConfig{ECN: c.ours})
			must(t, s.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte(c.kernel), 0) }))
			s.impair(rule, rule)
			both := s.connect(t, c.dial)
			if !both.ours.(*unet.TCPConn).Info().ECN {
				t.Error("it was not agreed on")
			}
			if err := exchange(2*mb, both); err != nil {
				t.Error(err)
			}
			for d := range impair.Direction(2) {
				if n := s.link.Counters(d); n.Marked == 0 || n.Lost() > 0 {
					t.Errorf("direction %d: %+v", d, n)
				}
			}
			counted := counters(s.host)
			if counted["tcp_congestion_marks"] == 0 || counted["tcp_congestion_echoes"] == 0 || counted["tcp_bytes_retransmitted"] > 0 {
				t.Errorf("%d marks, %d echoes, %d bytes sent again", counted["tcp_congestion_marks"], counted["tcp_congestion_echoes"], counted["tcp_bytes_retransmitted"])
			}
			marks, err := s.B.Counted("IpExtInCEPkts")
			must(t, err)
			if marks == 0 {
				t.Error("the kernel has seen no marks")
			}
			t.Logf("we have seen %d marks and heard of %d, the kernel has seen %d", counted["tcp_congestion_marks"], counted["tcp_congestion_echoes"], marks)
		})
	}
}
