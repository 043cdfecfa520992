package rdma

import (
	"fmt"
	"math"
	"syscall"
)

// PD is a protection domain (ibv_pd): a key works only on queue pairs of its own domain.
type PD struct {
	d      *Device
	uses   int
	closed bool
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() *PD { return &PD{d: d} }

// Close ends the domain (ibv_dealloc_pd). Error: EBUSY if a region, window, address handle, SRQ or queue pair
// of it exists.
func (p *PD) Close() error {
	p.d.driver.Lock()
	defer p.d.driver.Unlock()
	if err := p.d.driver.Use("close PD", p.closed); err != nil {
		return err
	}
	if p.uses > 0 {
		return fmt.Errorf("rdma: close PD: %d objects of it exist: %w", p.uses, syscall.EBUSY)
	}
	p.closed = true
	return nil
}

// region is memory that a key stands for: a memory region, or a bound window.
type region struct {
	pd     *PD
	key    uint32
	access Access
	mem    []byte // nil: a window that is not bound
	base   uint64 // address of mem[0]
	mr     *MR    // of a window: the region that it is bound to
	qp     *QP    // of a window: the queue pair that it is bound on
	window bool
}

// MR is a memory region (ibv_mr).
type MR struct {
	region
	windows int
}

// MW is a memory window of type 2 (ibv_mw): a remote key for a part of a region. Work requests
// bind and invalidate it: see [MR.Bind].
type MW struct{ region }

// RegMR registers buf (ibv_reg_mr), whose memory is not moved or freed by the collector until Close. Errors:
// EINVAL for an empty buffer, or a remote write or atomic access without AccessLocalWrite;
// ENOMEM if the device has Config.MaxKeys keys.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) {
	p.d.driver.Lock()
	defer p.d.driver.Unlock()
	if err := p.d.driver.Use("register memory", p.closed); err != nil {
		return nil, err
	}
	switch {
	case len(buf) == 0:
		return nil, fmt.Errorf("rdma: register memory: the buffer is empty: %w", syscall.EINVAL)
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		return nil, fmt.Errorf("rdma: register memory: remote write and atomic access need local write access: %w", syscall.EINVAL)
	case access&^(AccessLocalWrite|accessRemote|AccessMWBind) != 0:
		return nil, fmt.Errorf("rdma: register memory: unknown access flags %#x: %w", access, syscall.EINVAL)
	}
	mr := &MR{region: region{pd: p, access: access, mem: buf[:len(buf):len(buf)], base: addressOf(buf)}}
	if err := p.d.addKey(&mr.region); err != nil {
		return nil, err
	}
	return mr, nil
}

// LKey is the key for local use, in an [SGE].
func (m *MR) LKey() uint32 { return m.key }

// RKey is the key that a peer needs.
func (m *MR) RKey() uint32 { return m.key }

// Addr is the address of the region's first byte.
func (m *MR) Addr() uint64 { return m.base }

// Bytes is the registered buffer.
func (m *MR) Bytes() []byte { return m.mem }

// SGE is n bytes of the region from offset off. Whether they are in the region is checked when the
// work request is carried out. A work request with a piece of less than 0 bytes, or more than 2 GiB, cannot be
// posted.
func (m *MR) SGE(off, n int) SGE {
	if n < 0 || n > maxMessage {
		n = math.MaxUint32
	}
	return SGE{Addr: m.base + uint64(off), Length: uint32(n), LKey: m.key}
}

// Bind is what a work request needs to bind a window to n bytes of the region from offset
// off, with a new key of the window.
func (m *MR) Bind(w *MW, off, n int, access Access) MWBind {
	return MWBind{RKey: IncRKey(w.RKey()), MR: m, Addr: m.base + uint64(off), Length: uint64(n), Access: access}
}

// Close ends the registration (ibv_dereg_mr). Work requests that still name it end with an error. Error:
// EBUSY if a window is bound to it.
func (m *MR) Close() error {
	d := m.pd.d
	d.driver.Lock()
	defer d.driver.Unlock()
	if err := d.driver.Use("close MR", !d.has(&m.region)); err != nil {
		return err
	}
	if m.windows > 0 {
		return fmt.Errorf("rdma: close MR %#x: %d memory windows are bound to it: %w", m.key, m.windows, syscall.EBUSY)
	}
	d.removeKey(&m.region)
	return nil
}

// AllocMW makes a window that is not bound. Error: ENOMEM if the device has Config.MaxKeys keys.
func (p *PD) AllocMW() (*MW, error) {
	p.d.driver.Lock()
	defer p.d.driver.Unlock()
	if err := p.d.driver.Use("allocate MW", p.closed); err != nil {
		return nil, err
	}
	w := &MW{region{pd: p, window: true}}
	if err := p.d.addKey(&w.region); err != nil {
		return nil, err
	}
	return w, nil
}

// RKey is the window's key. Binding changes its low 8 bits, see [IncRKey].
func (w *MW) RKey() uint32 {
	w.pd.d.driver.Lock()
	defer w.pd.d.driver.Unlock()
	return w.key
}

// Close ends the window and unbinds it (ibv_dealloc_mw).
func (w *MW) Close() error {
	d := w.pd.d
	d.driver.Lock()
	defer d.driver.Unlock()
	if err := d.driver.Use("close MW", !d.has(&w.region)); err != nil {
		return err
	}
	w.unbind()
	d.removeKey(&w.region)
	return nil
}

// IncRKey is key with its low 8 bits, those that the user of a window chooses, counted up by 1
// (ibv_inc_rkey).
func IncRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

func (w *region) unbind() {
	if w.mr != nil {
		w.mr.windows--
	}
	w.mr, w.qp, w.mem, w.access, w.base = nil, nil, nil, 0, 0
}

// addKey gives r an unpredictable key. Keys differ in the upper 24 bits.
func (d *Device) addKey(r *region) error {
	if len(d.keys) >= d.cfg.MaxKeys {
		return fmt.Errorf("rdma: memory keys: the limit of %d is reached: %w", d.cfg.MaxKeys, syscall.ENOMEM)
	}
	for {
		r.key = uint32(d.cfg.Rand.Uint64())
		if r.key>>8 != 0 && d.keys[r.key>>8] == nil {
			break
		}
	}
	d.keys[r.key>>8] = r
	r.pd.uses++
	return nil
}

func (d *Device) has(r *region) bool { return d.keys[r.key>>8] == r }

func (d *Device) removeKey(r *region) {
	delete(d.keys, r.key>>8)
	r.pd.uses--
	if d.lastKey == r {
		d.lastKey = nil
	}
}

// find is the region of a key, or nil.
func (d *Device) find(key uint32) *region {
	r := d.lastKey
	if r == nil || r.key != key {
		if r = d.keys[key>>8]; r == nil || r.key != key {
			return nil
		}
		d.lastKey = r
	}
	return r
}

// span is r's memory from addr, n bytes.
func (r *region) span(addr, n uint64) ([]byte, bool) {
	off := addr - r.base
	if addr < r.base || off > uint64(len(r.mem)) || n > uint64(len(r.mem))-off {
		return nil, false
	}
	return r.mem[off : off+n], true
}

// remote is the memory that the peer of q names, if it may be accessed so.
func (q *QP) remote(key uint32, addr, n uint64, access Access) ([]byte, bool) {
	r := q.d.find(key)
	if r == nil || r.pd != q.pd || r.access&access != access || r.qp != nil && r.qp != q || r.mem == nil {
		return nil, false
	}
	return r.span(addr, n)
}

// invalidate ends the use of a key on behalf of a work request on q, or of its peer: a bound
// window is unbound. Regions cannot be invalidated.
func (q *QP) invalidate(key uint32) bool {
	r := q.d.find(key)
	if r == nil || r.pd != q.pd || !r.window || r.mem == nil || r.qp != q {
		return false
	}
	r.unbind()
	return true
}

// bind carries out a WRBindMW.
func (q *QP) bind(w *MW, b MWBind) bool {
	mr := b.MR
	if w.pd != q.pd || mr.pd != q.pd || w.mem != nil || q.d.find(w.key) != &w.region || q.d.find(mr.key) != &mr.region ||
		b.RKey>>8 != w.key>>8 || b.RKey == w.key || mr.access&AccessMWBind == 0 || b.Length == 0 ||
		b.Access&^accessRemote != 0 || b.Access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && mr.access&AccessLocalWrite == 0 {
		return false
	}
	mem, ok := mr.span(b.Addr, b.Length)
	if !ok {
		return false
	}
	mr.windows++
	w.key, w.mem, w.base, w.access, w.mr, w.qp = b.RKey, mem, b.Addr, b.Access, mr, q
	return true
}

// SGE is a piece of a registered region (ibv_sge).
type SGE struct {
	Addr   uint64
	Length uint32 // bytes
	LKey   uint32
}

// local is the memory of s from offset off, n bytes, for a use by q itself.
func (q *QP) local(s *SGE, off, n uint32, access Access) ([]byte, bool) {
	r := q.d.find(s.LKey)
	if r == nil || r.pd != q.pd || r.window || r.access&access != access {
		return nil, false
	}
	mem, ok := r.span(s.Addr, uint64(s.Length))
	if !ok {
		return nil, false
	}
	return mem[off : off+n], true
}

// gather copies len(b) bytes of the list from offset off into b. It reports whether they are
// registered.
func (q *QP) gather(b []byte, list []SGE, off uint32) bool {
	for i := range list {
		s := &list[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		if len(b) == 0 {
			break
		}
		n := min(s.Length-off, uint32(len(b)))
		mem, ok := q.local(s, off, n, 0)
		if !ok {
			return false
		}
		load(b, mem)
		b, off = b[n:], 0
	}
	return true
}

// scatter copies b into the list from offset off. It reports whether the memory is registered
// for local writing. The list is long enough.
func (q *QP) scatter(list []SGE, off uint32, b []byte) bool {
	for i := range list {
		s := &list[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		if len(b) == 0 {
			break
		}
		n := min(s.Length-off, uint32(len(b)))
		mem, ok := q.local(s, off, n, AccessLocalWrite)
		if !ok {
			return false
		}
		store(mem, b[:n])
		b, off = b[n:], 0
	}
	return true
}

func lengthOf(list []SGE) (n uint64) {
	for i := range list {
		n += uint64(list[i].Length)
	}
	return n
}
