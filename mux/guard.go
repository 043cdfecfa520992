//go:build linux

package mux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/xsk"
)

// fillInterval is the time between two checks. So it is about the longest time for which an
// owner that changes its fill ring after the programs' check can keep a processor busy (ADR 11).
const fillInterval = 50 * time.Millisecond

const unsoundFill = "its fill ring had entries that are not frames of its segment"

// fillGuard checks the fill rings of all ports every fillInterval. The deliver programs check a
// ring before each frame, but its owner can change it before the kernel reads it. The kernel
// then skips all entries that are not frames; it stops at a frame that the guard writes.
type fillGuard struct {
	mu    sync.Mutex
	rings map[*Lease]*guardedRing // +checklocks:mu
	added chan struct{}           // of capacity 1; an element: rings has grown
}

type guardedRing struct {
	*xsk.FillRing
	unsound bool // its endpoint is being revoked
}

func newFillGuard() fillGuard {
	return fillGuard{rings: map[*Lease]*guardedRing{}, added: make(chan struct{}, 1)}
}

// add begins to check the fill ring of a port's socket.
func (g *fillGuard) add(l *Lease, sock *os.File) error {
	ring, err := xsk.MapFillRing(sock, l.fillSize, l.segmentBytes)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rings[l] = &guardedRing{FillRing: ring}
	select {
	case g.added <- struct{}{}:
	default:
	}
	return nil
}

// depth is how many frames the kernel can receive into; nil: it is not known.
func (g *fillGuard) depth(l *Lease) *uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	ring := g.rings[l]
	if ring == nil {
		return nil
	}
	n := ring.Depth()
	return &n
}

// remove ends the checks and unmaps the ring: a mapping keeps the socket open.
func (g *fillGuard) remove(l *Lease) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ring := g.rings[l]
	if ring == nil {
		return nil
	}
	delete(g.rings, l)
	return ring.Unmap()
}

// look checks all rings. It overwrites the entries of those that are not sound with a frame, at
// which the kernel stops. found are the leases of rings that are unsound for the first time;
// busy: some ring is not sound.
func (g *fillGuard) look() (found []*Lease, busy, empty bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for l, ring := range g.rings {
		if !ring.unsound && !ring.Sound(now) {
			ring.unsound = true
			found = append(found, l)
		}
		if ring.unsound {
			ring.Stop()
			busy = true
		}
	}
	return found, busy, len(g.rings) == 0
}

// guardFillRings checks the rings until the mux is closed, and revokes endpoints with unsound
// rings. Until such an endpoint has ended, its ring is written without a pause, because its
// owner may also write it without a pause.
func (m *Mux) guardFillRings() {
	for {
		found, busy, empty := m.fills.look()
		for _, l := range found {
			m.running.Go(func() { l.revoke(unsoundFill) })
		}
		switch {
		case m.ctx.Err() != nil:
			return
		case busy:
			runtime.Gosched()
		case empty:
			select {
			case <-m.fills.added:
			case <-m.ctx.Done():
			}
		default:
			select {
			case <-time.After(fillInterval):
			case <-m.ctx.Done():
			}
		}
	}
}

// revoke ends an endpoint whose owner misuses it. Its user gets no other for barredFor.
func (l *Lease) revoke(why string) {
	l.revoking.Do(func() {
		m := l.m
		m.mu.Lock()
		o := l.owner
		m.users.bar(o.UID, time.Now().Add(barredFor))
		m.mu.Unlock()
		err := l.close(fmt.Errorf("%w: %s", ErrRevoked, why))
		m.log.Warn("endpoint revoked: "+why, "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
	})
}

// followAlarms reads the alarms of the programs until the mux is closed. It drops alarms from
// before this process: the slot in an alarm may have another endpoint now. If the endpoint
// still exists, its next frame raises the alarm again.
func (m *Mux) followAlarms() error {
	alarms, err := ringbuf.NewReader(m.progs.Maps.Alarms)
	if err != nil {
		return fmt.Errorf("alarms: %w", err)
	}
	m.background.push(alarms.Close)
	alarms.SetDeadline(time.Unix(1, 0)) // in the past: Read does not block
	for err == nil {
		_, err = alarms.Read()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("old alarms: %w", err)
	}
	alarms.SetDeadline(time.Time{})
	m.running.Go(func() { m.readAlarms(alarms) })
	return nil
}

func (m *Mux) readAlarms(alarms *ringbuf.Reader) {
	for {
		record, err := alarms.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			m.fail(fmt.Errorf("alarms can no longer be read, so no endpoint is revoked: %w", err))
			return
		}
		var a bpf.Alarm
		if err := binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &a); err != nil {
			m.log.Error("alarm", "error", err)
			continue
		}
		m.alarm(a)
	}
}

// alarm revokes the endpoint of an alarm. The programs drop its frames already.
func (m *Mux) alarm(a bpf.Alarm) {
	if a.Kind != bpf.AlarmFill {
		m.log.Error("alarm of an unknown kind", "kind", a.Kind, "slot", a.Slot)
		return
	}
	for _, l := range m.all() {
		if !l.at.hasSlot || l.at.slot != a.Slot {
			continue
		}
		l.revoke(unsoundFill)
	}
}

// fillFields are the fields of kernel structs that unet_deliver needs to check a fill ring
// (pool_is_shown in bpf/src/fill.h). They are no stable interface of the kernel.
var fillFields = []string{
	"net_device._rx", "netdev_rx_queue.pool",
	"xsk_buff_pool.fq", "xsk_buff_pool.addrs_cnt", "xsk_buff_pool.frame_len",
	"xsk_queue.ring_mask", "xsk_queue.cached_prod", "xsk_queue.cached_cons",
	"xsk_queue.ring", "xsk_queue.invalid_descs",
	"xdp_ring.producer", "xdp_umem_ring.desc", "xdp_desc.addr", "xdp_rxq_info.dev", "xdp_buff.rxq",
}

// checkFillFields finds out whether the programs can check fill rings on this kernel. If not,
// untrusted owners get no endpoints, unless permitted.
func (m *Mux) checkFillFields(types *btf.Cache, permitted bool) error {
	kernel, err := types.Kernel()
	if err != nil {
		return fmt.Errorf("types of the kernel: %w", err)
	}
	missing := missingFields(kernel, fillFields)
	if len(missing) == 0 {
		return nil
	}
	m.trustedOnly = !permitted
	consequence := "only trusted users get endpoints"
	if permitted {
		consequence = "an endpoint's owner can take the processor time of those who send to it, 50 ms at a time"
	}
	m.log.Warn("the mux cannot check fill rings on this kernel: "+consequence, "missing", missing)
	return nil
}

// missingFields are the fields (struct.member) that types do not have.
func missingFields(types *btf.Spec, fields []string) (missing []string) {
	for _, f := range fields {
		name, member, _ := strings.Cut(f, ".")
		var s *btf.Struct
		if types.TypeByName(name, &s) != nil || !hasMember(s.Members, member) {
			missing = append(missing, f)
		}
	}
	return missing
}

// hasMember also searches members without a name (anonymous structs and unions).
func hasMember(members []btf.Member, name string) bool {
	for _, m := range members {
		if m.Name == name {
			return true
		}
		if m.Name != "" {
			continue
		}
		switch inner := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			if hasMember(inner.Members, name) {
				return true
			}
		case *btf.Union:
			if hasMember(inner.Members, name) {
				return true
			}
		}
	}
	return false
}
