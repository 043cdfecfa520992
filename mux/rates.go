//go:build linux

package mux

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// The limits of what endpoints send are in two tables of the kernel (bpf/src/limit.h), which are also the
// record of them. An endpoint with an entry in port_limits has the port program that reads it. So the program is
// attached before the entry is made, and detached after it was deleted: a process that takes over
// finds a limit in effect or none.
//
// The entry of a user stays after its last endpoint until its buckets are full. Otherwise a user would
// get full ones by opening another endpoint.

// validRates returns an error for rates that the programs cannot calculate with.
func validRates(r endpoint.Rates) error {
	for _, b := range [][2]int64{
		{r.Endpoint.Packets, r.Endpoint.PacketBurst}, {r.Endpoint.Bytes, r.Endpoint.ByteBurst}, {r.User.Packets, r.User.PacketBurst}, {r.User.Bytes, r.User.ByteBurst},
	} {
		if rate, burst := b[0], b[1]; rate < 0 || rate == 0 && burst != 0 || rate > 0 && (burst < 1 || burst > bpf.MaxBucket) {
			return fmt.Errorf("a rate of %d a second with a burst of %d: want a rate above 0 and a burst from 1 to %d, or both 0", rate, burst, bpf.MaxBucket)
		}
	}
	return nil
}

// rates is the state of limits that is not in the kernel.
type rates struct {
	mu      sync.Mutex            // guards what follows, and Lease.rates
	users   map[uint32]int        // endpoints under a limit of their user, by uid
	emptied map[uint32]struct{}   // users without such endpoints whose buckets may not be full yet
	own     map[uint32]*bpf.Limit // of frames that the mux sends for users (sent.go), by uid; a missing one is full
}

// setRates gives an endpoint on a port these rates.
func (m *Mux) setRates(l *Lease, r endpoint.Rates) error {
	m.rates.mu.Lock()
	defer m.rates.mu.Unlock()
	m.mu.Lock()
	closed, uid := l.closed, l.owner.UID
	m.mu.Unlock()
	if closed || r == l.rates {
		return nil
	}
	if err := validRates(r); err != nil {
		return err
	}
	port, none := l.at.owner.Port, r == endpoint.Rates{}
	attach := func(p *ebpf.Program) error {
		if err := nic.SetXDP(m.rt, int(port), p.FD(), m.progs.AttachFlag()); err != nil {
			return fmt.Errorf("attach to the outer end: %w", err)
		}
		return nil
	}
	if none {
		if err := errors.Join(tables.DeleteLimit(m.progs.Maps.PortLimits, port), attach(m.progs.Loaded[bpf.MuxProgUnetPort])); err != nil {
			return err
		}
	} else {
		if err := attach(m.progs.Loaded[bpf.MuxProgUnetPortLimited]); err != nil {
			return err
		}
		if err := m.putLimits(l, uid, r); err != nil {
			if r.User != (endpoint.Rate{}) && m.rates.users[uid] == 0 {
				m.rates.emptied[uid] = struct{}{} // it may have an entry
			}
			return err
		}
	}
	m.countRates(l, uid, r)
	return nil
}

// putLimits enters the rates of an endpoint. m.rates.mu is held.
func (m *Mux) putLimits(l *Lease, uid uint32, r endpoint.Rates) error {
	user := uint32(bpf.NoUser)
	if r.User != (endpoint.Rate{}) {
		m.sweepUsers()
		user = uid
		if err := tables.PutLimit(m.progs.Maps.UserLimits, user, r.User, bpf.NoUser); err != nil {
			return err
		}
	}
	return tables.PutLimit(m.progs.Maps.PortLimits, l.at.owner.Port, r.Endpoint, user)
}

// countRates notes the rates that an endpoint has now. m.rates.mu is held.
func (m *Mux) countRates(l *Lease, uid uint32, r endpoint.Rates) {
	if l.rates.User != (endpoint.Rate{}) {
		if m.rates.users[uid]--; m.rates.users[uid] == 0 {
			delete(m.rates.users, uid)
			m.rates.emptied[uid] = struct{}{}
		}
	}
	if r.User != (endpoint.Rate{}) {
		m.rates.users[uid]++
	}
	l.rates = r
}

// endRates forgets the rates of an endpoint whose port is deleted.
func (m *Mux) endRates(l *Lease) error {
	m.rates.mu.Lock()
	defer m.rates.mu.Unlock()
	if l.at.owner.Port == 0 {
		return nil // on a queue
	}
	err := tables.DeleteLimit(m.progs.Maps.PortLimits, l.at.owner.Port) // also one that setRates could not finish
	if l.rates == (endpoint.Rates{}) {
		return err
	}
	m.mu.Lock()
	uid := l.owner.UID
	m.mu.Unlock()
	m.countRates(l, uid, endpoint.Rates{})
	m.sweepUsers()
	return err
}

// sweepUsers deletes the entries of users without endpoints whose buckets are full. m.rates.mu is held.
func (m *Mux) sweepUsers() {
	now := clock()
	for uid := range m.rates.emptied {
		if m.rates.users[uid] == 0 {
			l, _, err := tables.ReadLimit(m.progs.Maps.UserLimits, uid)
			if err == nil && l.FullAt() > now {
				continue
			}
			if err = errors.Join(err, tables.DeleteLimit(m.progs.Maps.UserLimits, uid)); err != nil {
				m.log.Warn("limit of a user without endpoints", "uid", uid, "error", err)
			}
		}
		delete(m.rates.emptied, uid)
	}
}

// UpdateRates applies the present rates of the policy to the endpoints that have been opened or presented. An owner
// without a rule keeps its rates, and so do endpoints on queues.
func (m *Mux) UpdateRates() {
	if m.enter() != nil {
		return
	}
	defer m.leave()
	for _, l := range m.all() {
		m.mu.Lock()
		leased := l.leased
		m.mu.Unlock()
		if leased {
			m.updateRates(l)
		}
	}
}

func (m *Mux) updateRates(l *Lease) {
	m.mu.Lock()
	o := l.owner
	m.mu.Unlock()
	r, ok := m.policy.RatesOf(o)
	if !ok {
		return
	}
	if l.attach == endpoint.AttachQueue {
		if r != (endpoint.Rates{}) {
			m.log.Warn("the policy limits the rates of an endpoint that has a queue, where nothing is limited: end it, and open one on a port", "endpoint", l.id, "uid", o.UID, "pid", o.PID)
		}
		return
	}
	if err := m.setRates(l, r); err != nil {
		m.log.Error("the rates of an endpoint cannot be changed", "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
	}
}

// adoptRates finds the rates of an endpoint of another process in the kernel.
func (m *Mux) adoptRates(l *Lease) error {
	m.rates.mu.Lock()
	defer m.rates.mu.Unlock()
	r, _, err := m.ratesInKernel(l)
	if err == nil {
		m.countRates(l, l.owner.UID, r) // nobody else has the lease
	}
	return err
}

// ratesInKernel reads the rates of an endpoint on a port, and its entry.
func (m *Mux) ratesInKernel(l *Lease) (r endpoint.Rates, of bpf.Limit, err error) {
	of, there, err := tables.ReadLimit(m.progs.Maps.PortLimits, l.at.owner.Port)
	if err != nil || !there {
		return r, of, err
	}
	r.Endpoint = tables.RateOf(&of)
	if of.Uid != bpf.NoUser {
		var user bpf.Limit
		user, _, err = tables.ReadLimit(m.progs.Maps.UserLimits, of.Uid)
		r.User = tables.RateOf(&user)
	}
	return r, of, err
}

// tellRates adds the rates of an endpoint to its description.
func (m *Mux) tellRates(l *Lease, info *endpoint.Info) {
	if l.attach == endpoint.AttachQueue {
		return
	}
	r, of, err := m.ratesInKernel(l)
	if err != nil {
		m.log.Warn("rates of an endpoint", "endpoint", l.id, "error", err)
	}
	info.Rates, info.TxRateEndpoint, info.TxRateUser = r, of.Refused, of.RefusedUser
}

// sweepLimits deletes what another process has left in the tables of limits: the entries of ports that are gone, and
// of users without endpoints.
func (m *Mux) sweepLimits(alive map[bpf.Owner]*Lease) error {
	ports := map[uint32]bool{}
	for owner := range alive {
		ports[owner.Port] = true
	}
	m.rates.mu.Lock()
	defer m.rates.mu.Unlock()
	limited, err := tables.LimitKeys(m.progs.Maps.PortLimits)
	for _, port := range limited {
		if !ports[port] {
			err = errors.Join(err, tables.DeleteLimit(m.progs.Maps.PortLimits, port))
		}
	}
	users, uerr := tables.LimitKeys(m.progs.Maps.UserLimits)
	for _, uid := range users {
		m.rates.emptied[uid] = struct{}{}
	}
	if err = errors.Join(err, uerr); err != nil {
		return fmt.Errorf("tables of limits: %w", err)
	}
	m.sweepUsers()
	return nil
}
