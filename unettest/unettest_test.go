package unettest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/unettest"
)

// connect dials from one host to a listener at the other.
func connect(t *testing.T, from, to *unet.Host, port string) (client, server net.Conn) {
	t.Helper()
	l, err := to.Listen(t.Context(), "tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = from.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

func TestConnConformsToNetConn(t *testing.T) {
	a, b := unettest.Pair(t)
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c1, c2 = connect(t, a, b, ":7000")
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}

// A service that takes a unet.Network is served by name.
func TestHTTP(t *testing.T) {
	lan := unettest.New(t, unettest.Options{Hosts: []string{"server", "client", "other"}})
	serve := func(n unet.Network) {
		l, err := n.Listen(t.Context(), "tcp", ":80")
		if err != nil {
			t.Fatal(err)
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello ", r.Host) }))
	}
	serve(lan.Host("server"))
	for _, from := range []string{"client", "other"} {
		transport := &http.Transport{DialContext: lan.Host(from).DialContext}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get("http://server/")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(text) != "hello server" {
			t.Errorf("%s: %q, %v", from, text, err)
		}
	}
}

// httptest's server and client speak HTTP/2 over TLS, unchanged, on an IPv4 and an IPv6 address.
func TestHTTP2(t *testing.T) {
	lan := unettest.New(t, unettest.Options{IPv6: true})
	sent := bytes.Repeat([]byte("0123456789"), 30_000)
	for _, at := range []string{"10.0.0.1:443", "[fd00::1]:443"} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got, err := io.ReadAll(r.Body)
			fmt.Fprint(w, r.Proto, " ", bytes.Equal(got, sent), " ", err)
		}))
		server.Listener.Close() // of package net
		var err error
		if server.Listener, err = lan.Host("a").Listen(t.Context(), "tcp", at); err != nil {
			t.Fatal(err)
		}
		server.EnableHTTP2 = true
		server.StartTLS()
		client := server.Client()
		transport := client.Transport.(*http.Transport)
		transport.DialContext = lan.Host("b").DialContext
		transport.TLSClientConfig.ServerName = "example.com" // the certificate's
		var requests sync.WaitGroup
		for range 8 { // streams of one connection
			requests.Go(func() {
				resp, err := client.Post(server.URL, "", bytes.NewReader(sent))
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(text) != "HTTP/2.0 true <nil>" {
					t.Errorf("%s: %q, %v", at, text, err)
				}
			})
		}
		requests.Wait()
		server.Close()
	}
}

func TestNameLookup(t *testing.T) {
	a, b := unettest.Pair(t)
	for name, want := range map[string]string{"a": a.Addr().String(), "B": b.Addr().String()} {
		if got, err := b.Resolver().LookupHost(t.Context(), name); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, want)
		}
	}
	_, err := a.DialContext(t.Context(), "udp", "c:80")
	if dns, ok := errors.AsType[*net.DNSError](err); !ok || !dns.IsNotFound {
		t.Errorf("a name of no host: %v", err)
	}
	if _, err := a.Dial("tcp", "10.0.0.9:80"); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("an address of no host: %v", err)
	}
	if _, err := a.Dial("tcp", "b:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a port without a listener: %v", err)
	}
}

// With IPv6, a listener serves both families, and a name is dialled at either address.
func TestIPv6(t *testing.T) {
	lan := unettest.New(t, unettest.Options{IPv6: true})
	a, b := lan.Host("a"), lan.Host("b")
	l, err := b.Listen(t.Context(), "tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	for network, want := range map[string]string{"tcp4": "10.0.0.1", "tcp6": "fd00::1"} {
		c, err := a.Dial(network, "b:80")
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if from, _, _ := net.SplitHostPort(server.RemoteAddr().String()); from != want {
			t.Errorf("%s: dialled from %s, want %s", network, from, want)
		}
		c.Close()
		server.Close()
	}
	if _, err := a.Dial("tcp", "[fd00::9]:80"); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("an address of no host: %v", err)
	}
}

// All data arrives over a path that loses, duplicates and reorders frames. In a synctest bubble this
// takes no real time.
func TestImpairedPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := unettest.New(t, unettest.Options{Seed: 1, Path: unettest.Path{
			Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.02, Duplicate: 0.02,
			Reorder: 0.05, HoldBack: 10 * time.Millisecond, Rate: 10_000_000,
		}})
		begun := time.Now()
		client, server := connect(t, lan.Host("a"), lan.Host("b"), ":80")
		defer server.Close()
		sent := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
		go func() {
			client.Write(sent)
			client.Close()
		}()
		got, err := io.ReadAll(server)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
		}
		if took := time.Since(begun); took < time.Duration(len(sent))*8*time.Second/10_000_000 {
			t.Errorf("%d bytes at 10 Mbit/s in %v of virtual time", len(sent), took)
		}
	})
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := unettest.New(t, unettest.Options{})
		client, server := connect(t, lan.Host("a"), lan.Host("b"), ":80")
		defer client.Close()
		defer server.Close()
		lan.SetPath("a", "b", unettest.Path{Delay: 70 * time.Millisecond})
		go io.Copy(server, server)
		begun := time.Now()
		client.Write([]byte("x"))
		if _, err := client.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took < 70*time.Millisecond || took > 100*time.Millisecond {
			t.Errorf("a round trip of 70 ms takes %v of virtual time", took)
		}
	})
}

// Hosts on one side of a partition reach each other. Data that was sent to the other side arrives
// after Heal.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := unettest.New(t, unettest.Options{Hosts: []string{"a", "b", "c"}})
		a, b, c := lan.Host("a"), lan.Host("b"), lan.Host("c")
		ab, ba := connect(t, a, b, ":80")
		ac, ca := connect(t, a, c, ":80")
		for _, conn := range []net.Conn{ab, ba, ac, ca} {
			defer conn.Close()
		}
		lan.Partition("c")
		lan.Partition("b", "c")
		lan.Heal()
		lan.Partition("c")
		buf := make([]byte, 1)
		read := func(conn net.Conn) error {
			conn.SetReadDeadline(time.Now().Add(time.Second))
			_, err := conn.Read(buf)
			return err
		}
		ab.Write(buf)
		ac.Write(buf)
		if err := read(ba); err != nil {
			t.Errorf("within one side: %v", err)
		}
		if err := read(ca); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("across: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.DialContext(ctx, "tcp", "b:80"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial across: %v", err)
		}
		lan.Heal()
		ca.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := ca.Read(buf); err != nil {
			t.Errorf("after Heal: %v", err)
		}
	})
}

// Two networks with one seed lose the same datagrams.
func TestSeedSelectsTheLostDatagrams(t *testing.T) {
	lost := func(seed uint64) (got string) {
		synctest.Test(t, func(t *testing.T) {
			lan := unettest.New(t, unettest.Options{Seed: seed, Path: unettest.Path{Loss: 0.5}})
			to, err := lan.Host("b").ListenPacket(t.Context(), "udp", ":53")
			if err != nil {
				t.Fatal(err)
			}
			from, err := lan.Host("a").Dial("udp", "b:53")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(from, "-") // until there is a route, only some datagrams are held
			synctest.Wait()
			for i := range 64 {
				fmt.Fprint(from, i, " ")
			}
			to.SetReadDeadline(time.Now().Add(time.Second))
			for buf := make([]byte, 8); ; {
				n, _, err := to.ReadFrom(buf)
				if err != nil {
					break
				}
				got += string(buf[:n])
			}
		})
		return got
	}
	one, again, two := lost(1), lost(1), lost(2)
	if one == "" || one != again || one == two {
		t.Errorf("seed 1: %s and %s; seed 2: %s", one, again, two)
	}
}

func TestInvalidOptions(t *testing.T) {
	for want, o := range map[string]unettest.Options{
		"Options.MTU is 100: want 576 to 9000":                      {MTU: 100},
		`Options.Hosts has "a": want names that differ`:             {Hosts: []string{"a", "a"}},
		"Options.MTU is 1279: want 1280 at least with Options.IPv6": {MTU: 1279, IPv6: true},
		"Options.Hosts are 300: want at most 254":                   {Hosts: make([]string, 300)},
		"Options.Path: Loss is 2, not a probability":                {Path: unettest.Path{Loss: 2}},
		"Options.Path: without HoldBack, Reorder changes no order":  {Path: unettest.Path{Reorder: 0.1}},
	} {
		if _, err := unettest.Open(o); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
