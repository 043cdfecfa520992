package workload

import (
	"testing"
	"time"
)

// fakeOperations is a queue of operations, on a pipe that carries the marks. Each Wait
// has the result that resultOf gives: 1 completes the oldest operations, -1 loses one, 0 is a deadline.
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

func (f *fakeOperations) Wait() (done, lost int, err error) {
	f.waits++
	switch f.resultOf(f.waits) {
	case 0:
		return 0, 0, nil
	case -1:
		f.pending--
		return 0, 1, nil
	}
	done = f.every
	if f.drained {
		done = f.pending
	} else if f.pending < f.every {
		f.t.Fatalf("waits for one of %d operations that have no completion", f.pending)
	}
	f.pending -= done
	return done, 0, nil
}

func (f *fakeOperations) Drain() error {
	f.drained = true
	return nil
}

func TestOperations(t *testing.T) {
	for name, c := range map[string]struct {
		verbs    Verbs
		list     int
		every    int
		resultOf func(int) int
		lost     bool
	}{
		"one at a time":          {verbs: Verbs{Depth: 1, Clients: 1}, list: 1, every: 1},
		"several":                {verbs: Verbs{Depth: 8, Clients: 1}, list: 4, every: 2},
		"clients":                {verbs: Verbs{Depth: 1, Clients: 5}, list: 1, every: 1},
		"a deadline passes":      {verbs: Verbs{Depth: 1, Clients: 1}, list: 1, every: 1, resultOf: func(n int) int { return min(n%3, 1) }},
		"requests without reply": {verbs: Verbs{Depth: 1, Clients: 2}, list: 1, every: 1, resultOf: func(n int) int { return 1 - n%2*2 }, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := newPipe(nil)
			if c.resultOf == nil {
				c.resultOf = func(int) int { return 1 }
			}
			ops := &fakeOperations{pipe: client, t: t, every: c.every, resultOf: c.resultOf}
			j := Job{Bench: RDMA, Role: Client, Size: 8, Batch: c.list, N: 100, WarmUp: 10, Limit: time.Minute, Timeout: time.Minute, Verbs: c.verbs}
			answered := make(chan error, 1)
			go func() {
				j := j
				j.Role = Server
				_, err := Run(server, j)
				answered <- err
			}()
			r, err := Run(ops, j)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-answered; err != nil {
				t.Fatal(err)
			}
			if r.N < j.N || r.N > j.N+c.every || (r.Lost > 0) != c.lost || r.Elapsed <= 0 {
				t.Errorf("report %+v", r)
			}
			if depth := c.verbs.Depth * c.verbs.Clients; ops.most != depth || ops.list != c.list || ops.pending != 0 {
				t.Errorf("%d in flight, lists of %d, %d left; want %d, %d, 0", ops.most, ops.list, ops.pending, depth, c.list)
			}
			if one := c.verbs.Depth*c.verbs.Clients == 1; (r.Latency.P50 > 0) != one {
				t.Errorf("latency %+v", r.Latency)
			}
		})
	}
}

func TestOptionsOfVerbs(t *testing.T) {
	for options, want := range map[string][3]bool{
		"": {false, true, true}, None: {}, Inline: {true, false, false}, Inline + "+" + Empty: {true, false, true},
	} {
		v := Verbs{Options: options}
		if got := [3]bool{v.Has(Inline), v.Has(Unsignaled), v.Has(Empty)}; got != want {
			t.Errorf("%q: %v, want %v", options, got, want)
		}
	}
}

func TestJobsOfOperations(t *testing.T) {
	good := Job{Bench: RDMA, Size: 8, Batch: 4, N: 1, Limit: 1, Timeout: 1, Verbs: Verbs{Depth: 4, Clients: 1}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Job){
		"no data": func(j *Job) { j.Size = 0 }, "no depth": func(j *Job) { j.Verbs.Depth = 0 }, "no client": func(j *Job) { j.Verbs.Clients = 0 },
		"a long list": func(j *Job) { j.Batch = 5 }, "clients with several": func(j *Job) { j.Verbs.Clients = 2 }, "no time": func(j *Job) { j.Limit = 0 },
	} {
		j := good
		change(&j)
		if j.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
