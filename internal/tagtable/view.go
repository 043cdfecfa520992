//go:build linux

package tagtable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/wire"
)

// View is an application's end of a table. One goroutine uses it at a time.
type View struct {
	f    *os.File
	mem  []byte
	w    words
	size int // of the file, in bytes, as last read

	places [16]place // of the last look-ups, each at a hash of what was asked for
}

// place is where the holder of an address and a port stands. It stays there as long as the generation is the same.
type place struct {
	addr       wire.Addr
	proto      uint8
	port       uint16
	generation uint64
	slot       int // index of the first word of the address's slot
	word       int // index of the port's word; 0: the address is held as a whole, or the protocol has no ports
}

// Open maps a table, of which f is what [Table.Reader] returned. It takes f over if it succeeds. The error says why f is not a table that
// is in use.
func Open(f *os.File) (*View, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := check(f, st.Size()); err != nil {
		return nil, err
	}
	v := &View{f: f, size: int(st.Size())}
	if v.mem, v.w, err = mapFile(f, unix.PROT_READ); err != nil {
		return nil, err
	}
	return v, nil
}

// Holder returns the ID of the endpoint that holds a port of an address, or the whole address; 0: nobody does. proto is
// wire.ProtocolUDP or wire.ProtocolTCP; for another protocol only the whole address counts. a is the address of one host, or [MessageAddr]. While the mux changes the holder, Holder returns the
// one before the change, the one after it, or 0.
func (v *View) Holder(a wire.Addr, proto uint8, port uint16) uint64 {
	_, lo := a.Words()
	p := &v.places[(uint16(lo>>32)^uint16(lo>>56)^port)%uint16(len(v.places))]
	for {
		generation := v.w.load(generationWord)
		if generation == ended {
			return 0
		}
		if p.addr != a || p.port != port || p.proto != proto || p.generation != generation {
			*p = v.find(a, proto, port)
			if p.slot != 0 { // otherwise the generation may be that of a slot which gets its holder later
				p.generation = generation
			}
		}
		id := uint64(0)
		if p.slot != 0 {
			id = v.w.load(p.slot + holderWord)
		}
		if id == host {
			id = 0
			if p.word != 0 {
				id = v.w.load(p.word)
			}
		}
		if v.w.load(generationWord) == generation {
			return id
		}
	}
}

// find looks for the place of an address and a port. Without one the slot is 0.
func (v *View) find(a wire.Addr, proto uint8, port uint16) place {
	p := place{addr: a, proto: proto, port: port}
	var holder uint64
	if p.slot, holder = v.w.find(a); holder != host {
		return p
	}
	area := v.w.load(p.slot + areaWord)
	if area-1 >= areas || fixedSize+int(area)*areaSize > v.size && !v.grown(int(area)) {
		p.slot = 0
	} else {
		p.word = portWord(area, proto, port)
	}
	return p
}

// grown reports whether the file has an area by now.
func (v *View) grown(area int) bool {
	if st, err := v.f.Stat(); err == nil {
		v.size = int(st.Size())
	}
	return fixedSize+area*areaSize <= v.size
}

// Epoch returns the epoch of an endpoint. When it changes, all paths of the endpoint end.
func (v *View) Epoch(id uint64) uint64 {
	if v.w.load(generationWord) == ended {
		return ended
	}
	return v.w.load(epochWord(id))
}

// Close unmaps the table and closes its file.
func (v *View) Close() error {
	return errors.Join(os.NewSyscallError("munmap of the tag table", unix.Munmap(v.mem)), v.f.Close())
}
