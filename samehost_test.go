//go:build linux

package unet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// Programs of the host reach an endpoint on it, and the endpoint reaches them, in each mode, by TCP and
// UDP, with the host's address and with an owned address.
func TestSameHost(t *testing.T) { testSameHosts(t, "10.0.0.1", "10.0.0.77") }

// The same over IPv6.
func TestSameHostIPv6(t *testing.T) { testSameHosts(t, "fd00::1", "fd00::77") }

func testSameHosts(t *testing.T, shared, own string) {
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		for _, trusted := range []bool{true, false} {
			for _, owned := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/trusted=%v/owned=%v", mode, trusted, owned), func(t *testing.T) {
					t.Parallel()
					kernel := netip.MustParseAddr(shared)
					at := kernel
					if owned {
						at = netip.MustParseAddr(own)
					}
					testSameHost(t, mode, trusted, kernel, at)
				})
			}
		}
	}
}

// testSameHost is TestSameHost for a kernel's address, and an endpoint's, which may be the same.
func testSameHost(t *testing.T, mode mux.Mode, trusted bool, kernelAt, at netip.Addr) {
	p := netlab.RequirePair(t, netlab.Config{IPv6: at.Is6()})
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if at.Is6() {
		loopback = netip.IPv6Loopback()
	}
	on := func(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
	setting := func() string {
		var b []byte
		testutil.Must(t, p.A.Do(func() (err error) {
			// The strictest setting: the kernel believes a source only on the device of its route.
			if err = os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0); err == nil {
				b, err = os.ReadFile("/proc/sys/net/ipv4/conf/lo/accept_local")
			}
			return err
		}))
		return string(b)
	}
	was := setting()
	m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Mode: mode, Policy: mux.Permit(mux.Terms{Trusted: trusted})})
	testutil.Must(t, err)
	defer func() {
		testutil.Must(t, m.Close())
		if now := setting(); now != was {
			t.Errorf("accept_local of lo is %q after the end of the mux, was %q", now, was)
		}
	}()
	cfg := unet.HostConfig{}
	if at != kernelAt {
		cfg.Addrs = []netip.Addr{at}
	}
	grant, lease, err := m.OpenEndpoint(t.Context(), endpoint.Request{})
	testutil.Must(t, err)
	h, err := unet.New(t.Context(), grant, lease, cfg)
	testutil.Must(t, err)
	defer func() { testutil.Must(t, h.Close()) }()

	// Kernel to endpoint.
	l, err := h.Listen(t.Context(), "tcp", ":8080")
	testutil.Must(t, err)
	body := bytes.Repeat([]byte("0123456789abcdef"), 2<<20/16)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("the endpoint has received %d bytes, %v", len(got), err)
		}
		w.Write(body)
	})}
	go server.Serve(l)
	defer server.Close()
	client := &http.Client{Timeout: testTimeout, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(_ context.Context, network, address string) (net.Conn, error) { return p.A.Dial(network, address) }}}
	post := func(client *http.Client, to string) {
		t.Helper()
		r, err := client.Post("http://"+to, "text/plain", bytes.NewReader(body))
		testutil.Must(t, err)
		got, err := io.ReadAll(r.Body)
		testutil.Must(t, errors.Join(err, r.Body.Close()))
		if !bytes.Equal(got, body) {
			t.Errorf("received %d bytes", len(got))
		}
	}
	post(client, on(at, 8080))

	u, err := h.ListenPacket(t.Context(), "udp", ":5353")
	testutil.Must(t, err)
	defer u.Close()
	k, err := p.A.ListenUDP(on(kernelAt, 0))
	testutil.Must(t, err)
	defer k.Close()
	testutil.Must(t, errors.Join(k.SetDeadline(time.Now().Add(testTimeout)), u.SetDeadline(time.Now().Add(testTimeout))))
	toEndpoint := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 5353))
	exchange := func(from, to net.PacketConn, at net.Addr, text string) net.Addr {
		t.Helper()
		_, err := from.WriteTo([]byte(text), at)
		testutil.Must(t, err)
		b := make([]byte, 2048)
		n, src, err := to.ReadFrom(b)
		testutil.Must(t, err)
		if string(b[:n]) != text {
			t.Fatalf("received %q, want %q", b[:n], text)
		}
		return src
	}
	src := exchange(k, u, toEndpoint, "kernel to endpoint")
	if src.String() != k.LocalAddr().String() {
		t.Errorf("a datagram from %v came from %v", k.LocalAddr(), src)
	}
	exchange(u, k, src, "answer to the kernel")
	exchange(u, k, k.LocalAddr(), "endpoint to kernel")

	// Endpoint to kernel.
	kl, err := p.A.Listen("tcp", on(kernelAt, 6379))
	testutil.Must(t, err)
	kernel := &http.Server{Handler: server.Handler}
	go kernel.Serve(kl)
	defer kernel.Close()
	client = &http.Client{Timeout: testTimeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.DialContext}}
	post(client, on(kernelAt, 6379))
	// A port of the kernel where nothing listens.
	if c, err := h.Dial("tcp", on(kernelAt, 81)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial of a kernel's port without a listener: %v, %v", c, err)
	}
	if c, err := p.A.Dial("tcp", on(at, 82)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial by the kernel of an endpoint's port without a listener: %v, %v", c, err)
	}

	// The loopback addresses are the kernel's.
	if c, err := h.Dial("tcp", on(loopback, 6379)); err == nil || !strings.Contains(err.Error(), loopback.String()) {
		t.Errorf("dialed %v: %v, %v", loopback, c, err)
	} else {
		t.Log(err)
	}
	if c, err := h.Listen(t.Context(), "tcp", on(loopback, 9999)); err == nil {
		t.Errorf("listens at %v: %v", loopback, c)
	} else {
		t.Log(err)
	}
	list, err := m.Counters()
	testutil.Must(t, err)
	for _, c := range list {
		switch {
		case c.Value != 0:
			t.Logf("%s %d", c.Name, c.Value)
		case c.Name == "rx_host" || c.Name == "tx_host":
			t.Errorf("%s is 0", c.Name)
		}
	}
}

// An endpoint on a queue sends only to the wire. Sends to its own host fail at once: to the kernel's
// address and to that of another endpoint.
func TestSameHostFromQueue(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	m := openMuxWith(t, p.A, mux.Config{Policy: mux.Permit(mux.Terms{Trusted: true})})
	queue := openAttached(t, m, endpoint.AttachQueue, unet.HostConfig{})
	owned := netip.MustParseAddr("10.0.0.77")
	openAttached(t, m, endpoint.AttachPort, unet.HostConfig{Addrs: []netip.Addr{owned}})
	for _, to := range []string{"10.0.0.1:6379", netip.AddrPortFrom(owned, 80).String()} {
		if c, err := queue.Dial("tcp", to); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("dial of %s: %v, %v", to, c, err)
		}
		u, err := queue.Dial("udp", to)
		testutil.Must(t, err)
		defer u.Close()
		if _, err := u.Write([]byte("x")); !errors.Is(err, endpoint.ErrUnreachable) || !errors.Is(err, syscall.EHOSTUNREACH) || !strings.Contains(err.Error(), "queue") {
			t.Errorf("datagram to %s: %v", to, err)
		}
	}
}
