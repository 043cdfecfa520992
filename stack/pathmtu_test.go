package stack_test

import (
	"io"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// What a connection has found out of the path the next one begins with, and so do
// datagrams. What a router says of datagrams is for datagrams alone.
func TestPathMTUIsShared(t *testing.T) {
	a, b, _, lb := newPair(t, stack.Config{})
	report := func(mtu uint16, quoted []byte) stack.Frame {
		m := make([]byte, wire.MaxUnreachableLen)
		m = m[:wire.PutUnreachable(m, wire.ICMPFragmentationNeeded, mtu, wire.IPv4(quoted))]
		back := ipFrame(wire.IPv4Fields{Protocol: wire.ProtocolICMP, Src: addrA, Dst: addrB}, m)
		copy(back[:6], linkB[:])
		return stack.Frame{Data: back}
	}
	var tooLarge, full atomic.Int32
	reports := make(chan stack.Frame, 1000)
	lb.Filter(func(frame []byte) bool {
		size := len(frame) - wire.EthernetHeaderLen
		if size == 1000 {
			full.Add(1)
		}
		if size <= 1000 {
			return true
		}
		tooLarge.Add(1)
		select {
		case reports <- report(1000, frame[wire.EthernetHeaderLen:]):
		default:
		}
		return false
	})
	defer lb.Filter(nil)
	go func() {
		for f := range reports {
			lb.Inject(f)
		}
	}()
	defer close(reports)
	transfer := func() {
		t.Helper()
		tooLarge.Store(0)
		full.Store(0)
		client, server := connect(t, a, b, stack.TCPOptions{})
		go func() {
			writeAll(t, client, make([]byte, 20_000))
			client.Close()
		}()
		if got, err := io.ReadAll(server); len(got) != 20_000 || err != nil {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		server.Close()
	}
	transfer()
	if tooLarge.Load() == 0 {
		t.Error("nothing was too large")
	}
	u := must(b.DialUDP(ap("10.0.0.2:7"), ap("10.0.0.1:9"), stack.UDPOptions{}))
	defer u.Close()
	if err := udpSend(u, make([]byte, 1000-28+1)); err != syscall.EMSGSIZE {
		t.Errorf("a datagram that is too large: %v", err)
	}
	flow := wire.UDPFlow{Src: addrB, Dst: addrA, SrcPort: 7, DstPort: 9}
	datagram := make([]byte, 1000)
	wire.PutUDPCopy(datagram[20:], &flow, make([]byte, 1000-28))
	wire.PutIPv4(datagram, wire.IPv4Fields{TotalLen: 1000, TTL: 9, Protocol: wire.ProtocolUDP, Src: addrB, Dst: addrA})
	lb.Inject(report(600, datagram))
	eventually(t, "the report is taken in", func() bool { return counters(b)["path_mtu_lowered"] == 2 })
	udpRecv(u, make([]byte, 1))
	if err := udpSend(u, make([]byte, 600-28+1)); err != syscall.EMSGSIZE {
		t.Errorf("a datagram that is larger than was reported: %v", err)
	}
	transfer()
	if tooLarge.Load() > 0 || full.Load() < 15 {
		t.Errorf("%d too large, %d full", tooLarge.Load(), full.Load())
	}
}
