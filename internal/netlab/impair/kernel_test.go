//go:build linux

package impair_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
)

// udp are sockets of both kernels, of one family: the receiver's, and one connected
// to it.
func (l lab) udp(t *testing.T, d impair.Direction, six bool) (out, in *net.UDPConn) {
	t.Helper()
	from, to := l.hosts(d)
	addr := to.Addr.Addr()
	if six {
		addr = to.Addr6.Addr()
	}
	in, err := to.ListenUDP(net.JoinHostPort(addr.String(), "0"))
	testutil.Must(t, err)
	t.Cleanup(func() { in.Close() })
	c, err := from.Dial("udp", in.LocalAddr().String())
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	in.SetReadDeadline(time.Now().Add(testTimeout))
	return c.(*net.UDPConn), in
}

func control(t *testing.T, c *net.UDPConn, f func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err))
}

// readNow returns the datagrams that have come.
func readNow(t *testing.T, c *net.UDPConn) (all [][]byte) {
	t.Helper()
	control(t, c, func(fd int) error {
		for {
			buf := make([]byte, 2000)
			n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, buf[:n])
		}
	})
	return all
}

// counted is the sum of counters of a host's kernel.
func counted(t *testing.T, h *netlab.Host, names ...string) (sum uint64) {
	t.Helper()
	for _, name := range names {
		n, err := h.Counted(name)
		testutil.Must(t, err)
		sum += n
	}
	return sum
}

// TestKernelDropsCorruptedDatagrams: half of the datagrams are corrupted, and the receiver's kernel delivers none
// of these: in both directions, over both families, also if the sender's kernel leaves checksums to the hardware.
func TestKernelDropsCorruptedDatagrams(t *testing.T) {
	for _, offloads := range []bool{false, true} {
		for _, six := range []bool{false, true} {
			for d := range impair.Direction(2) {
				t.Run(fmt.Sprintf("offloads %t, IPv6 %t, direction %d", offloads, six, d), func(t *testing.T) {
					l := open(t, netlab.Config{IPv6: six}, impair.Config{Offloads: offloads, Spare: noNeighbours})
					from, to := l.hosts(d)
					out, in := l.udp(t, d, six)
					out.Write(nil) // finds the neighbour
					_, err := in.Read(make([]byte, 1))
					testutil.Must(t, err)
					control(t, in, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) })
					l.Set(d, impair.Rule{Corrupt: 0.5})
					const n, size = 1000, 200
					for i := range n {
						_, err := out.Write(numbered(from, to, i, size))
						testutil.Must(t, err)
						if i%250 == 249 {
							l.settle(t, d, i+2)
						}
					}
					c := l.settle(t, d, n+1)
					plausible(t, "corrupted", c.Corrupted, n, 0.5)
					var got [][]byte
					testutil.Eventually(t, "datagrams that are not corrupted arrive", func() bool {
						got = append(got, readNow(t, in)...)
						return len(got) >= n-int(c.Corrupted)
					})
					last := -1
					for _, g := range got {
						i := int(binary.BigEndian.Uint32(g[14:]))
						if i <= last || !bytes.Equal(g, numbered(from, to, i, size)) {
							t.Errorf("after %d: %x", last, g)
						}
						last = i
					}
					// Three quarters of the bits are UDP's, the others those of headers before it.
					if found := counted(t, to, "UdpInCsumErrors", "Udp6InCsumErrors"); found < c.Corrupted/2 {
						t.Errorf("%d were corrupted, the receiver has found %d", c.Corrupted, found)
					}
				})
			}
		}
	}
}

// noNeighbours spares what the kernels send by themselves: ARP, neighbour discovery and other multicast.
func noNeighbours(frame []byte) bool { return impair.Resolution(frame) || frame[0]&1 != 0 }

// TestSparedFramesAreNotImpaired: with a loss of all frames, those that Config.Spare selects arrive.
func TestSparedFramesAreNotImpaired(t *testing.T) {
	l := open(t, netlab.Config{}, impair.Config{AtoB: impair.Rule{Loss: 1}, BtoA: impair.Rule{Loss: 1}, Spare: impair.Resolution})
	out, in := l.udp(t, impair.AtoB, false)
	_, err := out.Write([]byte("lost"))
	testutil.Must(t, err)
	testutil.Eventually(t, "ARP gets through, the datagram does not", func() bool {
		return l.Counters(impair.BtoA).Spared > 0 && l.Counters(impair.AtoB).LostByChance == 1
	})
	if got := readNow(t, in); got != nil {
		t.Errorf("received %q", got)
	}
}

// TestCongestionMarks: if the queue is above the threshold, an ECN-capable datagram arrives with a congestion
// mark.
func TestCongestionMarks(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", six), func(t *testing.T) {
			l := open(t, netlab.Config{IPv6: six}, impair.Config{Spare: noNeighbours})
			out, in := l.udp(t, impair.AtoB, six)
			level, send, receive := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_RECVTOS
			if six {
				level, send, receive = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_RECVTCLASS
			}
			control(t, in, func(fd int) error { return unix.SetsockoptInt(fd, level, receive, 1) })
			out.Write(nil) // finds the neighbour
			_, err := in.Read(make([]byte, 1))
			testutil.Must(t, err)
			// The link is so slow that all datagrams of the test are in the queue at the same time.
			l.Set(impair.AtoB, impair.Rule{Rate: 400_000, MarkAbove: 250})
			const other = 0x28 // the rest of the byte
			classes := []byte{1, 2, 2, 2, 1, 0, 3, 0}
			for i, ecn := range classes {
				control(t, out, func(fd int) error { return unix.SetsockoptInt(fd, level, send, int(other|ecn)) })
				_, err := out.Write(bytes.Repeat([]byte{byte(i)}, 100))
				testutil.Must(t, err)
			}
			var marked uint64
			for i, sent := range classes {
				buf, oob := make([]byte, 200), make([]byte, 100)
				n, oobn, _, _, err := in.ReadMsgUDP(buf, oob)
				testutil.Must(t, err)
				messages, err := unix.ParseSocketControlMessage(oob[:oobn])
				testutil.Must(t, err)
				if n != 100 || buf[0] != byte(i) || len(messages) != 1 {
					t.Fatalf("datagram %d: %x", i, buf[:n])
				}
				got := messages[0].Data[0]
				// At the first the queue is empty, at the second it has one datagram, at the others more than 250 bytes.
				want := sent
				if sent != 0 && i > 2 {
					want = 3
					marked++
				}
				if i == 2 {
					continue // may be marked or not: the queue is near the threshold, and IPv6 has longer headers
				}
				if got != other|want {
					t.Errorf("datagram %d was sent with ECN %d and arrives with class %#x, want ECN %d", i, sent, got, want)
				}
			}
			if c := l.settle(t, impair.AtoB, len(classes)+1); c.Marked < marked || c.Marked > marked+1 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// transfer sends data by the kernels' TCP and expects all of it.
func (l lab) transfer(t *testing.T, size int) {
	t.Helper()
	text := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(text)
	listener, err := l.B.Listen("tcp", "10.0.0.2:0")
	testutil.Must(t, err)
	defer listener.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			got <- nil
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(testTimeout))
		all, _ := io.ReadAll(c)
		got <- all
	}()
	c, err := l.A.Dial("tcp", listener.Addr().String())
	testutil.Must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	_, err = c.Write(text)
	testutil.Must(t, err)
	testutil.Must(t, c.(*net.TCPConn).CloseWrite())
	if all := <-got; !bytes.Equal(all, text) {
		t.Errorf("sent %d bytes, %d have arrived, or they differ", len(text), len(all))
	}
}

// TestTCPWithAndWithoutOffloads: TCP of the kernels delivers all data over an impaired link, with single frames
// and with super-frames, which are lost, duplicated and overtaken as one frame.
func TestTCPWithAndWithoutOffloads(t *testing.T) {
	r := impair.Rule{Loss: 0.01, Duplicate: 0.02, Corrupt: 0.02, Reorder: 0.05, HoldBack: 200 * time.Microsecond, Burst: linksim.Burst{Enter: 0.001, Leave: 0.5}}
	for _, offloads := range []bool{true, false} {
		l := open(t, netlab.Config{}, impair.Config{Offloads: offloads, AtoB: r, BtoA: r, Spare: impair.Resolution})
		const size = 4 << 20
		l.transfer(t, size)
		c := l.Counters(impair.AtoB)
		if super := c.Bytes/c.Frames > 1514; super != offloads {
			t.Errorf("offloads %t: %d frames of %d bytes", offloads, c.Frames, c.Bytes)
		}
		if c.Missed != 0 || c.Refused != 0 {
			t.Errorf("offloads %t: %+v", offloads, c)
		}
	}
}

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
