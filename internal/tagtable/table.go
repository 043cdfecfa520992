//go:build linux

package tagtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// Table is the mux's end of a table. The caller sees to it that one goroutine at a time uses Set and Clear, and none uses anything after Close.
type Table struct {
	f    *os.File
	path string // empty: it has no name in the file system
	mem  []byte
	w    words
	area []area // that the file has
	used int    // slots that are not empty
	msgs int    // slots of message tags
}

// area is the ports of one address.
type area struct {
	slot int // index of the address's slot; 0: the area is free
	held int // ports that are held
}

// ErrFull: the table has no room for another address or message tag.
var ErrFull = errors.New("the tag table has no room for another address or message tag")

// memfdName is the name in /proc of a table without a name in the file system.
const memfdName = "unet-tags"

// Create makes a table without tags: the file name in dir, which should be on a tmpfs, or, if dir is empty, a memfd. If the file is a table that
// an earlier process of this user has left, Create takes it over, deletes all tags and changes all epochs, so applications that have mapped it see
// what the new process writes. Any other file of that name is replaced.
func Create(dir, name string) (_ *Table, err error) {
	t := &Table{}
	if dir != "" {
		t.path = filepath.Join(dir, name)
		t.f = reopen(t.path)
	}
	adopted := t.f != nil
	if !adopted {
		if t.f, err = t.create(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.f.Close())
			if !adopted && t.path != "" {
				err = errors.Join(err, os.Remove(t.path))
			}
		}
	}()
	_ = unix.Flock(int(t.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // for Discard; an application can have locked it first, and then it is not discarded
	st, err := t.f.Stat()
	if err != nil {
		return nil, err
	}
	size := max(st.Size(), fixedSize)
	if err := t.allocate(0, size); err != nil {
		return nil, err
	}
	t.area = make([]area, (size-fixedSize)/areaSize)
	if t.mem, t.w, err = mapFile(t.f, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, err
	}
	if adopted {
		t.clear()
	}
	t.w.store(versionWord, version)
	t.w.store(magicWord, magic) // last: a file without it is replaced
	return t, nil
}

// reopen opens the table that an earlier process has left; nil: there is none that can be used. One of another version is ended.
func reopen(path string) *os.File {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	// Nobody else can have it open for writing.
	if err := unix.Fstat(fd, &st); err == nil && st.Mode == unix.S_IFREG|0o600 && int(st.Uid) == os.Geteuid() && st.Nlink == 1 {
		known, err := check(f, st.Size)
		if err == nil {
			return f
		}
		if known {
			end(f)
		}
	}
	f.Close()
	return nil
}

// end ends a table for those who have mapped it. It may be of any version.
func end(f *os.File) {
	_, _ = f.WriteAt(binary.NativeEndian.AppendUint64(nil, ended), 8*generationWord)
}

// create makes an empty file.
func (t *Table) create() (*os.File, error) {
	if t.path != "" {
		_ = os.Remove(t.path) // if that fails, the next call does
		f, err := os.OpenFile(t.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, fmt.Errorf("tag table: %w", err)
		}
		return f, nil
	}
	// Kernels before 6.3 reject the flag; see internal/xsk.
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create of the tag table", err)
	}
	f := os.NewFile(uintptr(fd), memfdName)
	if err := f.Chmod(0o600); err != nil { // nobody opens it for writing through /proc
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// allocate gives the file pages from an offset on, in bytes, and makes it that much larger.
func (t *Table) allocate(offset, size int64) error {
	for {
		err := unix.Fallocate(int(t.f.Fd()), 0, offset, size)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fallocate of the tag table", err)
		}
	}
}

// clear changes all epochs, and then deletes all tags.
func (t *Table) clear() {
	for id := range uint64(epochs) {
		t.Bump(id)
	}
	for n := range slots {
		t.w.store(slot(n)+holderWord, 0)
	}
	clear(t.w[firstSlot:][:slots*slotWords]) // no reader uses a slot without a holder
	for i := range t.w[firstArea:][:len(t.area)*areaWords] {
		t.w.store(firstArea+i, 0)
	}
}

// Reader returns a descriptor of the table for an application. It is read-only, and a process of another user that has no privileges
// cannot open the file for writing by it.
func (t *Table) Reader() (*os.File, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", t.f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("reopen the tag table by /proc", err)
	}
	return os.NewFile(uintptr(fd), memfdName), nil
}

// Set makes endpoint id the holder of a tag. An address whose ports are held cannot be held as a whole. The error is [ErrFull], or that there
// is no memory; then the table does not show the tag. Tags of groups are ignored, and tags of ports on an address
// that is held as a whole.
func (t *Table) Set(tag endpoint.Tag, id uint64) error {
	if tag.Kind == endpoint.TagMessage {
		return t.setMessage(MessageAddr(tag.Message), id)
	}
	a := wire.AddrFrom(tag.Addr)
	if !a.IsHost() {
		return nil
	}
	s, holder := t.w.find(a)
	if tag.Kind == endpoint.TagAddr {
		if holder == host { // without a port that is held
			t.free(s)
		}
		if holder == 0 || holder == host {
			var err error
			if s, err = t.place(a, 0); err != nil {
				return err
			}
		}
		t.w.store(s+holderWord, id)
		return nil
	}
	if holder == 0 {
		var err error
		if s, err = t.placeHost(a); err != nil {
			return err
		}
	} else if holder != host {
		return nil
	}
	t.setPorts(s, tag, id)
	return nil
}

// setMessage makes endpoint id the holder of the message tag for which a stands.
func (t *Table) setMessage(a wire.Addr, id uint64) error {
	s, holder := t.w.find(a)
	if holder == 0 {
		if t.msgs == messages {
			return ErrFull
		}
		var err error
		if s, err = t.place(a, 0); err != nil {
			return err
		}
		t.msgs++
	}
	t.w.store(s+holderWord, id)
	return nil
}

// Clear makes a tag one that nobody holds.
func (t *Table) Clear(tag endpoint.Tag) {
	a, isMessage := wire.AddrFrom(tag.Addr), tag.Kind == endpoint.TagMessage
	if isMessage {
		a = MessageAddr(tag.Message)
	}
	s, holder := t.w.find(a)
	switch isAddr := tag.Kind == endpoint.TagAddr; {
	case holder == 0:
	case isMessage:
		t.free(s)
		t.msgs--
	case isAddr && holder != host:
		t.free(s)
	case !isAddr && holder == host:
		t.setPorts(s, tag, 0)
	}
}

// setPorts sets the words of a tag of ports.
func (t *Table) setPorts(s int, tag endpoint.Tag, id uint64) {
	number, proto := t.w.load(s+areaWord), wire.ProtocolUDP
	if tag.Kind == endpoint.TagTCP {
		proto = wire.ProtocolTCP
	}
	for port := int(tag.Port); port <= int(tag.LastPort()); port++ {
		i := portWord(number, proto, uint16(port))
		if t.w.load(i) != 0 {
			t.area[number-1].held--
		}
		if id != 0 {
			t.area[number-1].held++
		}
		t.w.store(i, id)
	}
}

// placeHost gives an address a slot with an area. Without another one it takes that of an address with no held port.
func (t *Table) placeHost(a wire.Addr) (s int, err error) {
	n := 0
	for n < len(t.area) && t.area[n].slot != 0 {
		n++
	}
	if n == areas {
		for n = 0; n < areas && t.area[n].held > 0; n++ {
		}
		if n == areas {
			return 0, ErrFull
		}
		t.free(t.area[n].slot)
	}
	if n == len(t.area) {
		if err := t.allocate(fixedSize+int64(n)*areaSize, areaSize); err != nil {
			return 0, err
		}
		t.area = append(t.area, area{})
	}
	if s, err = t.place(a, uint64(n+1)); err != nil {
		return 0, err
	}
	t.area[n].slot = s
	t.w.store(s+holderWord, host)
	return s, nil
}

// place gives an address, which has no slot, one without a holder.
func (t *Table) place(a wire.Addr, area uint64) (s int, err error) {
	hi, lo := a.Words()
	first := hash(hi, lo)
	for n := range slots {
		if s = slot(first + n); t.w.load(s+holderWord) == 0 {
			if t.empty(first + n) {
				if t.used == mostUsed {
					break
				}
				t.used++
			}
			t.w.store(s+hiWord, hi)
			t.w.store(s+loWord, lo)
			t.w.store(s+areaWord, area)
			atomic.AddUint64(&t.w[generationWord], 1)
			return s, nil
		}
	}
	return 0, ErrFull
}

// free takes a slot from its address, of which no port is held. The slot keeps the address, so that a search goes on to later slots, unless it is the last
// of a row.
func (t *Table) free(s int) {
	if t.w.load(s+holderWord) == host {
		t.area[t.w.load(s+areaWord)-1].slot = 0
	}
	t.w.store(s+holderWord, 0)
	n := (s - firstSlot) / slotWords
	for t.empty(n+1) && !t.empty(n) && t.w.load(slot(n)+holderWord) == 0 {
		t.w.store(slot(n)+hiWord, 0)
		t.w.store(slot(n)+loWord, 0)
		t.used--
		n += slots - 1
	}
}

// empty reports whether a slot has no address, not even as a trace.
func (t *Table) empty(n int) bool {
	return t.w.load(slot(n)+hiWord)|t.w.load(slot(n)+loWord) == 0
}

// Bump ends all paths of an endpoint. Unlike Set it may be called at any time.
func (t *Table) Bump(id uint64) { atomic.AddUint64(&t.w[epochWord(id)], 1) }

// Epoch returns the epoch of an endpoint.
func (t *Table) Epoch(id uint64) uint64 { return t.w.load(epochWord(id)) }

// Remove ends the table: for every View nobody holds anything from now on, and all epochs change. It removes the file, but does not close it.
func (t *Table) Remove() error {
	t.w.store(generationWord, ended)
	if t.path == "" {
		return nil
	}
	if err := os.Remove(t.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tag table: %w", err)
	}
	return nil
}

// Discard ends and removes a table that no process has open as a Table. It reports whether there was one.
func Discard(path string) bool {
	f := reopen(path)
	if f == nil {
		return false
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	end(f)
	return os.Remove(path) == nil
}

// Close unmaps the table and closes its file, which stays.
func (t *Table) Close() error {
	return errors.Join(os.NewSyscallError("munmap of the tag table", unix.Munmap(t.mem)), t.f.Close())
}
