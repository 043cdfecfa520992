package testutil

import (
	"io"
	"testing"
	"time"
)

// Limit is how long one step may take: a read, a write, an accept.
const Limit = 2 * time.Minute

// looks and pause are Limit on a machine that is not busy. On one that is, the pauses, and what is
// looked at, take as much longer as the work that is waited for.
const (
	pause = 2 * time.Millisecond
	looks = int(Limit / pause)
)

// Eventually looks at a condition until it holds, and ends the test if it never does.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !Until(holds) {
		t.Fatalf("never: %s", what)
	}
}

// Until looks at a condition until it holds, and reports whether it did. It gives up after a
// number of looks, however long they take.
func Until(holds func() bool) bool {
	for range looks {
		if holds() {
			return true
		}
		time.Sleep(pause)
	}
	return holds()
}

// Renew gives the next reads and writes of a connection, or accepts of a listener, Limit from now. Called
// before each of them it bounds a transfer by its progress. It does nothing to what has no deadline.
func Renew(c any) {
	if d, ok := c.(interface{ SetDeadline(time.Time) error }); ok {
		d.SetDeadline(time.Now().Add(Limit)) // a closed one fails with its next call
	}
}

// Reader is r, with Renew of r, and of what else takes part in the transfer, before each read.
func Reader(r io.Reader, others ...any) io.Reader { return renewing{r, append(others, r)} }

type renewing struct {
	io.Reader
	all []any
}

func (r renewing) Read(b []byte) (int, error) {
	for _, c := range r.all {
		Renew(c)
	}
	return r.Reader.Read(b)
}
