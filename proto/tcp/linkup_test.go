package tcp_test

import (
	"testing"
	"time"

	"github.com/unet-go/unet/proto/tcp"
)

// When the link is there again nobody waits for a timer that has backed off, and the
// next timeout is the first again. Who waits for nothing is left alone.
func TestLinkUp(t *testing.T) {
	tab := tcp.NewTable(tcp.Config{InitialRTO: time.Second})
	now := tcp.Time(time.Second)
	local, remote := tcp.AddrPort{Addr: [4]byte{10, 0, 0, 1}, Port: 7}, tcp.AddrPort{Addr: [4]byte{10, 0, 0, 2}, Port: 9}
	c, err := tab.Dial(now, local, remote, tcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	emit := func() bool { return tab.NextReady() == c && c.Emit(now, b) > 0 }
	if !emit() {
		t.Fatal("no SYN")
	}
	tab.LinkUp(now)
	if emit() {
		t.Error("what is on its way for the first time is sent again")
	}
	for range 4 {
		now = tab.NextDeadline()
		tab.Expire(now)
		if !emit() {
			t.Fatal("not sent again")
		}
	}
	if wait := time.Duration(tab.NextDeadline() - now); wait != 16*time.Second {
		t.Fatalf("has backed off to %v", wait)
	}
	now += tcp.Time(time.Second)
	tab.LinkUp(now)
	if !emit() {
		t.Error("not sent when the link is up")
	}
	if wait := time.Duration(tab.NextDeadline() - now); wait != 2*time.Second {
		t.Errorf("the timeout after it is %v", wait)
	}
}
