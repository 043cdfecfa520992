package workload

import (
	"errors"
	"time"
)

// stampEvery is how many messages pass between two readings of the clock.
const stampEvery = 256

// batch is the sender's messages, to be sent together.
type batch [][]byte

func newBatch(n, size int) batch {
	mem := make([]byte, n*size)
	b := make(batch, n)
	for i := range b {
		b[i] = mem[i*size : (i+1)*size : (i+1)*size]
	}
	return b
}

// dispatch sends n messages, from seq on, in one batch.
func (s *session) dispatch(b batch, k Kind, seq uint64, n int) error {
	for i := range n {
		Put(b[i], k, seq+uint64(i))
	}
	if s.job.Batch == 1 {
		return s.conn.Send(b[0])
	}
	return s.conn.SendBatch(b[:n])
}

// openStream sends what is not measured, and the mark.
func (s *session) openStream() (batch, error) {
	if err := s.mark(Warm); err != nil { // resolves neighbours
		return nil, err
	}
	b := newBatch(s.job.Batch, s.job.Size)
	for sent := 0; sent < s.job.WarmUp; sent += s.job.Batch {
		if err := s.dispatch(b, Warm, 1, s.job.Batch); err != nil {
			return nil, err
		}
	}
	if err := s.mark(Mark); err != nil {
		return nil, err
	}
	return b, s.meter.start()
}

// rateClient is the client of rate.
func (s *session) rateClient() error {
	b, err := s.openStream()
	if err != nil {
		return err
	}
	begin := clock()
	sent, stamped := 0, 0
	for sent < s.job.N {
		n := min(s.job.Batch, s.job.N-sent)
		if err := s.dispatch(b, Data, uint64(sent), n); err != nil {
			return err
		}
		sent += n
		if sent-stamped >= stampEvery {
			stamped = sent
			now := clock()
			if now-begin > s.job.Limit {
				break
			}
			if err := s.keep(now); err != nil {
				return err
			}
		}
	}
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.Sent = sent
	return s.mark(End)
}

// oneWayClient is the client of oneway. At most Window messages are in flight that the
// server has not given credit for.
func (s *session) oneWayClient() error {
	b, err := s.openStream()
	if err != nil {
		return err
	}
	if err := s.extend(); err != nil {
		return err
	}
	begin := clock()
	sent, credited, done := 0, 0, false
	for sent < s.job.N && !done {
		n := min(s.job.Batch, s.job.N-sent)
		for sent+n-credited > s.job.Window {
			seen, all, err := s.takeCredit()
			if err != nil {
				return err
			}
			if seen < 0 { // messages or the credit for them are lost
				s.report.Stalls++
				seen = sent
			}
			credited, done = max(credited, seen), all
		}
		if err := s.dispatch(b, Data, uint64(sent), n); err != nil {
			return err
		}
		sent += n
	}
	for tries := 0; !done; {
		seen, all, err := s.takeCredit()
		if err != nil {
			return err
		}
		if seen < 0 {
			// Messages are lost, or the server's Done is.
			if tries++; tries > 1 {
				break
			}
			s.report.Stalls++
		}
		done = all
	}
	s.report.Elapsed = clock() - begin
	if err := s.meter.stop(&s.report); err != nil {
		return err
	}
	s.report.Sent = sent
	return s.mark(End)
}

// takeCredit waits for a credit: below which number the server has messages, and whether
// it has all. seen is -1 if none arrived in time.
func (s *session) takeCredit() (seen int, all bool, err error) {
	for {
		if err := s.keep(clock()); err != nil {
			return 0, false, err
		}
		b, err := s.conn.Recv()
		switch {
		case isTimeout(err):
			return -1, false, s.extend()
		case err != nil:
			return 0, false, err
		}
		switch k, seq := Header(b); k {
		case Credit:
			return int(seq), false, nil
		case Done:
			return int(seq), true, nil
		}
	}
}

// streamServer is the server of rate and oneway.
func (s *session) streamServer() error {
	book := newLedger(s.job.N)
	win := window{report: &s.report}
	credit := creditor{session: s}
	msgs := make([][]byte, RecvBatchSize)
	kinds := make([]Kind, RecvBatchSize)
	seqs := make([]uint64, RecvBatchSize)
	for {
		n, err := s.gather(msgs)
		if err != nil {
			return err
		}
		for i, m := range msgs[:n] { // all headers first: what was received is lent until the next send
			kinds[i], seqs[i] = Header(m)
		}
		for i, k := range kinds[:n] {
			if k == Data {
				book.note(seqs[i])
				continue
			}
			if seqs[i] != 0 { // a warm-up message, which has no answer
				continue
			}
			if k == End && !s.ended {
				win.close(book.distinct)
				s.report.N, s.report.Duplicates = book.distinct, book.duplicates
			}
			if err := errors.Join(s.serve(k), s.send(k, 0)); err != nil {
				return err
			}
		}
		if s.job.Bench == OneWay {
			if err := credit.give(book); err != nil {
				return err
			}
		} else {
			win.look(book.distinct)
		}
	}
}

// window times the messages that a receiver gets after the first ones.
type window struct {
	report  *Report
	opened  time.Duration
	before  int // messages received when it opened
	stamped int // messages received when the clock was read last
}

func (w *window) look(received int) {
	switch {
	case received == 0:
	case w.before == 0:
		w.opened, w.before, w.stamped = clock(), received, received
	case received-w.stamped >= stampEvery:
		w.stamp(received)
	}
}

func (w *window) stamp(received int) {
	w.stamped = received
	w.report.Elapsed, w.report.InWindow = clock()-w.opened, received-w.before
}

// close stamps a window that was too short for look.
func (w *window) close(received int) {
	if w.before > 0 && w.report.InWindow == 0 {
		w.stamp(received)
	}
}

// creditor is the server's side of the credit window.
type creditor struct {
	*session
	given uint64 // messages
	done  bool
}

func (c *creditor) give(book *ledger) error {
	switch {
	case c.done:
	case book.distinct == c.job.N:
		c.done = true
		return c.send(Done, uint64(c.job.N))
	case book.next >= c.given+uint64(c.job.Credit):
		c.given = book.next
		return c.send(Credit, c.given)
	}
	return nil
}

// gather receives one message, or many if they are sent so.
func (s *session) gather(msgs [][]byte) (int, error) {
	if s.job.Batch > 1 {
		return s.conn.RecvBatch(msgs)
	}
	b, err := s.conn.Recv()
	if err != nil {
		return 0, err
	}
	msgs[0] = b
	return 1, nil
}
