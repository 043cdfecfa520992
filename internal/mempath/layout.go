//go:build linux

package mempath

import (
	"errors"
	"fmt"
)

const (
	memorySize = 128 << 10             // bytes of one memfd
	pageSize   = 4 << 10               // bytes of it that are not ring
	ringSize   = memorySize - pageSize // bytes
	line       = 64                    // bytes; every word is at a multiple of it
	wordSize   = 8                     // bytes
)

const (
	// Size is the memory of a path, in bytes.
	Size = 2 * memorySize
	// MaxFrame is the length of the longest frame, in bytes. It fits when the ring is empty.
	MaxFrame = ringSize - line - wordSize
)

// tag is in the upper half of every word of a ring, the length of the frame is in the lower half.
const (
	tag  = uint64('U')<<56 | uint64('N')<<48 | uint64('E')<<40 | uint64('T')<<32
	skip = tag // the next word is at the start of the ring
)

// span is how many bytes of the ring a frame of n bytes takes, with its word.
func span(n uint64) uint64 { return (wordSize + n + line - 1) &^ (line - 1) }

// words are the words in the first page of a memfd. They are far enough apart that the
// processor's prefetcher, which fetches pairs of cache lines, does not move one with another.
type words struct {
	consumed  *uint64 // bytes that this end has taken out of the other's ring, ever
	asleep    *uint64 // odd: wake me when you publish a frame. It changes with each sleep.
	wantsRoom *uint64 // not 0: wake me when you publish consumed
	state     *uint64 // 0, stateOpen, stateClosing, stateClosed
}

func wordsOf(mem []byte) words {
	return words{consumed: word(mem, 0), asleep: word(mem, 128), wantsRoom: word(mem, 256), state: word(mem, 384)}
}

const (
	stateOpen    = 1
	stateClosed  = 2
	stateClosing = 3
)

// ErrLie is wrapped by the errors for which the other end of a path is to blame. The path is of no more use.
var ErrLie = errors.New("the other end of the memory path has written what it must not")

var (
	errWord     = fmt.Errorf("%w: no frame where its ring has one", ErrLie)
	errConsumed = fmt.Errorf("%w: it has taken what was never sent, or gives back what it took", ErrLie)
)
