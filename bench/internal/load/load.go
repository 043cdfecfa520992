package load

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Conn is one connection of a client. One goroutine calls Ask.
type Conn interface {
	// Ask sends one request and waits for its answer. After an error the connection
	// cannot be used.
	Ask() error
	// Close closes the connection. It may be called during Ask, which then returns an error.
	Close() error
}

// Options say what Run measures.
type Options struct {
	WarmUp   time.Duration // requests of this time are not measured
	Duration time.Duration // measured time
	Server   int           // process whose processor time is measured beside this one's; 0: none
}

// answerTimeout is how long after the measured time an answer may come. Later ones are lost.
const answerTimeout = 5 * time.Second

// Phases of a run.
const (
	warmingUp = iota
	measuring
	over
)

// turns are what one connection has measured.
type turns struct {
	took []time.Duration // of each answer that came in the measured time
	err  error           // of the last request; nil if it was answered
	late bool            // err is because Run has closed the connection
}

// Run asks over all connections at once, a goroutine for each, which sends its next request when
// it has the answer to the last one. A connection whose request fails has no more turns.
// Run closes all connections.
func Run(ctx context.Context, conns []Conn, o Options) (Result, error) {
	defer closeAll(conns)
	var phase, closed atomic.Int32
	results := make(chan turns, len(conns))
	for _, c := range conns {
		go func() { results <- ask(c, &phase, &closed) }()
	}
	if err := pause(ctx, o.WarmUp); err != nil {
		return Result{}, err
	}
	before, err := o.processorTime()
	if err != nil {
		return Result{}, err
	}
	begin := time.Now()
	phase.Store(measuring)
	err = pause(ctx, o.Duration)
	phase.Store(over)
	elapsed := time.Since(begin)
	after, clockErr := o.processorTime()
	if err := errors.Join(err, clockErr); err != nil {
		return Result{}, err
	}
	late := time.AfterFunc(answerTimeout, func() {
		closed.Store(1)
		closeAll(conns)
	})
	defer late.Stop()
	all := make([]turns, len(conns))
	for i := range all {
		all[i] = <-results
	}
	return summarize(all, elapsed, after-before), nil
}

// ask is the goroutine of a connection.
func ask(c Conn, phase, closed *atomic.Int32) (t turns) {
	begin := time.Now()
	for {
		err := c.Ask()
		end := time.Now()
		if err != nil {
			t.err, t.late = err, closed.Load() != 0
			return t
		}
		switch phase.Load() {
		case over:
			return t
		case measuring:
			t.took = append(t.took, end.Sub(begin))
		}
		begin = end
	}
}

// pause waits for d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// closeAll closes connections. What a service reports about their end is not measured.
func closeAll(conns []Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}
