package workload

import (
	"net"
	"testing"
	"time"
)

// TestPourAndDrain: the server has counted no more than was written, over no less time
// than it was to, and what it leaves unread does not hold the client.
func TestPourAndDrain(t *testing.T) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	j := testJob(Goodput)
	j.Limit, j.Patience = 20*time.Millisecond, time.Minute
	var drained Report
	done := make(chan error, 1)
	go func() {
		var err error
		drained, err = Drain(s, j)
		done <- err
	}()
	poured, err := Pour(c, j)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	c.Close() // with a reset
	Discard(s)
	if drained.Bytes <= 0 || drained.Bytes > poured.Bytes || drained.Elapsed < j.Limit || poured.Elapsed < j.Limit {
		t.Errorf("poured %+v, drained %+v", poured, drained)
	}
}

func TestDrainWaitsForTheFirstByteOnlySoLong(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	j := testJob(Goodput)
	j.Patience = time.Millisecond
	if _, err := Drain(streamOfPipe{b}, j); !late(err) {
		t.Errorf("got %v", err)
	}
}

type streamOfPipe struct{ net.Conn }

func (streamOfPipe) CloseWrite() error { return nil }
