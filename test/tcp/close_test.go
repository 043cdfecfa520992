//go:build linux

package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// connection is a connection between us and the kernel, with checks of what calls on it return.
type connection struct {
	*scene
	ours   *unet.TCPConn
	kernel *net.TCPConn
}

func (m *connection) wantRead(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if n, err := c.Read(make([]byte, 10)); n != 0 || !errors.Is(err, want) {
		t.Errorf("read by %s: %d bytes, %v, want %v", nameOf(c), n, err, want)
	}
}

func (m *connection) wantWrite(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if _, err := c.Write([]byte("text")); !errors.Is(err, want) {
		t.Errorf("write by %s: %v, want %v", nameOf(c), err, want)
	}
}

// wantReset expects that the connection was reset by the peer. The kernel returns the reset
// to one call, then EOF to reads and EPIPE to writes. Ours return it to every read,
// so that a reset is not taken for the end of the data, and to one write.
func (m *connection) wantReset(t *testing.T, c net.Conn) {
	t.Helper()
	m.wantRead(t, c, syscall.ECONNRESET)
	m.wantRead(t, c, io.EOF)
	m.wantWrite(t, c, syscall.EPIPE)
}

// wantAll expects data of the other side, and its end.
func (m *connection) wantAll(t *testing.T, c net.Conn, want string) {
	t.Helper()
	if got, err := io.ReadAll(c); string(got) != want || err != nil {
		t.Errorf("read by %s: %q, %v, want %q", nameOf(c), got, err, want)
	}
}

// wantState expects that the kernel's side comes to a state.
func (m *connection) wantState(t *testing.T, state string) {
	t.Helper()
	testutil.Eventually(t, "the kernel in "+state, func() bool { return m.kernelSockets(t)[state] > 0 })
}

func nameOf(c net.Conn) string {
	if _, ok := c.(*unet.TCPConn); ok {
		return "us"
	}
	return "the kernel"
}

// setDropAll sets whether the kernel's socket drops all that it receives.
func (m *connection) setDropAll(t *testing.T, drop bool) {
	t.Helper()
	raw, err := m.kernel.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, netlab.SetDropAll(raw, drop))
}

// closeOrders are all orders of the calls that end a connection.
var closeOrders = []struct {
	name string
	f    func(t *testing.T, m *connection)
}{
	{"we close", func(t *testing.T, m *connection) {
		m.ours.Close()
		m.wantRead(t, m.kernel, io.EOF)
		m.wantState(t, "CLOSE-WAIT")
		waits := m.counters()["tcp_time_waits"]
		m.kernel.Close()
		testutil.Eventually(t, "we are in TIME-WAIT", func() bool { return m.counters()["tcp_time_waits"] > waits })
	}},
	{"the kernel closes", func(t *testing.T, m *connection) {
		m.kernel.Close()
		m.wantRead(t, m.ours, io.EOF)
		m.wantRead(t, m.ours, io.EOF)
		m.wantState(t, "FIN-WAIT-2")
		m.ours.Close()
		m.wantState(t, "TIME-WAIT")
	}},
	{"both, and the FINs cross", func(t *testing.T, m *connection) {
		m.setDropAll(t, true)
		testutil.Must(t, m.ours.CloseWrite())
		testutil.Must(t, m.kernel.CloseWrite()) // its FIN acknowledges nothing
		m.wantRead(t, m.ours, io.EOF)
		if s := m.ours.Info().State.String(); s != "CLOSING" {
			t.Errorf("we are in %s", s)
		}
		m.setDropAll(t, false)
		m.wantRead(t, m.kernel, io.EOF)
		m.wantState(t, "TIME-WAIT")
	}},
	{"both, at the same time", func(t *testing.T, m *connection) {
		closed := make(chan error)
		go func() { closed <- m.kernel.Close() }()
		testutil.Must(t, m.ours.Close())
		testutil.Must(t, <-closed)
	}},
	{"we half, then the kernel", func(t *testing.T, m *connection) {
		m.ours.Write([]byte("question"))
		m.ours.CloseWrite()
		m.wantAll(t, m.kernel, "question")
		m.wantWrite(t, m.ours, syscall.EPIPE)
		m.kernel.Write([]byte("answer"))
		m.kernel.Close()
		m.wantAll(t, m.ours, "answer")
	}},
	{"the kernel half, then we", func(t *testing.T, m *connection) {
		m.kernel.Write([]byte("question"))
		m.kernel.CloseWrite()
		m.wantAll(t, m.ours, "question")
		m.ours.Write([]byte("answer"))
		m.ours.Close()
		m.wantAll(t, m.kernel, "answer")
	}},
	{"we read no more", func(t *testing.T, m *connection) {
		testutil.Must(t, m.ours.CloseRead())
		m.wantRead(t, m.ours, io.EOF)
		testutil.Must(t, send(m.kernel, newStream(1, 1<<20), 1<<20)) // is discarded
		m.ours.Write([]byte("enough"))
		m.ours.Close()
		m.wantAll(t, m.kernel, "enough")
	}},
	{"the kernel reads no more", func(t *testing.T, m *connection) {
		testutil.Must(t, m.kernel.CloseRead())
		m.ours.Write([]byte("text"))
		m.kernel.Write([]byte("enough"))
		m.kernel.CloseWrite()
		m.wantAll(t, m.ours, "enough")
	}},
	{"we close with text to send", func(t *testing.T, m *connection) {
		testutil.Must(t, m.kernel.SetReadBuffer(4096))
		testutil.Must(t, send(m.ours, newStream(2, 200_000), 200_000))
		testutil.Must(t, m.ours.Close())
		testutil.Must(t, expect(m.kernel, newStream(2, 200_000), 1000))
	}},
	{"the kernel closes with text to send", func(t *testing.T, m *connection) {
		testutil.Must(t, m.ours.SetReadBuffer(4096))
		testutil.Must(t, m.kernel.SetWriteBuffer(200_000)) // which holds all
		testutil.Must(t, send(m.kernel, newStream(2, 100_000), 100_000))
		testutil.Must(t, m.kernel.Close())
		testutil.Must(t, expect(m.ours, newStream(2, 100_000), 1000))
	}},
	{"we linger", func(t *testing.T, m *connection) {
		m.ours.SetLinger(20)
		m.ours.Write([]byte("text"))
		testutil.Must(t, m.ours.Close())
		if s := m.kernelSockets(t); s["CLOSE-WAIT"] != 1 { // at once: that is what Close waited for
			t.Errorf("the kernel's sockets: %v", s)
		}
		m.wantAll(t, m.kernel, "text")
	}},
	{"we close with unread text", func(t *testing.T, m *connection) {
		m.kernel.Write([]byte("unread"))
		testutil.Eventually(t, "text arrives", func() bool { return m.ours.Info().Buffered > 0 })
		m.ours.Close()
		m.wantReset(t, m.kernel)
	}},
	{"the kernel closes with unread text", func(t *testing.T, m *connection) {
		m.ours.Write([]byte("unread"))
		testutil.Eventually(t, "text arrives", func() bool { return m.ours.Info().InFlight == 0 })
		m.kernel.Close()
		m.wantReset(t, m.ours)
	}},
	{"we close and the kernel writes", func(t *testing.T, m *connection) {
		m.ours.Close()
		m.wantRead(t, m.kernel, io.EOF)
		m.kernel.Write([]byte("too late"))
		testutil.Eventually(t, "the kernel has our RST", func() bool { return m.kernelSockets(t)["CLOSE-WAIT"] == 0 })
		m.wantWrite(t, m.kernel, syscall.EPIPE)
		m.wantRead(t, m.kernel, io.EOF)
	}},
	{"the kernel closes and we write", func(t *testing.T, m *connection) {
		m.kernel.Close()
		m.wantRead(t, m.ours, io.EOF)
		m.ours.Write([]byte("too late"))
		testutil.Eventually(t, "we have the RST of the kernel", func() bool { return hoststack.Of(m.host).TCPUsage().Connections == 0 })
		m.wantWrite(t, m.ours, syscall.ECONNRESET) // where the kernel has EPIPE
		m.wantWrite(t, m.ours, syscall.EPIPE)
		m.wantRead(t, m.ours, io.EOF)
	}},
	{"we reset", func(t *testing.T, m *connection) {
		m.ours.SetLinger(0)
		m.ours.Close()
		m.wantReset(t, m.kernel)
	}},
	{"the kernel resets", func(t *testing.T, m *connection) {
		m.kernel.SetLinger(0)
		m.kernel.Close()
		m.wantReset(t, m.ours)
	}},
	{"we reset after the kernel's FIN", func(t *testing.T, m *connection) {
		m.kernel.CloseWrite()
		m.wantRead(t, m.ours, io.EOF)
		m.ours.SetLinger(0)
		m.ours.Close()
		m.wantRead(t, m.kernel, syscall.ECONNRESET)
	}},
	{"the kernel resets after our FIN", func(t *testing.T, m *connection) {
		m.ours.CloseWrite()
		m.wantRead(t, m.kernel, io.EOF)
		m.kernel.SetLinger(0)
		m.kernel.Close()
		m.wantRead(t, m.ours, syscall.ECONNRESET)
	}},
	{"both reset", func(t *testing.T, m *connection) {
		m.ours.SetLinger(0)
		m.kernel.SetLinger(0)
		closed := make(chan error)
		go func() { closed <- m.kernel.Close() }()
		testutil.Must(t, m.ours.Close())
		testutil.Must(t, <-closed)
	}},
}

func TestCloseOrders(t *testing.T) {
	t.Parallel()
	overBoth(t, func(t *testing.T, ipv6 bool) { testCloseOrders(t, openScene(t, config{ipv6: ipv6})) })
}

func testCloseOrders(t *testing.T, s *scene) {
	// A FIN of ours that was sent again finds the kernel in TIME-WAIT and us closed: its ACK gets a RST of us, which
	// without this ends TIME-WAIT before it is seen (RFC 1337).
	s.sysctl(t, "tcp_rfc1337", "1")
	for _, order := range closeOrders {
		t.Run(order.name, func(t *testing.T) {
			s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
				order.f(t, &connection{s, ours, kernel})
				ours.Close()
				kernel.Close()
				testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
			})
		})
	}
}

// The process on the other side is killed, and its kernel ends the connection.
func TestKernelProcessIsKilled(t *testing.T) {
	t.Parallel()
	s := openScene(t, config{})
	exe, err := os.Executable()
	testutil.Must(t, err)
	for i, c := range []struct {
		name        string
		write, read int // how much we write and it reads
		want        error
	}{
		{"idle", 5, 5, io.EOF},
		{"with unread text", 5, 4, syscall.ECONNRESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := fmt.Sprintf("%v:%d", s.B.Addr.Addr(), 7000+i)
			p := unetd.Start(t, s.B, nil, exe, holderArg, at, strconv.Itoa(c.read))
			p.Await(t, "listening")
			conn, err := s.host.Dial("tcp", at)
			testutil.Must(t, err)
			defer conn.Close()
			m := &connection{scene: s}
			_, err = conn.Write(make([]byte, c.write))
			testutil.Must(t, err)
			p.Await(t, "holding")
			testutil.Eventually(t, "all is acknowledged", func() bool { return conn.(*unet.TCPConn).Info().InFlight == 0 })
			p.Kill(t)
			m.wantRead(t, conn, c.want)
			m.wantRead(t, conn, io.EOF)
			conn.Close()
			testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
		})
	}
	t.Run("in the middle of a transfer", func(t *testing.T) {
		at := fmt.Sprintf("%v:7010", s.B.Addr.Addr())
		p := unetd.Start(t, s.B, nil, exe, holderArg, at, "1000")
		p.Await(t, "listening")
		conn, err := s.host.Dial("tcp", at)
		testutil.Must(t, err)
		defer conn.Close()
		failed := make(chan error)
		go func() { failed <- send(conn, newStream(1, 1<<30), 100_000) }()
		p.Await(t, "holding")
		p.Kill(t)
		if err := <-failed; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("write: %v", err)
		}
		conn.Close()
		testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
	})
}

// A dial to a port without a listener is refused.
func TestDialToClosedPortIsRefused(t *testing.T) { overBoth(t, testDialToClosedPortIsRefused) }

func testDialToClosedPortIsRefused(t *testing.T, ipv6 bool) {
	s := openScene(t, config{ipv6: ipv6, check: func(t *testing.T, j *wiretap.Judge) {
		if j.Resets != 2 || j.KernelResets != 1 {
			t.Errorf("%v", j)
		}
	}})
	listener := s.listen(t, true)
	at := listener.Addr().String()
	testutil.Must(t, listener.Close())
	if _, err := s.B.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the kernel dials a port whose listener is closed: %v", err)
	}
	if _, err := s.host.Dial("tcp", netip.AddrPortFrom(s.B.IP(), 9).String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("we dial a port without a listener: %v", err)
	}
	// A connection that has not been accepted yet is reset when the listener closes.
	listener = s.listen(t, true)
	kernel, err := s.B.Dial("tcp", listener.Addr().String())
	testutil.Must(t, err)
	defer kernel.Close()
	kernel.SetDeadline(time.Now().Add(testTimeout))
	// The kernel's ACK would be answered by a second RST if it came after the first.
	testutil.Eventually(t, "the handshake is complete", func() bool { return s.counters()["tcp_handshakes"] == 1 })
	testutil.Must(t, listener.Close())
	if _, err := kernel.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read of a connection that was never accepted: %v", err)
	}
	testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// A RST in the middle of a transfer: the errors of the blocked writer and of the reader.
func TestResetInTransfer(t *testing.T) {
	t.Parallel()
	s := openScene(t, config{})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		t.Run("of ours", func(t *testing.T) { resetInTransfer(t, kernel, ours) })
	})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		t.Run("of the kernel's", func(t *testing.T) { resetInTransfer(t, ours, kernel) })
	})
	testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// resetInTransfer has one side write and read without an end, and the other
// reset the connection after a while.
func resetInTransfer(t *testing.T, lasting, resetting net.Conn) {
	var wg sync.WaitGroup
	var writeErr, readErr error
	wg.Go(func() { writeErr = send(lasting, newStream(1, 1<<30), 50_000) })
	wg.Go(func() { _, readErr = lasting.Read(make([]byte, 1)) })
	if err := expectMore(resetting, newStream(1, 3_000_000), 10_000); err != nil {
		t.Error(err)
	}
	testutil.Must(t, resetting.(interface{ SetLinger(int) error }).SetLinger(0))
	testutil.Must(t, resetting.Close())
	wg.Wait()
	// One of them gets ECONNRESET, as in the kernel; the other the end.
	var resets int
	for what, err := range map[string]error{"write": writeErr, "read": readErr} {
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			resets++
		case what == "write" && errors.Is(err, syscall.EPIPE), what == "read" && err == io.EOF:
		default:
			t.Errorf("%s by %s: %v", what, nameOf(lasting), err)
		}
	}
	if resets == 0 {
		t.Errorf("neither call returned ECONNRESET: %v, %v", writeErr, readErr)
	}
	if _, err := lasting.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write by %s after that: %v", nameOf(lasting), err)
	}
}

// Both dial, and their SYNs cross (RFC 9293, figure 7). The kernel's socket drops all
// segments until we have its SYN, so that it does not receive ours before.
func TestSimultaneousOpen(t *testing.T) { overBoth(t, testSimultaneousOpen) }

func testSimultaneousOpen(t *testing.T, ipv6 bool) {
	s := openScene(t, config{ipv6: ipv6, check: func(t *testing.T, j *wiretap.Judge) {
		if j.Crossed == 0 {
			t.Error("the SYNs did not cross")
		}
	}})
	us, them := netip.AddrPortFrom(s.A.IP(), 5000), netip.AddrPortFrom(s.B.IP(), 6000)
	var raw syscall.RawConn
	dropping := make(chan struct{})
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(them), Timeout: testTimeout,
		Control: func(_, _ string, c syscall.RawConn) error {
			raw = c
			err := netlab.SetDropAll(c, true)
			close(dropping)
			return err
		},
	}
	dialled := make(chan error, 1)
	var kernel net.Conn
	go func() {
		dialled <- s.B.Do(func() (err error) { kernel, err = dialer.Dial("tcp", us.String()); return err })
	}()
	<-dropping
	testutil.Eventually(t, "the kernel has dialled", func() bool {
		var i *unix.TCPInfo
		var optErr error
		err := raw.Control(func(fd uintptr) { i, optErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
		return err == nil && optErr == nil && i.State == netlink.TCP_SYN_SENT
	})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	opened := make(chan error, 1)
	var ours net.Conn
	go func() {
		c, err := s.host.DialTCP(ctx, us, them)
		ours = c
		opened <- err
	}()
	// Its first SYN found no listener, the second finds our dial.
	testutil.Eventually(t, "the kernel's SYN is received", func() bool { return s.counters()["tcp_segments_received"] > 0 })
	testutil.Must(t, netlab.SetDropAll(raw, false))
	testutil.Must(t, <-opened)
	defer ours.Close()
	testutil.Must(t, <-dialled)
	defer kernel.Close()
	for _, c := range []net.Conn{ours, kernel} {
		c.SetDeadline(time.Now().Add(testTimeout))
	}
	testutil.Must(t, exchange(ours, kernel, 100_000, pieces{100_000, 100_000}))
	testutil.Eventually(t, "nothing is left", func() bool { return s.idle(t) })
}
