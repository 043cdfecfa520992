//go:build linux

package unet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// openJumbo is openTwo on a cable of MTU 9000.
func openJumbo(t *testing.T) (a, b *unet.Host) {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{MTU: 9000})
	a, b = openHost(t, p.A, unet.HostConfig{}), openHost(t, p.B, unet.HostConfig{})
	t.Cleanup(func() { // before they are closed
		for _, h := range []*unet.Host{a, b} {
			got := h.Audit() // frames that wait for a neighbour are freed when its resolution has failed
			for deadline := time.Now().Add(testTimeout); !strings.Contains(got, "stack 0, application 0") && time.Now().Before(deadline); got = h.Audit() {
				time.Sleep(10 * time.Millisecond)
			}
			if !strings.Contains(got, "stack 0, application 0") {
				t.Errorf("frames were not freed: %s", got)
			}
		}
	})
	return a, b
}

// TestJumboStreams sends data both ways in segments of several frames.
func TestJumboStreams(t *testing.T) {
	a, b := openJumbo(t)
	l, err := b.Listen(t.Context(), "tcp", ":0")
	testutil.Must(t, err)
	defer l.Close()
	const size = 8 << 20
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{9}).Read(data)
	want := sha256.Sum256(data)
	end := func(c net.Conn) {
		defer c.Close()
		c.SetDeadline(time.Now().Add(testTimeout))
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := c.(*unet.TCPConn).CloseWrite(); err != nil {
				t.Errorf("half-close: %v", err)
			}
		})
		both.Go(func() {
			sum := sha256.New()
			if n, err := io.Copy(sum, c); n != size || err != nil || [32]byte(sum.Sum(nil)) != want {
				t.Errorf("received %d bytes of %d, equal: %v, %v", n, size, [32]byte(sum.Sum(nil)) == want, err)
			}
		})
		both.Wait()
	}
	var ends sync.WaitGroup
	ends.Go(func() {
		c, err := l.Accept()
		if err != nil {
			t.Errorf("accept: %v", err)
			return
		}
		end(c)
	})
	c, err := a.Dial("tcp", l.Addr().String())
	testutil.Must(t, err)
	if mss := c.(*unet.TCPConn).Info().SendMSS; mss != 9000-40-12 {
		t.Errorf("%d bytes in a segment", mss)
	}
	end(c)
	ends.Wait()
	// Each direction takes about 940 segments of 8,948 bytes. With segments of one frame it would take
	// more than 4,400.
	for _, h := range []*unet.Host{a, b} {
		for _, c := range h.Counters() {
			if c.Name == "tcp_segments_sent" && c.Value > 4400 {
				t.Errorf("%d segments for %d bytes", c.Value, size)
			}
		}
	}
}

// TestJumboDatagrams sends datagrams of several frames, also before the peer's MAC address
// is known, and to an address without a host.
func TestJumboDatagrams(t *testing.T) {
	a, b := openJumbo(t)
	server, err := b.ListenPacket(t.Context(), "udp", ":0")
	testutil.Must(t, err)
	defer server.Close()
	c, err := a.Dial("udp", server.LocalAddr().String())
	testutil.Must(t, err)
	defer c.Close()
	server.SetDeadline(time.Now().Add(testTimeout))
	data := make([]byte, 9000)
	rand.NewChaCha8([32]byte{10}).Read(data)
	buf := make([]byte, 10_000)
	for _, size := range []int{8972, 1, 2006, 2007, 4000, 8971, 8972} {
		if _, err := c.Write(data[:size]); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		n, _, err := server.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:n], data[:size]) {
			t.Fatalf("sent %d bytes, received %d, or the data differs: %v", size, n, err)
		}
	}
	if _, err := c.Write(data[:8973]); err == nil {
		t.Error("more was sent than the MTU takes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	absent, err := a.DialContext(ctx, "udp", "10.0.0.77:9")
	testutil.Must(t, err)
	absent.SetDeadline(time.Now().Add(testTimeout))
	for range 200 { // until ARP has failed
		if _, err := absent.Write(data[:8000]); err != nil {
			break
		}
	}
	testutil.Must(t, absent.Close())
}
