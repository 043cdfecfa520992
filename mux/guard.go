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

// fillInterval is about how long an owner who changes its fill ring after the check can
// keep a processor busy (ADR 11).
const fillInterval = 50 * time.Millisecond

const unsoundFill = "its fill ring had entries that are no frames of its segment"

// fillGuard checks the fill rings of all ports every fillInterval. The deliver programs
// check a ring before each frame, but its owner can change it before the kernel reads it.
// The kernel then skips entries that are no frames, without a bound; it stops at a frame
// that the guard writes.
type fillGuard struct {
	mu    sync.Mutex
	rings map[*Lease]*guardedRing
	added chan struct{} // of capacity 1: rings is no longer empty
}

type guardedRing struct {
	*xsk.FillRing
	unsound bool // its owner is being revoked
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

// remove ends that. The mapping would hold the socket.
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

// look checks all rings, and stops the kernel in those that are not sound. found are the
// leases whose rings were sound until now; busy: some are not sound.
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

// guardFillRings runs until the mux is closed. Endpoints with unsound rings are revoked.
// Until that is done their rings are written without a pause, as their owners may do.
func (m *Mux) guardFillRings() {
	for {
		found, busy, empty := m.fills.look()
		for _, l := range found {
			m.running.Go(func() { m.revoke(l, unsoundFill) })
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

// revoke ends an endpoint whose owner misuses it, and bars its user for barredFor.
func (m *Mux) revoke(l *Lease, why string) {
	l.revoking.Do(func() {
		m.mu.Lock()
		o := l.owner
		m.users.bar(o.UID, time.Now().Add(barredFor))
		m.mu.Unlock()
		err := l.close(fmt.Errorf("%w: %s", ErrRevoked, why))
		m.log.Warn("endpoint revoked: "+why, "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
	})
}

// followAlarms reads the alarms of the programs until the mux is closed. Alarms from before
// this process are dropped: the slot that one names may have another endpoint by now. If
// the endpoint exists its next frame raises the alarm again.
func (m *Mux) followAlarms() error {
	alarms, err := ringbuf.NewReader(m.progs.objs.Alarms)
	if err != nil {
		return fmt.Errorf("alarms: %w", err)
	}
	m.background.push(alarms.Close)
	alarms.SetDeadline(time.Unix(1, 0)) // long past: Read does not wait
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
			m.fail(fmt.Errorf("alarms can no longer be read, and nobody is revoked: %w", err))
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

// alarm revokes the endpoint that an alarm is about. Its frames are dropped already.
func (m *Mux) alarm(a bpf.Alarm) {
	if a.Kind != bpf.AlarmFill {
		m.log.Error("alarm of an unknown kind", "kind", a.Kind, "slot", a.Slot)
		return
	}
	for _, l := range m.all() {
		if !l.at.hasSlot || l.at.slot != a.Slot {
			continue
		}
		m.revoke(l, unsoundFill)
	}
}

// fillFields are the kernel's fields by which unet_deliver checks a fill ring
// (pool_is_shown in bpf/src/fill.h). No kernel guarantees them.
var fillFields = []string{
	"net_device._rx", "netdev_rx_queue.pool",
	"xsk_buff_pool.fq", "xsk_buff_pool.addrs_cnt", "xsk_buff_pool.frame_len",
	"xsk_queue.ring_mask", "xsk_queue.nentries", "xsk_queue.cached_prod", "xsk_queue.cached_cons",
	"xsk_queue.ring", "xsk_queue.invalid_descs",
	"xdp_ring.producer", "xdp_umem_ring.desc", "xdp_desc.addr", "xdp_rxq_info.dev", "xdp_buff.rxq",
}

// checkFillFields finds out whether the programs can check fill rings on this kernel. If
// not, an owner who is not trusted gets no port, unless permitted.
func (m *Mux) checkFillFields(permitted bool) error {
	kernel, err := btf.LoadKernelSpec()
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

// missingFields are those of fields, struct.member, that types do not have.
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

// hasMember includes the members of those without a name.
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
