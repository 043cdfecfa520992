package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// set supports the conditions NX and XX.
func set(c *session, args [][]byte) error {
	_, there := c.server.data[string(args[0])]
	skip := false
	switch {
	case len(args) == 2:
	case len(args) == 3 && strings.EqualFold(string(args[2]), "nx"):
		skip = there
	case len(args) == 3 && strings.EqualFold(string(args[2]), "xx"):
		skip = !there
	default:
		return errSyntax
	}
	if skip {
		c.out = appendNil(c.out)
		return nil
	}
	c.server.data[string(args[0])] = text(slices.Clone(args[1]))
	return c.ok()
}

func get(c *session, args [][]byte) error {
	t, there, err := lookup[text](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendValue(c.out, t, there)
	return nil
}

// appendValue appends a text, or null if there is none.
func appendValue(out []byte, t text, there bool) []byte {
	if !there {
		return appendNil(out)
	}
	return appendBulk(out, []byte(t))
}

func mset(c *session, args [][]byte) error {
	if len(args)%2 != 0 {
		return replyError("ERR wrong number of arguments for 'mset' command")
	}
	for pair := range slices.Chunk(args, 2) {
		c.server.data[string(pair[0])] = text(slices.Clone(pair[1]))
	}
	return c.ok()
}

// mget returns null for keys of other types.
func mget(c *session, args [][]byte) error {
	c.out = appendArray(c.out, len(args))
	for _, key := range args {
		t, there, _ := lookup[text](c, key)
		c.out = appendValue(c.out, t, there)
	}
	return nil
}

func appendText(c *session, args [][]byte) error {
	t, _, err := lookup[text](c, args[0])
	if err != nil {
		return err
	}
	t = slices.Concat(t, args[1])
	c.server.data[string(args[0])] = t
	c.out = appendInt(c.out, int64(len(t)))
	return nil
}

func strlen(c *session, args [][]byte) error {
	t, _, err := lookup[text](c, args[0])
	if err != nil {
		return err
	}
	c.out = appendInt(c.out, int64(len(t)))
	return nil
}

func incrby(c *session, args [][]byte) error {
	by, ok := parseInt(args[1])
	if !ok {
		return errNotInteger
	}
	return add(c, args[0], by)
}

// add adds to a number; a key without a value has 0.
func add(c *session, key []byte, by int64) error {
	t, there, err := lookup[text](c, key)
	if err != nil {
		return err
	}
	var n int64
	if there {
		var ok bool
		if n, ok = parseInt(t); !ok {
			return errNotInteger
		}
	}
	if by > 0 && n > math.MaxInt64-by || by < 0 && n < math.MinInt64-by {
		return errOverflow
	}
	n += by
	c.server.data[string(key)] = text(strconv.AppendInt(nil, n, 10))
	c.out = appendInt(c.out, n)
	return nil
}
