package control

import (
	"sync"
	"time"
)

// Limits protect unetd from applications, and them from one another. The zero
// value of a field stands for its default. A limit per uid does not bind uid 0,
// which could lift it; the others do.
type Limits struct {
	Connections       int // served at once; 1024
	ConnectionsPerUID int // of them, those of one user; 256
	Tags              int // held at once by all leases; 16,384
	TagsPerUID        int // of them, those of one user; 8192
	TagsPerLease      int // of them, those of one lease; MaxTags
	Resolves          int // in progress at once; 64
	ResolvesPerUID    int // of them, those of one user; 32

	OpenTimeout  time.Duration // from connecting to the open request; 10 s
	WriteTimeout time.Duration // for an answer that the application does not read; 5 s
}

func (l Limits) withDefaults() Limits {
	for _, d := range []struct {
		field *int
		value int
	}{
		{&l.Connections, 1024}, {&l.ConnectionsPerUID, 256},
		{&l.Tags, 16 << 10}, {&l.TagsPerUID, 8 << 10}, {&l.TagsPerLease, MaxTags},
		{&l.Resolves, 64}, {&l.ResolvesPerUID, MaxRequests},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if l.OpenTimeout == 0 {
		l.OpenTimeout = 10 * time.Second
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = 5 * time.Second
	}
	return l
}

// quota is how many of a thing may be in use, by all and by each user.
type quota struct {
	what          string // plural
	total, perUID int

	mu    sync.Mutex
	used  int
	byUID map[uint32]int // users with none have no entry
}

func newQuota(what string, total, perUID int) *quota {
	return &quota{what: what, total: total, perUID: perUID, byUID: make(map[uint32]int)}
}

// take reserves n, or none and returns an error that is ErrBusy.
func (q *quota) take(uid uint32, n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case uid != 0 && n > q.perUID-q.byUID[uid]:
		return busy("uid %d has %d of at most %d %s: give some back, or try later", uid, q.byUID[uid], q.perUID, q.what)
	case n > q.total-q.used:
		return busy("all applications have %d of at most %d %s: try later", q.used, q.total, q.what)
	case n > 0:
		q.used += n
		q.byUID[uid] += n
	}
	return nil
}

// give returns n that were taken.
func (q *quota) give(uid uint32, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n > q.byUID[uid] {
		panic("BUG: more " + q.what + " given back than taken")
	}
	q.used -= n
	if q.byUID[uid] -= n; q.byUID[uid] == 0 {
		delete(q.byUID, uid)
	}
}

// quotas are those of a server.
type quotas struct {
	connections, tags, resolves *quota
}

func newQuotas(l Limits) *quotas {
	return &quotas{
		connections: newQuota("connections", l.Connections, l.ConnectionsPerUID),
		tags:        newQuota("tags", l.Tags, l.TagsPerUID),
		resolves:    newQuota("resolve requests in progress", l.Resolves, l.ResolvesPerUID),
	}
}
