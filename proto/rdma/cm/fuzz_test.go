package cm

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/unet-go/unet/wire"
)

// FuzzEngine: a peer sends any messages; they name connections of the engine. In between the
// application calls the engine, and time passes. The engine must neither panic nor exceed its
// limits, and its tables must agree.
func FuzzEngine(f *testing.F) {
	f.Add([]byte{0, 0, 3, 0, 1, 0, 4, 0, 5, 0, 2, 0})
	f.Add([]byte{1, 0, 10, 0, 11, 0, 12, 0, 13, 0, 3, 200, 9, 0, 9, 0})
	f.Add([]byte{16, 1, 1, 2, 3, 4, 5, 6, 7, 8, 17, 0, 18, 0, 19, 0, 20, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		e := newEngine(server, 1, func(c *Config) { c.MaxConns, c.MaxReplies = 8, 4 })
		if _, err := e.Listen(7174, 3); err != nil {
			t.Fatal(err)
		}
		now := Time(1)
		var known []*Conn
		take := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		for len(in) > 0 {
			op, x := take(), take()
			var c *Conn
			if len(known) > 0 {
				c = known[int(x)%len(known)]
			}
			d := datagram{from: client, to: server}
			switch op % 21 {
			case 0:
				d = request(client, uint32(x%6)+1, nil)
				e.Input(now, d.from, d.mad[:])
			case 1:
				if c, err := e.Dial(now, wire.AddrPort4{Addr: client, Port: 1}, Param{QPN: 2 + uint32(x)}); err == nil {
					known = append(known, c)
				}
			case 2:
				now += Time(x) * second
				e.Expire(now)
			case 3:
				emitted(e)
			case 4:
				for _, ev := range events(e) {
					if ev.Type == ConnectRequest {
						known = append(known, ev.Conn)
					}
				}
			case 5:
				now = max(now, min(e.Deadline(), now+1000*second))
				e.Expire(now)
			default:
				if c == nil {
					continue
				}
				peers := c.remote
				if peers == 0 {
					peers = uint32(x%4) + 100
				}
				switch op % 21 {
				case 6:
					c.Accept(now, Param{QPN: 2 + uint32(take())})
				case 7:
					c.Reject(nil)
				case 8:
					c.Establish()
				case 9:
					c.Close(now)
				case 10:
					wire.PutCMRep(d.mad[:], c.tid, peers, c.local, &wire.CMRep{QPN: 2 + uint32(take()%8)})
				case 11:
					wire.PutCM(d.mad[:], wire.CMRtuAttr, c.tid, peers, c.local)
				case 12:
					wire.PutCMRej(d.mad[:], c.tid, peers, c.local, &wire.CMRej{Reason: wire.CMReason(take())})
				case 13:
					wire.PutCMRej(d.mad[:], c.tid, peers, 0, &wire.CMRej{Reason: wire.CMRejTimeout})
				case 14:
					wire.PutCMDreq(d.mad[:], uint64(take()), peers, c.local, c.qpn)
				case 15:
					wire.PutCM(d.mad[:], wire.CMDrepAttr, c.dreqTID, peers, c.local)
				case 16:
					wire.PutCMMra(d.mad[:], c.tid, peers, c.local, wire.CMMra{Message: wire.CMMessage(take() % 3), Timeout: take() % 32})
				case 17:
					c.CommEstablished()
				case 18: // a REQ in which anything may stand
					d = request(client, peers, nil)
					binary.BigEndian.PutUint64(d.mad[8:], c.tid)
					for range 4 {
						d.mad[24+take()%200] = take()
					}
				case 19: // any content
					wire.PutCM(d.mad[:], wire.CMReqAttr+wire.CMAttr(take()%8), c.tid, peers, c.local)
					for i := range min(len(in), 16) {
						d.mad[32+i] = in[i]
					}
				case 20: // stale
					d = request(client, uint32(take()), func(r *wire.CMReq, _ *wire.CMAddress) { r.QPN = c.attr.DestQPN })
				}
				if d.mad[0] != 0 {
					e.Input(now, d.from, d.mad[:])
				}
			}
			checkTables(t, e)
		}
		emitted(e)
		for n := 0; e.Deadline() != Never; n++ {
			if n > 1000 {
				t.Fatal("timers without end")
			}
			now = max(now, e.Deadline())
			e.Expire(now)
			emitted(e)
			checkTables(t, e)
		}
	})
}

// checkTables compares the tables of an engine with each other.
func checkTables(t *testing.T, e *Engine) {
	t.Helper()
	if e.Len() > e.cfg.MaxConns || len(e.replies) > e.cfg.MaxReplies {
		t.Fatalf("%d connections, %d replies", e.Len(), len(e.replies))
	}
	pending, timers, timed := 0, 0, e.timers.Owners()
	for id, c := range e.conns {
		if c.local != id || c.state == Closed {
			t.Fatalf("connection %d under %d, %v", c.local, id, c.state)
		}
		if c.state != ReqSent && (e.remotes[remoteID{c.peer.Addr, c.remote}] != c || e.qps[remoteQP{c.peer.Addr, c.attr.DestQPN}] != c) {
			t.Fatalf("connection in %v is not in the tables", c.state)
		}
		if c.listener != nil && (c.state == ReqReceived || c.state == RepSent) {
			pending++
		}
		waits := c.state != StateEstablished && c.state != RepReceived
		if waits != (c.timer.At() != Never) || waits != slices.Contains(timed, c) {
			t.Fatalf("timer of a connection in %v: %d", c.state, c.timer.At())
		}
		if waits {
			timers++
		}
	}
	established := 0
	for _, c := range e.conns {
		if c.state != ReqSent {
			established++
		}
	}
	if len(e.remotes) != established || len(e.qps) != established || len(e.timers) != timers {
		t.Fatalf("%d by ID, %d by queue pair, %d timers; want %d, %d", len(e.remotes), len(e.qps), len(e.timers), established, timers)
	}
	for _, l := range e.listeners {
		if l.pending != pending || l.pending > l.backlog {
			t.Fatalf("%d in the backlog of %d, want %d", l.pending, l.backlog, pending)
		}
	}
}
