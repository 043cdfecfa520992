package tcp

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// What is published is what the peer expects of the connection, from its handshake to its
// end, and the records serve many connections. Those that find none are as good.
func TestPublished(t *testing.T) {
	p := newPair(t, Config{}, Options{})
	records := make([]wire.Connection, 2)
	p.tabs[0].published.unused = records
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
		if got, want := records[i], (wire.Connection{
			Local: hostA, Remote: hostB, LocalPort: c.Local().Port, RemotePort: 81, Next: of[1].rcvNxt.Uint32(),
		}); got != want {
			t.Errorf("%+v is published, want %+v", got, want)
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
		b := make([]byte, 100)
		if n := testing.AllocsPerRun(10, func() { p.send(t, 0, b, b, true); p.send(t, 1, b, b, true) }); n != 0 {
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
