package tcp

import (
	"io"
	"testing"
	"time"
)

// Both ends of a connection in one table, as on a stack that dials its own
// address.
func TestLoopback(t *testing.T) {
	tab := NewTable(Config{Secret: testSecret})
	now := Time(time.Second)
	l, err := tab.Listen(AddrPort{Port: 80}, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2000)
	exchange := func() {
		for c := tab.NextReady(); c != nil; c = tab.NextReady() {
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

	// Nobody listens: the refusal comes from the same table.
	c, err = tab.Dial(now, AddrPort{Addr: hostA}, AddrPort{Addr: hostA, Port: 81}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	exchange()
	if c.Err() == nil {
		t.Error("not refused")
	}
}
