//go:build linux

package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/test/internal/wiretap"
)

const testTimeout = unetd.TestTimeout

// TestMain has more scenes at a time than processors: some of them wait for timers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == holderArg {
		runHolder()
	}
	testutil.Parallel(4)
	os.Exit(m.Run())
}

// config shapes a scene. The zero value is the usual one.
type config struct {
	mtu             int
	ipv6            bool // over IPv6
	attach          endpoint.Attachment
	untrusted       bool
	offloads        *bool // of the kernel's interface: all on or all off; nil: as they are
	partialChecksum bool  // one segment with a partial checksum is dropped, after complete ones

	check func(t *testing.T, j *wiretap.Judge) // what else is expected of the capture
}

// scene is a host of ours on a mux of this process on host A, the kernel of host
// B, and a capture of what goes between them.
type scene struct {
	*netlab.Pair
	host    *unet.Host
	capture *wiretap.Capture
}

func openScene(t *testing.T, c config) *scene {
	t.Helper()
	s := &scene{Pair: netlab.RequirePair(t, netlab.Config{MTU: c.mtu, IPv6: c.ipv6, LinkLocal: c.ipv6})}
	if c.offloads != nil {
		testutil.Must(t, s.B.Do(func() error { return netlab.SetOffloads(s.B.Interface, *c.offloads) }))
	}
	if c.ipv6 { // A's kernel sends RSTs for ports without a listener, and leaves their checksums to the device
		testutil.Must(t, s.A.Do(func() error { return netlab.SetOffloads(s.A.Interface, false) }))
	}
	s.capture = wiretap.Start(t, wiretap.Config{Host: s.B, Interface: s.B.Interface, Ours: s.A})
	m, err := mux.Open(mux.Config{Interface: s.A.Interface, NetNS: s.A.NS, Policy: mux.Permit(mux.Terms{Trusted: !c.untrusted})})
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("close of the mux: %v", err)
		}
	})
	owner := mux.Owner{PID: os.Getpid(), UID: uint32(os.Geteuid())}
	grant, lease, err := m.OpenEndpointFor(t.Context(), owner, endpoint.Request{Attach: c.attach})
	testutil.Must(t, err)
	s.host, err = unet.New(t.Context(), grant, lease, unet.HostConfig{})
	if err != nil {
		testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
	}
	t.Cleanup(func() { s.check(t, c) })
	return s
}

// check closes the host, and checks the counters and the capture.
func (s *scene) check(t *testing.T, c config) {
	t.Helper()
	if err := s.host.Close(); err != nil {
		t.Errorf("close of the host: %v", err)
	}
	counted := s.counters()
	for _, name := range []string{"tcp_bad_length", "tcp_bad_options", "tcp_overlap_mismatch", "ipv4_checksum", "ipv4_length", "ipv6_truncated", "ipv6_extension"} {
		if counted[name] != 0 {
			t.Errorf("we have counted %s: %d", name, counted[name])
		}
	}
	if n := counted["tcp_bad_checksum"]; n > 1 || (n == 1) != c.partialChecksum {
		t.Errorf("we have counted tcp_bad_checksum: %d", n)
	}
	for _, c := range [][2]string{{"Tcp", "InErrs"}, {"Tcp", "InCsumErrors"}, {"TcpExt", "PAWSEstab"}, {"TcpExt", "TCPSACKDiscard"}, {"TcpExt", "TCPSACKReneging"}} {
		if n := s.kernelCount(t, c[0], c[1]); n != 0 {
			t.Errorf("the kernel has counted %s %s: %d", c[0], c[1], n)
		}
	}
	dropped := s.dropped(t)
	if dropped > 0 {
		t.Logf("the cable has lost %d frames: gaps are expected", dropped)
	}
	s.capture.Verdict(t, counted, dropped == 0)
	if c.check != nil {
		c.check(t, s.capture.Judge)
	}
}

// dropped is how many frames the kernel has dropped on the way, on any interface
// of the two hosts.
func (s *scene) dropped(t *testing.T) (n uint64) {
	t.Helper()
	for _, h := range []*netlab.Host{s.A, s.B} {
		testutil.Must(t, h.Do(func() error {
			links, err := route.Dump(netlink.LinkList)
			for _, l := range links {
				if st := l.Attrs().Statistics; st != nil {
					n += st.RxDropped + st.TxDropped
				}
			}
			return err
		}))
	}
	return n
}

// counters are those of our stack.
func (s *scene) counters() map[string]uint64 {
	out := make(map[string]uint64)
	for _, c := range s.host.Counters() {
		out[c.Name] = c.Value
	}
	return out
}

// sysctl sets a variable of net.ipv4 on the kernel's host.
func (s *scene) sysctl(t *testing.T, name, value string) {
	t.Helper()
	testutil.Must(t, s.B.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net/ipv4", name), []byte(value), 0)
	}))
}

// roles runs a test as the client of the kernel and as its server.
func (s *scene) roles(t *testing.T, f func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn)) {
	for _, role := range []string{"dial", "accept"} {
		t.Run(role, func(t *testing.T) {
			ours, kernel := s.connect(t, role == "dial")
			defer ours.Close()
			defer kernel.Close()
			f(t, ours, kernel)
		})
	}
}

// connect makes a connection between our host and the kernel.
func (s *scene) connect(t *testing.T, dial bool) (ours *unet.TCPConn, kernel *net.TCPConn) {
	t.Helper()
	listener := s.listen(t, !dial)
	defer listener.Close()
	dialled, err := s.dial(dial, listener.Addr().String())
	testutil.Must(t, err)
	accepted, err := listener.Accept()
	testutil.Must(t, err)
	if !dial {
		dialled, accepted = accepted, dialled
	}
	for _, c := range []net.Conn{dialled, accepted} {
		c.SetDeadline(time.Now().Add(testTimeout))
	}
	return dialled.(*unet.TCPConn), accepted.(*net.TCPConn)
}

// listen listens at a free port, on our host or in the kernel.
func (s *scene) listen(t *testing.T, ours bool) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	if ours {
		l, err = s.host.Listen(t.Context(), "tcp", netip.AddrPortFrom(s.A.IP(), 0).String())
	} else {
		l, err = s.B.Listen("tcp", netip.AddrPortFrom(s.B.IP(), 0).String())
	}
	testutil.Must(t, err)
	return l
}

// dial connects from our host or from the kernel.
func (s *scene) dial(ours bool, to string) (net.Conn, error) {
	if ours {
		return s.host.Dial("tcp", to)
	}
	return s.B.Dial("tcp", to)
}

// kernelCount is a counter of the kernel's host, as in /proc/net/snmp and
// /proc/net/netstat.
func (s *scene) kernelCount(t *testing.T, group, name string) uint64 {
	t.Helper()
	n, err := s.B.Counted(group + name)
	testutil.Must(t, err)
	return n
}

// kernelSockets are the states of the TCP sockets of the kernel's host, listeners
// left out, and how many are in each.
func (s *scene) kernelSockets(t *testing.T) map[string]int {
	t.Helper()
	states := make(map[string]int)
	testutil.Must(t, s.B.Do(func() error {
		family := uint8(unix.AF_INET)
		if s.A.IP().Is6() {
			family = unix.AF_INET6
		}
		all, err := netlink.SocketDiagTCP(family)
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
	testutil.Must(t, err)
	var i *unix.TCPInfo
	var optErr error
	testutil.Must(t, raw.Control(func(fd uintptr) { i, optErr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	testutil.Must(t, optErr)
	return i
}

// holderArg makes this test binary a process that holds a connection of the
// kernel's: it listens, accepts one connection, reads as many bytes of it as its
// command line says, and waits for its end.
const holderArg = "hold-a-connection"

func runHolder() {
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
