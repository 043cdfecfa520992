package stack_test

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// The records have the current values of the sockets, and are cleared when a socket is closed. When
// nothing changes nothing is published.
func TestPublishedConnectionRecords(t *testing.T) {
	var published int // calls of Published, which has the lock of A
	records := make([]wire.Connection, 8)
	cfg := stack.Config{Connections: records, Published: func() { published++ }}
	la, lb := memlink.Pair(memlink.Config{})
	cfg.OwnedAddress, cfg.Resolver = true, neighbours{}
	cfg.LinkAddr, cfg.Addrs = linkA, append([]netip.Prefix{prefixA}, prefixes6A...)
	a := newStack(t, la, cfg)
	b := newStack(t, lb, stack.Config{OwnedAddress: true, Resolver: neighbours{}, LinkAddr: linkB, Addrs: append([]netip.Prefix{prefixB}, prefixes6B...)})

	// find returns the record of a socket of A; the zero value: there is none.
	find := func(protocol uint8, local, remote netip.AddrPort) (c wire.Connection) {
		a.Do(func() {
			for _, r := range records {
				if r.Protocol == protocol && r.Local.Netip() == local.Addr() && r.LocalPort == local.Port() && r.RemotePort == remote.Port() {
					c = r
				}
			}
		})
		return c
	}
	listener := testutil.Value(a.ListenTCP(ap("[fd00::1]:80"), stack.TCPListenOptions{Backlog: 5}))
	if r := find(wire.ProtocolTCP, ap("[fd00::1]:80"), netip.AddrPort{}); tcp.State(r.State) != tcp.Listen || r.SendQueue != 5 || r.ReceiveQueue != 0 {
		t.Errorf("listener: %+v", r)
	}
	client := testutil.Value(b.DialTCP(t.Context(), netip.AddrPort{}, ap("[fd00::1]:80"), stack.TCPOptions{}))
	testutil.Eventually(t, "one connection waits", func() bool {
		return find(wire.ProtocolTCP, ap("[fd00::1]:80"), netip.AddrPort{}).ReceiveQueue == 1
	})
	server := testutil.Value(listener.AcceptTCP())
	if r := find(wire.ProtocolTCP, ap("[fd00::1]:80"), netip.AddrPort{}); r.ReceiveQueue != 0 {
		t.Errorf("listener after Accept: %+v", r)
	}

	peer := addrPort(client.LocalAddr())
	connection := func() wire.Connection { return find(wire.ProtocolTCP, ap("[fd00::1]:80"), peer) }
	message := make([]byte, 1000)
	writeAll(t, client, message)
	testutil.Eventually(t, "the data waits", func() bool { return connection().ReceiveQueue == 1000 })
	if _, err := io.ReadFull(server, message); err != nil { // this read alone causes no segment
		t.Fatal(err)
	}
	testutil.Eventually(t, "the data has been read", func() bool { return connection().ReceiveQueue == 0 })
	writeAll(t, server, message)
	if _, err := io.ReadFull(client, message); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "all is published", func() bool {
		i, r := server.Info(), connection()
		return i.BytesAcked == 1000 && r.BytesAcked == 1000 && r.BytesIn == 1000 && r.SendQueue == 0 && r.InFlight == 0 &&
			time.Duration(r.RTT) == i.RTT && i.RTT > 0 && r.Received == i.SegmentsReceived && r.Sent == i.SegmentsSent &&
			int(r.Window) == i.CongestionWindow && tcp.State(r.State) == i.State && r.Again == i.Retransmissions && int(r.MSS) == i.SendMSS
	})

	u := testutil.Value(a.ListenUDP(ap("10.0.0.1:53"), stack.UDPOptions{QueueDatagrams: 2}))
	from := testutil.Value(b.DialUDP(netip.AddrPort{}, ap("10.0.0.1:53"), stack.UDPOptions{}))
	for range 5 {
		if err := udpSend(from, message[:10]); err != nil {
			t.Fatal(err)
		}
	}
	udp := func() wire.Connection { return find(wire.ProtocolUDP, ap("10.0.0.1:53"), netip.AddrPort{}) }
	testutil.Eventually(t, "datagrams are counted", func() bool {
		r := udp()
		return r.Received == 2 && r.Drops == 3 && r.ReceiveQueue == 20
	})
	for range 2 {
		if _, err := udpRecv(u, message); err != nil {
			t.Fatal(err)
		}
	}
	testutil.Eventually(t, "the queue is empty", func() bool { return udp().ReceiveQueue == 0 })
	testutil.Eventually(t, "nothing is published any more", func() bool { return stack.Quiet(a) })
	a.Do(func() {
		if published == 0 {
			t.Error("Published was not called")
		}
	})

	for _, c := range []io.Closer{u, from, client, server, listener} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	testutil.Eventually(t, "all records are empty", func() bool {
		for i := range records {
			var r wire.Connection
			a.Do(func() { r = records[i] })
			if r != (wire.Connection{}) {
				return false
			}
		}
		return true
	})
}
