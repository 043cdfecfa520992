package cm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/wire"
)

// request is a REQ of a host, with what edit changes.
func request(from [4]byte, id uint32, edit func(*wire.CMReq, *wire.CMAddress)) datagram {
	src, dst := netip.AddrFrom4(from), netip.AddrFrom4(server)
	a := wire.CMAddress{SrcPort: 1, Src: src, Dst: dst}
	r := wire.CMReq{ServiceID: wire.ServiceTCP | 7174, QPN: 2 + id%1000000, PathMTU: 3, PKey: wire.DefaultPKey, Src: src, Dst: dst,
		RemoteTimeout: 20, LocalTimeout: 20, MaxRetries: 15, AckTimeout: 17}
	if edit != nil {
		edit(&r, &a)
	}
	r.Private = make([]byte, wire.CMAddressLen)
	wire.PutCMAddress(r.Private, &a)
	d := datagram{from: from, to: server}
	wire.PutCMReq(d.mad[:], uint64(id)<<8, id, &r)
	return d
}

// A million REQs of forged hosts: the listener holds its backlog, the rest is dropped without an
// answer and counted; when the time of the handshakes is over, it accepts again.
func TestHalfOpenFlood(t *testing.T) {
	p := newPair(t, nil)
	l, _ := p.srv.Listen(1, 100)
	const flood = 1_000_000
	for i := range uint32(flood) {
		d := request([4]byte{192, 0, byte(i >> 8), byte(i)}, i+1, func(r *wire.CMReq, _ *wire.CMAddress) { r.ServiceID = wire.ServiceTCP | 1 })
		p.input(&d)
	}
	if p.srv.Len() != 100 || l.pending != 100 || len(p.srv.events) != 100 {
		t.Fatalf("%d connections, %d in the backlog, %d events", p.srv.Len(), l.pending, len(p.srv.events))
	}
	p.wantCount(p.srv, BacklogFull, flood-100)
	if out := emitted(p.srv); len(out) != 0 {
		t.Errorf("%d answers", len(out))
	}
	half := events(p.srv)
	p.connect(0x50) // another listener is not affected

	// The application accepts them, and nobody answers.
	for _, ev := range half {
		p.accept(ev.Conn, 0x60)
	}
	for p.srv.Len() > 1 {
		p.now = p.srv.Deadline()
		p.srv.Expire(p.now)
		if n := len(emitted(p.srv)); n > 200 {
			t.Fatalf("%d MADs at a time", n)
		}
	}
	if l.pending != 0 {
		t.Errorf("%d left in the backlog", l.pending)
	}
	p.wantCount(p.srv, Timeouts, 100)
}

// The connections of all listeners are bounded together.
func TestConnectionsAreBounded(t *testing.T) {
	p := newPair(t, func(c *Config) { c.MaxConns = 10 })
	for i := range uint32(20) {
		d := request(client, i+1, nil)
		p.input(&d)
	}
	if p.srv.Len() != 10 {
		t.Errorf("%d connections", p.srv.Len())
	}
	p.wantCount(p.srv, BacklogFull, 10)
}

// Answers that belong to no connection wait in a queue of bounded length.
func TestRepliesAreBounded(t *testing.T) {
	p := newPair(t, func(c *Config) { c.MaxReplies = 8 })
	for i := range uint32(1000) {
		d := request(client, i+1, func(r *wire.CMReq, _ *wire.CMAddress) { r.ServiceID++ })
		if i%2 == 0 {
			wire.PutCMDreq(d.mad[:], 1, i+1, i+7, 9)
		}
		p.input(&d)
	}
	if n := len(emitted(p.srv)); n != 8 {
		t.Errorf("%d answers", n)
	}
	p.wantCount(p.srv, RepliesDropped, 992)
	p.connect(0x50) // connections do not use that queue
}

func TestBadRequests(t *testing.T) {
	other := netip.MustParseAddr("10.9.1.77")
	for _, c := range []struct {
		name string
		edit func(*wire.CMReq, *wire.CMAddress)
		want wire.CMReason
	}{
		{"other port", func(r *wire.CMReq, _ *wire.CMAddress) { r.ServiceID = wire.ServiceTCP | 7175 }, wire.CMRejInvalidServiceID},
		{"other port space", func(r *wire.CMReq, _ *wire.CMAddress) { r.ServiceID = 0x0000000001110000 | 7174 }, wire.CMRejInvalidServiceID},
		{"no IP service", func(r *wire.CMReq, _ *wire.CMAddress) { r.ServiceID |= 1 << 40 }, wire.CMRejInvalidServiceID},
		{"RD", func(r *wire.CMReq, _ *wire.CMAddress) { r.Transport = 2 }, wire.CMRejInvalidTransport},
		{"XRC", func(r *wire.CMReq, _ *wire.CMAddress) { r.Transport = 3 }, wire.CMRejInvalidTransport},
		{"no path MTU", func(r *wire.CMReq, _ *wire.CMAddress) { r.PathMTU = 0 }, wire.CMRejInvalidPathMTU},
		{"path MTU above the link's", func(r *wire.CMReq, _ *wire.CMAddress) { r.PathMTU = 4 }, wire.CMRejInvalidPathMTU},
		{"GID of another source", func(r *wire.CMReq, _ *wire.CMAddress) { r.Src = other }, wire.CMRejInvalidGID},
		{"GID of another destination", func(r *wire.CMReq, _ *wire.CMAddress) { r.Dst = other }, wire.CMRejInvalidGID},
		{"address of another source", func(_ *wire.CMReq, a *wire.CMAddress) { a.Src = other }, wire.CMRejUnsupported},
		{"address of another destination", func(_ *wire.CMReq, a *wire.CMAddress) { a.Dst = other }, wire.CMRejUnsupported},
		{"IPv6", func(_ *wire.CMReq, a *wire.CMAddress) {
			a.Src, a.Dst = netip.IPv6Unspecified(), netip.IPv6Unspecified()
		}, wire.CMRejUnsupported},
		{"QPN 0", func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = 0 }, wire.CMRejUnsupported},
		{"QPN 1", func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = 1 }, wire.CMRejUnsupported},
		{"multicast QPN", func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = 1<<24 - 1 }, wire.CMRejUnsupported},
		{"partition", func(r *wire.CMReq, _ *wire.CMAddress) { r.PKey = 0x8001 }, wire.CMRejUnsupported},
	} {
		p := newPair(t, nil)
		d := request(client, 5, c.edit)
		p.input(&d)
		out := emitted(p.srv)
		if len(out) != 1 || len(events(p.srv)) != 0 {
			t.Errorf("%s: %d answers", c.name, len(out))
			continue
		}
		m := wire.CM(out[0].mad[:])
		r, err := m.Rej()
		if m.Attr() != wire.CMRejAttr || err != nil || r.Reason != c.want || m.RemoteID() != 5 || m.TransactionID() != 5<<8 || out[0].to != client {
			t.Errorf("%s: %v %v to %v for %d, %#x; want %v", c.name, m.Attr(), r.Reason, out[0].to, m.RemoteID(), m.TransactionID(), c.want)
		}
		p.wantEmpty(p.srv)
	}
}

// forgeries are the messages with these values that could end or establish a connection. At least
// one value is wrong.
func forgeries(to *Conn, from [4]byte, local, remote uint32, tid uint64, qpn uint32) (out []datagram) {
	add := func(put func(b []byte)) {
		d := datagram{from: from, to: to.e.cfg.Addr}
		put(d.mad[:])
		out = append(out, d)
	}
	for reason := range wire.CMReason(40) {
		add(func(b []byte) { wire.PutCMRej(b, tid, local, remote, &wire.CMRej{Reason: reason}) })
	}
	add(func(b []byte) { wire.PutCM(b, wire.CMRtuAttr, tid, local, remote) })
	add(func(b []byte) { wire.PutCM(b, wire.CMDrepAttr, tid, local, remote) })
	add(func(b []byte) { wire.PutCMRep(b, tid, local, remote, &wire.CMRep{QPN: 77}) })
	add(func(b []byte) { wire.PutCMDreq(b, tid, local, remote, qpn) })
	return out
}

// A message with one wrong field has no effect, in each state.
func TestForgedMessages(t *testing.T) {
	steps := map[State]func(p *pair) *Conn{
		ReqSent: func(p *pair) *Conn { return p.dial(0x50) },
		ReqReceived: func(p *pair) *Conn {
			p.dial(0x50)
			p.deliver(p.cli)
			return p.wantEvent(p.srv, ConnectRequest)
		},
		RepSent: func(p *pair) *Conn {
			p.dial(0x50)
			p.deliver(p.cli)
			c := p.wantEvent(p.srv, ConnectRequest)
			p.accept(c, 0x60)
			return c
		},
		RepReceived: func(p *pair) *Conn {
			c := p.dial(0x50)
			p.deliver(p.cli)
			p.accept(p.wantEvent(p.srv, ConnectRequest), 0x60)
			p.deliver(p.srv)
			p.wantEvent(p.cli, ConnectResponse)
			return c
		},
		StateEstablished: func(p *pair) *Conn {
			_, c := p.connect(0x50)
			return c
		},
		DreqSent: func(p *pair) *Conn {
			_, c := p.connect(0x50)
			c.Close(p.now)
			return c
		},
	}
	for state, step := range steps {
		p := newPair(t, nil)
		c := step(p)
		tid := c.tid
		if state == DreqSent {
			tid = c.dreqTID
		}
		var all []datagram
		all = append(all, forgeries(c, [4]byte{10, 9, 1, 66}, c.remote, c.local, tid, c.qpn)...)
		all = append(all, forgeries(c, c.peer.Addr, c.remote, c.local+1, tid, c.qpn)...)
		if state == ReqSent {
			all = append(all, forgeries(c, c.peer.Addr, 5, c.local, tid+1, c.qpn)...)
		} else {
			all = append(all, forgeries(c, c.peer.Addr, c.remote+1, c.local, tid, c.qpn)...)
			// A REJ that says "timeout" need not name our ID, but then the transaction.
			all = append(all, forgeries(c, c.peer.Addr, c.remote, 0, tid+1, c.qpn)...)
		}
		for _, d := range all {
			c.e.Input(p.now, d.from, d.mad[:])
		}
		if got := events(c.e); len(got) != 0 || c.State() != state {
			t.Errorf("%v: state %v, events %v", state, c.State(), got)
		}
	}
}

// A DREQ that names both IDs but another queue pair is ignored (section 12.9.8.3.3).
func TestDreqForAnotherQueuePair(t *testing.T) {
	p := newPair(t, nil)
	_, srv := p.connect(0x50)
	d := datagram{from: client, to: server}
	wire.PutCMDreq(d.mad[:], 1, srv.remote, srv.local, srv.qpn+1)
	p.input(&d)
	p.wantNothing(p.srv)
	if srv.State() != StateEstablished {
		t.Error(srv.State())
	}
}

func TestUnknownMADs(t *testing.T) {
	p := newPair(t, nil)
	good := request(client, 1, nil)
	p.srv.Input(0, client, nil)
	p.srv.Input(0, client, good.mad[:100])
	p.srv.Input(0, client, make([]byte, wire.MADLen))
	p.wantCount(p.srv, Malformed, 3)
	for _, attr := range []uint16{0, 1, 0x18, 0x1a, 0x1b, 0xffff} {
		binary.BigEndian.PutUint16(good.mad[16:], attr)
		p.input(&good)
	}
	p.wantCount(p.srv, Unsupported, 6)
	p.wantNothing(p.srv)
	var names = map[string]bool{}
	p.srv.EachCounter(func(name string, _ uint64) {
		if name == "" || names[name] {
			t.Errorf("counter %q", name)
		}
		names[name] = true
	})
}

// What is not supported is answered so: the service lookup of UD, alternate paths, and attributes of any class.
func TestUnsupportedIsAnswered(t *testing.T) {
	p := newPair(t, nil)
	_, srv := p.connect(0x50)
	ask := func(put func(b []byte)) []byte {
		t.Helper()
		d := datagram{from: client, to: server}
		put(d.mad[:])
		p.input(&d)
		out := emitted(p.srv)
		if len(out) != 1 || out[0].to != client {
			t.Fatalf("%d answers", len(out))
		}
		return out[0].mad[:]
	}
	// A SIDR_REQ of a kernel's librdmacm (cm_udaddy), and what its kernel answers if nobody listens.
	b := ask(func(b []byte) {
		wire.PutCM(b, wire.CMSidrReqAttr, 0x20689c213, 0x13c28906, 0xffff0000)
		binary.BigEndian.PutUint64(b[24+8:], 0x0000000001111c06)
		copy(b[24+16:], "private")
	})
	want := make([]byte, wire.MADLen)
	wire.PutCM(want, wire.CMSidrRepAttr, 0x20689c213, 0x13c28906, 0)
	want[24+4] = 1 // unsupported
	binary.BigEndian.PutUint64(want[24+12:], 0x0000000001111c06)
	if !bytes.Equal(b, want) {
		t.Errorf("SIDR_REP %x", b)
	}
	for _, c := range []struct {
		local uint32
		want  byte
	}{{srv.local, 2}, {srv.local + 1, 1}} {
		b := ask(func(b []byte) { wire.PutCM(b, wire.CMLapAttr, 77, srv.remote, c.local) })
		m, err := wire.ParseCM(b)
		if err != nil || m.Attr() != wire.CMAprAttr || m.TransactionID() != 77 || m.LocalID() != c.local || m.RemoteID() != srv.remote || b[24+9] != c.want {
			t.Errorf("APR %x", b)
		}
	}
	if srv.State() != StateEstablished {
		t.Errorf("after a LAP: %v", srv.State())
	}
	for _, class := range []byte{7, 6, 4} {
		for _, method := range []byte{1, 2} {
			var request []byte
			b := ask(func(b []byte) {
				binary.BigEndian.PutUint64(b[8:], 99)
				b[0], b[1], b[2], b[3], b[17], b[100] = 1, class, 2, method, 1, 5 // ClassPortInfo
				request = bytes.Clone(b)
			})
			request[3], request[5] = 0x81, 0x0c
			if !bytes.Equal(b, request) {
				t.Errorf("class %d, method %d: %x", class, method, b)
			}
		}
	}
	p.wantCount(p.srv, Unsupported, 9)
	p.wantCount(p.srv, Malformed, 0)
	// An answer is not answered.
	d := datagram{from: client, to: server}
	d.mad[0], d.mad[1], d.mad[2], d.mad[3] = 1, 7, 2, 0x81
	p.input(&d)
	p.wantNothing(p.srv)
}

// A REJ says what would be accepted, where it can.
func TestRejectsSayWhatIsAcceptable(t *testing.T) {
	other := netip.MustParseAddr("10.9.1.77")
	gid := func(a [4]byte) []byte { g := netip.AddrFrom4(a).As16(); return g[:] }
	for _, c := range []struct {
		edit func(*wire.CMReq, *wire.CMAddress)
		want []byte
	}{
		{func(r *wire.CMReq, _ *wire.CMAddress) { r.PathMTU = 5 }, []byte{3}},
		{func(r *wire.CMReq, _ *wire.CMAddress) { r.PathMTU = 0 }, []byte{3}},
		{func(r *wire.CMReq, _ *wire.CMAddress) { r.Src = other }, gid(client)},
		{func(r *wire.CMReq, _ *wire.CMAddress) { r.Dst = other }, gid(server)},
	} {
		p := newPair(t, nil)
		d := request(client, 5, c.edit)
		p.input(&d)
		out := emitted(p.srv)
		if len(out) != 1 {
			t.Fatalf("%d answers", len(out))
		}
		if r, err := wire.CM(out[0].mad[:]).Rej(); err != nil || !bytes.Equal(r.Info, c.want) {
			t.Errorf("%v: %x, want %x", r.Reason, r.Info, c.want)
		}
	}
}

// IDs of connections and transactions are the full output of the generator: no counter in them.
func TestIDsAreRandom(t *testing.T) {
	p := newPair(t, nil)
	ids, tids := map[uint32]bool{}, map[uint64]bool{}
	var orID, andID uint32 = 0, 1<<32 - 1
	for i := range uint32(64) {
		c := p.dial(2 + i)
		ids[c.local], tids[c.tid] = true, true
		orID, andID = orID|c.local, andID&c.local
	}
	if len(ids) != 64 || len(tids) != 64 || orID != 1<<32-1 || andID != 0 {
		t.Errorf("%d IDs, %d transactions, bits %x, %x", len(ids), len(tids), orID, andID)
	}
}

// Both IDs are right, but the transaction is another: RTU and DREP have no effect.
func TestWrongTransaction(t *testing.T) {
	p := newPair(t, nil)
	p.dial(0x50)
	p.deliver(p.cli)
	srv := p.wantEvent(p.srv, ConnectRequest)
	p.accept(srv, 0x60)
	d := datagram{from: client, to: server}
	wire.PutCM(d.mad[:], wire.CMRtuAttr, srv.tid+1, srv.remote, srv.local)
	p.input(&d)
	if srv.State() != RepSent {
		t.Errorf("after the RTU: %v", srv.State())
	}
	srv.CommEstablished()
	srv.Close(p.now)
	wire.PutCM(d.mad[:], wire.CMDrepAttr, srv.dreqTID+1, srv.remote, srv.local)
	p.input(&d)
	if srv.State() != DreqSent {
		t.Errorf("after the DREP: %v", srv.State())
	}
}

// A REQ with the ID and the transaction of a connection but another queue pair is no duplicate.
func TestReusedID(t *testing.T) {
	p := newPair(t, nil)
	for _, qpn := range []uint32{7, 8} {
		d := request(client, 5, func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = qpn })
		p.input(&d)
	}
	p.wantCount(p.srv, Stale, 1)
	if got := events(p.srv); len(got) != 1 || got[0].Type != ConnectRequest {
		t.Fatalf("events %v", got)
	}
	if sent := emitted(p.srv); len(sent) != 1 || wire.CM(sent[0].mad[:]).Attr() != wire.CMRejAttr {
		t.Errorf("%d messages", len(sent))
	}
}

// REQs with the address and the queue pair or the ID of a peer do not end its connection, in whatever state it is,
// nor do DREPs that guess. They end it if the peer has forgotten it.
func TestForgedStaleRequest(t *testing.T) {
	for _, by := range []string{"queue pair", "ID"} {
		for _, active := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, active %v", by, active), func(t *testing.T) {
				p := newPair(t, nil)
				cli, srv := p.connect(0x50)
				attacked, from, to, c := p.srv, client, server, srv
				if active {
					attacked, from, to, c = p.cli, server, client, cli
				}
				for n := range uint32(100) {
					d := request(from, 1000+n, func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = c.attr.DestQPN })
					if by == "ID" {
						d = request(from, c.remote, func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = 0x700000 + n })
					}
					d.to = to
					attacked.Input(0, d.from, d.mad[:])
					p.deliver(attacked) // REJ, and the question, which the living peer does not answer
					wire.PutCM(d.mad[:], wire.CMDrepAttr, uint64(n), c.remote, c.local)
					attacked.Input(0, d.from, d.mad[:])
					p.deliver(p.srv)
					p.deliver(p.cli)
				}
				p.wantCount(attacked, Stale, 100)
				if cli.State() != StateEstablished || srv.State() != StateEstablished {
					t.Errorf("after forged REQs: %v, %v", cli.State(), srv.State())
				}
				if got := len(events(p.srv)) + len(events(p.cli)); got != 0 {
					t.Errorf("%d events", got)
				}
			})
		}
	}
}

// A REP that asks for more than the REQ has offered gets what was offered. One with an impossible
// queue pair ends the attempt.
func TestRepIsLimitedByReq(t *testing.T) {
	p := newPair(t, nil)
	for qpn, want := range map[uint32]EventType{2: ConnectResponse, 0: Rejected, 1: Rejected, 1<<24 - 1: Rejected} {
		c := p.dial(0x50 + qpn%100)
		emitted(p.cli)
		d := datagram{from: server, to: client}
		wire.PutCMRep(d.mad[:], c.tid, 1000+qpn%100, c.local, &wire.CMRep{QPN: qpn, ResponderResources: 255, InitiatorDepth: 255})
		p.input(&d)
		p.wantEvent(p.cli, want)
		if want == ConnectResponse {
			if a := c.Attr(); a.MaxDestRdAtomic != 3 || a.MaxRdAtomic != 8 {
				t.Errorf("depths %+v", a)
			}
			continue
		}
		wantReject(t, c, wire.CMRejUnsupported)
		if out := emitted(p.cli); len(out) != 1 || wire.CM(out[0].mad[:]).Attr() != wire.CMRejAttr {
			t.Errorf("QPN %d: %d answers", qpn, len(out))
		}
	}
}

// A REJ whose information is longer than its field is no REJ.
func TestMalformedRej(t *testing.T) {
	p := newPair(t, nil)
	c := p.dial(0x50)
	emitted(p.cli)
	d := datagram{from: server, to: client}
	wire.PutCMRej(d.mad[:], c.tid, 0, c.local, &wire.CMRej{Reason: wire.CMRejConsumer})
	d.mad[24+9] = 0xff
	p.input(&d)
	p.wantCount(p.cli, Malformed, 1)
	p.wantNothing(p.cli)
}
