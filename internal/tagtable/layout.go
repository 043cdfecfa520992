//go:build linux

package tagtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

const (
	magic   = 0x756e6574_74616773 // "unettags"
	version = 1

	epochs   = 1 << 16
	slotBits = 13
	slots    = 1 << slotBits
	mostUsed = slots / 4 * 3 // slots that have, or have had, an address: a search ends soon at one that has not
	messages = mostUsed / 2  // of message tags: the other slots are for addresses
	areas    = 64
	ports    = 1 << 16

	// Words of the file. Those of the header stay where they are in every version.
	magicWord      = 0
	versionWord    = 1
	generationWord = 8
	headerWords    = 9
	firstEpoch     = 512
	firstSlot      = firstEpoch + epochs
	slotWords      = 4
	firstArea      = firstSlot + slots*slotWords
	areaWords      = 2 * ports

	// Words of a slot.
	holderWord = 0
	hiWord     = 1 // the address, as wire.Addr.Words returns it; both 0: the slot never had one
	loWord     = 2
	areaWord   = 3 // number of the area from 1 on, if the holder is host

	// Sizes in bytes.
	fixedSize = 8 * firstArea
	areaSize  = 8 * areaWords
	maxSize   = fixedSize + areas*areaSize
)

const (
	host  = ^uint64(0) // holder of an address whose ports are held one by one
	ended = ^uint64(0) // generation of a table that nobody keeps up to date any more
)

// words are the words of a file that is mapped.
type words []uint64

func (w words) load(i int) uint64     { return atomic.LoadUint64(&w[i]) }
func (w words) store(i int, n uint64) { atomic.StoreUint64(&w[i], n) }

// slot is the index of the first word of a slot, for any n.
func slot(n int) int { return firstSlot + n%slots*slotWords }

// hash is the number of the slot at which the search for an address begins.
func hash(hi, lo uint64) int {
	return int((hi*0xff51afd7ed558ccd ^ lo) * 0x9e3779b97f4a7c15 >> (64 - slotBits))
}

// find returns the index of the slot of an address, and its holder. The holder is 0 if there is no such slot.
func (w words) find(a wire.Addr) (s int, holder uint64) {
	hi, lo := a.Words()
	first := hash(hi, lo)
	for n := range slots {
		s = slot(first + n)
		slotHi, slotLo := w.load(s+hiWord), w.load(s+loWord)
		if slotHi|slotLo == 0 {
			break
		}
		if slotHi == hi && slotLo == lo {
			if holder = w.load(s + holderWord); holder != 0 {
				return s, holder
			}
		}
	}
	return 0, 0
}

// portWord is the index of the word of a port, in an area from 1 on; 0 if neither UDP nor TCP is the protocol.
func portWord(area uint64, proto uint8, port uint16) int {
	i := firstArea + int(area-1)*areaWords + int(port)
	switch proto {
	case wire.ProtocolUDP:
		return i
	case wire.ProtocolTCP:
		return i + ports
	}
	return 0
}

// MessageAddr is the address that stands for a message tag in a table. It is that of no host.
func MessageAddr(tag uint32) wire.Addr {
	a := [16]byte{0xff}
	binary.LittleEndian.PutUint32(a[12:], tag)
	return wire.AddrFrom16(a)
}

func epochWord(id uint64) int { return firstEpoch + int(id%epochs) }

// errNotTable: a file is not a tag table of this version.
var errNotTable = errors.New("not a tag table")

// check returns an errNotTable unless f, a file of size bytes, is a tag table that is in use. known: it is a tag table of some version.
func check(f *os.File, size int64) (known bool, err error) {
	var header [8 * headerWords]byte
	if _, err := f.ReadAt(header[:], 0); err != nil {
		return false, fmt.Errorf("%w: %w", errNotTable, err)
	}
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(header[8*i:]) }
	switch {
	case word(magicWord) != magic:
		return false, fmt.Errorf("%w: it begins with %#x", errNotTable, word(magicWord))
	case word(versionWord) != version:
		return true, fmt.Errorf("%w: version %d, not %d", errNotTable, word(versionWord), version)
	case size < fixedSize || size > maxSize || (size-fixedSize)%areaSize != 0:
		return true, fmt.Errorf("%w: %d bytes", errNotTable, size)
	case word(generationWord) == ended:
		return true, fmt.Errorf("%w any more: its mux has ended", errNotTable)
	}
	return true, nil
}

// mapFile maps a table with all areas that it may get. An access beyond the file's size is a fault (SIGBUS).
func mapFile(f *os.File, prot int) (mem []byte, w words, err error) {
	mem, err = unix.Mmap(int(f.Fd()), 0, maxSize, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap of the tag table", err)
	}
	return mem, wordsOf(mem), nil
}
