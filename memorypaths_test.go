//go:build linux

package unet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// neighbours are two hosts on one mux.
type neighbours struct {
	mux   *mux.Mux
	hosts [2]*unet.Host
	ids   [2]uint64
}

func openNeighbours(t testing.TB, terms mux.Terms, off bool, cfgs [2]unet.HostConfig) *neighbours {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Policy: mux.Permit(terms)})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	n := &neighbours{mux: m}
	for i := range n.hosts {
		owner := mux.Owner{PID: i + 1, UID: uint32(1000 + i)}
		grant, lease, err := m.OpenEndpointFor(t.Context(), owner, endpoint.Request{NoMemoryPaths: off})
		testutil.Must(t, err)
		n.ids[i] = grant.ID
		n.hosts[i], err = unet.New(t.Context(), grant, lease, cfgs[i])
		if err != nil {
			testutil.Must(t, errors.Join(err, grant.Close(), lease.Close()))
		}
		t.Cleanup(func() { testutil.Must(t, n.hosts[i].Close()) })
	}
	return n
}

// connect dials the second host from the first.
func (n *neighbours) connect(t testing.TB, network, at string) (client, server net.Conn) {
	t.Helper()
	l, err := n.hosts[1].Listen(t.Context(), network, at)
	testutil.Must(t, err)
	defer l.Close()
	client, err = n.hosts[0].Dial(network, at)
	testutil.Must(t, err)
	server, err = l.Accept()
	testutil.Must(t, err)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// counted is a counter of a host.
func counted(h *unet.Host, name string) uint64 {
	for _, c := range h.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// roundTrip sends text there and back.
func roundTrip(t testing.TB, client, server net.Conn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		_, err := way[0].Write([]byte(text))
		testutil.Must(t, err)
		testutil.Renew(way[1])
		if _, err := io.ReadFull(way[1], b); err != nil || string(b) != text {
			t.Fatalf("%q, %v", b, err)
		}
	}
}

// awaitMemory connects the hosts at port 81 of an address until frames go by memory both ways.
func (n *neighbours) awaitMemory(t testing.TB, at string) {
	t.Helper()
	client, server := n.connect(t, "tcp", net.JoinHostPort(at, "81"))
	testutil.Eventually(t, "frames by memory both ways", func() bool {
		roundTrip(t, client, server, "text")
		return counted(n.hosts[0], "path_frames_received") > 0 && counted(n.hosts[1], "path_frames_received") > 0
	})
}

// sentByPorts is how many frames the hosts have sent by their ports.
func (n *neighbours) sentByPorts(t testing.TB) (sent uint64) {
	t.Helper()
	for _, h := range n.hosts {
		st, err := h.Stats()
		testutil.Must(t, err)
		sent += st.Sent
	}
	return sent
}

// Two hosts of one mux talk by memory, on shared and on owned addresses, over both families, in each way of waiting; their
// ports carry nothing but what came before the path.
func TestNeighboursTalkByMemory(t *testing.T) {
	for _, wait := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitBlock} {
		for _, c := range []struct{ at, own string }{{"10.0.0.1:80", ""}, {"[fd00::1]:80", ""}, {"10.0.0.77:80", "10.0.0.77"}, {"[fd00::77]:80", "fd00::77"}} {
			t.Run(fmt.Sprintf("%v/%s", wait, c.at), func(t *testing.T) {
				t.Parallel()
				cfgs := [2]unet.HostConfig{{Wait: wait}, {Wait: wait}}
				if c.own != "" {
					cfgs[1].Addrs = []netip.Addr{netip.MustParseAddr(c.own)}
				}
				n := openNeighbours(t, mux.Terms{Trusted: true}, false, cfgs)
				client, server := n.connect(t, "tcp", c.at)
				testutil.Eventually(t, "frames by memory both ways", func() bool {
					roundTrip(t, client, server, "text")
					return counted(n.hosts[0], "path_frames_received") > 0 && counted(n.hosts[1], "path_frames_received") > 0
				})
				before := n.sentByPorts(t)
				for range 100 {
					roundTrip(t, client, server, "question and answer")
				}
				if sent := n.sentByPorts(t) - before; sent != 0 {
					t.Errorf("%d frames went by the ports", sent)
				}
				server.Close()
				testutil.Renew(client)
				if _, err := client.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("after the close: %v", err)
				}
			})
		}
	}
}

// What the policy forbids, and what an application has turned off, goes by the ports.
func TestNoMemoryPaths(t *testing.T) {
	for name, c := range map[string]struct {
		terms mux.Terms
		off   bool
		cfg   unet.HostConfig
	}{
		"policy":      {terms: mux.Terms{Trusted: true, NoMemoryPaths: true}},
		"rate":        {terms: mux.Terms{Trusted: true, Rates: endpoint.Rates{Endpoint: endpoint.Rate{Packets: 1 << 20, PacketBurst: 1 << 20}}}},
		"request":     {terms: mux.Terms{Trusted: true}, off: true},
		"application": {terms: mux.Terms{Trusted: true}, cfg: unet.HostConfig{NoMemoryPaths: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := openNeighbours(t, c.terms, c.off, [2]unet.HostConfig{c.cfg, {}})
			client, server := n.connect(t, "tcp", "10.0.0.1:80")
			for range 200 {
				roundTrip(t, client, server, "text")
			}
			for i, h := range n.hosts {
				if sent := counted(h, "path_frames_sent"); sent != 0 {
					t.Errorf("host %d has sent %d frames by memory", i, sent)
				}
			}
		})
	}
}

// The end of a host ends its paths: the other host reads the end of the stream, and reaches the next holder of the port.
func TestNeighbourEnds(t *testing.T) {
	t.Parallel()
	n := openNeighbours(t, mux.Terms{Trusted: true}, false, [2]unet.HostConfig{})
	client, server := n.connect(t, "tcp", "10.0.0.1:80")
	testutil.Eventually(t, "frames by memory", func() bool {
		roundTrip(t, client, server, "text")
		return counted(n.hosts[1], "path_frames_received") > 0
	})
	testutil.Must(t, n.hosts[1].Close())
	testutil.Renew(client)
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("%v", err)
	}
	client.Close()
	grant, lease, err := n.mux.OpenEndpoint(t.Context(), endpoint.Request{})
	testutil.Must(t, err)
	n.hosts[1], err = unet.New(t.Context(), grant, lease, unet.HostConfig{})
	testutil.Must(t, err)
	client, server = n.connect(t, "tcp", "10.0.0.1:80")
	testutil.Eventually(t, "frames by memory to the next host", func() bool {
		roundTrip(t, client, server, "text")
		return counted(n.hosts[1], "path_frames_received") > 0
	})
}

// BenchmarkNeighbours is a round trip of 64 bytes between two hosts of one mux.
func BenchmarkNeighbours(b *testing.B) {
	for _, off := range []bool{false, true} {
		for _, network := range []string{"tcp", "udp"} {
			b.Run(fmt.Sprintf("%s/memory=%v", network, !off), func(b *testing.B) {
				cfg := unet.HostConfig{Wait: endpoint.WaitSpin}
				n := openNeighbours(b, mux.Terms{Trusted: true}, off, [2]unet.HostConfig{cfg, cfg})
				var client, server net.Conn
				if network == "tcp" {
					client, server = n.connect(b, "tcp", "10.0.0.1:80")
				} else {
					pc, err := n.hosts[1].ListenPacket(context.Background(), "udp", "10.0.0.1:80")
					testutil.Must(b, err)
					c, err := n.hosts[0].Dial("udp", "10.0.0.1:80")
					testutil.Must(b, err)
					client, server = c, answering{pc, c}
					b.Cleanup(func() { pc.Close(); c.Close() })
				}
				go func() {
					buf := make([]byte, 64)
					for {
						k, err := server.Read(buf)
						if err != nil {
							return
						}
						if _, err := server.Write(buf[:k]); err != nil {
							return
						}
					}
				}()
				buf := make([]byte, 64)
				trip := func() {
					_, err := client.Write(buf)
					testutil.Must(b, err)
					_, err = io.ReadFull(client, buf)
					testutil.Must(b, err)
				}
				timeTrips(b, trip)
				if sent := counted(n.hosts[0], "path_frames_sent"); (sent > 0) == off {
					b.Errorf("%d frames by memory", sent)
				}
			})
		}
	}
}

// answering is a UDP socket as a connection to one peer.
type answering struct {
	net.PacketConn
	peer net.Conn
}

func (a answering) Read(b []byte) (int, error) {
	n, _, err := a.ReadFrom(b)
	return n, err
}
func (a answering) Write(b []byte) (int, error) { return a.WriteTo(b, a.peer.LocalAddr()) }
func (a answering) RemoteAddr() net.Addr        { return a.peer.LocalAddr() }

// timeTrips measures how long round trips take once there is a path.
func timeTrips(b *testing.B, trip func()) {
	for range 20000 {
		trip()
	}
	b.ResetTimer()
	for range b.N {
		trip()
	}
	b.StopTimer()
}
