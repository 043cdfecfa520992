//go:build linux

package mux_test

import (
	"slices"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// A port counts the frames of its endpoint both ways, in each mode.
func TestStatusOfPorts(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := openLab(t, mode)
			listenGRO(t, l.B)
			a := l.open(udpTag("10.0.0.1:7000"))
			l.open(udpTag("10.0.0.1:7001"))
			b := kernelUDP(t, l.B, "10.0.0.2:9000")
			const in, out = 5, 3
			for range in {
				sendTo(t, b, "10.0.0.1:7000", "to the endpoint")
				a.recv()
			}
			for range out {
				a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", "out"))
				readFrom(t, b, "out")
			}
			list, err := l.mux.Status(0)
			testutil.Must(t, err)
			if len(list) != 2 || list[0].ID != a.grant.ID || list[0].Tags[0] != udpTag("10.0.0.1:7000") || list[0].Published != nil {
				t.Fatalf("%+v", list)
			}
			frame := uint64(len(datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.1:7000", "10.0.0.2:9000", "out")))
			if n := list[0].Port; n == nil || n.FramesOut != out || n.BytesOut < out*(frame-wire.EthernetHeaderLen) || n.DroppedIn != 0 ||
				mode == mux.ModeTCX && n.FramesIn != nil || mode != mux.ModeTCX && (n.FramesIn == nil || *n.FramesIn != in || *n.BytesIn == 0) {
				t.Errorf("port: %+v", n)
			}
			if n := list[1].Port; n == nil || n.FramesOut != 0 || n.FramesIn != nil && *n.FramesIn != 0 {
				t.Errorf("the other port: %+v", n)
			}
			if d := list[0].FillQueue; d == nil || *d == 0 || *d > small.FillSize {
				t.Errorf("fill queue: %v", d)
			}
			if rest, err := l.mux.Status(list[1].ID); err != nil || len(rest) != 1 {
				t.Errorf("from the second: %v, %v", rest, err)
			}
		})
	}
}

// If a process writes wrong records to its table of connections, only sockets at its own tags are shown, and
// impossible values are left out.
func TestSocketsOfWrongTable(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	a := l.openRequest(endpoint.Request{
		Tags:        []endpoint.Tag{tcpTag("10.0.0.1:7000"), tcpTag("10.0.0.1:49984").AsBlock(), udpTag("10.0.0.1:7001")},
		Connections: table.File(),
	})
	l.open(tcpTag("10.0.0.1:8000"))
	listener := func(local string) wire.Connection {
		c := record(local, "10.0.0.2:1", 0)
		c.Remote, c.RemotePort, c.State = wire.Addr{}, 0, uint8(tcp.Listen)
		return c
	}
	udp := func(local string) wire.Connection {
		c := listener(local)
		c.Protocol, c.State = wire.ProtocolUDP, 0
		return c
	}
	wildcard := udp("[::]:7001") // of both families
	odd := record("10.0.0.1:50000", "10.0.0.2:5000", 0)
	odd.RTT, odd.RTTVar, odd.RTO, odd.Window, odd.SendQueue = 1<<64-1, 5, uint64(time.Second), 1<<32-1, 7
	none, early := record("10.0.0.1:7000", "10.0.0.2:1", 0), record("10.0.0.1:7000", "10.0.0.2:1", 0)
	none.State, early.State = 200, uint8(tcp.SynSent)
	halfOpen := listener("10.0.0.1:7000")
	halfOpen.State = uint8(tcp.Established)
	records := table.Records()
	copy(records, []wire.Connection{
		listener("10.0.0.1:8000"), listener("0.0.0.0:80"), listener("10.0.0.1:7001"), udp("10.0.0.1:7000"), record("10.0.0.2:7000", "10.0.0.1:1", 0),
		none, early, halfOpen,
		listener("10.0.0.1:7000"), listener("0.0.0.0:7000"), wildcard, udp("10.0.0.1:7001"), odd,
	})
	records[len(records)-1] = record("10.0.0.1:7000", "10.0.0.2:5000", 0)

	texts := func(list []endpoint.Socket) (texts []string) {
		for _, s := range list {
			text := s.Protocol + " " + string(s.State) + " " + s.Local.String()
			if s.Remote.IsValid() {
				text += " " + s.Remote.String()
			}
			texts = append(texts, text)
		}
		return texts
	}
	want := []string{
		"tcp listening 10.0.0.1:7000", "tcp listening 0.0.0.0:7000", "udp unconnected [::]:7001", "udp unconnected 10.0.0.1:7001",
		"tcp established 10.0.0.1:50000 10.0.0.2:5000", "tcp established 10.0.0.1:7000 10.0.0.2:5000",
	}
	all, more, err := l.mux.Sockets(a.grant.ID, 0, 100)
	if err != nil || more || !slices.Equal(texts(all), want) {
		t.Fatalf("%q, more %v, %v\nwant %q", texts(all), more, err, want)
	}
	if s := all[4]; s.RTT != 0 || s.RTTVar != 5 || s.RTO != time.Second || s.Window != 1<<32-1 || s.SendQueue != 7 {
		t.Errorf("%+v", s)
	}
	first, more, err := l.mux.Sockets(a.grant.ID, 0, 4)
	if err != nil || !more || len(first) != 4 {
		t.Fatalf("%d sockets, more %v, %v", len(first), more, err)
	}
	rest, more, err := l.mux.Sockets(a.grant.ID, first[3].Record+1, 2)
	if err != nil || more || !slices.Equal(texts(append(first, rest...)), want) {
		t.Errorf("%q, more %v, %v", texts(rest), more, err)
	}
	if list, _, err := l.mux.Sockets(a.grant.ID+1, 0, 9); err != nil || len(list) != 0 {
		t.Errorf("of an endpoint without a table: %v, %v", list, err)
	}
	testutil.Must(t, a.lease.Close())
	if list, _, err := l.mux.Sockets(a.grant.ID, 0, 9); err != nil || len(list) != 0 {
		t.Errorf("of an endpoint that has ended: %v, %v", list, err)
	}
}
