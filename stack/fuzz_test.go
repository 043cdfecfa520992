package stack_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// FuzzPoll feeds a stack whatever comes: two frames, the second in parts. It
// must survive, keep no frame, and send nothing that gopacket cannot read.
func FuzzPoll(f *testing.F) {
	f.Add(datagramFrame(9, 7, []byte("x")), datagramFrame(9, 99, nil), uint16(0), uint8(0))
	f.Add(arpFrame(wire.ARPRequest, linkB, wire.Broadcast, addrB, addrA), echoFrame("ping"), uint16(3), uint8(1))
	f.Add(errorFrame(wire.ICMPFragmentationNeeded, 1000, 1500, wire.UDPFlow{Src: addrA, Dst: addrB, SrcPort: 7, DstPort: 9}),
		datagramFrame(9, 7, make([]byte, 5000)), uint16(1400), uint8(3))
	f.Add(tagged(datagramFrame(9, 7, []byte("x")), wire.ProtocolTCP), tagged(datagramFrame(9, 7, make([]byte, 1000)), wire.ProtocolTCP), uint16(0), uint8(8))
	f.Fuzz(func(t *testing.T, first, second []byte, gso uint16, cut uint8) {
		clk := newClock()
		l, _ := memlink.Pair(memlink.Config{FrameCount: 128})
		s, err := stack.New(stack.Config{
			Link: l, LinkAddr: linkA, Addr: prefixA, WholeAddress: true, PartialChecksums: true, Resolver: neighbours{},
			NoCaretaker: true, Now: clk.now, FrameQuota: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Filter(func(frame []byte) bool {
			if _, err := describe(frame); err != nil {
				t.Error(err)
			}
			return true
		})
		u := must(s.ListenUDP(ap("10.0.0.1:7"), stack.UDPOptions{}))
		udpSend(must(s.DialUDP(ap("10.0.0.1:8"), ap("10.0.0.2:9"), stack.UDPOptions{})), []byte("out"))
		first = first[:min(len(first), 2048)]
		l.Inject(stack.Frame{Data: first})
		rest := second[:min(len(second), 40000)]
		var frames []stack.Frame
		for size := 1 + int(cut)*8; len(frames) < 30; {
			n := min(size, len(rest), 2048)
			frames = append(frames, stack.Frame{Data: rest[:n], GSOSize: gso, More: n < len(rest) && len(frames) < 29})
			if rest = rest[n:]; len(rest) == 0 {
				break
			}
		}
		l.Inject(frames...)
		for range 5 {
			s.Poll(clk.advance(500 * time.Millisecond))
		}
		u.SetReadDeadline(clk.now())
		udpRecv(u, make([]byte, 100))
		udpSendTo(u, []byte("answer"), netip.AddrPortFrom(netip.AddrFrom4(addrB), 9))
		s.Close()
		if err := l.Audit(); err != nil {
			t.Error(err)
		}
	})
}
