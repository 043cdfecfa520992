//go:build linux

package attack

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// victim is a host of ours with owned addresses, over IPv4 and IPv6. Host B attacks it with
// frames on the wire; host B's kernel meanwhile talks to its services.
type victim struct {
	host    *unet.Host
	ping    net.Conn // of host B's kernel to its UDP service
	drained atomic.Uint64

	mu       sync.Mutex
	accepted []*unet.TCPConn
}

// startVictim opens the victim and adds its users to the bystanders.
func startVictim(t *testing.T, w *world) *victim {
	t.Helper()
	host, err := unet.Open(t.Context(), unet.Config{Socket: w.unetd.Socket, HostConfig: unet.HostConfig{Addrs: []netip.Addr{victimAddr, victimAddr6}, Wait: endpoint.WaitBlock}})
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{host: host}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Errorf("close of the victim: %v", err)
		}
		serving.Wait()
	})
	echo, err := host.ListenUDP(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), victimPort))
	if err != nil {
		t.Fatal(err)
	}
	serving.Go(func() {
		for buf := make([]byte, 8192); ; {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			echo.WriteToUDPAddrPort(buf[:n], from) // who asked notices a missing answer
		}
	})
	sink, err := host.ListenUDP(t.Context(), netip.AddrPortFrom(netip.IPv6Unspecified(), drainPort))
	if err != nil {
		t.Fatal(err)
	}
	serving.Go(func() {
		for buf := make([]byte, 8192); ; v.drained.Add(1) {
			if _, _, err := sink.ReadFromUDPAddrPort(buf); err != nil {
				return
			}
		}
	})
	listener, err := host.Listen(t.Context(), "tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), victimPort).String())
	if err != nil {
		t.Fatal(err)
	}
	serving.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.accepted = append(v.accepted, c.(*unet.TCPConn))
			v.mu.Unlock()
			serving.Go(func() { io.Copy(c, c); c.Close() })
		}
	})
	dial := func(network string, addr netip.Addr) net.Conn {
		c, err := w.pair.B.Dial(network, netip.AddrPortFrom(addr, victimPort).String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	u4, u6, t4, t6 := dial("udp", victimAddr), dial("udp", victimAddr6), dial("tcp", victimAddr), dial("tcp", victimAddr6)
	v.ping = dial("udp", victimAddr6)
	users := []*bystander{ // the datagrams are fragmented
		{name: "the victim's UDP", request: func(n uint64) error { return askUDP(u4, bytes.Repeat(payloadFor("v4", n), 4)) }},
		{name: "the victim's UDP over IPv6", request: func(n uint64) error { return askUDP(u6, bytes.Repeat(payloadFor("v6", n), 4)) }},
		{name: "the victim's TCP", request: func(n uint64) error { return askTCP(t4, payloadFor("t4", n)) }},
		{name: "the victim's TCP over IPv6", request: func(n uint64) error { return askTCP(t6, payloadFor("t6", n)) }},
	}
	start(t, users)
	t.Cleanup(func() {
		for _, c := range []net.Conn{u4, u6, t4, t6, v.ping} {
			c.Close()
		}
	})
	w.kernel = append(w.kernel, users...)
	return v
}

// counters are those of the mux and of the victim's stack, and what has come into its sink.
func (v *victim) counters(s *caseRun) map[string]uint64 {
	all := maps.Clone(s.counters(s))
	for _, c := range v.host.Counters() {
		all[c.Name] = c.Value
	}
	all["sunk"] = v.drained.Load()
	return all
}

// sendBatch is how many frames are sent before a round trip: no queue is shorter.
const sendBatch = 100

// sendAttack sends frames from host B, and expects that these counters rise by as much, not more.
func (v *victim) sendAttack(s *caseRun, want map[string]uint64, frames ...[]byte) {
	s.Helper()
	before := v.counters(s)
	for i, f := range frames {
		var err error
		s.capture.raw.Control(func(fd uintptr) { _, err = unix.Write(int(fd), f) })
		if err != nil {
			s.Fatalf("send of a frame of %d bytes: %v", len(f), err)
		}
		if i%sendBatch == sendBatch-1 {
			if err := askUDP(v.ping, []byte("still there?")); err != nil {
				s.Fatalf("after %d frames: %v", i+1, err)
			}
		}
	}
	var got map[string]uint64
	if !testutil.Until(func() bool {
		got = since(before, v.counters(s))
		for name, n := range want {
			if got[name] != n {
				return false
			}
		}
		return true
	}) {
		s.Errorf("%d frames: want %v, counted %v", len(frames), want, got)
	}
	s.row.note("%d frames: %v", len(frames), want)
}

// pathMTUs expects that the connections of the victim still use the whole MTU.
func (v *victim) pathMTUs(s *caseRun) {
	s.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.accepted {
		if mtu := c.Info().PathMTU; mtu != 1500 {
			s.Errorf("the connection from %v has a path MTU of %d", c.RemoteAddr(), mtu)
		}
	}
}
