//go:build linux

package unet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// openTwo makes a cable with a unet.Host at each end.
func openTwo(t *testing.T, cfg unet.HostConfig) (a, b *unet.Host) {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{})
	return openHost(t, p.A, cfg), openHost(t, p.B, cfg)
}

func TestTCPConformsToNetConn(t *testing.T) {
	for _, how := range []endpoint.Attachment{endpoint.AttachPort, endpoint.AttachQueue} {
		p := dualPair(t, 0)
		a, b := openAttached(t, openMux(t, p.A), how, unet.HostConfig{}), openAttached(t, openMux(t, p.B), how, unet.HostConfig{})
		for _, at := range []string{"10.0.0.1", "fd00::1"} {
			t.Run(fmt.Sprint(how, "/", at), func(t *testing.T) { unet.CheckNetConn(t, a, b, at) })
		}
	}
	for _, at := range []string{"10.0.0.1", "fd00::1"} {
		t.Run("memory/"+at, func(t *testing.T) {
			n := openNeighbours(t, mux.Terms{Trusted: true}, false, [2]unet.HostConfig{})
			n.awaitMemory(t, at)
			before := n.sentByPorts(t)
			unet.CheckNetConn(t, n.hosts[1], n.hosts[0], at)
			if sent := n.sentByPorts(t) - before; sent != 0 {
				t.Errorf("%d frames went by the ports", sent)
			}
		})
	}
}

// The server and the client of net/http, unchanged, on unet.
func TestHTTP(t *testing.T) {
	a, b := openTwo(t, unet.HostConfig{})
	l, err := a.Listen(t.Context(), "tcp", ":80")
	testutil.Must(t, err)
	body := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{4}).Read(body)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Sum", fmt.Sprintf("%x", sha256.Sum256(sent)))
		w.Write(body)
	})}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	client := &http.Client{Transport: &http.Transport{DialContext: b.DialContext, MaxIdleConnsPerHost: 10}, Timeout: testTimeout}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			for k := range 10 {
				sent := bytes.Repeat([]byte{byte(i)}, k*1000)
				resp, err := client.Post("http://"+l.Addr().String()+"/", "application/octet-stream", bytes.NewReader(sent))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || !bytes.Equal(got, body) || resp.Header.Get("X-Sum") != fmt.Sprintf("%x", sha256.Sum256(sent)) {
					t.Errorf("request %d.%d: %d bytes, %v", i, k, len(got), err)
				}
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if err := <-served; err != http.ErrServerClosed {
		t.Errorf("serve: %v", err)
	}
}

func TestTCPDialErrors(t *testing.T) {
	l := openLab(t)
	for name, v := range map[string]string{"mcast_solicit": "1", "retrans_time_ms": "10"} {
		l.setNeighSysctl(t, l.A, name, v)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for to, want := range map[string]error{"10.0.0.2:99": syscall.ECONNREFUSED, "10.0.0.99:80": syscall.EHOSTUNREACH, "192.0.2.1:80": syscall.ENETUNREACH} {
		_, err := l.host.DialContext(ctx, "tcp", to)
		var op *net.OpError
		if !errors.Is(err, want) || !errors.As(err, &op) || op.Op != "dial" || op.Net != "tcp" || op.Addr.String() != to {
			t.Errorf("dial of %s: %v, want %v", to, err, want)
		}
	}
	// A neighbour that does not answer.
	l.on(t, l.B, netlink.LinkSetARPOff)
	l.setNeighSysctl(t, l.A, "retrans_time_ms", "60000") // or that is EHOSTUNREACH after 10 ms
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := l.host.DialContext(short, "tcp", "10.0.0.98:80")
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial without an answer: %v", err)
	}
	if _, err := l.host.Listen(t.Context(), "udp", ":0"); err == nil {
		t.Error("listen for udp")
	}
	if _, err := l.host.ListenPacket(t.Context(), "tcp", ":0"); err == nil {
		t.Error("listen for packets of tcp")
	}
}

// The host holds a port while it is used: by the listener, or by a connection that was accepted
// there.
func TestTCPListenerPorts(t *testing.T) {
	l := openLab(t)
	at := netip.AddrPortFrom(l.host.Addr(), 8080)
	listener, err := l.host.ListenTCP(t.Context(), at)
	testutil.Must(t, err)
	if _, err := l.host.ListenTCP(t.Context(), at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen twice: %v", err)
	}
	kernel, err := l.B.Dial("tcp", at.String())
	testutil.Must(t, err)
	defer kernel.Close()
	ours, err := listener.Accept()
	testutil.Must(t, err)
	testutil.Must(t, listener.Close())
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if _, err := l.B.Dial("tcp", at.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial after close: %v", err)
	}
	_, err = kernel.Write([]byte("after Close"))
	testutil.Must(t, err)
	buf := make([]byte, 20)
	if n, err := ours.Read(buf); string(buf[:n]) != "after Close" || err != nil {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	listener, err = l.host.ListenTCP(t.Context(), at) // again, at the port of a connection that is open
	testutil.Must(t, err)
	testutil.Must(t, listener.Close())
	before := l.lease.claims.Load()
	testutil.Must(t, ours.Close())
	testutil.Must(t, kernel.Close())
	// When all connections have ended the port is given back, and the next listener claims it again.
	testutil.Eventually(t, "the port is free", func() bool {
		listener, err = l.host.ListenTCP(t.Context(), at)
		testutil.Must(t, err)
		testutil.Must(t, listener.Close())
		return l.lease.claims.Load() != before
	})
}

// A listener is closed while connections are opened, ten times: each connection is served or reset, and
// the port can be listened on again.
func TestTCPListenerClosesUnderLoad(t *testing.T) {
	l := openLab(t)
	at := netip.AddrPortFrom(l.host.Addr(), 8080)
	for range 10 {
		listener, err := l.host.ListenTCP(t.Context(), at)
		testutil.Must(t, err)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for n := 0; ; n++ {
				c, err := listener.Accept()
				if err != nil {
					if !errors.Is(err, net.ErrClosed) {
						t.Errorf("accept: %v", err)
					}
					return
				}
				c.Close()
				if n == 3 {
					go listener.Close()
				}
			}
		}()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				c, err := l.B.Dial("tcp", at.String())
				if err != nil {
					return
				}
				c.SetDeadline(time.Now().Add(testTimeout))
				if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Error("a connection is neither served nor reset")
				}
				c.Close()
			})
		}
		wg.Wait()
		listener.Close()
		<-served
	}
}

// Outgoing connections share blocks of ports: connections one after another use the same blocks.
func TestTCPDialsShareABlock(t *testing.T) {
	l := openLab(t)
	server, err := l.B.Listen("tcp", "10.0.0.2:0")
	testutil.Must(t, err)
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	for range 3 * endpoint.BlockPorts {
		c, err := l.host.Dial("tcp", server.Addr().String())
		testutil.Must(t, err)
		testutil.Must(t, c.Close())
	}
	if n := l.lease.claims.Load(); n > 6 {
		t.Errorf("%d claims", n)
	}
}

// net/http on unet at one end, and on the kernel at the other.
func TestHTTPWithKernel(t *testing.T) {
	l := openLab(t)
	listener, err := l.host.Listen(t.Context(), "tcp", ":8000")
	testutil.Must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello from unet\n")
	})}
	go server.Serve(listener)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{DialContext: func(_ context.Context, network, addr string) (net.Conn, error) {
		return l.B.Dial(network, addr)
	}}, Timeout: testTimeout}
	resp, err := client.Get("http://10.0.0.1:8000/")
	testutil.Must(t, err)
	got, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(got) != "hello from unet\n" || err != nil {
		t.Errorf("a client on the kernel: %q, %v", got, err)
	}
	client.CloseIdleConnections()

	kernelListener, err := l.B.Listen("tcp", "10.0.0.2:8000")
	testutil.Must(t, err)
	kernelServer := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello from the kernel\n")
	})}
	go kernelServer.Serve(kernelListener)
	defer kernelServer.Close()
	client = &http.Client{Transport: &http.Transport{DialContext: l.host.DialContext}, Timeout: testTimeout}
	resp, err = client.Get("http://10.0.0.2:8000/")
	testutil.Must(t, err)
	got, err = io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(got) != "hello from the kernel\n" || err != nil {
		t.Errorf("a server on the kernel: %q, %v", got, err)
	}
	client.CloseIdleConnections()
}

// Read and Write of a connection allocate nothing.
func TestTCPNoAllocations(t *testing.T) {
	a, b := openTwo(t, unet.HostConfig{Wait: endpoint.WaitSpin})
	l, err := a.Listen(t.Context(), "tcp", ":0")
	testutil.Must(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		buf := make([]byte, 100)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			c.Write(buf[:n])
		}
	}()
	c, err := b.Dial("tcp", l.Addr().String())
	testutil.Must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(testTimeout))
	p, buf := make([]byte, 64), make([]byte, 100)
	// Other goroutines of the process are counted too: on a busy machine a round trip can take
	// so long that they allocate during it. An allocation of the round trip itself is counted each time.
	n := 1.0
	for range 3 {
		if n = min(n, testing.AllocsPerRun(200, func() {
			if _, err := c.Write(p); err != nil {
				t.Error(err)
			}
			if _, err := io.ReadFull(c, buf[:64]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
		})); n == 0 {
			return
		}
	}
	t.Errorf("%v allocations", n)
}
