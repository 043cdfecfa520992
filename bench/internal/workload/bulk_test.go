package workload

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// loopback is both sides of a transport with one connection.
type loopback struct {
	*net.TCPListener
	change func(b []byte) []byte // changes a write
}

func (p *loopback) Dial(ctx context.Context) (Stream, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp4", p.Addr().String())
	if err != nil {
		return nil, err
	}
	return &changedStream{c.(*net.TCPConn), p.change}, nil
}

func (p *loopback) Accept() (Stream, error) { return p.AcceptTCP() }

type changedStream struct {
	*net.TCPConn
	change func(b []byte) []byte
}

func (s *changedStream) Write(b []byte) (int, error) {
	if _, err := s.TCPConn.Write(s.change(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// transfer runs a job over loopback.
func transfer(t *testing.T, size int, checked bool, change func([]byte) []byte) (client, server Report, clientErr, serverErr error) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := &loopback{l, change}
	j := Job{Case: Case{Bench: Bandwidth, Size: size, Batch: 1}, Effort: Effort{N: 1, Limit: 10 * time.Millisecond, Timeout: 10 * time.Second, Checked: checked}}
	var both sync.WaitGroup
	both.Go(func() { server, serverErr = BandwidthServer(Listener{Accept: p.Accept}, j) })
	client, clientErr = BandwidthClient(Dialer{Dial: p.Dial}, j)
	both.Wait()
	return client, server, clientErr, serverErr
}

func unchanged(b []byte) []byte { return b }

func TestBandwidthCountsWhatArrives(t *testing.T) {
	for _, size := range []int{1, 64, 65520, 65521, 65522, 1 << 20} {
		for _, checked := range []bool{false, true} {
			c, s, err1, err2 := transfer(t, size, checked, unchanged)
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
	for name, change := range map[string]func([]byte) []byte{
		"a byte changed": func(b []byte) []byte { b[777] ^= 1; return b },
		"a byte lost":    func(b []byte) []byte { return b[1:] },
		"a byte more":    func(b []byte) []byte { return append(b, 0) },
		"a write twice":  func(b []byte) []byte { return append(b, b...) },
	} {
		_, _, _, err := transfer(t, 1000, true, once(change))
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
