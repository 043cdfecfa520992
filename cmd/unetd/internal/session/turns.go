package session

import (
	"context"
	"sync"
	"time"
)

// turns lets each user do so many things at once. A thing beyond these waits for
// earlier ones of the same user, first come first served, and for those of no other
// user. So how long one thing takes depends on how many users want something, and not
// on how much another user wants.
type turns struct {
	perUID  int
	pause   time.Duration   // from when a turn is given back until it can be taken again
	stopped <-chan struct{} // ends pauses when it is closed

	mu    sync.Mutex
	lines map[uint32]*line // users who have no turn and want none have no entry
}

type line struct {
	taken chan struct{}
	users int // of this line: those who have a turn, and those who wait
}

func newTurns(perUID int) *turns { return &turns{perUID: perUID, lines: make(map[uint32]*line)} }

// take waits for a turn, or for the end of ctx, and then returns false. uid 0 need
// not wait.
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
