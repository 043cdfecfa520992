//go:build linux

package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Queues are numbers of receive queues of an interface; nil: all.
type Queues spans

// ParseQueues reads numbers and ranges with commas between them, such as 0-3,8, or all or none.
// The kernel numbers queues in 16 bits.
func ParseQueues(text string) (Queues, error) {
	switch text {
	case "all":
		return nil, nil
	case "none":
		return Queues{}, nil
	}
	var list []span
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, lastErr := strconv.ParseUint(to, 10, 16)
		switch {
		case err != nil || lastErr != nil:
			return nil, fmt.Errorf("%q is not a queue: want a number from 0 to %d, or a range such as 0-3", part, math.MaxUint16)
		case first > last:
			return nil, fmt.Errorf("%q ends before it begins: write %d-%d", part, last, first)
		}
		list = append(list, span{uint32(first), uint32(last)})
	}
	return Queues(merge(list)), nil
}

// Has reports whether a queue is one of them.
func (q Queues) Has(queue uint32) bool { return q == nil || spans(q).cover(queue, queue) }

// String is q as [ParseQueues] reads it.
func (q Queues) String() string {
	switch {
	case q == nil:
		return "all"
	case len(q) == 0:
		return "none"
	}
	var parts []string
	for _, s := range q {
		part := strconv.FormatUint(uint64(s.first), 10)
		if s.last > s.first {
			part += "-" + strconv.FormatUint(uint64(s.last), 10)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}
