package tcp

import (
	"encoding/binary"
	"testing"

	"github.com/unet-go/unet/wire"
)

var (
	host6A = wire.AddrFrom16([16]byte{0xfd, 15: 1})
	host6B = wire.AddrFrom16([16]byte{0xfd, 15: 2})
)

// exchange6 carries segments between the tables until there are no more. lose reports whether a segment is
// lost; nil: none.
func exchange6(t *testing.T, now Time, tabs [2]*Table, lose func(from int, b []byte) bool) {
	t.Helper()
	addrs := [2]wire.Addr{host6A, host6B}
	b := make([]byte, 2000)
	for busy := true; busy; {
		busy = false
		for i, tab := range tabs {
			for tab.Ready != nil {
				busy = true
				n := tab.Ready.Emit(now, b)
				if lose != nil && lose(i, b[:n]) {
					continue
				}
				r := tabs[1-i].Process(now, &Inbound{Src: addrs[i], Dst: addrs[1-i], Data: b[:n]})
				if r.Reply {
					n = tabs[1-i].EmitReply(b)
					tab.Process(now, &Inbound{Src: addrs[1-i], Dst: addrs[i], Data: b[:n]})
				}
			}
		}
	}
}

// Segments over IPv6 have room for its longer header, with and without SYN cookies, and a report below 1280
// does not change the path's MTU (RFC 8201, section 4).
func TestIPv6Connections(t *testing.T) {
	for _, cookie := range []bool{false, true} {
		tabs := [2]*Table{NewTable(Config{}), NewTable(Config{})}
		l, err := tabs[1].Listen(AddrPort{Addr: wire.Any6, Port: 80}, ListenOptions{SynQueue: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tabs[1].Listen(AddrPort{Addr: wire.Any4, Port: 80}, ListenOptions{}); err != nil {
			t.Errorf("a listener for IPv4 beside it: %v", err)
		}
		if _, err := tabs[1].Listen(AddrPort{Port: 80}, ListenOptions{}); err == nil {
			t.Error("a listener for both families beside it")
		}
		now := Time(1e9)
		if cookie { // another handshake fills the SYN queue
			c, err := tabs[0].Dial(now, AddrPort{Addr: host6A, Port: 9}, AddrPort{Addr: host6B, Port: 80}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			exchange6(t, now, tabs, func(from int, b []byte) bool { return from == 1 }) // no answer arrives
			c.Abort()
			for c.Emit(now, make([]byte, 100)) > 0 {
			}
		}
		if _, err := tabs[0].Dial(now, AddrPort{Addr: host6A}, AddrPort{Addr: hostB, Port: 80}, Options{}); err == nil {
			t.Error("a connection between two families")
		}
		c, err := tabs[0].Dial(now, AddrPort{Addr: host6A}, AddrPort{Addr: host6B, Port: 80}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		exchange6(t, now, tabs, nil)
		peer := l.Accept()
		if peer == nil || c.State() != Established || (tabs[1].Count(CookiesAccepted) == 1) != cookie {
			t.Fatalf("%v; %d cookies", c.State(), tabs[1].Count(CookiesAccepted))
		}
		for _, end := range []*Conn{c, peer} {
			if i := end.Info(); i.SendMSS != 1500-60-wire.TCPTimestampsLen || i.ReceiveMSS != 1440 {
				t.Errorf("segments of %d bytes, offered %d", i.SendMSS, i.ReceiveMSS)
			}
		}
		for _, report := range []struct{ mtu, want int }{{1279, 1500}, {68, 1500}, {1280, 1280}} {
			c.Write(now, make([]byte, 5000))
			size := 0
			exchange6(t, now, tabs, func(from int, b []byte) bool {
				if from != 0 || size != 0 {
					return from == 0
				}
				size = len(b) + wire.IPv6HeaderLen
				e := wire.ICMPError{Src: host6A, Dst: host6B, Protocol: wire.ProtocolTCP, Transport: b[:8], Size: size, TooBig: true, MTU: report.mtu}
				if tabs[0].ProcessICMP(now, &e) != c {
					t.Errorf("not about the connection: %x", binary.BigEndian.Uint32(b[4:]))
				}
				return true
			})
			if got, _ := c.PathMTU(); got != report.want {
				t.Errorf("reported MTU %d: the path's MTU is %d, want %d", report.mtu, got, report.want)
			}
		}
	}
}
