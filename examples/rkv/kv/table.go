// Package kv is a key-value store in registered memory. Clients look keys up by one-sided
// READs, in which no code of the server takes part, and change values by messages to it.
//
// The table is an array of slots. A key is in one of the [Probes] slots from its hash on. A slot
// is, in words of 8 bytes, little-endian:
//
//	version    0: never used
//	lengths    of the key, bits 0 to 15, and of the value, bits 32 to 63; [deleted]: no value
//	checksum   CRC-32C of the two words before, the key and the value
//	key, value and unused bytes
//	version
//
// The server writes a slot from its end to its beginning, so that in a READ that goes from the
// beginning to the end and meets a writer, the two versions differ. In which order a READ takes
// the bytes is not specified; the checksum finds what the versions do not. A client repeats
// a READ that was torn.
package kv

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/unet-go/unet/verbs"
)

// Probes is how many slots may have a key.
const Probes = 8

const (
	header   = 24         // bytes before the key
	overhead = header + 8 // bytes of a slot that are neither key nor value
	deleted  = 1<<32 - 1  // length of a value
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hash is FNV-1a.
func hash(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}

// slotOf is the number of the i-th slot that may have a key.
func slotOf(key string, i, slots int) int {
	return int((hash(key) + uint64(i)) % uint64(slots))
}

type state uint8

const (
	torn state = iota // read while it was written
	unused
	erased
	present
)

// parse decodes a copy of a slot. A slot whose key was removed still has the key.
func parse(slot []byte) (key, value []byte, s state) {
	le := binary.LittleEndian
	version := le.Uint64(slot)
	if version != le.Uint64(slot[len(slot)-8:]) {
		return nil, nil, torn
	}
	if version == 0 {
		return nil, nil, unused
	}
	lengths := le.Uint64(slot[8:])
	k, v := int(lengths&0xffff), int(lengths>>32)
	s = present
	if v == deleted {
		v, s = 0, erased
	}
	if k+v > len(slot)-overhead {
		return nil, nil, torn
	}
	if uint64(checksum(slot[:16], slot[header:header+k+v])) != le.Uint64(slot[16:]) {
		return nil, nil, torn
	}
	return slot[header : header+k], slot[header+k : header+k+v], s
}

func checksum(words, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(words, castagnoli), castagnoli, data)
}

// table is the server's memory. One goroutine changes it.
type table struct {
	mr       *verbs.MR
	slots    int
	slotSize int
	next     []byte // the slot that is being composed
}

// fits reports whether a slot holds a key and a value.
func (t *table) fits(key string, value []byte) bool {
	return len(key) < 1<<16 && len(key)+len(value) <= t.slotSize-overhead
}

// load copies a slot. Every word of it is read at once; the slot may be torn.
func (t *table) load(slot int, b []byte) {
	for i := 0; i < t.slotSize; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], t.mr.Word(slot*t.slotSize+i).Load())
	}
}

// find is the slot that has a key, or else one that can take it, or -1.
func (t *table) find(key string) (slot int, found bool) {
	free := -1
	for i := range Probes {
		slot := slotOf(key, i, t.slots)
		t.load(slot, t.next)
		k, _, s := parse(t.next)
		switch {
		case s == present && string(k) == key:
			return slot, true
		case s != present && free < 0:
			free = slot
		}
		if s == unused {
			break
		}
	}
	return free, false
}

// put writes a slot. It reports whether there is one.
func (t *table) put(key string, value []byte) bool {
	slot, _ := t.find(key)
	if slot >= 0 {
		t.compose(slot, key, value, uint64(len(value)))
		t.write(slot, t.slotSize-8, 0)
	}
	return slot >= 0
}

// remove erases a key. It reports whether the key was there. The slot stays in use, because keys
// may be in the slots after it.
func (t *table) remove(key string) bool {
	slot, found := t.find(key)
	if found {
		t.compose(slot, key, nil, deleted)
		t.write(slot, t.slotSize-8, 0)
	}
	return found
}

// compose makes the next version of a slot in t.next.
func (t *table) compose(slot int, key string, value []byte, length uint64) {
	le, b := binary.LittleEndian, t.next
	version := t.mr.Word(slot*t.slotSize).Load() + 1
	clear(b)
	le.PutUint64(b, version)
	le.PutUint64(b[8:], uint64(len(key))|length<<32)
	n := copy(b[header:], key)
	n += copy(b[header+n:], value)
	le.PutUint64(b[16:], uint64(checksum(b[:16], b[header:header+n])))
	le.PutUint64(b[len(b)-8:], version)
}

// write copies t.next into a slot, from the word at offset from down to the one at offset to.
func (t *table) write(slot, from, to int) {
	for i := from; i >= to; i -= 8 {
		t.mr.Word(slot*t.slotSize + i).Store(binary.LittleEndian.Uint64(t.next[i:]))
	}
}
