// Package share divides what a daemon has of something among its users: connections,
// descriptors, entries of a table, turns to work.
//
// First come, first served would let a few users take all. So of a total
//
//   - a sixteenth is for operators,
//   - a quarter is for users who have little: each of the first 64 of them can always have its
//     guarantee, whatever others hold,
//   - the rest, the pool, goes to those who ask, but a user's part of it is at most what is then
//     left of the pool for all others. This is the dynamic threshold by which switches share
//     their buffers among ports (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
//
// A user alone gets half of the pool, n users who ask by turns 1/(n+1) each, and there is
// always something left. Nothing that a user holds is taken back: its share shrinks only for
// what it asks next.
//
// Where users wait ([Shares.Wait]), they are served by turns: one for each user.
package share

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/unet-go/unet/endpoint"
)

// Limits describes a resource.
type Limits struct {
	What    string // plural, for errors
	Total   int64  // of all users; 0: no limit
	PerUser int64  // of one user, except uid 0; 0: no limit
	// Least is the smallest useful guarantee, and so the smallest step of a share; 0: 1.
	Least int64
	// Text writes a number for errors; nil: in decimal.
	Text func(int64) string
	// Remedy is what a refused user can do; "": try later.
	Remedy string
}

// maxGuarantees is the largest number of users with a guarantee.
const maxGuarantees = 64

// User is who holds something: a uid, or the address of a peer in a network.
type User struct {
	UID  uint32
	Addr netip.Addr // if it is valid, the user is this address
	// Operator may use what is reserved for operators, and has no share. A user is either always
	// an operator or never, from Take to Return.
	Operator bool
}

// ByUID is the user with a uid. Root is an operator.
func ByUID(uid uint32) User { return User{UID: uid, Operator: uid == 0} }

func (u User) String() string {
	if u.Addr.IsValid() {
		return u.Addr.String()
	}
	return fmt.Sprintf("uid %d", u.UID)
}

// Shares is a resource and who holds it. Its methods may be called from any goroutine.
type Shares struct {
	limits Limits
	text   func(int64) string

	reserve    int64 // of the total, for operators
	guarantee  int64 // of one user
	guarantees int   // users who can have one
	pool       int64 // the rest

	mu sync.Mutex
	// +checklocks:mu
	users map[User]*holder // those who hold or wait
	// +checklocks:mu
	guarded int // users with a guarantee
	// +checklocks:mu
	used int64 // by all
	// +checklocks:mu
	operators int64 // of used: held by operators
	// +checklocks:mu
	pooled int64 // of used: what users have beyond their guarantees
	// +checklocks:mu
	ring []*holder // users who wait, in the order of their next turns
}

// holder is a user who holds something, or waits.
type holder struct {
	user    User
	held    int64
	guarded bool // it has a guarantee
	waiting []chan struct{}
}

// New makes a resource of which nobody holds anything.
func New(l Limits) *Shares {
	l.Least = max(l.Least, 1)
	s := &Shares{limits: l, text: l.Text, users: map[User]*holder{}}
	if s.text == nil {
		s.text = func(n int64) string { return strconv.FormatInt(n, 10) }
	}
	if l.Total > 0 {
		s.reserve = l.Total / 16
		s.guarantee = max(l.Least, l.Total/4/maxGuarantees)
		s.guarantees = int(min(maxGuarantees, l.Total/4/s.guarantee))
		s.pool = l.Total - s.reserve - int64(s.guarantees)*s.guarantee
	}
	return s
}

// Limits are the limits of the resource.
func (s *Shares) Limits() Limits { return s.limits }

// Held is what a user holds.
func (s *Shares) Held(u User) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.users[u]; h != nil {
		return h.held
	}
	return 0
}

// All is what all users hold.
func (s *Shares) All() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Each calls f with each user who holds something.
func (s *Shares) Each(f func(u User, held int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u, h := range s.users {
		if h.held != 0 {
			f(u, h.held)
		}
	}
}

// Take takes n for a user, or returns an endpoint.ErrBusy.
func (s *Shares) Take(u User, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holderLocked(u)
	if err := s.roomLocked(h, n); err != nil {
		s.dropLocked(h)
		return err
	}
	s.addLocked(h, n)
	return nil
}

// Room returns what Take would, and takes nothing.
func (s *Shares) Room(u User, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holderLocked(u)
	defer s.dropLocked(h)
	return s.roomLocked(h, n)
}

// Add takes n for a user beyond any limit: the user holds it already.
func (s *Shares) Add(u User, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holderLocked(u)
	s.addLocked(h, n)
	s.dropLocked(h) // n may be 0
}

// Return returns n that a user has taken.
func (s *Shares) Return(u User, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.users[u]
	if n == 0 {
		return
	}
	if h == nil || h.held < n {
		panic(fmt.Sprintf("BUG: %v returns %d more %s than it has", u, n, s.limits.What))
	}
	s.addLocked(h, -n)
	s.dropLocked(h)
	s.serveLocked()
}

// Wait takes one for a user, as soon as the user may have it. It returns false if ctx ends
// first. Requests of one user are served in their order, and users by turns: a user who waits
// with others gets one before any of them gets a second.
func (s *Shares) Wait(ctx context.Context, u User) bool {
	if ctx.Err() != nil {
		return false
	}
	turn := s.Ask(u)
	select {
	case <-turn:
		return true
	default:
	}
	select {
	case <-turn:
		return true
	case <-ctx.Done():
		s.withdraw(u, turn)
		return false
	}
}

// Ask is Wait for a caller who waits by itself: one has been taken when turn is closed.
func (s *Shares) Ask(u User) (turn <-chan struct{}) {
	begins := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holderLocked(u)
	if len(h.waiting) == 0 && s.verdictLocked(h, 1) == fits {
		s.addLocked(h, 1)
		close(begins)
		return begins
	}
	if h.waiting = append(h.waiting, begins); len(h.waiting) == 1 {
		s.ring = append(s.ring, h)
	}
	return begins
}

// withdraw undoes Ask.
func (s *Shares) withdraw(u User, turn <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.users[u]
	if i := slices.IndexFunc(h.waiting, func(c chan struct{}) bool { return c == turn }); i >= 0 {
		if h.waiting = slices.Delete(h.waiting, i, i+1); len(h.waiting) == 0 {
			s.ring = slices.DeleteFunc(s.ring, func(o *holder) bool { return o == h })
		}
	} else { // it has been served
		s.addLocked(h, -1)
	}
	s.dropLocked(h)
	s.serveLocked()
}

// serveLocked serves those who wait, by turns, until none of them may have more.
//
// +checklocks:s.mu
func (s *Shares) serveLocked() {
	for i := 0; i < len(s.ring); {
		h := s.ring[i]
		s.guardLocked(h)
		if s.verdictLocked(h, 1) != fits {
			i++
			continue
		}
		s.addLocked(h, 1)
		close(h.waiting[0])
		h.waiting = h.waiting[1:]
		s.ring = slices.Delete(s.ring, i, i+1)
		if len(h.waiting) > 0 {
			s.ring = append(s.ring, h)
		}
		i = 0
	}
}

// holderLocked is a user's entry. The caller calls dropLocked, unless the user holds something
// or waits afterwards.
//
// +checklocks:s.mu
func (s *Shares) holderLocked(u User) *holder {
	h := s.users[u]
	if h == nil {
		h = &holder{user: u}
		s.users[u] = h
	}
	s.guardLocked(h)
	return h
}

// guardLocked gives a user who holds nothing yet a guarantee, if one is left.
//
// +checklocks:s.mu
func (s *Shares) guardLocked(h *holder) {
	if h.held == 0 && !h.guarded && !h.user.Operator && s.guarded < s.guarantees {
		h.guarded = true
		s.guarded++
	}
}

// dropLocked removes the entry of a user who neither holds anything nor waits.
//
// +checklocks:s.mu
func (s *Shares) dropLocked(h *holder) {
	if h.held != 0 || len(h.waiting) > 0 || s.users[h.user] != h {
		return
	}
	delete(s.users, h.user)
	if h.guarded {
		s.guarded--
	}
}

// pooledBy is the part of held that a user who is no operator has of the pool.
func (s *Shares) pooledBy(h *holder, held int64) int64 {
	switch {
	case h.user.Operator:
		return 0
	case h.guarded:
		return max(0, held-s.guarantee)
	}
	return held
}

// +checklocks:s.mu
func (s *Shares) addLocked(h *holder, n int64) {
	s.pooled -= s.pooledBy(h, h.held)
	h.held += n
	s.used += n
	s.pooled += s.pooledBy(h, h.held)
	if h.user.Operator {
		s.operators += n
	}
}

// verdict is whether a user can have more.
type verdict int

const (
	fits      verdict = iota
	userFull          // the user has as much as one user can have
	allFull           // others leave nothing
	shareFull         // what is left is for others
)

// verdictLocked says whether a user can have n more.
//
// +checklocks:s.mu
func (s *Shares) verdictLocked(h *holder, n int64) verdict {
	l, u := &s.limits, h.user
	if n == 0 {
		return fits
	}
	if l.PerUser > 0 && h.held+n > l.PerUser && !(u.Operator && u.UID == 0) {
		return userFull
	}
	if l.Total == 0 {
		return fits
	}
	free := s.pool - s.pooled - max(0, s.operators-s.reserve) // negative if more was added than there is
	pooled := s.pooledBy(h, h.held+n)                         // by the user, with n
	more := pooled - s.pooledBy(h, h.held)                    // of the pool
	if u.Operator {
		more = max(0, s.operators+n-s.reserve) - max(0, s.operators-s.reserve)
	}
	switch {
	case s.used+n > l.Total || more > max(0, free):
		return allFull
	case more > 0 && !u.Operator && pooled > free-more+l.Least:
		return shareFull
	}
	return fits
}

// roomLocked returns nil if a user can have n more, else an endpoint.ErrBusy.
//
// +checklocks:s.mu
func (s *Shares) roomLocked(h *holder, n int64) error {
	l := &s.limits
	remedy := cmp.Or(l.Remedy, "try later")
	switch s.verdictLocked(h, n) {
	case fits:
		return nil
	case userFull:
		return fmt.Errorf("%w: %v has %s of at most %s %s: give some back, or %s", endpoint.ErrBusy, h.user, s.text(h.held), s.text(l.PerUser), l.What, remedy)
	case shareFull:
		if h.held > 0 {
			return fmt.Errorf("%w: %v has %s %s, and what is left of %s is for other users: give some back, or %s", endpoint.ErrBusy, h.user, s.text(h.held), l.What, s.text(l.Total), remedy)
		}
	}
	return fmt.Errorf("%w: all users have %s of at most %s %s: %s", endpoint.ErrBusy, s.text(s.used), s.text(l.Total), l.What, remedy)
}
