package notices

import (
	"context"
	"os"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
)

// pathOf makes a path that has one descriptor, and returns what reports whether it is closed.
func pathOf(t *testing.T, id uint64) (p *endpoint.Path, closed func() bool) {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	return &endpoint.Path{ID: id, Own: f}, func() bool {
		_, err := f.Stat()
		return err != nil
	}
}

// A loop gets the paths that were given from the call of Paths on, in order. Beyond maxPaths they stay the giver's.
func TestLoopGetsPaths(t *testing.T) {
	var q Paths
	p, _ := pathOf(t, 1)
	defer p.Close()
	if q.Taken() || q.Give(p) {
		t.Error("a path was taken without a loop")
	}
	loop := q.Paths(t.Context())
	given := uint64(0)
	for ; q.Taken(); given++ {
		if p, _ := pathOf(t, given); !q.Give(p) {
			t.Fatal("there was room")
		}
	}
	if given != maxPaths || q.Give(p) {
		t.Errorf("%d paths, and more, were taken", given)
	}
	next := uint64(0)
	for got := range loop {
		if got.ID != next {
			t.Errorf("path %d, want %d", got.ID, next)
		}
		got.Close()
		if next++; next == given {
			break
		}
	}
	testutil.Eventually(t, "no path is taken after the loop was left", func() bool { return !q.Taken() && !q.Give(p) })
}

// The paths that wait for a loop are closed when it ends: by ctx, by the next call of Paths, and by End, after which no loop
// gets any.
func TestPathsThatWaitAreClosedWithTheLoop(t *testing.T) {
	for name, end := range map[string]func(q *Paths, cancel func()){
		"ctx":   func(_ *Paths, cancel func()) { cancel() },
		"Paths": func(q *Paths, _ func()) { q.Paths(t.Context()) },
		"End":   func(q *Paths, _ func()) { q.End() },
	} {
		var q Paths
		ctx, cancel := context.WithCancel(t.Context())
		loop := q.Paths(ctx)
		p, closed := pathOf(t, 1)
		if !q.Give(p) {
			t.Fatal("there was room")
		}
		end(&q, cancel)
		for p := range loop { // it waits for the end
			p.Close()
			if name != "ctx" {
				t.Errorf("%s: the loop got a path", name)
			}
		}
		if !closed() {
			t.Errorf("%s: the path is open", name)
		}
		cancel()
		q.End()
		for range q.Paths(t.Context()) {
			t.Error("a loop after End got a path")
		}
	}
}
