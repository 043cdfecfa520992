//go:build linux

package unet_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// reverser is a handler that sends datagrams back with their bytes reversed.
type reverser struct {
	port   *stack.UDPPort
	out    []stack.UDPPacket
	failed stack.Event
}

func (h *reverser) Datagram(_ int64, p *stack.UDPPacket) {
	b := make([]byte, 0, len(p.Payload))
	for i := range p.Payload {
		b = append(b, p.Payload[len(p.Payload)-1-i])
	}
	h.out = append(h.out, stack.UDPPacket{Payload: b, Src: p.Src})
}

func (h *reverser) Run(int64) int64 {
	for len(h.out) > 0 {
		p := h.out[0]
		n := wire.IPv4HeaderLen + wire.UDPHeaderLen + len(p.Payload)
		b := h.port.Reserve(p.Src.Addr, n)
		if b == nil {
			break
		}
		local := h.port.Local()
		wire.PutIPv4(b, wire.IPv4Fields{TotalLen: uint16(n), TTL: 64, Protocol: wire.ProtocolUDP, DontFragment: true, Src: local.Addr().As4(), Dst: p.Src.Addr})
		wire.PutUDPCopy(b[wire.IPv4HeaderLen:], &wire.UDPFlow{Src: wire.AddrFrom4(local.Addr().As4()), Dst: wire.AddrFrom4(p.Src.Addr), SrcPort: local.Port(), DstPort: p.Src.Port}, p.Payload)
		h.port.Send(n)
		h.out = h.out[1:]
	}
	return stack.Never
}

func (h *reverser) Failed(error) { h.port.Broadcast(&h.failed) }

// The handler of a UDP port answers a socket of another host on a real link, although no goroutine of
// its own host waits. After Close the port can be opened again.
func TestUDPPortOnALink(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	a, b := openHost(t, pair.A, unet.HostConfig{}), openHost(t, pair.B, unet.HostConfig{})
	at := netip.AddrPortFrom(a.Addr(), 4800) // only RDMA devices send to 4791
	for range 2 {
		h := new(reverser)
		port, err := hoststack.OpenUDPPort(t.Context(), a, at, h)
		testutil.Must(t, err)
		port.Lock() // the caretaker goroutine may already call h
		h.port = port
		port.Unlock()
		c, err := b.DialUDP(t.Context(), netip.AddrPort{}, at)
		testutil.Must(t, err)
		testutil.Must(t, c.SetDeadline(time.Now().Add(testTimeout)))
		buf := make([]byte, 100)
		for sent, want := range map[string]string{"ab": "ba", "cde": "edc"} {
			_, err = c.Write([]byte(sent))
			testutil.Must(t, err)
			n, err := c.Read(buf)
			testutil.Must(t, err)
			if got := string(buf[:n]); got != want {
				t.Fatalf("sent %s, received %s, want %s", sent, got, want)
			}
		}
		testutil.Must(t, c.Close())
		testutil.Must(t, h.port.Close())
	}
}
