//go:build linux

package session

import (
	"context"
	"sync"
	"time"
)

// turns limits the work in progress of each user. Work beyond the limit waits for earlier
// work of the same user, in order, and not for that of other users. So a user's wait depends
// on the number of users and not on the number of requests of another user.
type turns struct {
	perUID  int
	pause   time.Duration   // from when a turn is given back until it can be taken again
	stopped <-chan struct{} // ends pauses when it is closed

	mu    sync.Mutex
	lines map[uint32]*line // by uid; users who neither have a turn nor wait have no entry
}

type line struct {
	taken chan struct{}
	users int // goroutines that have a turn or wait for one
}

func newTurns(perUID int) *turns { return &turns{perUID: perUID, lines: make(map[uint32]*line)} }

// take waits for a turn. It returns false if ctx ends first. uid 0 does not wait.
func (t *turns) take(ctx context.Context, uid uint32) bool {
	if uid == 0 {
		return ctx.Err() == nil
	}
	t.mu.Lock()
	l := t.lines[uid]
	if l == nil {
		l = &line{taken: make(chan struct{}, t.perUID)}
		t.lines[uid] = l
	}
	l.users++
	t.mu.Unlock()
	select {
	case l.taken <- struct{}{}:
		return true
	case <-ctx.Done():
		t.leave(uid, l)
		return false
	}
}

// give returns a turn that was taken.
func (t *turns) give(uid uint32) {
	switch {
	case uid == 0:
	case t.pause > 0:
		go func() {
			select {
			case <-time.After(t.pause):
			case <-t.stopped:
			}
			t.free(uid)
		}()
	default:
		t.free(uid)
	}
}

func (t *turns) free(uid uint32) {
	t.mu.Lock()
	l := t.lines[uid]
	t.mu.Unlock()
	<-l.taken
	t.leave(uid, l)
}

func (t *turns) leave(uid uint32, l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(t.lines, uid)
	}
}
