package cm

import (
	"errors"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

func wantError(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}

func wantReject(t *testing.T, c *Conn, want wire.CMReason) {
	t.Helper()
	var r *RejectError
	if !errors.As(c.Err(), &r) || r.Reason != want {
		t.Errorf("error %v, want %v", c.Err(), want)
	}
}

// A REQ is sent 16 times, then the attempt has failed and the peer gets a REJ.
func TestReqRetries(t *testing.T) {
	p := newPair(t, nil)
	c := p.dial(0x50)
	for i := range 16 {
		out := emitted(p.cli)
		if len(out) != 1 || wire.CM(out[0].mad[:]).Attr() != wire.CMReqAttr {
			t.Fatalf("attempt %d: %d MADs", i, len(out))
		}
		if want := p.now + interval; p.cli.Deadline() != want {
			t.Fatalf("attempt %d: deadline %v, want %v", i, p.cli.Deadline(), want)
		}
		p.now = p.cli.Deadline()
		p.cli.Expire(p.now - 1)
		p.wantNothing(p.cli)
		p.cli.Expire(p.now)
	}
	p.wantEvent(p.cli, Unreachable)
	wantError(t, "Dial", c.Err(), ErrTimeout)
	out := emitted(p.cli)
	if len(out) != 1 {
		t.Fatalf("%d MADs after the last attempt", len(out))
	}
	if r, err := wire.CM(out[0].mad[:]).Rej(); err != nil || r.Reason != wire.CMRejTimeout || len(r.Info) != 8 || r.Info[7] != 2 {
		t.Errorf("REJ %+v, %v", r, err)
	}
	p.wantEmpty(p.cli)
	p.wantCount(p.cli, Retransmits, 15)
	p.wantCount(p.cli, Timeouts, 1)
}

// A REP is sent again in the interval and as often as the REQ says.
func TestRepRetriesAsTheReqSays(t *testing.T) {
	p := newPair(t, nil)
	p.cli.cfg.ResponseTimeout, p.cli.cfg.MaxRetries = 18, 2
	p.dial(0x50)
	p.deliver(p.cli)
	c := p.wantEvent(p.srv, ConnectRequest)
	p.accept(c, 0x60)
	for range 3 {
		if out := emitted(p.srv); len(out) != 1 || wire.CM(out[0].mad[:]).Attr() != wire.CMRepAttr {
			t.Fatalf("%d MADs", len(out))
		}
		if want := p.now + 4096<<18 + 2*4096<<16; p.srv.Deadline() != want {
			t.Fatalf("deadline %v, want %v", p.srv.Deadline(), want)
		}
		p.now = p.srv.Deadline()
		p.srv.Expire(p.now)
	}
	p.wantEvent(p.srv, Unreachable)
	p.deliver(p.srv)
	wantReject(t, p.wantEvent(p.cli, Rejected), wire.CMRejTimeout)
	p.wantEmpty(p.cli)
	p.wantEmpty(p.srv)
}

// The peer's REQ and MRA do not keep a connection longer than MaxHandshake.
func TestHandshakeIsBounded(t *testing.T) {
	p := newPair(t, nil)
	p.cli.cfg.ResponseTimeout = 31 // 2.4 hours
	p.cli.cfg.MaxHandshake = 1000 * time.Hour
	p.dial(0x50)
	p.dial(0x51)
	p.deliver(p.cli)
	requests := events(p.srv)
	start := p.now
	p.accept(requests[0].Conn, 0x60)
	for _, d := range emitted(p.srv) {
		mra := datagram{from: client, to: server}
		wire.PutCMMra(mra.mad[:], wire.CM(d.mad[:]).TransactionID(), wire.CM(d.mad[:]).RemoteID(), wire.CM(d.mad[:]).LocalID(), wire.CMMra{Message: wire.CMMessageRep, Timeout: 31})
		p.input(&mra)
	}
	for p.srv.Len() > 0 {
		p.now = p.srv.Deadline()
		p.srv.Expire(p.now)
	}
	if got := p.now - start; got != Time(DefaultMaxHandshake) {
		t.Errorf("kept for %v", time.Duration(got))
	}
	if got := events(p.srv); len(got) != 2 || got[0].Type != Unreachable || got[1].Type != Unreachable {
		t.Errorf("events %v", got)
	}
	p.wantEmpty(p.srv)
	p.wantCount(p.srv, Retransmits, 0)
	wantError(t, "Accept", requests[1].Conn.Accept(p.now, Param{QPN: 2}), ErrState)

	// The same holds for a DREQ.
	p = newPair(t, nil)
	p.cli.cfg.ResponseTimeout = 31
	_, srv := p.connect(0x52)
	srv.Close(p.now)
	start = p.now
	for p.srv.Len() > 0 {
		p.now = p.srv.Deadline()
		p.srv.Expire(p.now)
	}
	if got := p.now - start; got != Time(DefaultMaxHandshake) {
		t.Errorf("disconnected after %v", time.Duration(got))
	}
	p.wantEvent(p.srv, Disconnected)
}

// A DREQ is sent 16 times, also if the handshake has taken retries.
func TestDreqRetries(t *testing.T) {
	p := newPair(t, nil)
	cli := p.dial(0x50)
	for range 3 {
		emitted(p.cli)
		p.now = p.cli.Deadline()
		p.cli.Expire(p.now)
	}
	p.deliver(p.cli)
	p.accept(p.wantEvent(p.srv, ConnectRequest), 0x60)
	p.deliver(p.srv)
	cli.Establish()
	events(p.cli)
	emitted(p.cli)
	cli.Close(p.now)
	cli.Close(p.now)
	for i := range 16 {
		if out := emitted(p.cli); len(out) != 1 || wire.CM(out[0].mad[:]).Attr() != wire.CMDreqAttr {
			t.Fatalf("attempt %d: %d MADs", i, len(out))
		}
		p.now = p.cli.Deadline()
		p.cli.Expire(p.now)
	}
	p.wantEvent(p.cli, Disconnected)
	wantError(t, "connection", cli.Err(), nil)
	p.wantNothing(p.cli)
	p.wantEmpty(p.cli)
}

// A DREQ whose sender is about to end is repeated soon, a few times.
func TestHurriedDreq(t *testing.T) {
	p := newPair(t, nil)
	cli, _ := p.connect(0x50)
	p.connect(0x51) // is not concerned
	cli.Close(p.now)
	p.cli.Hurry(p.now, 100*time.Millisecond, 2)
	for i := range 3 {
		if out := emitted(p.cli); len(out) != 1 || wire.CM(out[0].mad[:]).Attr() != wire.CMDreqAttr {
			t.Fatalf("attempt %d: %d MADs", i, len(out))
		}
		if at := p.now + second/10; p.cli.Deadline() != at {
			t.Fatalf("attempt %d: deadline %v, want %v", i, p.cli.Deadline(), at)
		}
		p.now = p.cli.Deadline()
		p.cli.Expire(p.now)
	}
	p.wantEvent(p.cli, Disconnected)
	p.wantNothing(p.cli)
	if p.cli.Len() != 1 {
		t.Errorf("%d connections are left", p.cli.Len())
	}
}

// The peer disconnects before this side knows that the connection is established.
func TestDisconnectBeforeRtu(t *testing.T) {
	p := newPair(t, nil)
	cli := p.dial(0x50)
	p.deliver(p.cli)
	srv := p.wantEvent(p.srv, ConnectRequest)
	p.accept(srv, 0x60)
	p.deliver(p.srv)
	p.wantEvent(p.cli, ConnectResponse)
	cli.Establish()
	emitted(p.cli) // the RTU is lost
	cli.Close(p.now)
	p.deliver(p.cli)
	p.wantEvent(p.srv, Disconnected)
	wantError(t, "connection", srv.Err(), ErrDisconnected)
	p.deliver(p.srv)
	p.wantEvent(p.cli, Disconnected)
	p.wantEmpty(p.cli)
	p.wantEmpty(p.srv)
}

// An MRA delays the next REQ by the time that it states, and costs no retry.
func TestMraDelaysTheReq(t *testing.T) {
	p := newPair(t, nil)
	c := p.dial(0x50)
	emitted(p.cli)
	p.now += second
	d := datagram{from: server, to: client}
	wire.PutCMMra(d.mad[:], c.tid, 77, c.local, wire.CMMra{Message: wire.CMMessageReq, Timeout: 21})
	p.input(&d)
	if want := p.now + 4096<<21 + 2*4096<<16; p.cli.Deadline() != want {
		t.Errorf("deadline %v, want %v", p.cli.Deadline(), want)
	}
	for range 16 {
		p.now = p.cli.Deadline()
		if len(events(p.cli)) != 0 {
			t.Fatal("given up early")
		}
		p.cli.Expire(p.now)
	}
	p.wantEvent(p.cli, Unreachable)
}

// What is received again is answered again, and changes nothing.
func TestDuplicatesAreAnsweredAgain(t *testing.T) {
	p := newPair(t, nil)
	again := func(in datagram, e *Engine, want wire.CMAttr, answer datagram) {
		t.Helper()
		p.input(&in)
		if got := events(e); len(got) != 0 {
			t.Errorf("events %v", got)
		}
		out := emitted(e)
		if want == 0 {
			if len(out) != 0 {
				t.Errorf("answer %v", wire.CM(out[0].mad[:]).Attr())
			}
		} else if len(out) != 1 || out[0] != answer {
			t.Errorf("%d answers, want the same %v", len(out), want)
		}
	}
	cli := p.dial(0x50)
	req := p.deliver(p.cli)[0]
	srv := p.wantEvent(p.srv, ConnectRequest)
	again(req, p.srv, 0, datagram{})
	p.accept(srv, 0x60)
	rep := p.deliver(p.srv)[0]
	p.wantEvent(p.cli, ConnectResponse)
	again(req, p.srv, wire.CMRepAttr, rep)
	again(rep, p.cli, 0, datagram{})
	cli.Establish()
	rtu := p.deliver(p.cli)[0]
	p.wantEvent(p.srv, Established)
	again(rep, p.cli, wire.CMRtuAttr, rtu)
	again(rtu, p.srv, 0, datagram{})
	again(req, p.srv, 0, datagram{})
	p.wantCount(p.srv, Duplicates, 4)
	p.wantCount(p.cli, Duplicates, 2)
	cli.Close(p.now)
	dreq := p.deliver(p.cli)[0]
	p.wantEvent(p.srv, Disconnected)
	drep := p.deliver(p.srv)[0]
	again(dreq, p.srv, wire.CMDrepAttr, drep)
	p.wantEvent(p.cli, Disconnected)
	again(drep, p.cli, 0, datagram{})
	p.wantEmpty(p.cli)
	p.wantEmpty(p.srv)
}

// The RTU is lost: the queue pair's first packet establishes the connection.
func TestFirstPacketEstablishes(t *testing.T) {
	p := newPair(t, nil)
	cli := p.dial(0x50)
	p.deliver(p.cli)
	srv := p.wantEvent(p.srv, ConnectRequest)
	srv.CommEstablished()
	p.wantNothing(p.srv)
	p.accept(srv, 0x60)
	p.deliver(p.srv)
	p.wantEvent(p.cli, ConnectResponse)
	cli.Establish()
	rtu := emitted(p.cli)[0]
	srv.CommEstablished()
	p.wantEvent(p.srv, Established)
	if p.srv.Deadline() != Never {
		t.Error("the REP is sent again")
	}
	srv.CommEstablished()
	p.input(&rtu)
	p.wantNothing(p.srv)
}

func TestRejects(t *testing.T) {
	t.Run("request", func(t *testing.T) {
		p := newPair(t, nil)
		cli := p.dial(0x50)
		p.deliver(p.cli)
		srv := p.wantEvent(p.srv, ConnectRequest)
		wantError(t, "Reject", srv.Reject(make([]byte, 149)), ErrPrivateTooLong)
		if err := srv.Reject([]byte("full")); err != nil {
			t.Fatal(err)
		}
		p.deliver(p.srv)
		p.wantEvent(p.cli, Rejected)
		wantReject(t, cli, wire.CMRejConsumer)
		if r := cli.Err().(*RejectError); string(r.Private[:5]) != "full\x00" || len(r.Private) != 148 {
			t.Errorf("private data %q", r.Private)
		}
		wantError(t, "second Reject", srv.Reject(nil), ErrState)
		p.wantNothing(p.srv)
		p.wantEmpty(p.cli)
		p.wantEmpty(p.srv)
	})
	t.Run("response", func(t *testing.T) {
		p := newPair(t, nil)
		cli := p.dial(0x50)
		p.deliver(p.cli)
		srv := p.wantEvent(p.srv, ConnectRequest)
		p.accept(srv, 0x60)
		p.deliver(p.srv)
		p.wantEvent(p.cli, ConnectResponse)
		if err := cli.Reject(nil); err != nil {
			t.Fatal(err)
		}
		p.deliver(p.cli)
		p.wantEvent(p.srv, Rejected)
		wantReject(t, srv, wire.CMRejConsumer)
		p.wantEmpty(p.cli)
		p.wantEmpty(p.srv)
	})
	t.Run("dial given up", func(t *testing.T) {
		// The REJ names no ID of the server, which the client does not know.
		for _, accepted := range []bool{false, true} {
			p := newPair(t, nil)
			cli := p.dial(0x50)
			p.deliver(p.cli)
			srv := p.wantEvent(p.srv, ConnectRequest)
			if accepted {
				p.accept(srv, 0x60)
				emitted(p.srv)
			}
			cli.Close(p.now)
			p.deliver(p.cli)
			p.wantNothing(p.cli)
			p.wantEvent(p.srv, Rejected)
			wantReject(t, srv, wire.CMRejTimeout)
			p.wantEmpty(p.cli)
			p.wantEmpty(p.srv)
		}
	})
	t.Run("accept given up", func(t *testing.T) {
		p := newPair(t, nil)
		cli := p.dial(0x50)
		p.deliver(p.cli)
		srv := p.wantEvent(p.srv, ConnectRequest)
		p.accept(srv, 0x60)
		p.deliver(p.srv)
		p.wantEvent(p.cli, ConnectResponse)
		cli.Establish()
		srv.Close(p.now)
		p.deliver(p.srv)
		p.wantEvent(p.cli, Disconnected)
		wantReject(t, cli, wire.CMRejConsumer)
		p.wantEmpty(p.cli)
		p.wantEmpty(p.srv)
	})
	t.Run("listener closed", func(t *testing.T) {
		p := newPair(t, nil)
		a, b := p.dial(0x50), p.dial(0x51)
		p.deliver(p.cli)
		ev := events(p.srv)
		p.accept(ev[1].Conn, 0x60)
		p.l.Close()
		p.l.Close()
		p.deliver(p.srv)
		got := events(p.cli)
		if len(got) != 2 || a.State() != Closed || b.State() != RepReceived {
			t.Errorf("events %v; %v, %v", got, a.State(), b.State())
		}
		wantReject(t, a, wire.CMRejConsumer)
		c := p.dial(0x52)
		p.deliver(p.cli)
		p.deliver(p.srv)
		wantReject(t, c, wire.CMRejInvalidServiceID)
	})
	t.Run("REP that nobody waits for", func(t *testing.T) {
		p := newPair(t, nil)
		cli := p.dial(0x50)
		p.deliver(p.cli)
		srv := p.wantEvent(p.srv, ConnectRequest)
		cli.Close(p.now)
		emitted(p.cli) // the REJ is lost
		p.accept(srv, 0x60)
		p.deliver(p.srv)
		p.deliver(p.cli)
		p.wantEvent(p.srv, Rejected)
		wantReject(t, srv, wire.CMRejInvalidCommID)
		p.wantEmpty(p.srv)
	})
}

// A peer that was restarted dials with a queue pair number that still has a connection:
// the REQ is rejected, and the old connection is disconnected.
func TestStaleConnection(t *testing.T) {
	p := newPair(t, nil)
	_, old := p.connect(0x50)
	p.cli = newEngine(client, 99, nil)
	c := p.dial(0x50)
	p.deliver(p.cli)
	p.wantCount(p.srv, Stale, 1)
	p.deliver(p.srv) // REJ, and DREQ of a connection that the peer does not know
	p.wantEvent(p.cli, Rejected)
	wantReject(t, c, wire.CMRejStale)
	p.deliver(p.cli) // DREP
	if got := p.wantEvent(p.srv, Disconnected); got != old {
		t.Error("another connection was disconnected")
	}
	p.wantEmpty(p.srv)
	p.connect(0x50)
}

// The peer of a client was restarted and gives its queue pair number to a new connection.
func TestStaleConnectionInRep(t *testing.T) {
	p := newPair(t, nil)
	old, _ := p.connect(0x50)
	p.srv = newEngine(server, 99, nil)
	p.l, _ = p.srv.Listen(7174, 0)
	c := p.dial(0x51)
	p.deliver(p.cli)
	srv := p.wantEvent(p.srv, ConnectRequest)
	p.accept(srv, 0x50+1000)
	p.deliver(p.srv)
	p.wantEvent(p.cli, Rejected)
	wantReject(t, c, wire.CMRejStale)
	p.deliver(p.cli)
	p.wantEvent(p.srv, Rejected)
	wantReject(t, srv, wire.CMRejStale)
	p.deliver(p.srv)
	if got := p.wantEvent(p.cli, Disconnected); got != old {
		t.Error("another connection was disconnected")
	}
	p.wantEmpty(p.cli)
}

// The engine's own address: both ends of a connection are in one table.
func TestDialOwnAddress(t *testing.T) {
	e := newEngine(server, 1, nil)
	if _, err := e.Listen(1, 0); err != nil {
		t.Fatal(err)
	}
	c, err := e.Dial(0, wire.AddrPort4{Addr: server, Port: 1}, Param{QPN: 2})
	if err != nil {
		t.Fatal(err)
	}
	loop := func() {
		for _, d := range emitted(e) {
			e.Input(0, server, d.mad[:])
		}
	}
	p := &pair{t: t}
	loop()
	if err := p.wantEvent(e, ConnectRequest).Accept(0, Param{QPN: 3}); err != nil {
		t.Fatal(err)
	}
	loop()
	p.wantEvent(e, ConnectResponse)
	c.Establish()
	loop()
	p.wantEvent(e, Established)
	c.Close(0)
	loop()
	loop()
	if got := events(e); len(got) != 2 {
		t.Errorf("events %v", got)
	}
	p.wantEmpty(e)
}

func TestIllegalCalls(t *testing.T) {
	p := newPair(t, func(c *Config) { c.MaxConns = 2 })
	to := wire.AddrPort4{Addr: server, Port: 7174}
	for name, param := range map[string]Param{
		"QPN 0": {}, "QPN 1": {QPN: 1}, "multicast QPN": {QPN: 1<<24 - 1}, "QPN of 25 bits": {QPN: 1 << 24}, "PSN": {QPN: 2, PSN: 1 << 24},
		"retry count": {QPN: 2, RetryCount: 8}, "RNR retry count": {QPN: 2, RNRRetryCount: 8}, "path MTU": {QPN: 2, PathMTU: 4},
		"transport": {QPN: 2, Transport: 2}, "private data": {QPN: 2, Private: make([]byte, 57)},
	} {
		if _, err := p.cli.Dial(p.now, to, param); err == nil {
			t.Errorf("%s: Dial accepted it", name)
		}
	}
	if p.cli.Len() != 0 {
		t.Error("a refused Dial has left a connection")
	}
	if _, err := p.srv.Listen(7174, 1); err != ErrPortInUse {
		t.Errorf("second listener: %v", err)
	}
	a, _ := p.srv.Listen(0, 1)
	b, _ := p.srv.Listen(0, 1)
	if a == nil || b == nil || a.Port() == b.Port() || a.Port() == 0 {
		t.Errorf("free ports: %v, %v", a, b)
	}

	cli := p.dial(0x50)
	wantError(t, "Accept by the active side", cli.Accept(p.now, Param{QPN: 2}), ErrState)
	wantError(t, "Reject in REQ sent", cli.Reject(nil), ErrState)
	wantError(t, "Establish in REQ sent", cli.Establish(), ErrState)
	p.dial(0x51)
	if _, err := p.cli.Dial(p.now, to, Param{QPN: 2}); err != ErrTooManyConns {
		t.Errorf("third connection of two: %v", err)
	}
	p.deliver(p.cli)
	srv := events(p.srv)[0].Conn
	wantError(t, "Establish by the passive side", srv.Establish(), ErrState)
	wantError(t, "Accept", srv.Accept(p.now, Param{QPN: 2, Private: make([]byte, 197)}), ErrPrivateTooLong)
	if err := srv.Accept(p.now, Param{QPN: 2, Private: make([]byte, 196)}); err != nil {
		t.Errorf("Accept after a refused one: %v", err)
	}
	wantError(t, "second Accept", srv.Accept(p.now, Param{QPN: 2}), ErrState)
	wantError(t, "Reject after Accept", srv.Reject(nil), ErrState)
}

func TestAckTimeout(t *testing.T) {
	for _, c := range []struct{ delay, lifetime, want uint8 }{
		{15, 16, 17}, {0, 16, 17}, {16, 16, 18}, {17, 16, 18}, {18, 16, 19}, {25, 16, 25}, {31, 31, 31}, {15, 0, 15}, {0, 0, 2},
	} {
		if got := ackTimeout(c.delay, c.lifetime); got != c.want {
			t.Errorf("delay %d, lifetime %d: %d, want %d", c.delay, c.lifetime, got, c.want)
		}
	}
}
