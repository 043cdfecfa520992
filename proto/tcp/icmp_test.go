package tcp

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// unreachable is an ICMP error about a segment with that sequence number, as a
// router or the peer sends it: the quote is the header and 8 bytes.
func unreachable(t *testing.T, typ, code uint8, id tuple, number uint32) *wire.ICMPError {
	t.Helper()
	local, remote := AddrPort{Addr: id.local, Port: id.localPort()}, AddrPort{Addr: id.remote, Port: id.remotePort()}
	packet := make([]byte, 40)
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: 40, TTL: 1, Protocol: wire.ProtocolTCP, Src: local.Addr.As4(), Dst: remote.Addr.As4()})
	wire.PutTCP(packet[20:], &wire.TCPFields{SrcPort: local.Port, DstPort: remote.Port, Seq: number}, 20, 0)
	b := make([]byte, 100)
	b = b[:wire.PutICMPv4Error(b, typ, code, 0, packet[:28])]
	m, err := wire.ParseICMPv4(b)
	if err != nil {
		t.Fatal(err)
	}
	e, err := m.Report()
	if err != nil {
		t.Fatal(err)
	}
	return &e
}

func TestICMP(t *testing.T) {
	for _, c := range []struct {
		name      string
		typ, code uint8
		established,
		fatal bool
		want error
	}{
		{"port unreachable, opening", 3, 3, false, true, syscall.ECONNREFUSED},
		{"host unreachable, opening", 3, 1, false, true, syscall.EHOSTUNREACH},
		{"network unreachable, opening", 3, 0, false, true, syscall.ENETUNREACH},
		{"prohibited, opening", 3, 13, false, true, syscall.EHOSTUNREACH},
		{"protocol unreachable, opening", 3, 2, false, true, syscall.ENOPROTOOPT},
		{"time exceeded, opening", 11, 0, false, true, syscall.EHOSTUNREACH},
		{"parameter problem, opening", 12, 0, false, true, syscall.EPROTO},
		{"source route failed, opening", 3, 5, false, true, syscall.EOPNOTSUPP},
		{"host unknown, opening", 3, 7, false, true, syscall.EHOSTDOWN},
		{"an unknown code, opening", 3, 16, false, false, nil},
		{"fragmentation needed, opening", 3, 4, false, false, nil},
		{"source quench, opening", 4, 0, false, false, nil},
		{"port unreachable, established", 3, 3, true, false, syscall.ECONNREFUSED},
		{"host unreachable, established", 3, 1, true, false, syscall.EHOSTUNREACH},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := NewTable(Config{Secret: testSecret})
			conn, err := tab.Dial(0, AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 2}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 100)
			conn.Emit(0, b)
			if c.established {
				p := newPair(t, Config{}, Options{})
				tab, conn = p.tabs[0], p.conns[0]
				conn.Write(p.now, make([]byte, 10))
				conn.Emit(p.now, b)
			}
			// The quoted segment must be in flight.
			for _, number := range []uint32{conn.sndUna.Uint32() - 1, conn.sndMax.Uint32()} {
				e := unreachable(t, c.typ, c.code, conn.id, number)
				if tab.ProcessICMP(0, e) != nil || conn.Err() != nil || conn.SoftErr() != nil {
					t.Fatalf("accepted, though it quotes number %d, which is not in flight", number)
				}
			}
			e := unreachable(t, c.typ, c.code, tuple{conn.id.local, conn.id.remote, conn.id.ports + 1<<16}, conn.sndUna.Uint32())
			if tab.ProcessICMP(0, e) != nil {
				t.Fatal("accepted, though it quotes another connection")
			}
			if got := tab.Count(IcmpUnmatched); got != 3 {
				t.Errorf("%d errors counted as unmatched", got)
			}
			e = unreachable(t, c.typ, c.code, conn.id, conn.sndUna.Uint32())
			if tab.ProcessICMP(0, e) != conn {
				t.Fatal("the error has not reached the connection")
			}
			if c.fatal {
				if conn.Err() != c.want || conn.State() != Closed {
					t.Errorf("%v in %v", conn.Err(), conn.State())
				}
				if got, e := tab.NextEvent(); got != conn || e&Finished == 0 {
					t.Error("no event Finished")
				}
			} else if conn.Err() != nil || conn.SoftErr() != c.want {
				t.Errorf("%v, soft %v; want %v", conn.Err(), conn.SoftErr(), c.want)
			}
		})
	}
}

// If the connect timeout expires after a soft error, the connection ends with that error.
func TestConnectTimeoutReportsSoftError(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret, ConnectTimeout: time.Second})
	conn, err := tab.Dial(0, AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 2}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	conn.soft = syscall.EHOSTUNREACH
	tab.Expire(Time(time.Second))
	if conn.Err() != syscall.EHOSTUNREACH {
		t.Error(conn.Err())
	}
}

// Both ends of a connection are in one table, as on a stack that dials its own address.
func TestLoopback(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	now := Time(time.Second)
	l, err := tab.Listen(AddrPort{Port: 80}, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	exchange := func() {
		for c := tab.Ready; c != nil; c = tab.Ready {
			r := tab.Process(now, &Inbound{Src: hostA, Dst: hostA, Data: b[:c.Emit(now, b)]})
			for r.Reply {
				r = tab.Process(now, &Inbound{Src: hostA, Dst: hostA, Data: b[:tab.EmitReply(b)]})
			}
			now += 1000
		}
	}
	c, err := tab.Dial(now, AddrPort{Addr: hostA}, AddrPort{Addr: hostA, Port: 80}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exchange()
	s := l.Accept()
	if s == nil || s.Remote() != c.Local() || tab.Len() != 2 {
		t.Fatalf("accepted %v of %d", s, tab.Len())
	}
	c.Write(now, []byte("to myself"))
	exchange()
	if n, _ := s.Read(now, b[1000:]); string(b[1000:1000+n]) != "to myself" {
		t.Errorf("read %q", b[1000:1000+n])
	}
	c.Close(now)
	exchange()
	if _, err := s.Read(now, b); err != io.EOF {
		t.Error(err)
	}
	s.Close(now)
	exchange()
	now = now.add(DefaultTimeWait)
	tab.Expire(now)
	if tab.Len() != 0 || tab.TimeWaits() != 0 {
		t.Errorf("%d connections, %d in TIME-WAIT left", tab.Len(), tab.TimeWaits())
	}

	// Without a listener the table refuses its own SYN.
	c, err = tab.Dial(now, AddrPort{Addr: hostA}, AddrPort{Addr: hostA, Port: 81}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exchange()
	if c.Err() != syscall.ECONNREFUSED {
		t.Errorf("a dial without a listener: %v, want ECONNREFUSED", c.Err())
	}
}
