package tcp

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// Peers, and strangers who pretend to be peers, that know the protocol and mean harm.
// docs/tcp.md has the list of what they try, "Hostile peers".

// forge is a segment as whoever forges it wants it, for the second host of a pair.
type forge struct {
	from   AddrPort
	fields wire.TCPFields
	opts   wire.TCPOptions
	text   []byte
}

// put writes it.
func (f *forge) put(b []byte) []byte {
	n, sum := wire.PutTCPOptions(b[20:], &f.opts)
	n += 20
	n += copy(b[n:], f.text)
	sum = wire.Sum(b[n-len(f.text):n], sum)
	f.fields.SrcPort = f.from.Port
	wire.PutTCP(b, &f.fields, n-len(f.text), addSums(sum, wire.PseudoHeader4(f.from.Addr, hostB, wire.ProtocolTCP, uint16(n))))
	return b[:n]
}

// attack takes it to the second host. Answers go nowhere.
func (p *pair) attack(f forge) {
	var b [2000]byte
	t := p.tabs[1]
	if f.fields.DstPort == 0 {
		f.fields.DstPort = 80
	}
	if t.Process(p.now, &Inbound{Src: f.from.Addr, Dst: hostB, Data: f.put(b[:])}).Reply {
		t.EmitReply(b[:])
	}
	for c := t.NextReady(); c != nil; c = t.NextReady() {
		c.Emit(p.now, b[:])
	}
}

// peer is the first host as a forger sees it: all of its numbers right, and its next
// timestamp.
func (p *pair) peer(text []byte) forge {
	c := p.conns[0]
	f := forge{from: c.Local(), text: text}
	f.fields = wire.TCPFields{Seq: c.sndNxt.Uint32(), Ack: c.rcvNxt.Uint32(), Flags: wire.TCPAck, Window: 1000}
	if c.timestamps {
		f.opts.HasTimestamps, f.opts.TSVal, f.opts.TSEcr = true, c.timestamp(p.now), c.tsRecent
	}
	return f
}

// works checks that text still gets through both ways.
func (p *pair) works(t *testing.T) {
	t.Helper()
	msg, to := []byte("still here"), make([]byte, 100)
	for i, c := range p.conns {
		c.Write(p.now, msg)
		p.exchange()
		if n, err := p.conns[1-i].Read(p.now, to); string(to[:n]) != string(msg) || err != nil {
			t.Errorf("read %q, %v", to[:n], err)
		}
		p.exchange()
	}
	if s := p.conns[1].State(); s != Established {
		t.Errorf("in %v", s)
	}
}

// A timestamp from the future makes all that the peer sends look old. It is believed
// only with a good acknowledgment.
func TestPoisonedTimestamps(t *testing.T) {
	for _, flags := range []wire.TCPFlags{0, wire.TCPAck, wire.TCPSyn, wire.TCPSyn | wire.TCPAck, wire.TCPFin, wire.TCPPsh | wire.TCPUrg | wire.TCPAck} {
		p := newPair(t, Config{}, Options{})
		c := p.conns[1]
		for _, text := range []int{0, 1, 1000} {
			f := p.peer(make([]byte, text))
			f.fields.Flags = flags
			f.fields.Ack = c.sndMax.Add(1 << 30).Uint32()
			f.opts.TSVal += 1<<31 - 1000
			before := c.tsRecent
			p.attack(f)
			if c.tsRecent != before {
				t.Errorf("%v with %d bytes: TS.Recent went on by %d ms", flags, text, c.tsRecent-before)
			}
		}
		p.works(t)
	}
}

// LAND: a segment that claims to come from where it goes to.
func TestLand(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	tab := p.tabs[1]
	for _, flags := range []wire.TCPFlags{wire.TCPSyn, wire.TCPAck, wire.TCPSyn | wire.TCPAck, wire.TCPFin, wire.TCPRst} {
		sent := tab.Count(SegmentsSent)
		p.attack(forge{from: AddrPort{Addr: hostB, Port: 80}, fields: wire.TCPFields{Flags: flags}})
		if n := tab.Len(); n != 1 || tab.Count(SegmentsSent) != sent {
			t.Errorf("%v: %d connections, %d answers", flags, n, tab.Count(SegmentsSent)-sent)
		}
	}
	if n := tab.Count(BadAddress); n != 5 {
		t.Errorf("%d were counted", n)
	}
	p.works(t)
}
