package main

import "slices"

func push(c *session, args [][]byte, to func(*list, text)) error {
	l, there, err := lookup[*list](c, args[0])
	if err != nil {
		return err
	}
	if !there {
		l = new(list)
		c.server.data[string(args[0])] = l
	}
	for _, arg := range args[1:] {
		to(l, slices.Clone(arg))
	}
	c.out = appendInt(c.out, int64(l.n))
	return nil
}

// pop removes one element, or as many as are asked for and exist, as an array.
func pop(c *session, args [][]byte, from func(*list) text) error {
	var n int64 = 1
	if len(args) == 2 {
		var ok bool
		if n, ok = parseInt(args[1]); !ok || n < 0 {
			return errNegative
		}
	}
	l, there, err := lookup[*list](c, args[0])
	switch {
	case err != nil:
		return err
	case !there && len(args) == 2:
		c.out = append(c.out, "*-1\r\n"...)
		return nil
	case !there:
		c.out = appendNil(c.out)
		return nil
	}
	n = min(n, int64(l.n))
	if len(args) == 2 {
		c.out = appendArray(c.out, int(n))
	}
	for range n {
		c.out = appendBulk(c.out, []byte(from(l)))
	}
	if l.n == 0 {
		delete(c.server.data, string(args[0]))
	}
	return nil
}

func llen(c *session, args [][]byte) error {
	l, there, err := lookup[*list](c, args[0])
	if err != nil {
		return err
	}
	var n int
	if there {
		n = l.n
	}
	c.out = appendInt(c.out, int64(n))
	return nil
}

// lrange returns the elements between two indices; a negative index counts from the end.
func lrange(c *session, args [][]byte) error {
	start, ok1 := parseInt(args[1])
	stop, ok2 := parseInt(args[2])
	if !ok1 || !ok2 {
		return errNotInteger
	}
	l, there, err := lookup[*list](c, args[0])
	if err != nil {
		return err
	}
	if !there {
		l = new(list)
	}
	n := int64(l.n)
	if start < 0 {
		start = max(start+n, 0)
	}
	if stop < 0 {
		stop += n
	}
	end := min(stop, n-1) + 1
	start = min(start, max(end, 0))
	c.out = appendArray(c.out, int(max(end-start, 0)))
	for i := start; i < end; i++ {
		c.out = appendBulk(c.out, []byte(*l.at(int(i))))
	}
	return nil
}

func sadd(c *session, args [][]byte) error {
	m, there, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	if !there {
		m = make(members)
		c.server.data[string(args[0])] = m
	}
	before := len(m)
	for _, arg := range args[1:] {
		m[string(arg)] = struct{}{}
	}
	c.out = appendInt(c.out, int64(len(m)-before))
	return nil
}

func srem(c *session, args [][]byte) error {
	m, _, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	before := len(m)
	for _, arg := range args[1:] {
		delete(m, string(arg))
	}
	c.out = appendInt(c.out, int64(before-len(m)))
	if len(m) == 0 {
		delete(c.server.data, string(args[0]))
	}
	return nil
}

// spop removes any one member.
func spop(c *session, args [][]byte) error {
	m, _, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	for member := range m {
		delete(m, member)
		if len(m) == 0 {
			delete(c.server.data, string(args[0]))
		}
		c.out = appendBulk(c.out, member)
		return nil
	}
	c.out = appendNil(c.out)
	return nil
}

func scard(c *session, args [][]byte) error {
	m, _, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendInt(c.out, int64(len(m)))
	return nil
}

func sismember(c *session, args [][]byte) error {
	m, _, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	var n int64
	if _, there := m[string(args[1])]; there {
		n = 1
	}
	c.out = appendInt(c.out, n)
	return nil
}

func smembers(c *session, args [][]byte) error {
	m, _, err := lookup[members](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendArray(c.out, len(m))
	for member := range m {
		c.out = appendBulk(c.out, member)
	}
	return nil
}

func hset(c *session, args [][]byte) error {
	if len(args)%2 != 1 {
		return replyError("ERR wrong number of arguments for 'hset' command")
	}
	f, there, err := lookup[fields](c, args[0])
	if err != nil {
		return err
	}
	if !there {
		f = make(fields)
		c.server.data[string(args[0])] = f
	}
	before := len(f)
	for pair := range slices.Chunk(args[1:], 2) {
		f[string(pair[0])] = slices.Clone(pair[1])
	}
	c.out = appendInt(c.out, int64(len(f)-before))
	return nil
}

func hget(c *session, args [][]byte) error {
	f, _, err := lookup[fields](c, args[0])
	if err != nil {
		return err
	}
	t, there := f[string(args[1])]
	c.out = appendValue(c.out, t, there)
	return nil
}

func hdel(c *session, args [][]byte) error {
	f, _, err := lookup[fields](c, args[0])
	if err != nil {
		return err
	}
	before := len(f)
	for _, arg := range args[1:] {
		delete(f, string(arg))
	}
	c.out = appendInt(c.out, int64(before-len(f)))
	if len(f) == 0 {
		delete(c.server.data, string(args[0]))
	}
	return nil
}

func hlen(c *session, args [][]byte) error {
	f, _, err := lookup[fields](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendInt(c.out, int64(len(f)))
	return nil
}

func hgetall(c *session, args [][]byte) error {
	f, _, err := lookup[fields](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendArray(c.out, 2*len(f))
	for name, value := range f {
		c.out = appendBulk(appendBulk(c.out, name), []byte(value))
	}
	return nil
}
