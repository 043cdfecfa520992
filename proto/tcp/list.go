package tcp

// list is a queue of T from which any element can be removed; the links are in T.
type list[T any] struct {
	first, last *T
	n           int
	links       func(*T) *links[T]
}

// links is a T's place in a list.
type links[T any] struct{ next, prev *T }

func (l *list[T]) has(x *T) bool { return l.first == x || l.links(x).prev != nil }

// push adds x, which is not on the list, at the end.
func (l *list[T]) push(x *T) {
	at := l.links(x)
	if at.prev = l.last; l.last == nil {
		l.first = x
	} else {
		l.links(l.last).next = x
	}
	l.last = x
	l.n++
}

// remove takes x off, which must be on the list.
func (l *list[T]) remove(x *T) {
	at := l.links(x)
	if at.prev == nil {
		l.first = at.next
	} else {
		l.links(at.prev).next = at.next
	}
	if at.next == nil {
		l.last = at.prev
	} else {
		l.links(at.next).prev = at.prev
	}
	*at = links[T]{}
	l.n--
}
