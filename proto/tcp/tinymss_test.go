package tcp

import (
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// A peer may offer any MSS. What is sent follows it within bounds: a tiny one cannot have
// a byte in each segment (CVE-2019-11479), a large one no packet that the path does not
// take.
func TestPeersMSS(t *testing.T) {
	const bare = 1460 - wire.TCPTimestampsLen
	for _, c := range []struct{ offered, sent int }{
		{0, 536}, {1, 48}, {8, 48}, {48, 48}, {49, 49}, {536, 536}, {1459, 1459}, {1460, 1460}, {1461, 1460}, {65535, 1460},
	} {
		for _, timestamps := range []bool{false, true} {
			want := c.sent
			if timestamps {
				want -= wire.TCPTimestampsLen
			}
			h := newHostilePeer(t, uint16(c.offered), Config{NoTimestamps: !timestamps})
			h.c.Write(h.now, make([]byte, 4*bare))
			h.emit()
			if h.largest != want {
				t.Errorf("MSS %d, timestamps %t: %d bytes of text, want %d", c.offered, timestamps, h.largest, want)
			}
		}
	}
}

// hostilePeer is a connection of ours and a peer of which the test makes segments.
type hostilePeer struct {
	tab      *Table
	c        *Conn
	now      Time
	peer     uint32 // its next number
	ts       uint32
	segments int
	largest  int
	end      uint32 // of what was sent
}

const hostileISS = 5000

func newHostilePeer(t *testing.T, mss uint16, cfg Config) *hostilePeer {
	t.Helper()
	cfg.Secret = testSecret
	h := &hostilePeer{tab: NewTable(cfg), now: Time(time.Second), peer: hostileISS}
	var err error
	if h.c, err = h.tab.Dial(h.now, AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 2}, Options{}); err != nil {
		t.Fatal(err)
	}
	h.emit()
	h.end = h.c.iss.Uint32() + 1
	h.segment(wire.TCPSyn|wire.TCPAck, h.end, wire.TCPOptions{MSS: mss, HasWindowScale: true, WindowScale: 14, SACKPermitted: true})
	h.emit()
	if h.c.State() != Established {
		t.Fatal(h.c.State())
	}
	h.segments, h.largest = 0, 0
	return h
}

// segment is one of the peer's, with a window that takes everything.
func (h *hostilePeer) segment(flags wire.TCPFlags, ack uint32, o wire.TCPOptions) {
	h.ts++
	o.HasTimestamps, o.TSVal, o.TSEcr = true, h.ts, h.c.timestamp(h.now)
	b := make([]byte, 60)
	n, sum := wire.PutTCPOptions(b[20:], &o)
	f := wire.TCPFields{SrcPort: 2, DstPort: 1, Seq: h.peer, Ack: ack, Flags: flags, Window: 0xffff}
	if flags&wire.TCPSyn != 0 {
		h.peer++
	}
	wire.PutTCP(b, &f, 20+n, addSums(sum, wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(20+n))))
	h.tab.Process(h.now, &Inbound{Src: hostB, Dst: hostA, Data: b[:20+n]})
}

// emit takes all that is ready.
func (h *hostilePeer) emit() {
	b := make([]byte, 2000)
	for h.tab.NextReady() != nil {
		n := h.c.Emit(h.now, b)
		s := wire.TCP(b[:n])
		h.segments++
		h.largest = max(h.largest, len(s.Payload()))
		if end := s.Seq() + uint32(len(s.Payload())); int32(end-h.end) > 0 {
			h.end = end
		}
	}
	for c, _ := h.tab.NextEvent(); c != nil; c, _ = h.tab.NextEvent() {
	}
}

// Many tiny segments and SACK blocks that tear them apart, and all taken back: what
// CVE-2019-11477 and CVE-2019-11478 did to others. The work stays in proportion to what
// the peer sends, and the scoreboard bounded.
func TestTinyMSS(t *testing.T) {
	const size = 1 << 19
	h := newHostilePeer(t, 1, Config{})
	h.c.Write(h.now, make([]byte, size))
	sent, received := 0, 0
	check := func() {
		t.Helper()
		if msg := h.c.invariant(); msg != "" {
			t.Fatal(msg)
		}
		if h.c.board.spans > 2*maxSpans {
			t.Fatalf("%d spans", h.c.board.spans)
		}
	}
	una := h.c.sndUna.Uint32()
	for h.c.Info().Unsent > 0 || h.c.sndUna != h.c.sndNxt {
		h.emit()
		h.now += Time(time.Millisecond)
		// Every second segment, from the newest to the oldest, three at a time; then all.
		end := h.end
		const piece = 36
		for at := end; received < 20_000 && int32(at-una) > 6*piece; at -= 6 * piece {
			o := wire.TCPOptions{SACKBlocks: 3}
			for i := range uint32(3) {
				o.SACK[i] = wire.SACKBlock{Left: at - (2*i+1)*piece, Right: at - 2*i*piece}
			}
			h.segment(wire.TCPAck, una, o)
			received++
			h.emit()
			check()
		}
		h.now += Time(10 * time.Millisecond)
		h.tab.Expire(h.now)
		h.emit()
		h.segment(wire.TCPAck, end, wire.TCPOptions{})
		received++
		una = h.c.sndUna.Uint32()
		check()
	}
	sent = h.segments
	if most := 2*size/36 + 3*received; sent > most {
		t.Errorf("%d segments sent for %d bytes and %d of the peer's", sent, size, received)
	}
	t.Logf("%d segments for %d bytes, %d of the peer's, %d blocks ignored", sent, size, received, h.tab.Count(SackIgnored))
}
