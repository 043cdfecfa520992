package tcp

import (
	"fmt"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestEveryOptionLength puts an option of every kind that is known, and of some
// that are not, with every length that its one byte can say, at every place
// among the options, into segments to every state. Nothing was agreed on, so only
// a SYN may be told anything by it: everything else is as the oracle says of the
// segment without options.
func TestEveryOptionLength(t *testing.T) {
	kinds := []uint8{0, 1, wire.TCPOptionMSS, wire.TCPOptionWindowScale, wire.TCPOptionSACKPermitted, wire.TCPOptionSACK,
		6, 7, wire.TCPOptionTimestamps, 19, 28, 30, 34, 253, 254, 255}
	for _, q := range situations {
		t.Run(q.name, func(t *testing.T) {
			for _, flags := range []wire.TCPFlags{wire.TCPAck, wire.TCPSyn, wire.TCPSyn | wire.TCPAck} {
				for _, kind := range kinds {
					for length := range 256 {
						if length > 45 && length < 250 {
							continue // as long as all that is left, or longer
						}
						place := (int(kind) + length) % 5
						if length <= 12 {
							place = length % 3
						}
						options := make([]byte, 40)
						for i := range options {
							options[i] = wire.TCPOptionNop
						}
						options[place], options[place+1] = kind, uint8(length)
						for i := place + 2; i < min(place+length, len(options)); i++ {
							options[i] = 0x5a
						}
						s := incoming{flags: flags, seq: q.rcvNxt, ack: q.una + 1, text: 7}
						r := atSituation(t, q, Config{}, false)
						r.src = fmt.Sprintf("%v, option %d of length %d at %d", flags, kind, length, place)
						b := r.build(s, options)
						r.checkCase(q, s, b)
						well := wire.TCP(b).ReadOptions(new(wire.TCPOptions))
						if n := r.tab.Count(BadOptions); well && n != 0 || !well && n != 1 {
							r.fatalf("%d bad options counted", n)
						}
					}
				}
			}
		})
	}
}

// Options that do not begin at a word's boundary are read (MUST-64), those of an
// impossible length are not, and what was read before them counts (MUST-7).
func TestOptionsOfTheSYN(t *testing.T) {
	for _, c := range []struct {
		options                []byte
		mss                    uint16
		scaling, sack, stamped bool
		sndScale               uint8
		bad                    uint64
	}{
		{options: nil, mss: defaultMSS},
		{options: []byte{2, 4, 4, 0, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0}, mss: 1024, scaling: true, sndScale: 7, sack: true, stamped: true},
		{options: []byte{1, 3, 3, 2, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 4, 0, 0}, mss: 1024, scaling: true, sndScale: 2, stamped: true},
		{options: []byte{253, 3, 0, 2, 4, 4, 0, 4, 2, 1, 1, 1}, mss: 1024, sack: true},
		{options: []byte{2, 4, 4, 0, 3, 0, 7, 4}, mss: 1024, bad: 1},                                               // a length of 0
		{options: []byte{2, 4, 4, 0, 3, 1, 4, 2}, mss: 1024, bad: 1},                                               // of 1
		{options: []byte{2, 4, 4, 0, 8, 10, 0, 0}, mss: 1024, bad: 1},                                              // beyond the header
		{options: []byte{4, 2, 2, 3, 9, 3, 3, 5}, mss: defaultMSS, sack: true, scaling: true, sndScale: 5, bad: 1}, // of another kind
		{options: []byte{2, 6, 4, 0, 0, 0, 4, 2}, mss: defaultMSS, sack: true, bad: 1},
		{options: []byte{2, 4, 0, 0, 0, 0, 0, 0}, mss: defaultMSS}, // no MSS at all
		{options: []byte{0, 2, 4, 4, 0, 0, 0, 0}, mss: defaultMSS}, // behind the end
		{options: []byte{3, 3, 200, 0}, mss: defaultMSS, scaling: true, sndScale: 14},
	} {
		tab := NewTable(Config{Secret: testSecret})
		if _, err := tab.Listen(AddrPort{Port: localPort}, ListenOptions{}); err != nil {
			t.Fatal(err)
		}
		n := 20 + len(c.options)
		b := make([]byte, n)
		copy(b[20:], c.options)
		wire.PutTCP(b, &wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: wire.TCPSyn}, n,
			wire.Sum(b[20:], wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(n))))
		conn := tab.Process(0, &Inbound{Src: hostB, Dst: hostA, Data: b}).Opening
		if conn == nil {
			t.Errorf("%x: no connection", c.options)
			continue
		}
		if conn.peerMSS != c.mss || conn.scaling != c.scaling || conn.sack != c.sack || conn.timestamps != c.stamped ||
			conn.sndScale != c.sndScale || tab.Count(BadOptions) != c.bad {
			t.Errorf("%x: MSS %d, scale %v %d, SACK %v, timestamps %v, %d bad", c.options, conn.peerMSS, conn.scaling, conn.sndScale,
				conn.sack, conn.timestamps, tab.Count(BadOptions))
		}
	}
}
