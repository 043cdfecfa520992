package main

// database has the values by key: a text, *list, members or fields. Only a text may be
// empty.
type database map[string]any

type (
	text    []byte // never changed in place
	members map[string]struct{}
	fields  map[string]text
)

// lookup returns the value at a key and whether there is one. Another type than T is an
// error.
func lookup[T any](c *session, key []byte) (value T, there bool, err error) {
	v, there := c.server.data[string(key)]
	if !there {
		return value, false, nil
	}
	value, ok := v.(T)
	if !ok {
		return value, false, errWrongType
	}
	return value, true, nil
}

// list is a queue with two ends, in a ring.
type list struct {
	ring  []text // its length is a power of two
	first int
	n     int
}

func (l *list) at(i int) *text { return &l.ring[(l.first+i)&(len(l.ring)-1)] }

// grow makes room for one more.
func (l *list) grow() {
	if l.n < len(l.ring) {
		return
	}
	ring := make([]text, max(4, 2*len(l.ring)))
	for i := range l.n {
		ring[i] = *l.at(i)
	}
	l.ring, l.first = ring, 0
}

func (l *list) pushBack(t text) {
	l.grow()
	l.n++
	*l.at(l.n - 1) = t
}

func (l *list) pushFront(t text) {
	l.grow()
	l.first = (l.first - 1) & (len(l.ring) - 1)
	l.n++
	*l.at(0) = t
}

func (l *list) popFront() text {
	t := *l.at(0)
	*l.at(0) = nil
	l.first = (l.first + 1) & (len(l.ring) - 1)
	l.n--
	return t
}

func (l *list) popBack() text {
	t := *l.at(l.n - 1)
	*l.at(l.n - 1) = nil
	l.n--
	return t
}

func dbsize(c *session, _ [][]byte) error {
	c.out = appendInt(c.out, int64(len(c.server.data)))
	return nil
}

func flushall(c *session, _ [][]byte) error {
	clear(c.server.data)
	return c.ok()
}

func del(c *session, args [][]byte) error {
	before := len(c.server.data)
	for _, key := range args {
		delete(c.server.data, string(key))
	}
	c.out = appendInt(c.out, int64(before-len(c.server.data)))
	return nil
}

func exists(c *session, args [][]byte) error {
	var n int64
	for _, key := range args {
		if _, there := c.server.data[string(key)]; there {
			n++
		}
	}
	c.out = appendInt(c.out, n)
	return nil
}

func typeOf(c *session, args [][]byte) error {
	name := "none"
	switch c.server.data[string(args[0])].(type) {
	case text:
		name = "string"
	case *list:
		name = "list"
	case members:
		name = "set"
	case fields:
		name = "hash"
	}
	c.out = appendStatus(c.out, name)
	return nil
}
