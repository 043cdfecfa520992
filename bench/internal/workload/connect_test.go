package workload

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// streamEnd is one end of a stream in memory: a pipe for each direction, so that one
// can be closed alone.
type streamEnd struct {
	r, w             net.Conn
	cannotCloseWrite bool // half-closes fail
}

func newStreamPair() (a, b *streamEnd) {
	ar, bw := net.Pipe()
	br, aw := net.Pipe()
	return &streamEnd{r: ar, w: aw}, &streamEnd{r: br, w: bw}
}

func (h *streamEnd) Read(b []byte) (int, error)  { return h.r.Read(b) }
func (h *streamEnd) Write(b []byte) (int, error) { return h.w.Write(b) }
func (h *streamEnd) Close() error                { return errors.Join(h.r.Close(), h.w.Close()) }

func (h *streamEnd) SetReadDeadline(t time.Time) error {
	return errors.Join(h.r.SetReadDeadline(t), h.w.SetWriteDeadline(t)) // a pipe's writer waits for its reader
}

func (h *streamEnd) CloseWrite() error {
	if h.cannotCloseWrite {
		return errors.New("cannot half-close")
	}
	return h.w.Close()
}

// memoryNetwork is a Dialer and a Listener in memory.
type memoryNetwork struct {
	dialled chan *streamEnd
	outcome func(dial int) outcome // of the n-th connection that is dialled
	dials   atomic.Int64
}

type outcome int

const (
	succeeds outcome = iota
	refusedDial
	ignoredDial // nobody accepts it
	noHalfClose // the server has it, and the client cannot half-close it
)

var errRefused = errors.New("refused")

func newNetwork(f func(int) outcome) *memoryNetwork {
	if f == nil {
		f = func(int) outcome { return succeeds }
	}
	return &memoryNetwork{dialled: make(chan *streamEnd, 64), outcome: f}
}

func (x *memoryNetwork) Dial(ctx context.Context) (Stream, error) {
	client, server := newStreamPair()
	switch x.outcome(int(x.dials.Add(1)) - 1) {
	case refusedDial:
		return nil, errRefused
	case ignoredDial:
		return client, nil
	case noHalfClose:
		client.cannotCloseWrite = true
	}
	select {
	case x.dialled <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (x *memoryNetwork) Accept() (Stream, error) {
	if h, ok := <-x.dialled; ok {
		return h, nil
	}
	return nil, net.ErrClosed
}

func (x *memoryNetwork) dialer() Dialer     { return Dialer{Dial: x.Dial} }
func (x *memoryNetwork) listener() Listener { return Listener{Accept: x.Accept} }

func connectJob(connections int) Job {
	j := testJob(Connect)
	j.Connections, j.N, j.WarmUp, j.Timeout = connections, 200, 10, time.Minute
	return j
}

// connectBothSides does a job on both sides of a network.
func connectBothSides(t *testing.T, j Job, f func(int) outcome) (client, server Report) {
	t.Helper()
	x := newNetwork(f)
	return bothSides(t, func(r Reporter) error { return ConnectServer(x.listener(), j, r) }, func(r Reporter) error {
		got, err := ConnectClient(x.dialer(), j)
		return errors.Join(err, r(got))
	}, func() { close(x.dialled) })
}

func TestConnectionsAreAllMeasured(t *testing.T) {
	for _, connections := range []int{1, 7} {
		client, server := connectBothSides(t, connectJob(connections), nil)
		if client.N != 200 || server.N != 200 || client.Lost+client.Failed+server.Failed != 0 || client.Failure+server.Failure != "" {
			t.Errorf("%d at a time: client %+v, server %+v", connections, client, server)
		}
		if l := client.Latency; l.P50 <= 0 || l.P50 > l.P99 || client.Elapsed <= 0 {
			t.Errorf("%d at a time: implausible: %+v in %v", connections, l, client.Elapsed)
		}
	}
}

func TestConnectionsThatFailAreCountedAndNotSampled(t *testing.T) {
	j := connectJob(1)
	j.WarmUp, j.Timeout = 0, 100*time.Millisecond
	// The first that is dialled carries the mark.
	client, server := connectBothSides(t, j, func(dial int) outcome {
		switch dial {
		case 5, 6:
			return refusedDial
		case 9:
			return ignoredDial
		}
		return succeeds
	})
	// A machine that is very busy may be late with others too.
	if client.Failed != 2 || client.Lost < 1 || client.N+client.Lost != 198 || server.N < client.N {
		t.Errorf("client %+v, server %+v; want 2 failed, 1 late, 197 measured", client, server)
	}
	if client.Failure != "dial: refused" {
		t.Errorf("failure %q", client.Failure)
	}
	if client.Latency.P999 > j.Timeout {
		t.Errorf("a late connection is in the samples: %+v", client.Latency)
	}
}

func TestMarksOfConnectionsAreSentAgain(t *testing.T) {
	for what, bad := range map[string]outcome{"refused": refusedDial, "not half-closed": noHalfClose} {
		j := connectJob(1)
		j.WarmUp, j.N, j.Timeout = 0, 5, 100*time.Millisecond
		client, server := connectBothSides(t, j, func(dial int) outcome {
			if dial < 2 || dial >= 2+1+5 && dial < 2+1+5+2 { // two marks and two ends
				return bad
			}
			return succeeds
		})
		if client.N+client.Lost != 5 || client.Failed != 0 || server.N < client.N {
			t.Errorf("%s: client %+v, server %+v", what, client, server)
		}
	}
}

func TestConnectFailsWithoutServer(t *testing.T) {
	j := connectJob(1)
	j.N, j.Timeout = 5, time.Millisecond
	_, err := ConnectClient(newNetwork(func(int) outcome { return refusedDial }).dialer(), j)
	if !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "did not answer") {
		t.Errorf("got %v", err)
	}
}

func TestConnectEndsAtItsLimit(t *testing.T) {
	j := connectJob(1)
	j.N, j.Limit = 1_000_000, time.Nanosecond
	if client, server := connectBothSides(t, j, nil); client.N > 1 || server.N != client.N {
		t.Errorf("client %+v, server %+v", client, server)
	}
}

// TestConnectServerFailsWithItsListener unless it has reported.
func TestConnectServerFailsWithItsListener(t *testing.T) {
	x := newNetwork(nil)
	close(x.dialled)
	if err := ConnectServer(x.listener(), connectJob(1), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
