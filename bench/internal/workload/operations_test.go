package workload

import (
	"testing"
	"time"
)

// fakeOperations is a queue of operations, on a pipe that carries the marks. Each Wait
// has the result that resultOf gives: 1 completes the oldest operations, 0 is a deadline.
type fakeOperations struct {
	*pipe
	t        *testing.T
	most     int // in flight
	list     int // the longest that was posted
	pending  int // posted and not done
	every    int // a completion stands for so many operations
	posted   int
	waits    int
	drained  bool
	resultOf func(wait int) int
}

func (f *fakeOperations) Post(n int) error {
	f.posted += n
	f.pending += n
	f.most, f.list = max(f.most, f.pending), max(f.list, n)
	return nil
}

func (f *fakeOperations) Wait() (done int, err error) {
	f.waits++
	if f.resultOf(f.waits) == 0 {
		return 0, nil
	}
	done = f.every
	if f.drained {
		done = f.pending
	} else if f.pending < f.every {
		f.t.Fatalf("waits for one of %d operations that have no completion", f.pending)
	}
	f.pending -= done
	return done, nil
}

func (f *fakeOperations) Drain() error {
	f.drained = true
	return nil
}

func TestOperations(t *testing.T) {
	for name, c := range map[string]struct {
		depth    int
		list     int
		every    int
		resultOf func(int) int
	}{
		"one at a time":     {depth: 1, list: 1, every: 1},
		"several":           {depth: 8, list: 4, every: 2},
		"a deadline passes": {depth: 1, list: 1, every: 1, resultOf: func(n int) int { return min(n%3, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newPipe(nil)
			if c.resultOf == nil {
				c.resultOf = func(int) int { return 1 }
			}
			ops := &fakeOperations{pipe: client, t: t, every: c.every, resultOf: c.resultOf}
			j := Job{Case: Case{Bench: RDMA, Size: 8, Batch: c.list, Depth: c.depth}, Role: Client, Effort: Effort{N: 100, WarmUp: 10, Limit: time.Minute, Timeout: time.Minute}}
			serving := j
			serving.Role = Server
			r, _ := bothSides(t, func(to Reporter) error { return Run(server, serving, to) }, func(to Reporter) error { return Run(ops, j, to) }, func() { client.Close() })
			if r.N < j.N || r.N > j.N+c.every || r.Lost > 0 || r.Elapsed <= 0 {
				t.Errorf("report %+v", r)
			}
			if ops.most != c.depth || ops.list != c.list || ops.pending != 0 {
				t.Errorf("%d in flight, lists of %d, %d left; want %d, %d, 0", ops.most, ops.list, ops.pending, c.depth, c.list)
			}
			if (r.Latency.P50 > 0) != (c.depth == 1) {
				t.Errorf("latency %+v", r.Latency)
			}
		})
	}
}
