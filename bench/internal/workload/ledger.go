package workload

// ledger accounts for numbered messages: which have arrived, and which more
// than once.
type ledger struct {
	seen       []uint64 // bit seq%64 of word seq/64
	limit      uint64   // of sequence numbers
	distinct   int
	duplicates int
	next       uint64 // one above the highest number seen
}

func newLedger(n int) *ledger {
	return &ledger{seen: make([]uint64, (n+63)/64), limit: uint64(n)}
}

// note takes one arrival. Numbers that were never to be sent are ignored.
func (l *ledger) note(seq uint64) {
	if seq >= l.limit {
		return
	}
	word, bit := &l.seen[seq/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		l.duplicates++
		return
	}
	*word |= bit
	l.distinct++
	if seq >= l.next {
		l.next = seq + 1
	}
}
