package share

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/unet-go/unet/endpoint"
)

// check compares the sums of s with what each user holds, and checks that nobody waits who could be served.
func check(s *Shares) error {
	var used, operators, pooled int64
	guarded := 0
	for u, h := range s.users {
		if h.user != u || h.held < 0 || h.held == 0 && len(h.waiting) == 0 {
			return fmt.Errorf("entry %+v of %v", h, u)
		}
		used += h.held
		switch {
		case u.Operator:
			operators += h.held
		case h.guarded:
			guarded++
			pooled += max(0, h.held-s.guarantee)
		default:
			pooled += h.held
		}
		if waits := slices.Contains(s.ring, h); waits != (len(h.waiting) > 0) {
			return fmt.Errorf("%v has %d waiting, in the ring: %t", u, len(h.waiting), waits)
		}
		if len(h.waiting) > 0 && s.verdictLocked(h, 1) == fits {
			return fmt.Errorf("%v waits, and could be served", u)
		}
	}
	if used != s.used || operators != s.operators || pooled != s.pooled || guarded != s.guarded {
		return fmt.Errorf("used %d, operators %d, pooled %d, guarded %d: the users have %d, %d, %d, %d", s.used, s.operators, s.pooled, s.guarded, used, operators, pooled, guarded)
	}
	return nil
}

// model says by the rules of the package's documentation whether a user may have n more: held is what the others and the user hold.
func model(s *Shares, u User, n int64, guarded map[User]bool, held map[User]int64) bool {
	var used, operators, pooled int64
	beyond := func(u User, held int64) int64 {
		if guarded[u] {
			return max(0, held-s.guarantee)
		}
		return held
	}
	for o, h := range held {
		if used += h; o.Operator {
			operators += h
		} else {
			pooled += beyond(o, h)
		}
	}
	left := s.pool - pooled - max(0, operators-s.reserve)
	has, will := beyond(u, held[u]), beyond(u, held[u]+n)
	switch {
	case s.limits.PerUser > 0 && held[u]+n > s.limits.PerUser && u.UID != 0:
		return false
	case s.limits.Total == 0:
		return true
	case u.Operator:
		return used+n <= s.limits.Total && operators+n <= s.reserve+s.pool-pooled
	case will == has: // within the guarantee
		return used+n <= s.limits.Total
	}
	left -= will - has
	return left >= 0 && will <= left+s.limits.Least
}

// Any sequence of requests is answered as the model says, guarantees hold, and nothing is left at the end.
func TestAgainstAModel(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := Limits{What: "things", Total: random.Int64N(2000), Least: random.Int64N(20)}
		if random.IntN(4) == 0 {
			l.Total = random.Int64N(8)
		}
		if random.IntN(3) == 0 {
			l.PerUser = 1 + random.Int64N(max(1, l.Total/3))
		}
		s := New(l)
		l = s.limits
		if sum := s.reserve + int64(s.guarantees)*s.guarantee + s.pool; sum != l.Total || s.pool < 0 {
			t.Fatalf("%+v: reserve %d, %d guarantees of %d, pool %d", l, s.reserve, s.guarantees, s.guarantee, s.pool)
		}
		held, turns := map[User]int64{}, map[User][]<-chan struct{}{}
		users := 1 + random.IntN(100)
		some := func() User {
			n := uint32(random.IntN(users))
			return User{UID: n, Operator: n < 2}
		}
		for range 2000 {
			u, n := some(), 1+random.Int64N(max(1, l.Total/20))
			switch random.IntN(5) {
			case 0, 1:
				if len(turns[u]) > 0 {
					continue
				}
				guarded := map[User]bool{u: held[u] == 0 && !u.Operator && s.guarded < s.guarantees}
				for o, h := range s.users {
					guarded[o] = h.guarded || guarded[o]
				}
				want := model(s, u, n, guarded, held)
				if guarded[u] && held[u]+n <= s.guarantee && (l.PerUser == 0 || held[u]+n <= l.PerUser) && !want {
					t.Fatalf("seed %d: the model refuses a guarantee", seed)
				}
				room, err := s.Room(u, n), s.Take(u, n)
				if (err == nil) != want || (room == nil) != want || err != nil && !errors.Is(err, endpoint.ErrBusy) {
					t.Fatalf("seed %d: %v takes %d, has %d: %v, %v, by the model %t", seed, u, n, held[u], room, err, want)
				}
				if err == nil {
					held[u] += n
				}
			case 2:
				turns[u] = append(turns[u], s.Ask(u))
			case 3:
				if n = min(n, held[u]); n > 0 {
					s.Return(u, n)
					held[u] -= n
				}
			case 4:
				if len(turns[u]) > 0 {
					i := random.IntN(len(turns[u]))
					s.withdraw(u, turns[u][i])
					turns[u] = slices.Delete(turns[u], i, i+1)
				}
			}
			for o, list := range turns { // who was served holds one more
				turns[o] = slices.DeleteFunc(list, func(turn <-chan struct{}) bool {
					select {
					case <-turn:
						held[o]++
						return true
					default:
						return false
					}
				})
			}
			if err := check(s); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if l.Total > 0 && s.All() > l.Total {
				t.Fatalf("seed %d: %d of %d are held", seed, s.All(), l.Total)
			}
			if s.Held(u) != held[u] {
				t.Fatalf("seed %d: %v holds %d, want %d", seed, u, s.Held(u), held[u])
			}
		}
		for u, list := range turns {
			for _, turn := range list {
				s.withdraw(u, turn)
			}
		}
		for u := range held {
			if n := s.Held(u); n > 0 {
				s.Return(u, n)
			}
		}
		if len(s.users)+len(s.ring)+s.guarded != 0 || s.used != 0 {
			t.Fatalf("seed %d: left over: %+v", seed, s)
		}
	}
}

// However much some users take, in any order, a newcomer gets its guarantee, and operators get theirs.
func TestGreedyUsersLeaveAShare(t *testing.T) {
	for _, total := range []int64{16, 64, 1024, 128 << 10} {
		for _, greedy := range []int{1, 2, 4, 16, 1000} {
			s := New(Limits{What: "things", Total: total})
			newcomer := ByUID(99999)
			guaranteed := min(greedy, s.guarantees-1)
			for uid := range guaranteed {
				for s.Take(ByUID(uint32(uid+1)), 1) == nil {
				}
			}
			if err := s.Take(newcomer, s.guarantee); err != nil {
				t.Errorf("%d greedy users of %d: a newcomer asks for %d: %v", guaranteed, total, s.guarantee, err)
			}
			for uid := range greedy { // and many more
				for s.Take(ByUID(uint32(uid+1000)), 1) == nil {
				}
			}
			if err := s.Take(ByUID(0), s.reserve); err != nil {
				t.Errorf("%d greedy users of %d: root asks for %d: %v", greedy, total, s.reserve, err)
			}
		}
	}
}

// Users who ask by turns get equal shares, 1/(n+1) of the pool.
func TestEqualShares(t *testing.T) {
	for n := int64(1); n < 30; n++ {
		s := New(Limits{What: "things", Total: 10000})
		for refused := int64(0); refused < n; {
			refused = 0
			for uid := range n {
				if s.Take(ByUID(uint32(uid+1)), 1) != nil {
					refused++
				}
			}
		}
		for uid := range n {
			if got, want := s.Held(ByUID(uint32(uid+1)))-s.guarantee, s.pool/(n+1); got < want-1 || got > want+1 {
				t.Errorf("%d users: user %d has %d of the pool of %d, want %d", n, uid, got, s.pool, want)
			}
		}
	}
}

// Who waits is served by turns of the users, whoever came first: a user with one request waits for at most one of each other user.
func TestTurnsByUser(t *testing.T) {
	s := New(Limits{What: "turns", Total: 1})
	const users, each = 10, 100
	type request struct {
		uid  uint32
		turn <-chan struct{}
	}
	var waiting []request
	holder := uint32(1)
	if s.Take(ByUID(holder), 1) != nil {
		t.Fatal("the first")
	}
	for uid := uint32(1); uid <= users; uid++ {
		for range each {
			waiting = append(waiting, request{uid, s.Ask(ByUID(uid))})
		}
	}
	waiting = append(waiting, request{77, s.Ask(ByUID(77))})
	var served []uint32
	for len(waiting) > 0 {
		s.Return(ByUID(holder), 1)
		now := slices.IndexFunc(waiting, func(r request) bool {
			select {
			case <-r.turn:
				return true
			default:
				return false
			}
		})
		if now < 0 {
			t.Fatal("nobody is served")
		}
		holder = waiting[now].uid
		served = append(served, holder)
		waiting = slices.Delete(waiting, now, now+1)
	}
	if at := slices.Index(served, 77); at != users {
		t.Errorf("the last user, with one request, was served after %d others", at)
	}
	for i, uid := range served {
		if before := i - users; uid != 77 && before > users && served[before] != uid { // all but the last users take turns for ever
			t.Fatalf("turn %d: user %d, %d turns before user %d", i, uid, users, served[before])
		}
	}
}

// A wait ends with its context, and takes nothing then.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Limits{What: "turns", PerUser: 2})
		ctx, cancel := context.WithCancel(context.Background())
		for _, uid := range []uint32{1, 1, 2, 0, 0, 0} {
			if !s.Wait(ctx, ByUID(uid)) {
				t.Errorf("no turn for user %d", uid)
			}
		}
		waited := make(chan bool)
		go func() { waited <- s.Wait(ctx, ByUID(1)) }()
		synctest.Wait()
		cancel()
		if <-waited {
			t.Error("a third turn")
		}
		if s.Wait(ctx, ByUID(0)) {
			t.Error("a wait that was cancelled got a turn")
		}
		go func() { waited <- s.Wait(context.Background(), ByUID(1)) }()
		synctest.Wait()
		s.Return(ByUID(1), 1)
		if !<-waited {
			t.Error("no turn after one was given back")
		}
		for _, uid := range []uint32{1, 1, 2, 0, 0, 0} {
			s.Return(ByUID(uid), 1)
		}
		if len(s.users) != 0 {
			t.Errorf("users %v", s.users)
		}
	})
}

// The errors say who has how much, and what to do.
func TestErrors(t *testing.T) {
	s := New(Limits{What: "connections", Total: 16, PerUser: 3})
	for range 3 {
		if err := s.Take(ByUID(7), 1); err != nil {
			t.Fatal(err)
		}
	}
	want := func(err error, text string) {
		t.Helper()
		if err == nil || !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %s", err, text)
		}
	}
	want(s.Take(ByUID(7), 1), "uid 7 has 3 of at most 3 connections: give some back, or try later")
	s = New(Limits{What: "connections", Total: 16, Text: func(n int64) string { return fmt.Sprintf("<%d>", n) }, Remedy: "ask"})
	for s.Take(ByUID(7), 1) == nil {
	}
	want(s.Take(ByUID(7), 1), "uid 7 has <7> connections, and what is left of <16> is for other users: give some back, or ask")
	s.Add(ByUID(0), 12)
	want(s.Take(ByUID(8), 1), "all users have <19> of at most <16> connections: ask")
}
