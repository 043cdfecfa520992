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
	for {
		generation := v.w.load(generationWord)
		if generation == ended {
			return 0
		}
		id := v.holder(a, proto, port)
		if v.w.load(generationWord) == generation {
			return id
		}
	}
}

func (v *View) holder(a wire.Addr, proto uint8, port uint16) uint64 {
	s, id := v.w.find(a)
	if id != host {
		return id
	}
	area := v.w.load(s + areaWord)
	if area-1 >= areas || fixedSize+int(area)*areaSize > v.size && !v.grown(int(area)) {
		return 0
	}
	if i := portWord(area, proto, port); i != 0 {
		return v.w.load(i)
	}
	return 0
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
