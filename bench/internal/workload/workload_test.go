package workload

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is one end of a connection in memory. copiesOf decides how often a message
// arrives: 0 times if it is lost, twice if it is duplicated.
type pipe struct {
	in       <-chan []byte
	out      chan<- []byte
	copiesOf func(k Kind, seq uint64) int
	deadline time.Time
	last     []byte
	batches  int
}

func newPipe(copiesOf func(Kind, uint64) int) (client, server *pipe) {
	if copiesOf == nil {
		copiesOf = func(Kind, uint64) int { return 1 }
	}
	up, down := make(chan []byte, 1<<16), make(chan []byte, 1<<16)
	always := func(Kind, uint64) int { return 1 }
	return &pipe{in: down, out: up, copiesOf: copiesOf}, &pipe{in: up, out: down, copiesOf: always}
}

func (p *pipe) Send(b []byte) error {
	for range p.copiesOf(Header(b)) {
		p.out <- slices.Clone(b)
	}
	return nil
}

func (p *pipe) SendBatch(bs [][]byte) error {
	p.batches++
	for _, b := range bs {
		if err := p.Send(b); err != nil {
			return err
		}
	}
	return nil
}

func (p *pipe) Recv() ([]byte, error) {
	var timeout <-chan time.Time
	if !p.deadline.IsZero() {
		timeout = time.After(time.Until(p.deadline))
	}
	select {
	case m, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		p.last = m
		return m, nil
	case <-timeout:
		return nil, os.ErrDeadlineExceeded
	}
}

func (p *pipe) RecvBatch(bs [][]byte) (int, error) {
	b, err := p.Recv()
	if err != nil {
		return 0, err
	}
	bs[0] = b
	n := 1
	for n < len(bs) {
		select {
		case m, ok := <-p.in:
			if !ok {
				return n, nil
			}
			bs[n] = m
			n++
		default:
			return n, nil
		}
	}
	return n, nil
}

func (p *pipe) Reply() error                  { return p.Send(p.last) }
func (p *pipe) SetDeadline(t time.Time) error { p.deadline = t; return nil }
func (p *pipe) Close() error                  { close(p.out); return nil }

func testJob(b Bench) Job {
	return Job{
		Case:   Case{Bench: b, Size: 64, Batch: 1},
		Effort: Effort{N: 1000, WarmUp: 50, Limit: time.Minute, Timeout: 100 * time.Millisecond, Window: 64, Credit: 16},
	}
}

// bothSides runs a server and a client, and closes the network when the client has ended. A server that has reported
// ends then without an error.
func bothSides(t *testing.T, serve, call func(Reporter) error, close func()) (client, server Report) {
	t.Helper()
	done := make(chan error, 1)
	keep := func(r *Report) Reporter { return func(got Report) error { *r = got; return nil } }
	go func() { done <- serve(keep(&server)) }()
	if err := call(keep(&client)); err != nil {
		t.Fatal("client:", err)
	}
	close()
	if err := <-done; err != nil {
		t.Fatal("server:", err)
	}
	return client, server
}

// runBoth does a job on both ends of a pipe.
func runBoth(t *testing.T, j Job, copiesOf func(Kind, uint64) int, prepare ...func(server *pipe)) (client, server Report) {
	t.Helper()
	c, s := newPipe(copiesOf)
	for _, f := range prepare {
		f(s)
	}
	clientJob, serverJob := j, j
	clientJob.Role, serverJob.Role = Client, Server
	return bothSides(t, func(r Reporter) error { return Run(s, serverJob, r) }, func(r Reporter) error { return Run(c, clientJob, r) }, func() { c.Close() })
}

func TestRoundTripsAreAllMeasured(t *testing.T) {
	j := testJob(RTT)
	j.Timeout = time.Minute // nothing is lost
	client, server := runBoth(t, j, nil)
	if client.N != 1000 || client.Lost != 0 || server.N != 1000 {
		t.Errorf("client %d, lost %d, server %d; want 1000, 0, 1000", client.N, client.Lost, server.N)
	}
	l := client.Latency
	if l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P999 || l.Mean <= 0 || client.Elapsed < l.Mean*1000 {
		t.Errorf("implausible: %+v in %v", l, client.Elapsed)
	}
}

func TestLostRoundTripsAreCountedAndNotSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no message is late in virtual time
		lose := func(k Kind, seq uint64) int {
			if k == Data && (seq == 3 || seq == 900) {
				return 0
			}
			return 1
		}
		j := testJob(RTT)
		client, _ := runBoth(t, j, lose)
		if client.N != 998 || client.Lost != 2 {
			t.Errorf("%d measured, %d lost; want 998 and 2", client.N, client.Lost)
		}
		if client.Latency.P999 >= j.Timeout {
			t.Errorf("a lost message is in the samples: %+v", client.Latency)
		}
	})
}

func TestRateAccountsForLossesAndDuplicates(t *testing.T) {
	copiesOf := func(k Kind, seq uint64) int {
		switch {
		case k != Data:
			return 1
		case seq%10 == 0:
			return 0
		case seq%10 == 1:
			return 2
		}
		return 1
	}
	for _, batch := range []int{1, 32} {
		j := testJob(Rate)
		j.Batch = batch
		client, server := runBoth(t, j, copiesOf)
		if client.Sent != 1000 || server.N != 900 || server.Duplicates != 100 {
			t.Errorf("batch %d: sent %d, different %d, duplicates %d; want 1000, 900, 100", batch, client.Sent, server.N, server.Duplicates)
		}
		if server.InWindow <= 0 || server.InWindow >= server.N || server.Elapsed <= 0 {
			t.Errorf("batch %d: %d of %d messages in a window of %v", batch, server.InWindow, server.N, server.Elapsed)
		}
	}
}

func TestRateEndsAtItsLimit(t *testing.T) {
	j := testJob(Rate)
	j.N, j.Limit = 1_000_000, time.Nanosecond
	client, server := runBoth(t, j, nil)
	if client.Sent >= j.N || client.Sent < stampEvery || server.N != client.Sent {
		t.Errorf("sent %d, received %d", client.Sent, server.N)
	}
}

func TestOneWayKeepsWithinItsWindow(t *testing.T) {
	for _, batch := range []int{1, 32} {
		j := testJob(OneWay)
		j.Batch, j.Timeout = batch, time.Minute // nothing is lost
		var worst int
		var waiting func() int
		client, server := runBoth(t, j, func(k Kind, _ uint64) int {
			if k == Data {
				worst = max(worst, waiting()+1)
			}
			return 1
		}, func(s *pipe) { waiting = func() int { return len(s.in) } })
		if client.Sent != 1000 || server.N != 1000 || client.Stalls != 0 || client.Elapsed <= 0 {
			t.Errorf("batch %d: client %+v, server %+v", batch, client, server)
		}
		if worst > j.Window {
			t.Errorf("batch %d: %d messages waited at once, the window is %d", batch, worst, j.Window)
		}
	}
}

func TestOneWayEndsDespiteLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no message is late in virtual time
		lost := map[uint64]bool{0: true, 15: true, 16: true, 500: true, 999: true}
		client, server := runBoth(t, testJob(OneWay), func(k Kind, seq uint64) int {
			if k == Data && lost[seq] {
				return 0
			}
			return 1
		})
		if client.Sent != 1000 || server.N != 1000-len(lost) || client.Stalls == 0 {
			t.Errorf("client %+v, server %+v", client, server)
		}
	})
}

func TestLostControlMessagesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no message is late in virtual time
		for _, b := range []Bench{RTT, Rate, OneWay} {
			tries := map[Kind]int{}
			client, server := runBoth(t, testJob(b), func(k Kind, _ uint64) int {
				if k == Mark || k == End {
					if tries[k]++; tries[k] <= 2 {
						return 0
					}
				}
				return 1
			})
			if server.N != 1000 {
				t.Errorf("%s: client %+v, server %+v", b, client, server)
			}
		}
	})
}

// TestServersFailWithTheirConnection: only one that has reported ends without an error.
func TestServersFailWithTheirConnection(t *testing.T) {
	for _, b := range []Bench{RTT, Rate} {
		client, server := newPipe(nil)
		client.Close()
		j := testJob(b)
		j.Role = Server
		if err := Run(server, j, nil); err != io.EOF {
			t.Errorf("%s: %v", b, err)
		}
	}
	j := testJob(Connect)
	j.Role = Client
	if c, _ := newPipe(nil); Run(c, j, nil) == nil {
		t.Error("ran a benchmark that is none of messages")
	}
}

func TestHeaderReadsWhatPutWrote(t *testing.T) {
	b := make([]byte, MinSize)
	Put(b, Credit, 1<<40+7)
	if k, seq := Header(b); k != Credit || seq != 1<<40+7 {
		t.Errorf("got %d %d", k, seq)
	}
	if k, _ := Header(b[:MinSize-1]); k != 0 {
		t.Error("a short message has a header")
	}
	if k, _ := Header(make([]byte, 64)); k != 0 {
		t.Error("another sender's message has a header")
	}
}

// percentile counts instead of ranking.
func percentile(samples []time.Duration, permille int) time.Duration {
	best := time.Duration(-1)
	for _, s := range samples {
		below := 0
		for _, o := range samples {
			if o <= s {
				below++
			}
		}
		if below*1000 >= permille*len(samples) && (best < 0 || s < best) {
			best = s
		}
	}
	return best
}

func TestPercentilesAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 99, 100, 101, 999, 1000, 1001} {
		samples := make([]time.Duration, n)
		var sum time.Duration
		for i := range samples {
			samples[i] = time.Duration(r.IntN(500))
			sum += samples[i]
		}
		want := Latency{
			Mean: sum / time.Duration(n),
			P50:  percentile(samples, 500), P99: percentile(samples, 990), P999: percentile(samples, 999),
		}
		if got := Summarize(samples); got != want {
			t.Errorf("%d samples: got %+v, want %+v", n, got, want)
		}
	}
	if got := Summarize(nil); got != (Latency{}) {
		t.Errorf("no samples: %+v", got)
	}
}

func TestLedgerAgainstAMap(t *testing.T) {
	const n = 200
	r := rand.New(rand.NewPCG(3, 4))
	ledger, model := newLedger(n), map[uint64]bool{}
	duplicates, next := 0, uint64(0)
	for range 1000 {
		seq := r.Uint64N(n + 20)
		ledger.note(seq)
		if seq >= n {
			continue
		}
		if model[seq] {
			duplicates++
		}
		model[seq] = true
		next = max(next, seq+1)
	}
	if got, want := fmt.Sprint(ledger.distinct, ledger.duplicates, ledger.next), fmt.Sprint(len(model), duplicates, next); got != want {
		t.Errorf("distinct, duplicates, next: got %s, want %s", got, want)
	}
}
