package verbs

import (
	"net/netip"

	"github.com/unet-go/unet/proto/rdma"
)

// PD is a protection domain (ibv_pd): a key works only on queue pairs of its own domain.
type PD struct {
	ctx    *Context
	pd     *rdma.PD
	closed bool
}

// AllocPD makes a protection domain.
func (c *Context) AllocPD() *PD {
	c.port.Lock()
	defer c.port.Unlock()
	return &PD{ctx: c, pd: c.dev.AllocPD()}
}

// Dealloc ends the domain. The error is EBUSY if it has objects.
func (p *PD) Dealloc() error {
	p.ctx.port.Lock()
	defer p.ctx.port.Unlock()
	if err := p.ctx.use("deallocate PD", p.closed); err != nil {
		return err
	}
	err := p.pd.Dealloc()
	p.closed = err == nil
	return err
}

// MR is a memory region (ibv_mr).
type MR struct {
	ctx    *Context
	mr     *rdma.MR
	closed bool
}

// RegMR registers a buffer (ibv_reg_mr), which the collector neither frees nor moves until
// Dereg. Errors: EINVAL for an empty buffer, or for remote write or atomic access without
// local write; ENOMEM beyond Config.MaxKeys.
func (p *PD) RegMR(buf []byte, access Access) (*MR, error) {
	p.ctx.port.Lock()
	defer p.ctx.port.Unlock()
	if err := p.ctx.use("register memory", p.closed); err != nil {
		return nil, err
	}
	mr, err := p.pd.RegMR(buf, access)
	if err != nil {
		return nil, err
	}
	return &MR{ctx: p.ctx, mr: mr}, nil
}

// Addr is the address of the region's first byte, in work requests and for peers.
func (m *MR) Addr() uint64 { return m.mr.Addr() }

// Bytes is the registered buffer.
func (m *MR) Bytes() []byte { return m.mr.Bytes() }

// LKey is the key for lists of pieces, RKey that which a peer needs.
func (m *MR) LKey() uint32 { return m.mr.LKey() }
func (m *MR) RKey() uint32 { return m.mr.RKey() }

// SGE is n bytes of the region from offset off. Whether they are in the region is checked
// when the work request is carried out. One of less than 0 bytes, or more than 2 GiB, is refused when it is posted.
func (m *MR) SGE(off, n int) SGE { return m.mr.SGE(off, n) }

// Bind is what a work request needs to bind a window to n bytes of the region from offset
// off, with a new key of the window.
func (m *MR) Bind(w *MW, off, n int, access Access) MWBind {
	return MWBind{RKey: IncRKey(w.RKey()), MR: m.mr, Addr: m.Addr() + uint64(off), Length: uint64(n), Access: access}
}

// Dereg ends the registration. Work requests that still name the region end with an error.
// The error is EBUSY if a window is bound to it.
func (m *MR) Dereg() error {
	m.ctx.port.Lock()
	defer m.ctx.port.Unlock()
	if err := m.ctx.use("deregister MR", m.closed); err != nil {
		return err
	}
	err := m.mr.Dereg()
	m.closed = err == nil
	return err
}

// MW is a memory window of type 2 (ibv_mw): a remote key for a part of a region. Work
// requests bind and invalidate it: see [MR.Bind].
type MW struct {
	ctx *Context
	mw  *rdma.MW
}

// AllocMW makes a window that is not bound.
func (p *PD) AllocMW() (*MW, error) {
	p.ctx.port.Lock()
	defer p.ctx.port.Unlock()
	if err := p.ctx.use("allocate MW", p.closed); err != nil {
		return nil, err
	}
	mw, err := p.pd.AllocMW()
	if err != nil {
		return nil, err
	}
	return &MW{p.ctx, mw}, nil
}

// Handle is the window in a [SendWR].
func (w *MW) Handle() *rdma.MW { return w.mw }

// RKey is the window's key. Binding changes it.
func (w *MW) RKey() uint32 {
	w.ctx.port.Lock()
	defer w.ctx.port.Unlock()
	return w.mw.RKey()
}

// Dealloc ends the window, and unbinds it.
func (w *MW) Dealloc() {
	w.ctx.port.Lock()
	defer w.ctx.port.Unlock()
	w.mw.Dealloc()
}

// AH is an address handle (ibv_ah): where a UD work request goes.
type AH struct {
	ctx *Context
	ah  *rdma.AH
}

// CreateAH makes the handle of an IPv4 address.
func (p *PD) CreateAH(to netip.Addr) (*AH, error) {
	if to = to.Unmap(); !to.Is4() {
		return nil, p.ctx.opError("create AH", errNotIPv4)
	}
	p.ctx.port.Lock()
	defer p.ctx.port.Unlock()
	if err := p.ctx.use("create AH", p.closed); err != nil {
		return nil, err
	}
	return &AH{p.ctx, p.pd.CreateAH(AHAttr{Dst: to.As4()})}, nil
}

// Handle is the address handle in a [SendWR].
func (a *AH) Handle() *rdma.AH { return a.ah }

// Destroy ends the handle. Work requests that have been posted with it are sent.
func (a *AH) Destroy() {
	a.ctx.port.Lock()
	defer a.ctx.port.Unlock()
	a.ah.Destroy()
}
