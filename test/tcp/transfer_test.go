//go:build linux

package tcp

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// stream is a sequence of bytes of any length that its seed defines, so that one side can
// write and the other check it.
type stream struct {
	random *rand.ChaCha8
	left   int
}

func newStream(seed byte, size int) *stream { return &stream{rand.NewChaCha8([32]byte{seed}), size} }

// next fills b with what follows, and returns how much that is.
func (x *stream) next(b []byte) int {
	n := min(len(b), x.left)
	x.random.Read(b[:n])
	x.left -= n
	return n
}

// send writes a stream in pieces.
func send(c io.Writer, x *stream, piece int) error {
	buf := make([]byte, piece)
	for n := x.next(buf); n > 0; n = x.next(buf) {
		testutil.Renew(c)
		if m, err := c.Write(buf[:n]); m != n || err != nil {
			return fmt.Errorf("write with %d bytes to go: %d of %d, %w", x.left, m, n, err)
		}
	}
	return nil
}

// expect reads a stream in pieces, and its end.
func expect(c io.Reader, x *stream, piece int) error {
	if err := expectMore(c, x, piece); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes and %w after the end", n, err)
	}
	return nil
}

// expectMore reads a stream without its end.
func expectMore(c io.Reader, x *stream, piece int) error {
	buf, want := make([]byte, piece), make([]byte, piece)
	for x.left > 0 {
		testutil.Renew(c)
		n, err := c.Read(buf[:min(piece, x.left)])
		if err != nil {
			return fmt.Errorf("read with %d bytes to go: %w", x.left, err)
		}
		x.next(want[:n])
		if string(buf[:n]) != string(want[:n]) {
			return fmt.Errorf("other bytes than were sent, with %d to go", x.left)
		}
	}
	return nil
}

// pieces are how much a Write gives and a Read takes.
type pieces struct{ write, read int }

// exchange sends as much both ways at once and closes both.
func exchange(ours, kernel net.Conn, size int, p pieces) error {
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for i, d := range []struct{ from, to net.Conn }{{ours, kernel}, {kernel, ours}} {
		name := [...]string{"from us", "from the kernel"}[i]
		wg.Go(func() {
			err := send(d.from, newStream(byte(i), size), p.write)
			if err == nil {
				err = d.from.(interface{ CloseWrite() error }).CloseWrite()
			}
			if err != nil {
				errs <- fmt.Errorf("%s: %w", name, err)
			}
		})
		wg.Go(func() {
			if err := expect(d.to, newStream(byte(i), size), p.read); err != nil {
				errs <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return errors.Join(all, ours.Close(), kernel.Close())
}

// overBoth runs a test over IPv4 and over IPv6, beside others.
func overBoth(t *testing.T, f func(t *testing.T, ipv6 bool)) {
	t.Run("IPv4", func(t *testing.T) { t.Parallel(); f(t, false) })
	t.Run("IPv6", func(t *testing.T) { t.Parallel(); f(t, true) })
}

// headers is how long the headers of IP and TCP are, without options, in bytes.
func (s *scene) headers() int {
	if s.A.IP().Is6() {
		return 60
	}
	return 40
}

// mss is what fits a segment over IPv4 on a cable of 1,500 bytes, with timestamps.
const mss = 1500 - 20 - 20 - 12

// Data of all sizes, in pieces of all sizes, in both roles and both ways at once.
func TestTransfer(t *testing.T) { t.Parallel(); overBoth(t, testTransfer) }

func testTransfer(t *testing.T, ipv6 bool) {
	s := openScene(t, config{ipv6: ipv6})
	for _, c := range []struct {
		size   int
		pieces []pieces
		slow   bool // too much for the race detector
	}{
		{1, []pieces{{1, 1}}, false},
		{mss - 1, []pieces{{mss, mss}, {1, 7}}, false},
		{mss, []pieces{{mss, mss}, {100, 1}}, false},
		{mss + 1, []pieces{{mss, mss}, {mss + 1, mss + 1}, {7, 100}}, false},
		{64 << 10, []pieces{{64 << 10, 64 << 10}, {100, 4096}, {mss, 1000}, {5000, 17}}, false},
		{1 << 20, []pieces{{1 << 20, 1 << 20}, {mss, mss}, {4096, 70_000}, {300_000, 1000}}, false},
		{20 << 20, []pieces{{1 << 20, 128 << 10}, {10_000, 100_000}}, true},
	} {
		for _, p := range c.pieces {
			t.Run(fmt.Sprintf("%d bytes/writes of %d, reads of %d", c.size, p.write, p.read), func(t *testing.T) {
				if c.slow && (unetd.RaceEnabled || ipv6) {
					t.Skip("not needed over IPv6, too slow with the race detector")
				}
				s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
					testutil.Must(t, exchange(ours, kernel, c.size, p))
				})
			})
		}
	}
}

// A hundred megabytes each way.
func TestLargeTransfer(t *testing.T) {
	if unetd.RaceEnabled {
		t.Skip("too slow with the race detector")
	}
	s := openScene(t, config{})
	ours, kernel := s.connect(t, true)
	defer ours.Close()
	defer kernel.Close()
	testutil.Must(t, exchange(ours, kernel, 100_000_000, pieces{64 << 10, 64 << 10}))
}

// tcpOptions are the kernel's options for TCP.
type tcpOptions struct{ timestamps, sack, scaling bool }

func (c tcpOptions) String() string {
	return fmt.Sprintf("timestamps=%t,sack=%t,window_scaling=%t", c.timestamps, c.sack, c.scaling)
}

// setOptions sets them for later connections.
func (s *scene) setOptions(t *testing.T, c tcpOptions) {
	t.Helper()
	for name, on := range map[string]bool{"tcp_timestamps": c.timestamps, "tcp_sack": c.sack, "tcp_window_scaling": c.scaling} {
		s.sysctl(t, name, map[bool]string{false: "0", true: "1"}[on])
	}
}

// allOptions are all combinations.
func allOptions() (all []tcpOptions) {
	for i := range 8 {
		all = append(all, tcpOptions{i&1 != 0, i&2 != 0, i&4 != 0})
	}
	return all
}

// checkOptions compares the negotiated options by our stack and by the kernel with each other
// and with the configuration.
func (s *scene) checkOptions(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn, c tcpOptions, mtu int) {
	t.Helper()
	kernelInfo := info(t, kernel)
	bit := func(b uint8) bool { return kernelInfo.Options&b != 0 }
	const timestamps, sack, scaling = 1, 2, 4 // TCPI_OPT_TIMESTAMPS and so on, linux/tcp.h
	i := ours.Info()
	if got := (tcpOptions{bit(timestamps), bit(sack), bit(scaling)}); got != c {
		t.Errorf("negotiated options of the kernel: %v", got)
	}
	if got := (tcpOptions{i.Timestamps, i.SACK, i.WindowScale}); got != c {
		t.Errorf("our negotiated options are %v", got)
	}
	if c.scaling {
		if send, receive := scales(kernelInfo); send != i.ReceiveScale || receive != i.SendScale {
			t.Errorf("scales: the kernel sends by %d and receives by %d, we receive by %d and send by %d", send, receive, i.ReceiveScale, i.SendScale)
		}
	} else if i.SendScale != 0 || i.ReceiveScale != 0 {
		t.Errorf("scales %d and %d without window scaling", i.SendScale, i.ReceiveScale)
	}
	want := mtu - s.headers()
	if c.timestamps {
		want -= 12
	}
	if i.SendMSS != want || int(kernelInfo.Snd_mss) != want {
		t.Errorf("we send %d bytes in a segment, the kernel %d, want %d", i.SendMSS, kernelInfo.Snd_mss, want)
	}
	if kernelInfo.State != unix.BPF_TCP_ESTABLISHED {
		t.Errorf("the kernel's state is %d", kernelInfo.State)
	}
}

// exchangeSizes exchanges data of sizes around the longest segment, and a megabyte.
func exchangeSizes(t *testing.T, s *scene, c tcpOptions, mtu int) {
	s.setOptions(t, c)
	for _, size := range []int{1, mtu - s.headers() - 12, mtu - s.headers() + 1, 1 << 20} {
		s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
			s.checkOptions(t, ours, kernel, c, mtu)
			testutil.Must(t, exchange(ours, kernel, size, pieces{64 << 10, 64 << 10}))
		})
	}
}

// All options of the kernel, over all cables and attachments.
func TestOptions(t *testing.T) { t.Parallel(); overBoth(t, testOptions) }

func testOptions(t *testing.T, ipv6 bool) {
	s := openScene(t, config{ipv6: ipv6})
	for _, c := range allOptions() {
		t.Run(c.String(), func(t *testing.T) { exchangeSizes(t, s, c, 1500) })
	}
}

// frameMTU is the longest packet that a frame of the segment takes, if it has 2,048
// bytes: without the headroom of the kernel and of internal/xsk, rounded down to 128 as newer
// kernels do, and without the Ethernet header.
const frameMTU = (2048-256-2)/128*128 - 14

func TestOffloadsAndMTUs(t *testing.T) {
	t.Parallel()
	on, off := true, false
	attachments := []struct {
		name string
		config
	}{
		{"port", config{}},
		{"port, IPv6", config{ipv6: true}},
		{"untrusted", config{untrusted: true}},
		{"queue", config{attach: endpoint.AttachQueue}},
	}
	for _, a := range attachments {
		for _, mtu := range []int{1500, 9000} {
			for _, offloads := range []*bool{&on, &off} {
				t.Run(fmt.Sprintf("%s/mtu=%d,offloads=%t", a.name, mtu, *offloads), func(t *testing.T) {
					t.Parallel()
					c := a.config
					path := mtu
					if a.untrusted {
						path = min(mtu, frameMTU)
					}
					c.mtu, c.offloads = mtu, offloads
					var s *scene
					c.check = func(t *testing.T, j *wiretap.Judge) {
						if want := path - s.headers(); j.Longest != want { // also of more frames than one
							t.Errorf("the longest segment of ours has %d bytes of data, want %d", j.Longest, want)
						}
					}
					s = openScene(t, c)
					for _, c := range []tcpOptions{{}, {true, true, true}} {
						t.Run(c.String(), func(t *testing.T) { exchangeSizes(t, s, c, path) })
					}
				})
			}
		}
	}
}

// openForwardedHost makes a third host. Host B forwards between it and us. Its segments reach
// B as from a wire, with complete checksums, and B merges them (GRO). Merged segments have
// partial checksums.
func (s *scene) openForwardedHost(t *testing.T) *netlab.Host {
	t.Helper()
	far := netlab.RequirePair(t, netlab.Config{}).A
	configure := func(name, addr string, to *net.IPNet, via string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(addr)
		if err == nil {
			err = errors.Join(netlink.AddrAdd(l, a), netlink.LinkSetUp(l))
		}
		if err == nil && to != nil {
			err = netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)})
		}
		return err
	}
	near := &net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(24, 32)}
	testutil.Must(t, s.B.Do(func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "wire"
		cable := netlink.NewVeth(a)
		cable.PeerName, cable.PeerNamespace = "wire", netlink.NsFd(far.NS)
		if err := netlink.LinkAdd(cable); err != nil {
			return err
		}
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			netlab.SetOffload("wire", "gro", true),
			configure("wire", "10.0.1.2/24", nil, ""))
	}))
	testutil.Must(t, far.Do(func() error {
		cable, err := netlink.LinkByName(far.Interface) // it has our address
		if err != nil {
			return err
		}
		return errors.Join(
			netlink.LinkDel(cable),
			netlab.SetOffloads("wire", false),
			configure("wire", "10.0.1.3/24", near, "10.0.1.2"))
	}))
	testutil.Must(t, s.A.Do(func() error {
		to := &net.IPNet{IP: net.IPv4(10, 0, 1, 0), Mask: near.Mask}
		return netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP("10.0.0.2")})
	}))
	return far
}

// TestCompleteAndPartialChecksums: complete and partial checksums on one connection. The first partial one is
// taken for damage; all data arrives.
func TestCompleteAndPartialChecksums(t *testing.T) {
	t.Parallel()
	for _, untrusted := range []bool{false, true} {
		t.Run(fmt.Sprintf("untrusted=%t", untrusted), func(t *testing.T) {
			t.Parallel()
			s := openScene(t, config{untrusted: untrusted, partialChecksum: true})
			far := s.openForwardedHost(t)
			l := s.listen(t, true)
			defer l.Close()
			dialled, err := far.Dial("tcp", l.Addr().String())
			testutil.Must(t, err)
			ours, err := l.Accept()
			testutil.Must(t, err)
			for _, c := range []net.Conn{dialled, ours} {
				c.SetDeadline(time.Now().Add(testTimeout))
			}
			for _, size := range []int{100, 20 * mss, 100, 20 * mss} { // alone, merged
				done := make(chan error, 1)
				go func() { done <- send(dialled, newStream(0, size), size) }()
				testutil.Must(t, errors.Join(expectMore(ours, newStream(0, size), size), <-done))
			}
			testutil.Must(t, exchange(ours, dialled, 1<<20, pieces{64 << 10, 64 << 10}))
		})
	}
}
