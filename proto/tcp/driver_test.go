package tcp_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/wire"
)

// A connection that is held is not ready until it is resumed, even if it has something to send.
// Unreachable ends a connection that is being opened.
func TestHoldAndUnreachable(t *testing.T) {
	tab := tcp.NewTable(tcp.Config{})
	now := tcp.Time(time.Second)
	local, remote := tcp.AddrPort{Addr: wire.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 7}, tcp.AddrPort{Addr: wire.AddrFrom4([4]byte{10, 0, 0, 2}), Port: 9}
	if tab.Knows(local, remote) {
		t.Error("Knows reports a connection before there is one")
	}
	c, err := tab.Dial(now, local, remote, tcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !tab.Knows(local, remote) || tab.Knows(remote, local) {
		t.Error("Knows does not report the connection, or reports another one")
	}
	c.Hold()
	if tab.Ready != nil {
		t.Error("ready though it is held")
	}
	c.SetMTU(now, 1000, false) // which looks again at what there is to send
	if tab.Ready != nil {
		t.Error("ready though it is held, after a call")
	}
	c.Resume()
	if tab.Ready != c {
		t.Error("not ready after it was resumed")
	}
	b := make([]byte, 100)
	if c.Emit(now, b) == 0 || tab.Ready != nil {
		t.Error("no SYN, or more than that")
	}
	c.Hold()
	c.Resume()
	if tab.Ready != nil {
		t.Error("ready with nothing to send")
	}
	c.Unreachable(0, syscall.EHOSTUNREACH)
	if c.State() != tcp.Closed || c.Err() != syscall.EHOSTUNREACH {
		t.Errorf("%v, %v", c.State(), c.Err())
	}
}

// LinkUp expires timers that have backed off at once, and the next timeout is as short as the
// first. A connection that waits for nothing sends nothing.
func TestLinkUp(t *testing.T) {
	tab := tcp.NewTable(tcp.Config{InitialRTO: time.Second})
	now := tcp.Time(time.Second)
	local, remote := tcp.AddrPort{Addr: wire.AddrFrom4([4]byte{10, 0, 0, 1}), Port: 7}, tcp.AddrPort{Addr: wire.AddrFrom4([4]byte{10, 0, 0, 2}), Port: 9}
	c, err := tab.Dial(now, local, remote, tcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	emit := func() bool { return tab.Ready == c && c.Emit(now, b) > 0 }
	if !emit() {
		t.Fatal("no SYN")
	}
	tab.LinkUp(now)
	if emit() {
		t.Error("a SYN that was sent once is sent again before its timeout")
	}
	for range 4 {
		now = tab.Deadline
		tab.Expire(now)
		if !emit() {
			t.Fatal("not sent again")
		}
	}
	if wait := time.Duration(tab.Deadline - now); wait != 16*time.Second {
		t.Fatalf("has backed off to %v", wait)
	}
	now += tcp.Time(time.Second)
	tab.LinkUp(now)
	if !emit() {
		t.Error("not sent when the link is up")
	}
	if wait := time.Duration(tab.Deadline - now); wait != 2*time.Second {
		t.Errorf("the timeout after it is %v", wait)
	}
}
