//go:build linux

package session

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// How many records about leases a user may cause: recordsAtOnce, and one more each recordEvery.
const (
	recordsAtOnce = 64
	recordEvery   = time.Second
	recordsUsers  = 1024 // that have allowances of their own at a time; all others share one
)

// records writes the records about leases to the log: granted, refused, ended. Any application
// causes them, so there is a limit for each user. A record beyond it has level debug, and the
// next record of the user within it has their number (suppressed).
type records struct {
	suppressed *atomic.Uint64 // in all

	mu     sync.Mutex
	byUID  map[uint32]*allowance // +checklocks:mu
	others allowance             // +checklocks:mu
}

// allowance is how many records a user may cause now: records at the time of at.
type allowance struct {
	started    bool
	records    float64
	at         time.Time
	suppressed uint64 // since the last record
}

func newRecords(suppressed *atomic.Uint64) *records {
	if suppressed == nil {
		suppressed = new(atomic.Uint64)
	}
	return &records{suppressed: suppressed, byUID: map[uint32]*allowance{}}
}

// add writes a record that a user has caused. log is that of the session.
func (r *records) add(log *slog.Logger, uid uint32, text string, args ...any) {
	level := slog.LevelInfo
	within, suppressed := r.take(uid, time.Now())
	switch {
	case !within:
		level = slog.LevelDebug
	case suppressed > 0:
		args = append(args, "suppressed", suppressed)
	}
	log.Log(context.Background(), level, text, args...)
}

// take reports whether the user may cause a record now, and how many were suppressed before it.
func (r *records) take(uid uint32, now time.Time) (within bool, suppressed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.of(uid, now)
	a.refill(now)
	if a.records < 1 {
		a.suppressed++
		r.suppressed.Add(1)
		return false, 0
	}
	a.records--
	suppressed, a.suppressed = a.suppressed, 0
	return true, suppressed
}

func (a *allowance) refill(now time.Time) {
	if !a.started {
		a.started, a.records = true, recordsAtOnce
	} else {
		a.records = min(recordsAtOnce, a.records+float64(now.Sub(a.at))/float64(recordEvery))
	}
	a.at = now
}

// of is the allowance of a user. r.mu is held.
//
// +checklocks:r.mu
func (r *records) of(uid uint32, now time.Time) *allowance {
	if a := r.byUID[uid]; a != nil {
		return a
	}
	if len(r.byUID) >= recordsUsers {
		for other, a := range r.byUID { // those that are as new; what they have left out is counted with the next record
			if a.refill(now); a.records == recordsAtOnce {
				r.others.suppressed += a.suppressed
				delete(r.byUID, other)
			}
		}
	}
	if len(r.byUID) >= recordsUsers {
		return &r.others
	}
	a := &allowance{}
	r.byUID[uid] = a
	return a
}
