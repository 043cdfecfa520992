package rdma

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func word32(p *byte) *uint32 { return (*uint32)(unsafe.Pointer(p)) }
func word64(p *byte) *uint64 { return (*uint64)(unsafe.Pointer(p)) }
func misaligned(b []byte) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 7
}

// store copies src into application memory. The last aligned word is stored atomically after
// the rest: who has loaded it by sync/atomic sees the bytes before it.
func store(dst, src []byte) {
	n := len(src)
	if n == 0 {
		return
	}
	if underRace {
		storeWords(dst[:n], src)
		return
	}
	end := (misaligned(dst) + uintptr(n)) & 7
	switch {
	case end == 0 && n >= 8:
		copy(dst, src[:n-8])
		atomic.StoreUint64(word64(&dst[n-8]), *word64(&src[n-8]))
	case end&3 == 0 && n >= 4:
		copy(dst, src[:n-4])
		atomic.StoreUint32(word32(&dst[n-4]), *word32(&src[n-4]))
	default:
		k := min(int(end&3), n)
		if end&3 == 0 {
			k = n // fewer than 4 bytes, up to the end of a word
		}
		copy(dst, src[:n-k])
		merge(dst[n-k:n], src[n-k:])
	}
}

// merge stores 1 to 3 bytes of one aligned word of 4 bytes.
func merge(dst, src []byte) {
	at := misaligned(dst) & 3
	p := (*uint32)(unsafe.Add(unsafe.Pointer(&dst[0]), -int(at)))
	for {
		old := atomic.LoadUint32(p)
		word := old
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&word)), 4)[at:], src)
		if atomic.CompareAndSwapUint32(p, old, word) {
			return
		}
	}
}

// storeWords is store by atomic operations only.
func storeWords(dst, src []byte) {
	for len(dst) > 0 {
		at := misaligned(dst)
		switch {
		case at == 0 && len(dst) >= 8:
			atomic.StoreUint64(word64(&dst[0]), *word64(&src[0]))
			dst, src = dst[8:], src[8:]
		default:
			k := min(4-int(at&3), len(dst))
			merge(dst[:k], src[:k])
			dst, src = dst[k:], src[k:]
		}
	}
}

// load copies application memory. Under the race detector it loads aligned words atomically.
func load(dst, src []byte) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	if !underRace {
		copy(dst, src)
		return
	}
	for len(src) > 0 {
		at := misaligned(src)
		if at == 0 && len(src) >= 8 {
			*word64(&dst[0]) = atomic.LoadUint64(word64(&src[0]))
			dst, src = dst[8:], src[8:]
			continue
		}
		k := min(4-int(at&3), len(src))
		word := atomic.LoadUint32((*uint32)(unsafe.Add(unsafe.Pointer(&src[0]), -int(at&3))))
		copy(dst[:k], unsafe.Slice((*byte)(unsafe.Pointer(&word)), 4)[at&3:])
		dst, src = dst[k:], src[k:]
	}
}

// fetchAdd and compareSwap act on the aligned word of 8 bytes at mem[0] and return what it held.
func fetchAdd(mem []byte, add uint64) uint64 { return atomic.AddUint64(word64(&mem[0]), add) - add }

func compareSwap(mem []byte, compare, swap uint64) uint64 {
	p := word64(&mem[0])
	for {
		old := atomic.LoadUint64(p)
		if old != compare || atomic.CompareAndSwapUint64(p, old, swap) {
			return old
		}
	}
}

// Word is the aligned word of 8 bytes at offset off of the region, for an application that
// shares it with a peer's WRITEs, READs and atomics. It panics if the word is not within the
// region or not aligned.
func (m *MR) Word(off int) *atomic.Uint64 {
	p := unsafe.Pointer(unsafe.SliceData(m.mem[off : off+8]))
	if uintptr(p)%8 != 0 {
		panic(fmt.Sprintf("rdma: the word at offset %d of MR %#x is not aligned", off, m.key))
	}
	return (*atomic.Uint64)(p)
}
