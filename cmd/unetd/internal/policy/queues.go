//go:build linux

package policy

import (
	"strconv"
	"strings"
)

// Queues are numbers of receive queues of an interface; nil: all.
type Queues spans

// Has reports whether a queue is one of them.
func (q Queues) Has(queue uint32) bool { return q == nil || spans(q).cover(queue, queue) }

// String is q as numbers and ranges with commas between them, such as 0-3,8, or all or none.
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
