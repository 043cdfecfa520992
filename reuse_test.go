package unet

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
)

// Listeners that share a port each get some of the connections, and those of a listener that
// is closed go to the others.
func TestListenersShareAPort(t *testing.T) {
	a, b, _ := newSharedMemHosts(t)
	shared := &ListenConfig{Host: a, Reuse: true}
	const at, clients = "10.0.0.1:7000", 64
	var listeners []*TCPListener
	for range 3 {
		l, err := shared.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		listeners = append(listeners, l.(*TCPListener))
	}
	if _, err := a.Listen(t.Context(), "tcp", at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener without Reuse: %v", err)
	}
	accepted := make(chan int) // the number of a listener
	for i, l := range listeners {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				accepted <- i
			}
		}()
	}
	connect := func(to ...int) {
		t.Helper()
		for range clients {
			c, err := b.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		n := map[int]int{}
		for range clients {
			n[<-accepted]++
		}
		for _, i := range to {
			if n[i] == 0 {
				t.Errorf("listener %d got no connection: %v", i, n)
			}
		}
	}
	connect(0, 1, 2)
	listeners[1].Close()
	connect(0, 2)
	only, err := a.Listen(t.Context(), "tcp", "10.0.0.1:7001")
	if err != nil {
		t.Fatal(err)
	}
	defer only.Close()
	if _, err := shared.Listen(t.Context(), "tcp", "10.0.0.1:7001"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener with Reuse beside one without: %v", err)
	}
}

// Sockets that share a port each get the datagrams of some senders, and all of each.
func TestSocketsShareAPort(t *testing.T) {
	a, b, _ := newSharedMemHosts(t)
	shared := &ListenConfig{Host: a, Reuse: true}
	const at, senders = "10.0.0.1:7000", 64
	var sockets []*UDPConn
	for range 3 {
		c, err := shared.ListenPacket(t.Context(), "udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		sockets = append(sockets, c.(*UDPConn))
	}
	if _, err := a.ListenPacket(t.Context(), "udp", at); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a socket without Reuse: %v", err)
	}
	b.Dial("tcp", "10.0.0.1:9") // fails, and after it the route is known: no datagram waits for the route
	for range senders {
		c, err := b.Dial("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	received := func() (n int) {
		for _, c := range sockets {
			n += int(c.Counters().Received)
		}
		return n
	}
	testutil.Eventually(t, "all datagrams are received", func() bool { return received() == 2*senders })
	for i, c := range sockets {
		got := map[netip.AddrPort]int{}
		for range c.Counters().Received {
			_, from, err := c.ReadFromUDPAddrPort(make([]byte, 1))
			if err != nil {
				t.Fatal(err)
			}
			got[from]++
		}
		if len(got) == 0 {
			t.Errorf("socket %d got no datagram", i)
		}
		for from, n := range got {
			if n != 2 {
				t.Errorf("socket %d got %d datagrams of %v", i, n, from)
			}
		}
	}
}
