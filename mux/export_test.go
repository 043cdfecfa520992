//go:build linux

package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/steer"
	"github.com/unet-go/unet/mux/internal/steer/steertest"
	"github.com/unet-go/unet/mux/internal/tables"
	"github.com/unet-go/unet/wire"
)

// DetachPortProgram detaches the program of a port's outer end.
func (l *Lease) DetachPortProgram() error {
	return nic.SetXDP(l.m.rt, int(l.at.owner.Port), -1, l.m.progs.AttachFlag())
}

// UndoDistrust undoes the effect of distrust on an interface.
func UndoDistrust(iface string) error {
	return nic.SetIPv4(iface, map[string]string{"rp_filter": "0", "drop_unicast_in_l2_multicast": "0"})
}

// HoldProbes delays all probes until release.
func (m *Mux) HoldProbes() (release func()) {
	nobody := share.User{UID: math.MaxUint32}
	m.probes.Add(nobody, probesAtOnce)
	return func() { m.probes.Return(nobody, probesAtOnce) }
}

// ShareKernelTypes makes all muxes of this process read the types of the kernel once.
func ShareKernelTypes() {
	types := btf.NewCache()
	newTypes = func() *btf.Cache { return types }
}

// HideFillRings makes Open find that the kernel lacks a field of fill rings, until restore.
func HideFillRings() (restore func()) {
	before := fillFields
	fillFields = append(slices.Clip(fillFields), "xsk_queue.none")
	return func() { fillFields = before }
}

// PartMark is the destination MAC address of a super-frame that is cut for an endpoint's port.
func (m *Mux) PartMark(l *Lease) (mac [6]byte, err error) {
	c, err := m.config()
	if err != nil {
		return mac, err
	}
	mac[0] = c.PartHead
	binary.NativeEndian.PutUint32(mac[2:], c.PartTail^l.at.owner.Port)
	return mac, nil
}

// config reads the constants of the programs from the map that they use.
func (m *Mux) config() (c bpf.MuxUnetConfig, err error) {
	spec, err := bpf.LoadMux()
	if err != nil {
		return c, err
	}
	v := spec.Variables["config"]
	info, err := m.progs.Loaded[bpf.MuxProgUnetUplink].Info()
	if err != nil {
		return c, err
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		constants, err := ebpf.NewMapFromID(id)
		if err != nil {
			return c, err
		}
		defer constants.Close()
		if info, err := constants.Info(); err != nil || !strings.HasSuffix(v.SectionName, info.Name) {
			continue
		}
		b, err := constants.LookupBytes(uint32(0))
		if err != nil {
			return c, err
		}
		_, err = binary.Decode(b[v.Offset:], binary.NativeEndian, &c)
		return c, err
	}
	return c, errors.New("no map of constants")
}

// FillRings is the number of fill rings that are checked.
func (m *Mux) FillRings() int {
	m.fills.mu.Lock()
	defer m.fills.mu.Unlock()
	return len(m.fills.rings)
}

// StopFillRingChecks ends the checks of the fill rings of all endpoints.
func (m *Mux) StopFillRingChecks() (err error) {
	for _, l := range m.all() {
		err = errors.Join(err, m.fills.remove(l))
	}
	return err
}

// FailDeletions makes each deletion of a port fail until restore.
func (m *Mux) FailDeletions(err error) (restore func()) {
	usual := m.deleter.ReplaceLinkDel(func(netlink.Link) error { return err })
	return func() { m.deleter.ReplaceLinkDel(usual) }
}

// CloseTagTable makes every change of the tag table fail.
func (m *Mux) CloseTagTable() error { return m.progs.Maps.Tags.Close() }

// TagTableSize is the size of the tag table.
func (m *Mux) TagTableSize() int { return int(m.progs.Maps.Tags.MaxEntries()) }

// CheckTagCounts compares the tag counts in the kernel with the tags there.
func (m *Mux) CheckTagCounts() error {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tags, err := m.progs.Maps.AllTags()
	if errors.Is(err, os.ErrClosed) || m.progs.Maps.Tags.FD() < 0 { // CloseTagTable
		return nil
	}
	groups, err := m.progs.Maps.AllGroups()
	if err != nil {
		return err
	}
	want := map[uint32]uint32{}
	for t := range groups {
		want[bpf.CountOf(tables.KindOf(t), t.Port)]++
	}
	for t := range tags {
		if t.Kind != endpoint.TagMessage {
			want[bpf.CountOf(tables.KindOf(t), t.Port)]++
		}
	}
	for i := range uint32(bpf.TagCounts) {
		var n uint32
		err = errors.Join(err, m.progs.Maps.TagCounts.Lookup(i, &n))
		if n != want[i] {
			err = errors.Join(err, fmt.Errorf("tag count %d is %d, and there are %d tags", i, n, want[i]))
		}
	}
	return err
}

// BeingClaimed is the number of owned addresses that are being claimed.
func (m *Mux) BeingClaimed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.aside)
}

// MaxResolved is the number of destinations that are kept for a lease.
const MaxResolved = notices.MaxDestinations

// Claims are the held tags in the claim table and in the kernel's, and the number of descriptors that
// reserve their ports.
func (m *Mux) Claims() (held, inKernel map[endpoint.Tag]bool, reserved int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held, inKernel = map[endpoint.Tag]bool{}, map[endpoint.Tag]bool{}
	for t, c := range m.tags.held {
		held[t] = true
		reserved += len(c.reserved)
	}
	kernel, err := m.progs.Maps.AllTags()
	for t := range kernel {
		inKernel[t] = true
	}
	return held, inKernel, reserved, err
}

// CheckTagTable returns an error unless the tag table shows the holders of tags that the claim table has.
func (m *Mux) CheckTagTable() error {
	m.life.RLock()
	defer m.life.RUnlock()
	if m.closed || m.table == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.table.Reader()
	if err != nil {
		return err
	}
	v, err := tagtable.Open(f)
	if err != nil {
		return err
	}
	defer v.Close()
	addrs := map[netip.Addr]bool{}
	if own := *m.own.Load(); len(own) > 0 {
		addrs[own[0].Addr()] = true
	}
	for t := range m.tags.held {
		addrs[t.Addr] = true
	}
	for a := range addrs {
		for kind, proto := range map[endpoint.TagKind]uint8{endpoint.TagUDP: wire.ProtocolUDP, endpoint.TagTCP: wire.ProtocolTCP} {
			for port := range allPorts {
				t := endpoint.Tag{Kind: kind, Addr: a, Port: uint16(port)}
				var want uint64
				for _, t := range []endpoint.Tag{t, t.AsBlock(), endpoint.AddrTag(a)} {
					if c := m.tags.held[t]; c != nil && !c.suspended {
						want = c.by.id
					}
				}
				if got := v.Holder(wire.AddrFrom(a), proto, t.Port); a.IsValid() && got != want {
					return fmt.Errorf("the tag table shows endpoint %d as the holder of %v, want %d", got, t, want)
				}
			}
		}
	}
	return nil
}

// CountedClaims is the sum of all counts of claims, in the claim table and the ledger.
func (m *Mux) CountedClaims() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.tags.onAddr) + m.tags.sockets()
	for _, l := range m.leases {
		n += len(l.tags)
	}
	for _, u := range m.users.users() {
		n += int(u.Tags)
	}
	return n
}

// ForgetClaims has the effect of the death of the mux's process on claims: only the kernel's table
// stays.
func (m *Mux) ForgetClaims() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tags.close()
}

// Readmit is readmit of one of the lease's tags.
func (l *Lease) Readmit(t endpoint.Tag) error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.readmit(t, false)
}

// Suspended are the suspended tags in the claim table and in the kernel's.
func (m *Mux) Suspended() (held, inKernel map[endpoint.Tag]bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	held, inKernel = map[endpoint.Tag]bool{}, map[endpoint.Tag]bool{}
	for t, c := range m.tags.held {
		if c.suspended {
			held[t] = true
		}
	}
	kernel, err := m.progs.Maps.AllTags()
	for t, o := range kernel {
		if o.Suspended() {
			inKernel[t] = true
		}
	}
	return held, inKernel, err
}

// IsBeingClaimed reports whether an owned address is being claimed.
func (m *Mux) IsBeingClaimed(a netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.aside[a]
}

// CountAsShared adds n ports of a kind to the count of the claim table.
func (m *Mux) CountAsShared(k endpoint.TagKind, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tags.reserved[k] += n
	m.tags.reserved[endpoint.TagMessage] -= n // the sum stays
}

// MostHigh is the number of ports of endpoints from which on blocks are chosen below 32768.
const MostHigh = mostHigh

// Counted is the number of endpoints and bytes of segments of a user in the ledger.
func (m *Mux) Counted(uid uint32) (endpoints, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.users.of(uid)
	return u.Endpoints, u.Memory
}

// leaseOf is the lease of an endpoint.
func (m *Mux) leaseOf(id uint64) *Lease {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leases[id]
}

// SetFillSize changes the size that the mux has noted for an endpoint's fill ring.
func (m *Mux) SetFillSize(id uint64, entries uint32) { m.leaseOf(id).fillSize = entries }

// Reclaim is reclaim of an endpoint. It returns what is known of it afterwards.
func (m *Mux) Reclaim(id uint64) endpoint.Info {
	l := m.leaseOf(id)
	l.reclaim("a test")
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.info()
}

// ProgramName is the name of a program.
var ProgramName = attach.ProgramName

// SteerByModel replaces the uplink's queues and classification rules by a model of a device with a
// number of channels and an RSS table over them, of queues that the driver adds, and of locations
// for rules; 0: the driver has no rules. rules reads the number of rules. The model refuses to insert
// and to remove a rule whose tag is not in the kernel's table: it would stay if the process died then.
func (m *Mux) SteerByModel(channels, added, locations uint32) (rules func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := steertest.NewModel[steer.Rule](locations)
	if locations == 0 {
		d.Refuses = unix.EOPNOTSUPP
	}
	d.Accepts = func(r steer.Rule) error {
		tags, err := m.progs.Maps.AllTags()
		for t := range tags {
			for queue := range channels + added { // a rule names its queue
				if slices.Contains(slices.Concat(steer.RulesOf(t, queue)...), r) {
					return err
				}
			}
		}
		return errors.Join(errors.New("the tag of a rule is not in the kernel's table"), err)
	}
	s := steer.Spread{Queues: channels + added, Channels: channels, Table: make([]uint32, 2*channels)}
	if added > 0 {
		s.Table = nil // as virtio_net
	}
	for i := range s.Table {
		s.Table[i] = uint32(i) % s.Queues
	}
	m.steering = steer.New(m.up.Name, false, d, func() (steer.Spread, error) { return s, nil })
	return func() int {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(d.Rules)
	}
}

// LimitEntries is the number of entries in the tables of limits.
func (m *Mux) LimitEntries() (ports, users int, err error) {
	var key uint32
	var l bpf.Limit
	for n, table := range map[*int]*ebpf.Map{&ports: m.progs.Maps.PortLimits, &users: m.progs.Maps.UserLimits} {
		entries := table.Iterate()
		for entries.Next(&key, &l) {
			*n++
		}
		err = errors.Join(err, entries.Err())
	}
	return ports, users, err
}

// OwnRate and OwnBurst are the bound of the frames that the mux sends for a user.
const (
	OwnRate  = ownRate
	OwnBurst = ownBurst
)

// IsAnnouncing reports whether announcements of an address are to be sent.
func (m *Mux) IsAnnouncing(a netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, is := m.announcer.due[a]
	return is
}

// ReplaceOwn replaces the table of addresses by one of n entries, which no program reads, until restore.
func (m *Mux) ReplaceOwn(n uint32) (restore func() error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.progs.Maps.Own
	less, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: before.KeySize(), ValueSize: before.ValueSize(), MaxEntries: n, Flags: unix.BPF_F_NO_PREALLOC})
	if err != nil {
		return nil, err
	}
	m.progs.Maps.Own = less
	return func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.progs.Maps.Own = before
		return less.Close()
	}, nil
}

// CopyReserved returns copies of the sockets that reserve the ports of t.
func (m *Mux) CopyReserved(t endpoint.Tag) (fds []int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, fd := range m.tags.held[t].reserved {
		c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		fds = append(fds, c)
	}
	return fds
}

// SetCopyTime sets how long a claim waits for copies of sockets that were closed, until restore is called.
func SetCopyTime(d time.Duration) (restore func()) {
	old := copyTime
	copyTime = d
	return func() { copyTime = old }
}
