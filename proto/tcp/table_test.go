package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/wire"
)

// The published vectors of SipHash-2-4: key 00 01 .. 0f, input 00 01 .. .
func TestSipHash(t *testing.T) {
	var key [16]byte
	input := make([]byte, 16)
	for i := range key {
		key[i], input[i] = byte(i), byte(i)
	}
	h := newSipHash(key)
	a, b := binary.LittleEndian.Uint64(input), binary.LittleEndian.Uint64(input[8:])
	for n, want := range []uint64{0x726fdb47dd0e0e31, 0x93f5f5799a932462, 0x3f2acc7f57c29bdb} {
		if got := h.sum([]uint64{a, b}[:n]...); got != want {
			t.Errorf("%d words: %#x, want %#x", n, got, want)
		}
	}
}

func TestISN(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	id := makeTuple(AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 2})
	first := tab.isn(0, id)
	if d := tab.isn(Time(time.Second), id).From(first); d != 250000 {
		t.Errorf("%d numbers in a second, RFC 6528 has 250000", d)
	}
	other := tab.isn(0, makeTuple(AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 3}))
	secret := NewTable(Config{Secret: [16]byte{9}}).isn(0, id)
	if other == first || secret == first {
		t.Error("does not depend on the ends, or not on the secret")
	}
}

func TestDialErrors(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret, Ports: []PortRange{{7000, 7001}, {7005, 7004}, {7010, 7010}}})
	for _, c := range []struct {
		local, remote AddrPort
		want          error
	}{
		{AddrPort{}, AddrPort{Addr: hostB, Port: 80}, syscall.EINVAL},
		{AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 0}, syscall.EINVAL},
		{AddrPort{Addr: hostA}, AddrPort{Addr: wire.AddrFrom4([4]byte{224, 0, 0, 1}), Port: 80}, syscall.EINVAL},
		{AddrPort{Addr: hostA}, AddrPort{Addr: wire.AddrFrom4([4]byte{255, 255, 255, 255}), Port: 80}, syscall.EINVAL},
		{AddrPort{Addr: hostA, Port: 80}, AddrPort{Addr: hostA, Port: 80}, syscall.EADDRINUSE},
	} {
		if _, err := tab.Dial(0, c.local, c.remote, Options{}); err != c.want {
			t.Errorf("%v to %v: %v, want %v", c.local, c.remote, err, c.want)
		}
	}
	// The three ports, each once a destination.
	for _, port := range []uint16{80, 81} {
		seen := map[uint16]bool{}
		for range 3 {
			c, err := tab.Dial(0, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: port}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			seen[c.Local().Port] = true
		}
		if !seen[7000] || !seen[7001] || !seen[7010] {
			t.Errorf("ports %v", seen)
		}
		if _, err := tab.Dial(0, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: port}, Options{}); err != syscall.EADDRNOTAVAIL {
			t.Errorf("a fourth: %v", err)
		}
		if _, err := tab.Dial(0, AddrPort{Addr: hostA, Port: 7000}, AddrPort{Addr: hostB, Port: port}, Options{}); err != syscall.EADDRINUSE {
			t.Errorf("the same again: %v", err)
		}
	}
}

// RFC 6056, section 3.3.4: the ports to one destination follow one another, from
// a start that differs between destinations and secrets.
func TestEphemeralPorts(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	starts := map[uint16]bool{}
	for i := range 50 {
		remote := AddrPort{Addr: wire.AddrFrom4([4]byte{10, 0, 1, byte(i)}), Port: 80}
		p := tab.ephemeralPort(hostA, remote)
		if p < firstEphemeral || p > lastEphemeral {
			t.Fatalf("port %d", p)
		}
		starts[p] = true
	}
	if len(starts) < 45 {
		t.Errorf("only %d different ports for 50 destinations", len(starts))
	}
	seen := map[uint16]bool{}
	for range lastEphemeral - firstEphemeral + 1 {
		p := tab.ephemeralPort(hostA, AddrPort{Addr: hostB, Port: 80})
		if p == 0 || seen[p] {
			t.Fatalf("port %d again before all were used", p)
		}
		seen[p] = true
	}
}

func TestBadSegments(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	good := make([]byte, 20)
	put := func(src, dst uint16, from, to wire.Addr) {
		wire.PutTCP(good, &wire.TCPFields{SrcPort: src, DstPort: dst, Flags: wire.TCPSyn}, 20, wire.PseudoHeader(from, to, wire.ProtocolTCP, 20))
	}
	for _, c := range []struct {
		src, dst uint16
		from, to wire.Addr
		cut      int
		want     Counter
	}{
		{1, 2, hostB, hostA, 20, NoConnection},
		{1, 2, hostB, hostA, 19, BadLength},
		{0, 2, hostB, hostA, 20, BadAddress},
		{1, 0, hostB, hostA, 20, BadAddress},
		{1, 2, wire.AddrFrom4([4]byte{224, 0, 0, 1}), hostA, 20, BadAddress},
		{1, 2, wire.Addr{}, hostA, 20, BadAddress},
		{1, 2, hostB, wire.AddrFrom4([4]byte{255, 255, 255, 255}), 20, BadAddress},
	} {
		put(c.src, c.dst, c.from, c.to)
		before := tab.Count(c.want)
		r := tab.Process(0, &Inbound{Src: c.from, Dst: c.to, Data: good[:c.cut]})
		if tab.Count(c.want) != before+1 || r.Reply != (c.want == NoConnection) {
			t.Errorf("%+v: %+v", c, r)
		}
	}
	if tab.EmitReply(make([]byte, 60)) != 0 {
		t.Error("a reply that was not announced")
	}
}

func TestPartialChecksums(t *testing.T) {
	b := make([]byte, 20)
	wire.PutTCP(b, &wire.TCPFields{SrcPort: 1, DstPort: 2, Flags: wire.TCPSyn}, 20, 0)
	binary.BigEndian.PutUint16(b[16:], wire.Fold(wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, 20)))
	for _, accept := range []bool{false, true} {
		tab := NewTable(Config{PartialChecksums: accept})
		if r := tab.Process(0, &Inbound{Src: hostB, Dst: hostA, Data: b}); r.Reply != accept {
			t.Errorf("accepted %v, want %v", r.Reply, accept)
		}
	}
}

// The forms in which a segment of host A arrives at host B.
const (
	complete        = 'c' // with its checksum
	partial         = 'p' // with that of the pseudo-header
	completePartial = 'a' // with a complete checksum that has the value of the partial one
	damagedPartial  = 'd' // the same, and one bit of the data is wrong
)

// setChecksumForm gives a segment from A to B another form. completePartial and damagedPartial change its data.
func setChecksumForm(b []byte, form rune) {
	pseudo := wire.Fold(wire.PseudoHeader(hostA, hostB, wire.ProtocolTCP, uint16(len(b))))
	field := b[16:18]
	if form == completePartial || form == damagedPartial {
		// The last word of the data changes by as much as the field (RFC 1624). Lengths are even.
		word := b[len(b)-2:]
		sum := uint64(binary.LittleEndian.Uint16(word)) + uint64(binary.LittleEndian.Uint16(field)) +
			uint64(^binary.LittleEndian.Uint16(binary.BigEndian.AppendUint16(nil, pseudo)))
		binary.BigEndian.PutUint16(word, wire.Fold(sum))
	}
	if form == damagedPartial {
		b[len(b)-3] ^= 0x10
	}
	if form != complete {
		binary.BigEndian.PutUint16(field, pseudo)
	}
}

func TestSetChecksumForm(t *testing.T) {
	for form, want := range map[rune]wire.ChecksumState{complete: wire.ChecksumGood, partial: wire.ChecksumPartial, completePartial: wire.ChecksumGood, damagedPartial: wire.ChecksumPartial} {
		p := newPair(t, Config{}, Options{})
		p.conns[0].Write(p.now, make([]byte, 1000))
		b := p.buf[:p.conns[0].Emit(p.now, p.buf)]
		setChecksumForm(b, form)
		if got, is := view(b).Checksum(hostA, hostB), view(b).AcceptPartial(hostA, hostB); got != want || is != (form != complete) {
			t.Errorf("%c: %v, partial value: %t", form, got, is)
		}
	}
}

// TestDamagedSegmentsWithPartialChecksum: a table on a virtual link receives segments in several forms.
// It takes each, or drops it ('-') and receives it again in the next form.
func TestDamagedSegmentsWithPartialChecksum(t *testing.T) {
	for _, c := range []struct {
		name      string
		handshake rune
		forms     string // 'n': on a new connection; 's': partialSpan segments later
	}{
		{"complete, damaged", complete, "cd-cccsd-csd-c"},
		{"complete, damaged, the first with data", complete, "d-c"},
		{"complete, valid with the partial value, damaged", complete, "cad-ca"},
		{"partial, from a kernel", partial, "ppcpccp"},
		{"some partial, from GRO", complete, "ccp-pcpscpccp"},
		{"some partial, the next connection", complete, "cp-pnccpcpncp"},
		{"some partial, the next connection much later", complete, "cp-psncp-c"},
	} {
		for _, post := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/posted=%t", c.name, post), func(t *testing.T) {
				p := newPair(t, Config{PartialChecksums: true}, Options{})
				handshake := func() {
					p.change = func(from int, b []byte) {
						if from == 0 {
							setChecksumForm(b, c.handshake)
						}
					}
					p.dial(t, Options{})
					p.change = nil
				}
				handshake()
				data, segment, to := make([]byte, 1000), []byte(nil), make([]byte, 2000)
				for i, form := range c.forms {
					switch form {
					case '-':
						continue
					case 'n':
						handshake()
						continue
					case 's':
						p.tabs[1].counts[SegmentsReceived] += partialSpan
						continue
					}
					ours, tab := p.conns[1], p.tabs[1]
					if segment == nil {
						data[i]++
						p.conns[0].Write(p.now, data)
						segment = append(segment, p.buf[:p.conns[0].Emit(p.now, p.buf)]...)
					}
					b := append([]byte(nil), segment...)
					setChecksumForm(b, form)
					if post && !ours.Post(p.now, to) {
						t.Fatal("not posted")
					}
					bad := tab.Count(BadChecksum)
					tab.Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b})
					n := 0
					if post {
						n = ours.Unpost(p.now)
					} else {
						n, _ = ours.Read(p.now, to)
					}
					dropped := i+1 < len(c.forms) && c.forms[i+1] == '-'
					if dropped != (n == 0) || dropped != (tab.Count(BadChecksum) == bad+1) || !dropped && string(to[:n]) != string(view(b).Payload) {
						t.Fatalf("segment %d of %s: read %d bytes, %d bad checksums", i, c.forms, n, tab.Count(BadChecksum)-bad)
					}
					if !dropped {
						segment = nil
						p.exchange()
					}
				}
			})
		}
	}
}

// TestCompleteChecksumInSynSent: a kernel answers a SYN in TIME-WAIT with an ACK, whose
// checksum is complete, and then with a SYN,ACK, whose checksum is partial.
func TestCompleteChecksumInSynSent(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret, PartialChecksums: true})
	c, err := tab.Dial(0, AddrPort{Addr: hostB, Port: 1000}, AddrPort{Addr: hostA, Port: 80}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	syn := view(b[:c.Emit(0, b)]).Seq
	for _, s := range []struct {
		ack   uint32
		flags wire.TCPFlags
		form  rune
	}{{syn + 5000, wire.TCPAck, complete}, {syn + 1, wire.TCPSyn | wire.TCPAck, partial}} {
		wire.PutTCP(b, &wire.TCPFields{SrcPort: 80, DstPort: 1000, Seq: 1, Ack: s.ack, Flags: s.flags, Window: 1000}, 20, wire.PseudoHeader(hostA, hostB, wire.ProtocolTCP, 20))
		setChecksumForm(b[:20], s.form)
		tab.Process(0, &Inbound{Src: hostA, Dst: hostB, Data: b[:20]})
	}
	if c.State() != Established {
		t.Error(c.State(), tab.Count(BadChecksum))
	}
}

// With Postpone connections that have more to send emit their segments in turn.
func TestPostpone(t *testing.T) {
	p := newPair(t, Config{}, Options{Cork: -1})
	a := p.conns[0]
	p.dial(t, Options{Cork: -1})
	b := p.conns[0]
	a.Write(p.now, make([]byte, 5000))
	b.Write(p.now, make([]byte, 5000))
	var order []*Conn
	for c := p.tabs[0].Ready; c != nil; c = p.tabs[0].Ready {
		order = append(order, c)
		p.carry(0, c)
		p.tabs[0].Postpone(c)
	}
	for i, c := range order {
		if want := [2]*Conn{a, b}[i%2]; c != want {
			t.Fatalf("segment %d is of the wrong connection", i)
		}
	}
	if len(order) != 8 {
		t.Errorf("%d segments, want 8", len(order))
	}
}

// gopacket reads what Emit and EmitReply write, and finds the same checksum.
func TestGopacketReadsOurSegments(t *testing.T) {
	check := func(b []byte, from, to wire.Addr) *layers.TCP {
		t.Helper()
		pkt := gopacket.NewPacket(b, layers.LayerTypeTCP, gopacket.Default)
		if e := pkt.ErrorLayer(); e != nil {
			t.Fatal(e.Error())
		}
		seg := pkt.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if err := seg.SetNetworkLayerForChecksum(&layers.IPv4{Protocol: layers.IPProtocolTCP, SrcIP: from.Netip().AsSlice(), DstIP: to.Netip().AsSlice()}); err != nil {
			t.Fatal(err)
		}
		had := seg.Checksum
		out := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(out, gopacket.SerializeOptions{ComputeChecksums: true}, seg, gopacket.Payload(seg.Payload)); err != nil {
			t.Fatal(err)
		}
		if seg.Checksum != had {
			t.Errorf("checksum %#04x, gopacket has %#04x: %x", had, seg.Checksum, b)
		}
		return seg
	}
	p := newPair(t, Config{}, Options{Cork: -1})
	b := make([]byte, 2000)
	c := p.conns[0]
	var written, sent []byte
	for _, n := range []int{1, 2, 63, 1448, 3} { // after an odd length the next piece begins at an odd offset
		data := patternBytes(0, len(written), n)
		c.Write(p.now, data)
		written = append(written, data...)
	}
	c.Flush(p.now)
	for p.tabs[0].Ready != nil {
		seg := check(b[:c.Emit(p.now, b)], hostA, hostB)
		sent = append(sent, seg.Payload...)
		if !seg.ACK || len(seg.Options) != 3 || seg.Options[2].OptionType != layers.TCPOptionKindTimestamps {
			t.Errorf("segment %+v", seg)
		}
	}
	if !bytes.Equal(sent, written) {
		t.Errorf("%d bytes were sent, or wrong ones, of %d", len(sent), len(written))
	}
	c.Abort()
	if seg := check(b[:c.Emit(p.now, b)], hostA, hostB); !seg.RST {
		t.Error("no RST")
	}
	syn, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 81}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := syn.Emit(p.now, b)
	if seg := check(b[:n], hostA, hostB); !seg.SYN || seg.ACK {
		t.Error("no SYN")
	}
	if !p.tabs[1].Process(p.now, &Inbound{Src: hostA, Dst: hostB, Data: b[:n]}).Reply {
		t.Fatal("not refused")
	}
	if seg := check(b[:p.tabs[1].EmitReply(b)], hostB, hostA); !seg.RST || !seg.ACK {
		t.Error("no RST")
	}
}

func TestCounterAndStateNames(t *testing.T) {
	seen := map[string]bool{}
	NewTable(Config{}).EachCounter(func(name string, _ uint64) {
		if name == "" || seen[name] {
			t.Errorf("counter %q", name)
		}
		seen[name] = true
	})
	if len(seen) != int(numberOfCounts) || BadLength.String() != "bad_length" || Counter(255).String() != "invalid counter" {
		t.Error("names of counters")
	}
	if TimeWait.String() != "TIME-WAIT" || State(99).String() != "invalid state" {
		t.Error("names of states")
	}
}

// Table.Close ends all connections, with RSTs in the same order every time. Data that was received can
// still be read.
func TestTableClose(t *testing.T) {
	var orders [2]string
	for i := range orders {
		p := newPair(t, Config{}, Options{})
		tab := p.tabs[1]
		kept := p.conns[1]
		for range 10 {
			p.conns[0].Write(p.now, make([]byte, 700))
			p.exchange()
			p.dial(t, Options{})
		}
		p.conns[1].Close(p.now)
		p.conns[0].Close(p.now)
		p.exchange()
		waiting, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.exchange() // it is not accepted
		tab.Close()
		b := make([]byte, 100)
		for c := tab.Ready; c != nil; c = tab.Ready {
			orders[i] += c.Remote().String() + describe(b[:c.Emit(p.now, b)]) + "\n"
		}
		if tab.Len() != 0 || len(tab.listeners) != 0 || tab.TimeWaits() != 0 || tab.Deadline != Never {
			t.Fatalf("%d connections, %d listeners left", tab.Len(), len(tab.listeners))
		}
		if n, err := kept.Read(p.now, make([]byte, 1000)); n != 700 || err != nil {
			t.Errorf("read %d bytes of the received ones, %v", n, err)
		}
		if _, err := kept.Read(p.now, make([]byte, 1000)); err != syscall.ECONNABORTED {
			t.Errorf("read after all data: %v, want ECONNABORTED", err)
		}
		if waiting.State() != Established {
			t.Error(waiting.State())
		}
	}
	if orders[0] != orders[1] || len(orders[0]) == 0 {
		t.Errorf("one order:\n%sanother:\n%s", orders[0], orders[1])
	}
}

// The setters, on a connection that is established.
func TestSetters(t *testing.T) {
	p := newPair(t, noOptions, Options{})
	c := p.conns[0]
	if c.Room() != initialSendBuffer {
		t.Errorf("room for %d", c.Room())
	}
	c.SetBuffers(p.now, 5000, 0)
	if n, _ := c.Write(p.now, make([]byte, 9000)); n != 5000 || c.Room() != 0 {
		t.Errorf("wrote %d into 5000", n)
	}
	c.SetMTU(p.now, 576, false)
	if n := c.Emit(p.now, p.buf); n != 556 {
		t.Errorf("a segment of %d bytes for an MTU of 576", n)
	}
	c.SetMTU(p.now, 10, false) // 68 is IPv4's least
	if n := c.Emit(p.now, p.buf); n != 48 {
		t.Errorf("a segment of %d bytes for an MTU of 68", n)
	}
	p.exchange()
	p.now = p.now.add(time.Second)
	p.tabs[0].Expire(p.now)
	p.exchange()
	if p.conns[1].Buffered() != 5000 {
		t.Fatalf("%d bytes came", p.conns[1].Buffered())
	}

	// A smaller receive buffer does not move the right edge of the window back.
	d := p.conns[1]
	edge := d.rcvAdv
	d.SetBuffers(p.now, 0, 4096)
	p.exchange()
	if d.rcvAdv.Before(edge) {
		t.Error("the right edge of the window has moved back")
	}
	c.SetNagle(p.now, true)
	if c.Write(p.now, make([]byte, 10)); !c.onReady {
		t.Error("Nagle: the first small write waits")
	}
	p.carry(0, c)
	c.Write(p.now, make([]byte, 10))
	if c.onReady {
		t.Error("Nagle: the second small write does not wait")
	}
	c.SetNagle(p.now, false)
	if c.onReady {
		t.Error("without Nagle the small write is not corked")
	}
	c.SetCork(p.now, -1)
	if !c.onReady {
		t.Error("without a cork the small write waits")
	}
	c.SetUserTimeout(time.Second)
	p.now = p.now.add(2 * time.Second)
	p.tabs[0].Expire(p.now)
	if c.Err() != syscall.ETIMEDOUT {
		t.Error("no user timeout")
	}
	p.dial(t, Options{})
	c = p.conns[0]
	c.fail(syscall.EHOSTUNREACH)
	if c.Err() != syscall.EHOSTUNREACH || c.onReady || p.tabs[0].Len() != 0 {
		t.Errorf("after fail: %v, %d connections in the table", c.Err(), p.tabs[0].Len())
	}
}

// ChoosePort is compared with a search of all pairs, while connections to a few destinations are opened
// and closed, and a listener changes its port. A pair that was not used before comes before one in
// TIME-WAIT; a port with a listener, and the pair of a connection, is not chosen. There is no port only
// if there is none in the search.
func TestChoosePortModel(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	blocks := []PortBlock{{First: 40000 - 40000%64, Ports: ^uint64(0)}, {First: 0, Ports: 1<<9 | 1<<33}, {First: 65472, Ports: 0xf0f0}}
	tab := NewTable(Config{Secret: testSecret, MaxTimeWaits: 70})
	var listener *Listener
	var conns []*Conn
	now := Time(0)
	taken, reused, none := 0, 0, 0
	for i := range 40_000 {
		now = now.add(time.Millisecond)
		tab.Expire(now)
		if i%500 == 0 {
			if listener != nil {
				listener.Close()
			}
			listener, _ = tab.Listen(AddrPort{Addr: hostA, Port: blocks[0].First + uint16(random.IntN(64))}, ListenOptions{})
		}
		remote := AddrPort{Addr: hostB, Port: uint16(80 + random.IntN(3))}
		if random.IntN(5) == 0 {
			remote = AddrPort{Addr: hostA, Port: blocks[0].First + 5} // one of our own
		}
		if grow := i%2000 < 1200; !grow || random.IntN(4) == 0 {
			if len(conns) > 0 {
				n := random.IntN(len(conns))
				c := conns[n]
				conns = slices.Delete(conns, n, n+1)
				if random.IntN(2) == 0 {
					c.finish(Closed)
				} else {
					c.enterTimeWait(now)
				}
			}
			continue
		}
		fresh, old := 0, 0
		eligible := map[uint16]bool{}
		for _, b := range blocks {
			for i := range uint16(64) {
				local := AddrPort{Addr: hostA, Port: b.First + i}
				id := makeTuple(local, remote)
				switch {
				case b.Ports>>i&1 == 0, tab.conns[id] != nil, local == remote, listener.Addr() == local:
				case tab.waits.records[id] == nil:
					fresh++
					eligible[local.Port] = true
				default:
					old++
					eligible[local.Port] = true
				}
			}
		}
		port := tab.ChoosePort(hostA, remote, blocks)
		id := makeTuple(AddrPort{Addr: hostA, Port: port}, remote)
		switch {
		case port == 0 && len(eligible) > 0, port != 0 && !eligible[port]:
			t.Fatalf("chose %d to %v of %v", port, remote, eligible)
		case fresh > 0 && tab.waits.records[id] != nil:
			t.Fatalf("chose %d to %v in TIME-WAIT when %d were fresh", port, remote, fresh)
		case port == 0:
			none++
			continue
		case fresh == 0:
			reused++
		}
		taken++
		c, err := tab.Dial(now, AddrPort{Addr: hostA, Port: port}, remote, Options{})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if taken < 1000 || reused < 100 || none < 100 {
		t.Errorf("%d taken, of which %d from TIME-WAIT, and %d times there was none", taken, reused, none)
	}
	for _, c := range conns {
		c.finish(Closed)
	}
	tab.Close()
	if len(tab.pairs) != 0 || len(tab.full) != 0 {
		t.Errorf("%d blocks of pairs are left, %d destinations have full ones", len(tab.pairs), len(tab.full))
	}
}

// One address has a connection from each of its ports from 1024 on to one destination, and as many to
// another destination. Ports of the kernel's default range come first.
func TestAllPortsOfOwnedAddress(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	const all = 1<<16 - firstUser
	for _, remote := range []AddrPort{{Addr: hostB, Port: 80}, {Addr: hostB, Port: 81}} {
		low := 0
		for i := range all {
			c, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{})
			if err != nil {
				t.Fatalf("dial %d to %v: %v", i, remote, err)
			}
			if p := c.Local().Port; p < firstEphemeral || p > lastEphemeral {
				low++
			} else if low > 0 {
				t.Fatalf("port %d after a port outside of the kernel's default range", p)
			}
		}
		if _, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{}); err != syscall.EADDRNOTAVAIL {
			t.Errorf("one dial more: %v, want EADDRNOTAVAIL", err)
		}
	}
	if n := tab.Len(); n != 2*all {
		t.Errorf("%d connections", n)
	}
}

func BenchmarkChoosePort(b *testing.B) {
	for _, free := range []int{1<<16 - firstUser, 1000, 10, 1, 0} {
		b.Run(fmt.Sprint(free, " free"), func(b *testing.B) {
			tab := NewTable(Config{Secret: testSecret})
			remote := AddrPort{Addr: hostB, Port: 80}
			for range 1<<16 - firstUser - free {
				if _, err := tab.Dial(0, AddrPort{Addr: hostA}, remote, Options{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if (tab.ephemeralPort(hostA, remote) == 0) != (free == 0) {
					b.Fatal("no port although one is free, or a port although none is")
				}
			}
		})
	}
}

// A published record has the state of a connection from its handshake to its end. Next is always RCV.NXT
// of the peer, the rest is as of the last Publish. Records are used again by other connections, and
// connections work without a record if none is free.
func TestPublishedRecords(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	records := make([]wire.Connection, 2)
	p.tabs[0].published.records = wire.NewConnections(records)
	l, err := p.tabs[1].Listen(AddrPort{Port: 81}, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dial := func() [2]*Conn {
		c, err := p.tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 81}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.RemotePort != 0 && r.LocalPort == c.Local().Port {
				t.Error("published before the handshake")
			}
		}
		p.exchange()
		return [2]*Conn{c, l.Accept()}
	}
	want := func(i int, of [2]*Conn) {
		t.Helper()
		c := of[0]
		if got := records[i]; got.Next != of[1].rcvNxt.Uint32() { // without Publish
			t.Errorf("Next %d, want %d", got.Next, of[1].rcvNxt.Uint32())
		}
		p.tabs[0].Publish(len(records))
		info := c.Info()
		if got, want := records[i], (wire.Connection{
			Local: hostA, Remote: hostB, LocalPort: c.Local().Port, RemotePort: 81, Next: of[1].rcvNxt.Uint32(),
			State: uint8(info.State), Protocol: wire.ProtocolTCP, MSS: uint16(info.SendMSS), Window: uint32(info.CongestionWindow),
			InFlight: uint32(info.InFlight), SendQueue: uint32(info.Unsent), ReceiveQueue: uint32(info.Buffered),
			RTT: uint64(info.RTT), RTTVar: uint64(info.RTTVar), RTO: uint64(info.RTO), Received: info.SegmentsReceived, Sent: info.SegmentsSent,
			BytesIn: info.BytesReceived, BytesAcked: info.BytesAcked, Again: info.Retransmissions,
		}); got != want {
			t.Errorf("%+v is published, want %+v", got, want)
		}
		if p.tabs[0].Changed() {
			t.Error("changed after Publish")
		}
	}
	empty := func(i int) {
		t.Helper()
		if records[i] != (wire.Connection{}) {
			t.Errorf("record %d is %+v, want an empty one", i, records[i])
		}
	}
	send := func(of [2]*Conn) {
		t.Helper()
		p.conns = of
		b, to := patternBytes(0, 0, 100), make([]byte, 100)
		if n := testing.AllocsPerRun(10, func() { p.send(t, 0, b, to, true); p.send(t, 1, b, to, true) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		p.exchange()
	}

	first, second, third := dial(), dial(), dial()
	for _, c := range [][2]*Conn{first, second, third} {
		send(c)
	}
	want(0, first)
	want(1, second)
	first[0].Abort()
	p.exchange()
	empty(0)
	want(1, second)
	fourth := dial()
	send(fourth)
	want(0, fourth)
	// The FIN counts, and the connection is published until it is over.
	fourth[0].Close(p.now)
	p.exchange()
	want(0, fourth)
	fourth[1].Close(p.now)
	p.exchange()
	empty(0)
	p.tabs[0].Close()
	empty(1)
}

func TestBlocksOfPortRange(t *testing.T) {
	for _, r := range []PortRange{{0, 65535}, {1, 1}, {63, 64}, {64, 127}, {100, 120}, {32768, 60999}, {65535, 65535}, {5, 4}, {128, 127}} {
		var ports, want []uint16
		for _, b := range r.blocks() {
			for i := range uint16(blockPorts) {
				if b.Ports>>i&1 != 0 {
					ports = append(ports, b.First+i)
				}
			}
		}
		for port := int(r.First); port <= int(r.Last); port++ {
			want = append(want, uint16(port))
		}
		if !slices.Equal(ports, want) || slices.ContainsFunc(r.blocks(), func(b PortBlock) bool { return b.Ports == 0 }) {
			t.Errorf("ports %d to %d: got %d ports, want %d", r.First, r.Last, len(ports), len(want))
		}
	}
}

// A connection that its application closes does not count as failed, also if Close sends a RST because of
// unread data or of data that arrives later.
func TestCloseIsNotCountedAsFailure(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	c, peer := p.conns[0], p.conns[1]
	peer.Write(p.now, make([]byte, 10))
	p.exchange()
	c.Close(p.now) // with unread data
	p.exchange()
	if c.State() != Closed || peer.Err() != syscall.ECONNRESET {
		t.Fatalf("closed: %v; the peer's error is %v", c.State(), peer.Err())
	}
	p = newPair(t, Config{}, Options{})
	c, peer = p.conns[0], p.conns[1]
	c.Close(p.now)
	p.exchange()
	peer.Write(p.now, make([]byte, 10)) // after Close
	p.exchange()
	if c.State() != Closed || peer.Err() != syscall.ECONNRESET {
		t.Fatalf("closed: %v; the peer's error is %v", c.State(), peer.Err())
	}
	if n, m := p.tabs[0].Count(Failed), p.tabs[1].Count(Failed); n != 0 || m != 1 {
		t.Errorf("failed %d, and the peer's %d", n, m)
	}
}

// Two tables exchange data over a link that loses, repeats and reorders segments. With and without
// header prediction they send the same segments and read the same data, by wire and by memory.
func TestHeaderPrediction(t *testing.T) {
	skipUnderRace(t)
	for seed := range uint64(150) {
		var sent [2][]string
		for k := range sent {
			cfg := Config{noPrediction: k == 1, NoTimestamps: seed%5 == 1, NoSACK: seed%7 == 1, ECN: ECNOn, PartialChecksums: seed%2 == 1}
			sent[k] = exchangeEvents(t, seed, cfg, Options{AdaptiveAck: seed%3 == 1, ReceiveBuffer: int(seed%4) * 3000})
		}
		for i := range min(len(sent[0]), len(sent[1])) {
			if sent[0][i] != sent[1][i] {
				t.Fatalf("seed %d, event %d: %s; without prediction: %s", seed, i, sent[0][i], sent[1][i])
			}
		}
		if len(sent[0]) != len(sent[1]) {
			t.Fatalf("seed %d: %d events; without prediction: %d", seed, len(sent[0]), len(sent[1]))
		}
	}
}

// Segments that look as if header prediction applied, and need other steps of RFC 9293.
func TestSegmentsWithoutHeaderPrediction(t *testing.T) {
	runScripts(t, []script{
		{name: "data with the ACK of our FIN", cfg: noOptions, text: `
			both:
			closewrite
			> FA 1:0 ack 1
			< A 1:100 ack 2
			> A 2:0 ack 101
			state FIN-WAIT-2`},
		{name: "data beyond the window", cfg: noOptions, opts: Options{ReceiveBuffer: 2048}, text: `
			both:
			< A 1:2148 ack 1
			> A 1:0 ack 2049 win 0
			count beyond_window 100`},
		{name: "data before a FIN that came out of order", cfg: noOptions, text: `
			both:
			write 10
			> PA 1:10 ack 1
			< A 1:0 ack 11
			< FA 101:0 ack 1	# sent before that ACK
			> A 11:0 ack 1
			< A 1:100 ack 11
			> A 11:0 ack 102
			state CLOSE-WAIT`},
		{name: "data that overlaps out-of-order data: D-SACK reports it", cfg: withSack, text: `
			listen
			< S 0:0 mss 1000 sackok
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 10
			> PA 1:10 ack 1
			< A 1:0 ack 11
			< A 101:100 ack 1	# sent before that ACK
			> A 11:0 ack 1 sack 101-201
			< A 1:150 ack 11
			> A 11:0 ack 201 sack 101-151`},
		{name: "an ACK without SACK blocks while segments are SACKed: the reordering timer stays", cfg: withSack, text: tenSegments + `
			hold
			< A 1:0 ack 1001 win 60000 sack 2001-3001
			timer 2.5ms
			< A 1:0 ack 1501 win 60000
			timer 2.5ms`},
	})
}

// The reaction to ECE ends when data that was sent after it is acknowledged. Otherwise ECE would be
// ignored again after 2 GiB of data.
func TestECNReactionEnds(t *testing.T) {
	p := newPair(t, Config{ECN: ECNOn}, Options{})
	c := p.conns[0]
	c.reduce(p.now, 0)
	if c.Write(p.now, make([]byte, 100)); !c.reducing {
		t.Fatal("ECE has started no reaction")
	}
	if p.exchange(); c.reducing {
		t.Error("the reaction has not ended")
	}
}

// exchangeEvents has two tables exchange data, and lists what both write, send and read.
func exchangeEvents(t *testing.T, seed uint64, cfg Config, o Options) (events []string) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	p := newPair(t, cfg, o)
	lossy := seed%4 != 0
	byMemory := seed%6 == 5 // from the first segment on, but for a few
	if byMemory {
		p.conns[0].sums, p.conns[1].sums = unknownSums, unknownSums
	}
	var link [2][][]byte
	var post [2][]byte
	data, to := patternBytes(0, 0, 9000), make([]byte, 9000)
	for range 3000 {
		i := rnd.IntN(2)
		c, tab := p.conns[i], p.tabs[i]
		p.now += Time(rnd.IntN(100_000))
		if rnd.IntN(100) == 0 {
			p.now += Time(20 * time.Millisecond) // a timeout
		}
		switch what := rnd.IntN(12); {
		case what == 0:
			n, _ := c.Write(p.now, data[rnd.IntN(len(data)):])
			events = append(events, fmt.Sprintf("%d: wrote %d", i, n))
		case what == 1 && post[i] == nil:
			n, _ := c.Read(p.now, to[:1+rnd.IntN(len(to)-1)])
			events = append(events, fmt.Sprintf("%d: read %d bytes with CRC %#x", i, n, crc32.ChecksumIEEE(to[:n])))
		case what == 2 && post[i] == nil:
			if buf := make([]byte, 1+rnd.IntN(4000)); c.Post(p.now, buf) {
				post[i] = buf
			}
		case what == 3 && post[i] != nil:
			n := c.Unpost(p.now)
			events = append(events, fmt.Sprintf("%d: %d posted bytes with CRC %#x", i, n, crc32.ChecksumIEEE(post[i][:n])))
			post[i] = nil
		case what == 4:
			tab.Expire(p.now)
		case what == 5:
			c.Flush(p.now)
		case what < 8:
			for tab.Ready != nil {
				b := make([]byte, 2000)
				b = b[:c.Emit(p.now, b)]
				link[i] = append(link[i], b)
				events = append(events, fmt.Sprintf("%d: sent %x, ECT %t", i, b[:min(len(b), 60)], c.ECT))
			}
		case len(link[1-i]) > 0:
			k := 0
			if lossy && rnd.IntN(10) == 0 {
				k = rnd.IntN(len(link[1-i]))
			}
			in := Inbound{Src: c.Remote().Addr, Dst: c.Local().Addr, Data: link[1-i][k]}
			if rnd.IntN(50) == 0 {
				in.ECN = wire.ECNMarked
			}
			in.NoChecksum = byMemory && rnd.IntN(1000) > 0
			if !lossy || rnd.IntN(20) > 0 {
				tab.Process(p.now, &in)
			}
			if !lossy || rnd.IntN(30) > 0 {
				link[1-i] = slices.Delete(link[1-i], k, k+1)
			}
		}
		if msg := c.invariant(); msg != "" {
			t.Fatalf("seed %d: %s", seed, msg)
		}
		for e, _ := tab.NextEvent(); e != nil; e, _ = tab.NextEvent() {
		}
	}
	return events
}

// Post sends corked data: the reader waits for an answer.
func TestPostSendsCorkedData(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	c := p.conns[0]
	c.Write(p.now, make([]byte, 100))
	p.exchange()
	c.Write(p.now, make([]byte, 100))
	c.Emit(p.now, p.buf)
	if c.Write(p.now, make([]byte, 10)); p.tabs[0].Ready != nil {
		t.Fatal("not corked")
	}
	if !c.Post(p.now, make([]byte, 10)) || p.tabs[0].Ready != c || c.Emit(p.now, p.buf) == 0 {
		t.Error("the corked bytes are not sent")
	}
}

// Only connections that have not been accepted yet have the event Acceptable.
func TestAcceptable(t *testing.T) {
	tabs := [2]*Table{NewTable(Config{}), NewTable(Config{})}
	p := &pair{tabs: tabs, now: Time(time.Second), buf: make([]byte, 2000)}
	l, _ := tabs[1].Listen(AddrPort{Port: 80}, ListenOptions{})
	for range 2 {
		if _, err := tabs[0].Dial(p.now, AddrPort{Addr: hostA}, AddrPort{Addr: hostB, Port: 80}, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // SYN; SYN,ACK; ACK
		for i := range tabs {
			for c := tabs[i].Ready; c != nil; c = tabs[i].Ready {
				p.carry(i, c)
			}
		}
	}
	if l.Len() != 2 {
		t.Fatal(l.Len(), "connections")
	}
	first := l.Accept()
	if c, e := tabs[1].NextEvent(); c != first || e != 0 {
		t.Error("an event of a connection that has been accepted:", e)
	}
	if c, e := tabs[1].NextEvent(); c == nil || c.Listener() != l || e != Acceptable {
		t.Error("no connection to accept:", e)
	}
}
