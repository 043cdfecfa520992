package workload

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// loop is both sides of a transport with one connection.
type loop struct {
	*net.TCPListener
	spoil func(b []byte) []byte // changes a write
}

func (p *loop) Dial(ctx context.Context) (Stream, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", p.Addr().String())
	if err != nil {
		return nil, err
	}
	return &spoiled{c.(*net.TCPConn), p.spoil}, nil
}

func (p *loop) Accept() (Stream, error) { return p.AcceptTCP() }

type spoiled struct {
	*net.TCPConn
	spoil func(b []byte) []byte
}

func (s *spoiled) Write(b []byte) (int, error) {
	if _, err := s.TCPConn.Write(s.spoil(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// transfer runs a job over loopback.
func transfer(t *testing.T, size int, checked bool, spoil func([]byte) []byte) (client, server Report, clientErr, serverErr error) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &loop{l, spoil}
	j := Job{Bench: Bandwidth, Size: size, Batch: 1, N: 1, Limit: 10 * time.Millisecond, Timeout: 10 * time.Second, Checked: checked}
	var both sync.WaitGroup
	both.Go(func() { server, serverErr = BandwidthServer(p, j) })
	client, clientErr = BandwidthClient(p, j)
	both.Wait()
	return client, server, clientErr, serverErr
}

func whole(b []byte) []byte { return b }

func TestBandwidthCountsWhatArrives(t *testing.T) {
	for _, size := range []int{1, 64, 65520, 65521, 65522, 1 << 20} {
		for _, checked := range []bool{false, true} {
			c, s, err1, err2 := transfer(t, size, checked, whole)
			if err1 != nil || err2 != nil {
				t.Fatalf("writes of %d bytes: %v, %v", size, err1, err2)
			}
			if c.Sent == 0 || c.Sent != s.N || c.Lost != 0 || c.InWindow <= 0 || c.Elapsed < 10*time.Millisecond ||
				s.InWindow > s.N || (s.InWindow > 0) != (s.Elapsed > 0) { // a server that reads late has no section
				t.Errorf("writes of %d bytes: client %+v, server %+v", size, c, s)
			}
		}
	}
}

func TestBandwidthDetectsWrongData(t *testing.T) {
	n := 0
	once := func(change func([]byte) []byte) func([]byte) []byte {
		n = 0
		return func(b []byte) []byte {
			if n++; n == 3 {
				return change(append([]byte(nil), b...))
			}
			return b
		}
	}
	for name, spoil := range map[string]func([]byte) []byte{
		"a byte changed": func(b []byte) []byte { b[777] ^= 1; return b },
		"a byte lost":    func(b []byte) []byte { return b[1:] },
		"a byte more":    func(b []byte) []byte { return append(b, 0) },
		"a write twice":  func(b []byte) []byte { return append(b, b...) },
	} {
		_, _, _, err := transfer(t, 1000, true, once(spoil))
		if err == nil || !strings.Contains(err.Error(), "wrong data") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBandwidthCountsAWriteThatIsMissing(t *testing.T) {
	n := 0 // a whole pattern: all bytes that arrive are right
	c, s, err1, err2 := transfer(t, patternLength, false, func(b []byte) []byte {
		if n++; n == 2 {
			return nil
		}
		return b
	})
	if err1 != nil || err2 != nil || c.Lost != patternLength || c.Sent-s.N != patternLength {
		t.Errorf("client %+v, server %+v, %v, %v", c, s, err1, err2)
	}
}

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
	j.Limit, j.Timeout = 20*time.Millisecond, time.Minute
	var drained Report
	done := make(chan error, 1)
	go func() {
		var err error
		drained, err = GoodputServer(s, j)
		done <- err
	}()
	poured, err := GoodputClient(c, j)
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
	j.Timeout = time.Millisecond
	if _, err := GoodputServer(streamOfPipe{b}, j); !isTimeout(err) {
		t.Errorf("got %v", err)
	}
}

type streamOfPipe struct{ net.Conn }

func (streamOfPipe) CloseWrite() error { return nil }
