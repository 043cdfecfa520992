//go:build linux

package death

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

var (
	ownedAddr  = address{addr: "10.0.0.77"}
	otherOwned = address{addr: "10.0.0.88"}
)

// crashes are the ways in which an application ends without closing anything.
var crashes = map[string]func(t *testing.T, a *app){
	"SIGKILL": func(t *testing.T, a *app) { a.Kill(t) },
	"os.Exit": func(t *testing.T, a *app) { a.send(t, "exit"); a.End(t) },
	"panic":   func(t *testing.T, a *app) { a.send(t, "panic"); a.End(t) },
}

// addresses are what an application listens on.
var addresses = map[string]address{
	"shared address": {}, "owned address": ownedAddr,
	"shared IPv6 address": {ipv6: true}, "owned IPv6 address": {addr: "fd00::77", ipv6: true},
}

// kernelDials makes a connection from a host's kernel to an application, which calls it
// name. Neither side sends keepalives, so only a RST or FIN can end it.
func kernelDials(t *testing.T, on *netlab.Host, a *app, name string) *net.TCPConn {
	t.Helper()
	c, err := on.Dial("tcp", a.at)
	testutil.Must(t, err)
	a.do(t, "accept %s", name)
	return withoutKeepAlive(t, c)
}

// kernelAccepts makes one to a host's kernel.
func kernelAccepts(t *testing.T, on *netlab.Host, a *app, name string) *net.TCPConn {
	t.Helper()
	ip := on.Addr.Addr()
	if a.ipv6 {
		ip = on.Addr6.Addr()
	}
	l, err := on.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
	testutil.Must(t, err)
	defer l.Close()
	a.do(t, "dial %v %s", l.Addr(), name)
	c, err := l.Accept()
	testutil.Must(t, err)
	return withoutKeepAlive(t, c)
}

func withoutKeepAlive(t *testing.T, c net.Conn) *net.TCPConn {
	t.Helper()
	t.Cleanup(func() { c.Close() })
	tcp := c.(*net.TCPConn)
	testutil.Must(t, tcp.SetKeepAlive(false))
	testutil.Must(t, tcp.SetDeadline(time.Now().Add(unetd.TestTimeout)))
	return tcp
}

// wantReset reads to the end, which has to be a RST.
func wantReset(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %d bytes, then %v: want ECONNRESET", what, n, err)
	}
}

// openConns are connections in all states that matter: idle, in the middle of what they
// receive, and sending to an application that does not read.
type openConns struct {
	idle                []*net.TCPConn
	readErrs, writeErrs chan error // the end of each that receives, and that sends
}

func connectAll(t *testing.T, on *netlab.Host, a *app) *openConns {
	t.Helper()
	b := &openConns{readErrs: make(chan error, 2), writeErrs: make(chan error, 2)}
	for role, connect := range map[string]func(*testing.T, *netlab.Host, *app, string) *net.TCPConn{"client": kernelDials, "server": kernelAccepts} {
		for i := range 3 {
			b.idle = append(b.idle, connect(t, on, a, fmt.Sprint(role, "-idle-", i)))
		}
		name := role + "-stream"
		c := connect(t, on, a, name)
		a.do(t, "stream %s", name)
		if _, err := io.CopyN(io.Discard, c, 1<<20); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := io.Copy(io.Discard, c)
			b.readErrs <- err
		}()
		sink := connect(t, on, a, role+"-sink")
		go func() {
			_, err := io.Copy(sink, zeros{})
			b.writeErrs <- err
		}()
	}
	return b
}

// wantResets reads to the end of all.
func (b *openConns) wantResets(t *testing.T) {
	t.Helper()
	for _, c := range b.idle {
		wantReset(t, "an idle connection", c)
	}
	for range cap(b.readErrs) {
		if err := <-b.readErrs; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a connection that receives: %v, want ECONNRESET", err)
		}
		if err := <-b.writeErrs; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a connection that sends: %v, want ECONNRESET", err)
		}
	}
}

// The peers of an application get a RST, however it ends.
func TestPeersGetResetHoweverApplicationEnds(t *testing.T) {
	for how, end := range crashes {
		for where, at := range addresses {
			t.Run(how+"/"+where, func(t *testing.T) {
				pair := netlab.RequirePair(t, netlab.Config{IPv6: at.ipv6, LinkLocal: at.ipv6})
				d := unetd.Serve(t, pair.A, unetd.Options{})
				a := start(t, pair, d.Socket, at)
				all := connectAll(t, pair.B, a)
				end(t, a)
				all.wantResets(t)
			})
		}
	}
}

// A new unetd resets the connections too: it gets their table with the endpoint.
func TestResetAfterUnetdRestart(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	d := unetd.Serve(t, pair.A, unetd.Options{})
	a := start(t, pair, d.Socket, ownedAddr)
	before := kernelDials(t, pair.B, a, "before")
	d.Kill(t)
	d.Start(t)
	d.Await(t, "endpoint presented")
	after := kernelDials(t, pair.B, a, "after")
	a.Kill(t)
	wantReset(t, "a connection from before", before)
	wantReset(t, "a connection from after", after)
}

// unetd takes its endpoints down when it is stopped, and with them their connections.
func TestResetWhenUnetdStops(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	d := unetd.Serve(t, pair.A, unetd.Options{})
	a := start(t, pair, d.Socket, ownedAddr)
	c := kernelDials(t, pair.B, a, "c")
	testutil.Must(t, d.Stop(t))
	wantReset(t, "a connection", c)
}

func setDropAll(t *testing.T, c *net.TCPConn, drop bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, netlab.SetDropAll(raw, drop))
}

// The application's last data was lost, so the sequence number of the RST is not the expected one.
// The peer sends a challenge ACK, and gets the exact RST.
func TestResetAfterChallengeACK(t *testing.T) {
	for where, at := range addresses {
		t.Run(where, func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{IPv6: at.ipv6, LinkLocal: at.ipv6})
			d := unetd.Serve(t, pair.A, unetd.Options{})
			a := start(t, pair, d.Socket, at)
			c := kernelDials(t, pair.B, a, "c")
			a.do(t, "write 1000 c")
			if _, err := io.CopyN(io.Discard, c, 1000); err != nil {
				t.Fatal(err)
			}
			setDropAll(t, c, true)
			a.do(t, "write 5000 c")
			// It is stopped, so that it cannot send again what was lost.
			testutil.Must(t, a.Cmd.Process.Signal(syscall.SIGSTOP))
			if !testutil.Until(func() bool { return stopped(t, a.PID()) }) {
				t.Fatal("the application is not stopped")
			}
			setDropAll(t, c, false)
			a.Kill(t)
			wantReset(t, "a connection", c)
		})
	}
}

// stopped reports whether all threads of a process are.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	testutil.Must(t, err)
	for _, task := range tasks {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
		testutil.Must(t, err)
		if _, state, _ := strings.Cut(string(stat), ") "); state[0] != 'T' {
			return false
		}
	}
	return true
}

// The peer is another endpoint on the same host, which no frame from the wire reaches.
func TestResetToEndpointOfSameHost(t *testing.T) {
	for where, at := range addresses {
		t.Run(where, func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{IPv6: at.ipv6, LinkLocal: at.ipv6})
			d := unetd.Serve(t, pair.A, unetd.Options{})
			a := start(t, pair, d.Socket, at)
			other := otherOwned
			if at.ipv6 {
				other = address{addr: "fd00::88", ipv6: true}
			}
			b := start(t, pair, d.Socket, other)
			b.do(t, "dial %s to", a.at)
			a.do(t, "accept from-b")
			a.do(t, "dial %s back", b.at)
			b.do(t, "accept from-a")
			for _, c := range []string{"to", "from-a"} {
				b.do(t, "read %s", c)
			}
			a.do(t, "stream from-b")
			b.Await(t, "megabyte to")
			a.Kill(t)
			// The other connection may have a gap at that moment, and is not promised a RST then.
			b.Await(t, "ended from-a true")
		})
	}
}

// The peer is the kernel of the same host.
func TestResetToKernelOfSameHost(t *testing.T) {
	for where, at := range addresses {
		t.Run(where, func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{IPv6: at.ipv6, LinkLocal: at.ipv6})
			// The kernel accepts a source address only on the device of the route to it.
			testutil.Must(t, pair.A.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0) }))
			d := unetd.Serve(t, pair.A, unetd.Options{})
			a := start(t, pair, d.Socket, at)
			dialed, accepted := kernelDials(t, pair.A, a, "dialed"), kernelAccepts(t, pair.A, a, "accepted")
			a.Kill(t)
			wantReset(t, "a connection that the kernel has dialed", dialed)
			wantReset(t, "a connection that the kernel has accepted", accepted)
		})
	}
}

// Host.Close sends what was written, and a FIN.
func TestHostCloseSendsDataAndFIN(t *testing.T) {
	for where, at := range addresses {
		t.Run(where, func(t *testing.T) {
			pair := netlab.RequirePair(t, netlab.Config{IPv6: at.ipv6, LinkLocal: at.ipv6})
			d := unetd.Serve(t, pair.A, unetd.Options{})
			a := start(t, pair, d.Socket, at)
			idle, c := kernelDials(t, pair.B, a, "idle"), kernelDials(t, pair.B, a, "c")
			const size = 1 << 20
			a.send(t, "write %d c", size)
			a.send(t, "close")
			a.send(t, "exit")
			if n, err := io.Copy(io.Discard, c); n != size || err != nil {
				t.Errorf("%d bytes, then %v: want %d, then the end", n, err, size)
			}
			if n, err := io.Copy(io.Discard, idle); n != 0 || err != nil {
				t.Errorf("an idle connection: %d bytes, %v: want the end", n, err)
			}
			a.End(t)
		})
	}
}
