package workload

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Conn is a transport between exactly two processes. It keeps message
// boundaries. A Conn belongs to one goroutine.
//
// Messages are at least [MinSize] bytes long.
type Conn interface {
	// Send sends one message, without buffering it. It waits while the queue is full.
	Send(b []byte) error
	// SendBatch sends all of bs, with as few system calls as the transport can.
	SendBatch(bs [][]byte) error
	// Recv waits for a message and lends it until the next call of the Conn.
	Recv() ([]byte, error)
	// RecvBatch waits for at least one message and takes what else is there,
	// up to len(bs). They are lent until the next call of the Conn.
	RecvBatch(bs [][]byte) (int, error)
	// Reply sends the message that Recv lent last back to where it came from.
	Reply() error
	// SetDeadline makes calls that wait return os.ErrDeadlineExceeded at t or up to some
	// milliseconds later.
	SetDeadline(t time.Time) error
	Close() error
}

// Kind is a message's phase or purpose.
type Kind uint8

const (
	Warm   Kind = iota + 1
	Mark        // begin of the measured section; returned
	Data        // measured
	End         // end of the measured section; returned
	Credit      // oneway, from the server: of messages below the number it carries
	Done        // oneway, from the server: all messages have arrived
)

// MinSize is the smallest message: the header that [Put] writes.
const MinSize = 16

// RecvBatchSize is how many messages the receiving side asks for at once, when
// messages are sent in batches.
const RecvBatchSize = 64

// Put writes a message's header.
func Put(b []byte, k Kind, seq uint64) {
	binary.LittleEndian.PutUint64(b, seq)
	b[8] = byte(k)
	b[9] = magic
}

// Header reads what Put wrote. Kind 0 is not a message of ours.
func Header(b []byte) (Kind, uint64) {
	if len(b) < MinSize || b[9] != magic {
		return 0, 0
	}
	return Kind(b[8]), binary.LittleEndian.Uint64(b)
}

const magic = 0xb5

// controlTries is how often a mark or an end is sent before the round fails.
const controlTries = 40

// Run does the job over c. A client returns when it has reported. A server goes on to answer ends
// that are sent again, because the first answer was lost, until its connection ends.
func Run(c Conn, j Job, report Reporter) error {
	s := &session{conn: c, job: j, out: make([]byte, j.Size), reporter: report}
	if j.Bench == RDMA {
		s.out = make([]byte, MinSize)
	}
	run := map[Role]map[Bench]func() error{
		Client: {RTT: s.rttClient, Rate: s.rateClient, OneWay: s.oneWayClient, Bandwidth: s.rateClient, RDMA: s.operationsClient},
		Server: {RTT: s.rttServer, Rate: s.streamServer, OneWay: s.streamServer, Bandwidth: s.streamServer, RDMA: s.rttServer}, // of rdma it gets marks and ends only
	}[j.Role][j.Bench]
	if run == nil {
		return fmt.Errorf("no benchmark %q for a %q", j.Bench, j.Role)
	}
	if j.Role == Server { // the client has the timeout
		if err := run(); !s.ended {
			return err
		}
		return nil
	}
	err := s.extend()
	if err == nil {
		err = run()
	}
	if err == nil && j.Rest > 0 {
		s.report.RestCPU, err = rest(j.Rest)
	}
	if err != nil {
		return err
	}
	return s.finish()
}

// finish reports. The figures of a flood are in bytes.
func (s *session) finish() error {
	if r := &s.report; s.job.Bench == Bandwidth {
		r.N, r.Sent, r.InWindow = r.N*s.job.Size, r.Sent*s.job.Size, r.InWindow*s.job.Size
	}
	return s.reporter(s.report)
}

// rest is the processor time of this process while it sleeps for so long.
func rest(d time.Duration) (time.Duration, error) {
	time.Sleep(d / 4) // what the last message has left to do is over
	before, err := cpuTime()
	if err != nil {
		return 0, err
	}
	time.Sleep(d)
	after, err := cpuTime()
	return after - before, err
}

// session is one run of a job.
type session struct {
	conn   Conn
	job    Job
	out    []byte // of Size bytes: the message to send
	meter  meter
	report Report

	reporter Reporter
	ended    bool          // the server has reported
	extended time.Duration // when the deadline was last moved
}

// extend moves the deadline to one timeout from now.
func (s *session) extend() error {
	s.extended = clock()
	return s.conn.SetDeadline(time.Now().Add(s.job.Timeout))
}

// keep extends a deadline of which half has passed. To set one for each message costs some
// transports more than the message, so a message has between half and all of the timeout.
func (s *session) keep(now time.Duration) error {
	if now-s.extended < s.job.Timeout/2 {
		return nil
	}
	return s.extend()
}

// send sends one message of the job's size.
func (s *session) send(k Kind, seq uint64) error {
	Put(s.out, k, seq)
	return s.conn.Send(s.out)
}

// await receives until the message (k, seq) arrives; others are answers to messages that
// have counted as lost. It returns false when the deadline passes.
func (s *session) await(k Kind, seq uint64) (bool, error) {
	for {
		b, err := s.conn.Recv()
		if err != nil {
			if isTimeout(err) {
				return false, nil
			}
			return false, err
		}
		gotKind, gotSeq := Header(b)
		if gotKind == k && gotSeq == seq {
			return true, nil
		}
		if gotKind == Data {
			s.report.Duplicates++
		}
	}
}

// mark sends a mark or an end until the server returns it.
func (s *session) mark(k Kind) error {
	for range controlTries {
		if err := s.extend(); err != nil {
			return err
		}
		if err := s.send(k, 0); err != nil {
			return err
		}
		ok, err := s.await(k, 0)
		if ok || err != nil {
			return err
		}
	}
	return fmt.Errorf("the server did not answer %d times in %v", controlTries, s.job.Timeout*controlTries)
}

// serve takes the readings of a server at a mark or at the first end, and reports then. A repeated mark
// begins the measured section again.
func (s *session) serve(k Kind) error {
	switch {
	case k == Mark:
		return s.meter.start()
	case k == End && !s.ended:
		s.ended = true
		if err := s.meter.stop(&s.report); err != nil {
			return err
		}
		return s.finish()
	}
	return nil
}

// rttClient is the client of rtt.
func (s *session) rttClient() error {
	for seq := range s.job.WarmUp {
		if err := s.keep(clock()); err != nil {
			return err
		}
		if _, err := s.exchange(Warm, uint64(seq)); err != nil {
			return err
		}
	}
	samples := make([]time.Duration, s.job.N)
	clear(samples) // no page faults while measuring
	if err := s.mark(Mark); err != nil {
		return err
	}
	if err := s.extend(); err != nil {
		return err
	}
	if err := s.meter.start(); err != nil {
		return err
	}

	n, lost := 0, 0
	begin := clock()
	before := begin
	for n+lost < s.job.N {
		ok, err := s.exchange(Data, uint64(n+lost))
		if err != nil {
			return err
		}
		now := clock() // the end of this round trip and the begin of the next
		if ok {
			samples[n] = now - before
			n++
		} else {
			lost++
		}
		if err := s.keep(now); err != nil {
			return err
		}
		if !ok {
			now = clock()
		}
		before = now
		if now-begin > s.job.Limit {
			break
		}
	}

	s.report.Elapsed = before - begin
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.N, s.report.Lost = n, lost
	s.report.Latency = Summarize(samples[:n])
	return s.mark(End)
}

// exchange is one round trip. It returns false when the deadline passes first.
func (s *session) exchange(k Kind, seq uint64) (bool, error) {
	if err := s.send(k, seq); err != nil {
		return false, err
	}
	return s.await(k, seq)
}

// rttServer is the server of rtt.
func (s *session) rttServer() error {
	for {
		b, err := s.conn.Recv()
		if err != nil {
			return err
		}
		k, _ := Header(b)
		if k == Data {
			s.report.N++
		} else if err := s.serve(k); err != nil {
			return err
		}
		if err := s.conn.Reply(); err != nil {
			return err
		}
	}
}

// ledger records which numbered messages have arrived, and which more than once.
type ledger struct {
	seen       []uint64 // bit seq%64 of word seq/64
	limit      uint64   // of sequence numbers
	distinct   int
	duplicates int
	next       uint64 // one above the highest number seen
}

func newLedger(n int) *ledger {
	return &ledger{seen: make([]uint64, (n+63)/64), limit: uint64(n)}
}

// note records one arrival. Numbers of limit and above are ignored.
func (l *ledger) note(seq uint64) {
	if seq >= l.limit {
		return
	}
	word, bit := &l.seen[seq/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		l.duplicates++
		return
	}
	*word |= bit
	l.distinct++
	if seq >= l.next {
		l.next = seq + 1
	}
}
