package impair_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
)

// cables are those that the relay is compared on.
var cables = []struct {
	name string
	cut  bool
	rule impair.Rule
}{
	{"whole", false, impair.Rule{}},
	{"link", true, impair.Rule{}},
	{"link of 1 ms", true, impair.Rule{Delay: time.Millisecond}},
	{"link of 1 Gb/s", true, impair.Rule{Rate: 1e9}},
}

func benchCables(b *testing.B, f func(b *testing.B, p *netlab.Pair)) {
	for _, c := range cables {
		b.Run(c.name, func(b *testing.B) {
			p := netlab.RequirePair(b, netlab.Config{Cut: c.cut})
			if !c.cut {
				for _, h := range []*netlab.Host{p.A, p.B} {
					if err := h.Do(func() error { return netlab.SetOffloads(h.Interface, false) }); err != nil {
						b.Fatal(err)
					}
				}
				f(b, p)
				return
			}
			l := impair.RequireLink(b, p, impair.Config{AtoB: c.rule, BtoA: c.rule})
			f(b, p)
			if x := l.Counters(impair.AtoB); x.Passed > 0 {
				b.ReportMetric(float64(x.Late.Nanoseconds())/float64(x.Passed), "ns-late/frame")
				b.ReportMetric(float64(x.LatestLate.Microseconds()), "us-late-max")
				b.ReportMetric(float64(x.Missed+x.Refused), "missed")
			}
		})
	}
}

// BenchmarkRoundTrip is a datagram there and back, between the kernels.
func BenchmarkRoundTrip(b *testing.B) {
	benchCables(b, func(b *testing.B, p *netlab.Pair) {
		echo, err := p.B.ServeEcho("10.0.0.2:7")
		if err != nil {
			b.Fatal(err)
		}
		defer echo.Close()
		c, err := p.A.Dial("udp", "10.0.0.2:7")
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		buf := make([]byte, 64)
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := c.Read(buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkBulk is TCP between the kernels, in segments of a frame.
func BenchmarkBulk(b *testing.B) {
	benchCables(b, func(b *testing.B, p *netlab.Pair) {
		listener, err := p.B.Listen("tcp", "10.0.0.2:0")
		if err != nil {
			b.Fatal(err)
		}
		defer listener.Close()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if c, err := listener.Accept(); err == nil {
				io.Copy(io.Discard, c)
			}
		}()
		c, err := p.A.Dial("tcp", listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 1<<18)
		b.SetBytes(int64(len(buf)))
		for b.Loop() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		c.(*net.TCPConn).Close()
		<-done
	})
}
