package cm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/unet-go/unet/wire"
)

// fixedRand is a Rand that returns given values and then the last of them.
func fixedRand(values ...uint64) func() uint64 {
	return func() uint64 {
		v := values[0]
		if len(values) > 1 {
			values = values[1:]
		}
		return v
	}
}

// sourcePort is the value for which the engine chooses a port.
func sourcePort(req wire.CM) uint64 {
	a, err := wire.ParseCMAddress(req.Req().Private)
	if err != nil {
		panic(err)
	}
	return uint64(a.SrcPort) - firstEphemeral
}

// wantMAD compares what an engine sends with a MAD of the kernel. The flow label, which
// RoCEv2 does not use, is the kernel's.
func wantMAD(t *testing.T, e *Engine, want datagram) {
	t.Helper()
	out := emitted(e)
	if len(out) != 1 {
		t.Fatalf("%d MADs sent, want a %v", len(out), wire.CM(want.mad[:]).Attr())
	}
	if wire.CM(want.mad[:]).Attr() == wire.CMReqAttr {
		copy(out[0].mad[24+88:], want.mad[24+88:24+92])
	}
	if out[0] != want {
		t.Errorf("sent %v\n     %x\nwant %x", wire.CM(out[0].mad[:]).Attr(), out[0].mad, want.mad)
	}
}

func wantEvent(t *testing.T, e *Engine, want EventType) *Conn {
	t.Helper()
	return (&pair{t: t}).wantEvent(e, want)
}

var rpingCaptures = []string{"rping_v4", "k73_rping_v4"}

// The engine in the place of rping's client sends what rping sent. Its queue pair begins with the
// PSN of the REP: in rping_v4 with 0x5a4f96, the server's with that of the REQ, 0xd23d6b.
func TestActiveAgainstCapture(t *testing.T) {
	for _, name := range rpingCaptures {
		d := capture(t, name)
		req := wire.CM(d[0].mad[:])
		r := req.Req()
		e := New(Config{Addr: client, GUID: r.GUID, Rand: fixedRand(uint64(req.LocalID()), req.TransactionID(), sourcePort(req), req.TransactionID())})
		c, err := e.Dial(0, wire.AddrPort4{Addr: server, Port: 7174}, Param{QPN: r.QPN, PSN: r.PSN, ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7})
		if err != nil {
			t.Fatal(err)
		}
		wantMAD(t, e, d[0])
		e.Input(1, server, d[1].mad[:])
		wantEvent(t, e, ConnectResponse)
		rep := wire.CM(d[1].mad[:]).Rep()
		if name == "rping_v4" && (c.Attr().SQPSN != 0x5a4f96 || c.Attr().RQPSN != 0xd23d6b) {
			t.Errorf("first PSN sent %#x, received %#x", c.Attr().SQPSN, c.Attr().RQPSN)
		}
		if got, want := c.Attr(), (Attr{DestQPN: rep.QPN, RQPSN: r.PSN, SQPSN: rep.PSN, PathMTU: 3, MaxDestRdAtomic: 1, MaxRdAtomic: 1, Timeout: 17, RetryCount: 7, RNRRetry: 7}); got != want {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, want)
		}
		if err := c.Establish(); err != nil {
			t.Fatal(err)
		}
		wantMAD(t, e, d[2])
		c.Close(2)
		wantMAD(t, e, d[3])
		e.Input(3, server, d[4].mad[:])
		wantEvent(t, e, Disconnected)
		(&pair{t: t}).wantEmpty(e)
	}
}

// The engine in the place of rping's server sends what rping sent.
func TestPassiveAgainstCapture(t *testing.T) {
	for _, name := range rpingCaptures {
		d := capture(t, name)
		rep := wire.CM(d[1].mad[:])
		r := rep.Rep()
		e := New(Config{Addr: server, GUID: r.GUID, Rand: fixedRand(uint64(rep.LocalID()))})
		if _, err := e.Listen(7174, 1); err != nil {
			t.Fatal(err)
		}
		e.Input(0, client, d[0].mad[:])
		c := wantEvent(t, e, ConnectRequest)
		req := wire.CM(d[0].mad[:]).Req()
		if want := (wire.AddrPort4{Addr: client, Port: uint16(sourcePort(wire.CM(d[0].mad[:])) + firstEphemeral)}); c.Peer() != want {
			t.Errorf("%s: peer %v, want %v", name, c.Peer(), want)
		}
		if err := c.Accept(1, Param{QPN: r.QPN, PSN: r.PSN, ResponderResources: 1, InitiatorDepth: 1, RNRRetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		if got, want := c.Attr(), (Attr{DestQPN: req.QPN, RQPSN: r.PSN, SQPSN: req.PSN, PathMTU: 3, MaxDestRdAtomic: 1, MaxRdAtomic: 1, Timeout: 17, RetryCount: 7, RNRRetry: 7}); got != want {
			t.Errorf("%s: got  %+v\nwant %+v", name, got, want)
		}
		wantMAD(t, e, d[1])
		e.Input(2, client, d[2].mad[:])
		wantEvent(t, e, Established)
		e.Input(3, client, d[3].mad[:])
		wantEvent(t, e, Disconnected)
		wantMAD(t, e, d[4])
		(&pair{t: t}).wantEmpty(e)
	}
}

// Nobody listens: both sides against the capture.
func TestRejectAgainstCapture(t *testing.T) {
	d := capture(t, "reject")
	e := New(Config{Addr: server, GUID: 1, Rand: fixedRand(1)})
	e.Input(0, client, d[0].mad[:])
	wantMAD(t, e, d[1])

	req := wire.CM(d[0].mad[:])
	e = New(Config{Addr: client, GUID: req.Req().GUID, Rand: fixedRand(uint64(req.LocalID()), req.TransactionID(), sourcePort(req))})
	if _, err := e.Dial(0, wire.AddrPort4{Addr: server, Port: 7174}, Param{QPN: req.Req().QPN}); err != nil {
		t.Fatal(err)
	}
	emitted(e)
	e.Input(1, server, d[1].mad[:])
	c := wantEvent(t, e, Rejected)
	var reject *RejectError
	if !errors.As(c.Err(), &reject) || reject.Reason != wire.CMRejInvalidServiceID {
		t.Errorf("error %v", c.Err())
	}
}

// Both sides of ib_write_lat's second connection disconnect at the same time: each answers the
// other's DREQ and is done.
func TestSimultaneousDisconnectAgainstCapture(t *testing.T) {
	d := capture(t, "ib_write_lat")
	req, rep, rtu := d[3], d[4], d[5]
	cliDreq, srvDreq, srvDrep, cliDrep := d[6], d[7], d[8], d[9]
	e := New(Config{Addr: server, GUID: wire.CM(rep.mad[:]).Rep().GUID,
		Rand: fixedRand(uint64(wire.CM(rep.mad[:]).LocalID()), wire.CM(srvDreq.mad[:]).TransactionID())})
	if _, err := e.Listen(0x4853, 1); err != nil {
		t.Fatal(err)
	}
	e.Input(0, client, req.mad[:])
	c := wantEvent(t, e, ConnectRequest)
	r := wire.CM(rep.mad[:]).Rep()
	if err := c.Accept(1, Param{QPN: r.QPN, PSN: r.PSN, RNRRetryCount: 7}); err != nil {
		t.Fatal(err)
	}
	wantMAD(t, e, rep)
	e.Input(2, client, rtu.mad[:])
	wantEvent(t, e, Established)
	c.Close(3)
	wantMAD(t, e, srvDreq)
	e.Input(4, client, cliDreq.mad[:])
	wantMAD(t, e, srvDrep)
	wantEvent(t, e, Disconnected)
	e.Input(5, client, cliDrep.mad[:])
	if out := emitted(e); len(out) != 0 || len(events(e)) != 0 {
		t.Errorf("%d MADs after the late DREP", len(out))
	}
	(&pair{t: t}).wantEmpty(e)
}

// REQ and REP carry the private data of the applications, padded with zeros.
func TestPrivateData(t *testing.T) {
	p := newPair(t, nil)
	cli := p.dial(0x50)
	p.deliver(p.cli)
	srv := p.wantEvent(p.srv, ConnectRequest)
	if want := append([]byte("hello"), make([]byte, 51)...); !bytes.Equal(srv.Private(), want) {
		t.Errorf("private data of the REQ %q", srv.Private())
	}
	p.accept(srv, 0x60)
	p.deliver(p.srv)
	p.wantEvent(p.cli, ConnectResponse)
	if want := append([]byte("welcome"), make([]byte, 189)...); !bytes.Equal(cli.Private(), want) {
		t.Errorf("private data of the REP %q", cli.Private())
	}
	if got, want := cli.Attr(), (Attr{DestQPN: 0x60, RQPSN: 5, SQPSN: 9, PathMTU: 3, MaxDestRdAtomic: 3, MaxRdAtomic: 4, Timeout: 17, RetryCount: 6, RNRRetry: 3}); got != want {
		t.Errorf("client: got  %+v\nwant %+v", got, want)
	}
	if got, want := srv.Attr(), (Attr{DestQPN: 0x50, RQPSN: 9, SQPSN: 5, PathMTU: 3, MaxDestRdAtomic: 4, MaxRdAtomic: 3, Timeout: 17, RetryCount: 6, RNRRetry: 2}); got != want {
		t.Errorf("server: got  %+v\nwant %+v", got, want)
	}
}
