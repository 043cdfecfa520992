//go:build linux

package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"
)

// Limits of the shape of a record from an application. Valid records stay far below them.
// They limit the work and the stack that a hostile record can take.
const (
	maxDepth = 8  // objects and arrays inside one another
	maxNames = 32 // in one object
)

// decodeStrict reads one JSON value that fills record and has no unknown field.
func decodeStrict(record []byte, v any) error {
	if err := checkShape(record); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(record))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// level is an object or an array that has begun and not ended.
type level struct {
	object bool
	named  bool     // in an object: a name has come, and its value has not
	names  []string // in an object: so far
}

// checkShape refuses what encoding/json accepts and other parsers may read in another way: a
// name that comes twice (it uses the last), a name in another case (it reads ID as id), and
// bytes that are not UTF-8 (it replaces them).
func checkShape(record []byte) error {
	if !utf8.Valid(record) {
		return errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(record))
	d.UseNumber() // Decode checks the range of each number later
	var levels []level
	for {
		t, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var in *level
		if len(levels) > 0 {
			in = &levels[len(levels)-1]
		}
		if name, ok := t.(string); ok && in != nil && in.object && !in.named {
			if err := in.add(name); err != nil {
				return err
			}
			continue
		}
		if in != nil {
			in.named = false
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if len(levels) == maxDepth {
				return fmt.Errorf("more than %d objects and arrays inside one another", maxDepth)
			}
			levels = append(levels, level{object: t == json.Delim('{')})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
	}
}

func (l *level) add(name string) error {
	for _, c := range []byte(name) {
		if c != '_' && (c < 'a' || c > 'z') {
			return fmt.Errorf("unknown field %q", name)
		}
	}
	switch {
	case slices.Contains(l.names, name):
		return fmt.Errorf("field %q comes twice", name)
	case len(l.names) == maxNames:
		return fmt.Errorf("more than %d fields in an object", maxNames)
	}
	l.names = append(l.names, name)
	l.named = true
	return nil
}
