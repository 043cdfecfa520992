package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// Stream is one of many connections that two processes have with each other.
type Stream interface {
	Read(b []byte) (int, error)
	Write(b []byte) (int, error)
	CloseWrite() error
	// SetReadDeadline is when Read gives up, with os.ErrDeadlineExceeded.
	SetReadDeadline(t time.Time) error
	Close() error
}

// Dialer is the client's side of a transport that opens connections.
type Dialer struct {
	// Dial opens a connection to the server. It gives up when ctx ends, with an error of a timeout.
	// It may be called by as many goroutines as the job has connections at a time.
	Dial  func(ctx context.Context) (Stream, error)
	Close func() error
}

// Listener is the server's side.
type Listener struct {
	Accept func() (Stream, error)
	Close  func() error
}

// connectClient is one goroutine of the client of connect. It does one cycle after the
// other: open, request, answer, close.
type connectClient struct {
	dialer  Dialer
	job     Job
	out, in []byte

	// A cycle has between half and all of the timeout, as in session.keep.
	extended time.Duration
	deadline time.Time
	ctx      context.Context
	cancel   context.CancelFunc

	samples []time.Duration
	lost    int // cycles that were not done in time
	failed  int // cycles that ended with an error
	failure error
}

func newConnectClient(d Dialer, j Job) *connectClient {
	c := &connectClient{dialer: d, job: j, out: make([]byte, j.Size), in: make([]byte, j.Size), cancel: func() {}}
	c.extend()
	return c
}

func (c *connectClient) extend() {
	c.cancel()
	c.extended = clock()
	c.deadline = time.Now().Add(c.job.Timeout)
	c.ctx, c.cancel = context.WithDeadline(context.Background(), c.deadline)
}

func (c *connectClient) keep(now time.Duration) {
	if now-c.extended >= c.job.Timeout/2 {
		c.extend()
	}
}

// cycle opens a connection, exchanges a request and its answer, and closes it.
func (c *connectClient) cycle(k Kind, seq uint64) error {
	conn, err := c.request(k, seq)
	if err == nil {
		err = c.finish(conn)
	}
	if conn == nil {
		return err
	}
	if e := conn.Close(); err == nil && e != nil {
		err = fmt.Errorf("close: %w", e)
	}
	return err
}

// request opens a connection and exchanges a request and its answer.
func (c *connectClient) request(k Kind, seq uint64) (Stream, error) {
	conn, err := c.dialer.Dial(c.ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if err := conn.SetReadDeadline(c.deadline); err != nil {
		return conn, err
	}
	Put(c.out, k, seq)
	if _, err := conn.Write(c.out); err != nil {
		return conn, fmt.Errorf("request: %w", err)
	}
	if _, err := io.ReadFull(conn, c.in); err != nil {
		return conn, fmt.Errorf("answer: %w", err)
	}
	if gotKind, gotSeq := Header(c.in); gotKind != k || gotSeq != seq {
		return conn, errors.New("answer: belongs to another request")
	}
	return conn, nil
}

// finish closes the connection in both directions.
func (c *connectClient) finish(conn Stream) error {
	if err := conn.CloseWrite(); err != nil {
		return fmt.Errorf("half-close: %w", err)
	}
	return awaitEOF(conn, c.in)
}

func awaitEOF(conn Stream, b []byte) error {
	switch n, err := conn.Read(b[:1]); {
	case n > 0:
		return errors.New("end: there is more data")
	case err != io.EOF:
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

// mark does cycles until the server has answered k.
func (c *connectClient) mark(k Kind) (err error) {
	for range controlTries {
		c.extend()
		if err = c.cycle(k, 0); err == nil {
			return nil
		}
		if !isTimeout(err) {
			<-c.ctx.Done() // no retry at once after a refusal
		}
	}
	return fmt.Errorf("the server did not answer %d times in %v: %w", controlTries, c.job.Timeout*controlTries, err)
}

// isTimeout reports whether err is a deadline that has passed, in the form of any network.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// call does cycles until take has no more numbers, or until a time.
func (c *connectClient) call(k Kind, take func() (seq uint64, ok bool), until time.Duration) {
	for before := clock(); before < until; {
		seq, ok := take()
		if !ok {
			return
		}
		c.keep(before)
		err := c.cycle(k, seq)
		now := clock() // the end of this cycle and the begin of the next
		switch {
		case err == nil:
			c.samples = append(c.samples, now-before)
		case isTimeout(err):
			c.lost++
		default:
			c.failed++
		}
		if err != nil && c.failure == nil {
			c.failure = err
		}
		before = now
	}
}

// ConnectClient is the client of connect.
func ConnectClient(d Dialer, j Job) (r Report, err error) {
	clients := make([]*connectClient, j.Connections)
	for i := range clients {
		clients[i] = newConnectClient(d, j)
	}
	defer func() {
		for _, c := range clients {
			c.cancel()
		}
	}()
	// phase has all clients do n cycles together.
	phase := func(k Kind, n int, limit time.Duration) {
		var taken atomic.Int64
		take := func() (uint64, bool) { i := taken.Add(1); return uint64(i), i <= int64(n) }
		until := clock() + limit
		if len(clients) == 1 {
			clients[0].call(k, take, until)
			return
		}
		var all sync.WaitGroup
		for _, c := range clients {
			all.Go(func() { c.call(k, take, until) })
		}
		all.Wait()
	}
	phase(Warm, j.WarmUp, max(j.Limit, j.Timeout))
	for _, c := range clients {
		if c.samples, c.lost, c.failed = make([]time.Duration, j.N), 0, 0; c.failure != nil {
			r.Failure, c.failure = "while warming up: "+c.failure.Error(), nil
		}
		clear(c.samples) // no page faults while measuring
		c.samples = c.samples[:0]
	}
	if err := clients[0].mark(Mark); err != nil {
		return r, err
	}
	var m meter
	if err := m.start(); err != nil {
		return r, err
	}
	begin := clock()
	phase(Data, j.N, j.Limit)
	r.Elapsed = clock() - begin
	if err := m.stop(&r); err != nil {
		return r, err
	}
	var samples []time.Duration
	for _, c := range clients {
		samples = append(samples, c.samples...)
		r.Lost += c.lost
		r.Failed += c.failed
		if r.Failure == "" && c.failure != nil {
			r.Failure = c.failure.Error()
		}
	}
	r.N, r.Latency = len(samples), Summarize(samples)
	return r, clients[0].mark(End)
}

// connectServer is the server of connect.
type connectServer struct {
	listener Listener
	job      Job
	reporter Reporter

	mu     sync.Mutex
	meter  meter
	report Report
	ended  bool // it has reported
}

// ConnectServer is the server of connect. It reports when the client has ended the measured section, and
// goes on to answer until the listener is closed.
func ConnectServer(l Listener, j Job, report Reporter) error {
	s := &connectServer{listener: l, job: j, reporter: report}
	var (
		memory   = make([]byte, j.Size)
		extended time.Duration
		deadline time.Time
	)
	for {
		conn, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.ended {
				return nil
			}
			return fmt.Errorf("accept: %w", err)
		}
		if now := clock(); deadline.IsZero() || now-extended >= j.Timeout/2 {
			extended, deadline = now, time.Now().Add(2*j.Timeout)
		}
		if j.Connections == 1 {
			s.answer(conn, memory, deadline)
		} else {
			go s.answer(conn, make([]byte, j.Size), deadline)
		}
	}
}

// answer serves one connection.
func (s *connectServer) answer(conn Stream, b []byte, deadline time.Time) {
	err := s.exchange(conn, b, deadline)
	if err == nil {
		err = awaitEOF(conn, b)
	}
	if e := conn.Close(); err == nil && e != nil {
		err = fmt.Errorf("close: %w", e)
	}
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Failed++
	if s.report.Failure == "" {
		s.report.Failure = err.Error()
	}
}

// exchange reads a request, counts it, and answers.
func (s *connectServer) exchange(conn Stream, b []byte, deadline time.Time) error {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	k, _ := Header(b)
	if err := s.note(k); err != nil {
		return err
	}
	if _, err := conn.Write(b); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// note counts a request, takes the readings of a mark or an end, and reports at the first end.
func (s *connectServer) note(k Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case k == Mark:
		s.report = Report{}
		return s.meter.start()
	case k == Data:
		s.report.N++
	case k == End && !s.ended:
		s.ended = true
		if err := s.meter.stop(&s.report); err != nil {
			return err
		}
		return s.reporter(s.report)
	}
	return nil
}
