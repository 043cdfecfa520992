//go:build linux

package mux

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/attach"
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

// rates limits what endpoints and their users send.
type rates struct {
	progs  *attach.Programs
	rt     *nl.SocketHandle
	log    *slog.Logger
	sender *sender

	mu sync.Mutex
	// users are the numbers of endpoints under a limit of their user, by uid.
	// +checklocks:mu
	users map[uint32]int
	// emptied are the users without such endpoints whose buckets may not be full yet.
	// +checklocks:mu
	emptied map[uint32]struct{}
	// own are the buckets of frames that the mux sends for users (sent.go), by uid. A missing one is full.
	// +checklocks:mu
	own map[uint32]*bpf.Limit
}

// set gives an endpoint on a port these rates.
func (r *rates) set(l *Lease, to endpoint.Rates) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.m.mu.Lock()
	closed := l.closed
	l.m.mu.Unlock()
	if closed || to == l.rates {
		return nil
	}
	if err := validRates(to); err != nil {
		return err
	}
	uid, port, none := l.uid, l.at.owner.Port, to == endpoint.Rates{}
	if none {
		if err := errors.Join(tables.DeleteLimit(r.progs.Maps.PortLimits, port), r.attach(port, r.progs.Loaded[bpf.MuxProgUnetPort])); err != nil {
			return err
		}
	} else {
		if err := r.attach(port, r.progs.Loaded[bpf.MuxProgUnetPortLimited]); err != nil {
			return err
		}
		if err := r.put(l, to); err != nil {
			if to.User != (endpoint.Rate{}) && r.users[uid] == 0 {
				r.emptied[uid] = struct{}{} // it may have an entry
			}
			return err
		}
	}
	if r.note(l, to); !none {
		l.m.mu.Lock()
		defer l.m.mu.Unlock()
		l.m.endPathsLocked(l)
	}
	return nil
}

// attach attaches a port program to the outer end of a port.
func (r *rates) attach(port uint32, p *ebpf.Program) error {
	if err := nic.SetXDP(r.rt, int(port), p.FD(), r.progs.AttachFlag()); err != nil {
		return fmt.Errorf("attach to the outer end: %w", err)
	}
	return nil
}

// put puts the rates of an endpoint into the tables. mu is held.
//
// +checklocks:r.mu
func (r *rates) put(l *Lease, to endpoint.Rates) error {
	user := uint32(bpf.NoUser)
	if to.User != (endpoint.Rate{}) {
		r.sweepUsers()
		user = l.uid
		if err := tables.PutLimit(r.progs.Maps.UserLimits, user, to.User, bpf.NoUser); err != nil {
			return err
		}
	}
	return tables.PutLimit(r.progs.Maps.PortLimits, l.at.owner.Port, to.Endpoint, user)
}

// note notes the rates that an endpoint has now. mu is held.
//
// +checklocks:r.mu
func (r *rates) note(l *Lease, to endpoint.Rates) {
	if l.rates.User != (endpoint.Rate{}) {
		if r.users[l.uid]--; r.users[l.uid] == 0 {
			delete(r.users, l.uid)
			r.emptied[l.uid] = struct{}{}
		}
	}
	if to.User != (endpoint.Rate{}) {
		r.users[l.uid]++
	}
	l.rates = to
}

// end forgets the rates of an endpoint whose port is deleted.
func (r *rates) end(l *Lease) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.at.owner.Port == 0 {
		return nil // on a queue
	}
	err := tables.DeleteLimit(r.progs.Maps.PortLimits, l.at.owner.Port) // also one that set could not finish
	if l.rates == (endpoint.Rates{}) {
		return err
	}
	r.note(l, endpoint.Rates{})
	r.sweepUsers()
	return err
}

// sweepUsers deletes the entries of users without endpoints whose buckets are full. mu is held.
//
// +checklocks:r.mu
func (r *rates) sweepUsers() {
	now := clock()
	for uid := range r.emptied {
		if r.users[uid] == 0 {
			l, _, err := tables.ReadLimit(r.progs.Maps.UserLimits, uid)
			if err == nil && l.FullAt() > now {
				continue
			}
			if err = errors.Join(err, tables.DeleteLimit(r.progs.Maps.UserLimits, uid)); err != nil {
				r.log.Warn("limit of a user without endpoints", "uid", uid, "error", err)
			}
		}
		delete(r.emptied, uid)
	}
}

// UpdateRates applies the present rates of the policy to the endpoints that have been opened or presented, and ends the
// memory paths that it does not permit now. An owner without a rule keeps its rates, and so do endpoints on queues.
func (m *Mux) UpdateRates() {
	if m.enter() != nil {
		return
	}
	defer m.leave()
	for _, l := range m.all() {
		if _, leased := l.holder(); leased {
			l.updateRates()
			l.updatePaths()
		}
	}
}

func (l *Lease) updateRates() {
	m := l.m
	o, _ := l.holder()
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
	if err := m.rates.set(l, r); err != nil {
		m.log.Error("the rates of an endpoint cannot be changed", "endpoint", l.id, "uid", o.UID, "pid", o.PID, "error", err)
	}
}

// adopt finds the rates of an endpoint of another process in the kernel.
func (r *rates) adopt(l *Lease) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	has, _, err := r.read(l)
	if err == nil {
		r.note(l, has) // nobody else has the lease
	}
	return err
}

// read reads the rates of an endpoint on a port, and its entry.
func (r *rates) read(l *Lease) (has endpoint.Rates, of bpf.Limit, err error) {
	of, there, err := tables.ReadLimit(r.progs.Maps.PortLimits, l.at.owner.Port)
	if err != nil || !there {
		return has, of, err
	}
	has.Endpoint = tables.RateOf(&of)
	if of.Uid != bpf.NoUser {
		var user bpf.Limit
		user, _, err = tables.ReadLimit(r.progs.Maps.UserLimits, of.Uid)
		has.User = tables.RateOf(&user)
	}
	return has, of, err
}

// tell adds the rates of an endpoint to its description.
func (r *rates) tell(l *Lease, info *endpoint.Info) {
	if l.attach == endpoint.AttachQueue {
		return
	}
	has, of, err := r.read(l)
	if err != nil {
		r.log.Warn("rates of an endpoint", "endpoint", l.id, "error", err)
	}
	info.Rates, info.TxRateEndpoint, info.TxRateUser = has, of.Refused, of.RefusedUser
}

// sweep deletes what another process has left in the tables of limits: the entries of ports that are gone, and
// of users without endpoints.
func (r *rates) sweep(alive map[bpf.Owner]*Lease) error {
	ports := map[uint32]bool{}
	for owner := range alive {
		ports[owner.Port] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	limited, err := tables.LimitKeys(r.progs.Maps.PortLimits)
	for _, port := range limited {
		if !ports[port] {
			err = errors.Join(err, tables.DeleteLimit(r.progs.Maps.PortLimits, port))
		}
	}
	users, uerr := tables.LimitKeys(r.progs.Maps.UserLimits)
	for _, uid := range users {
		r.emptied[uid] = struct{}{}
	}
	if err = errors.Join(err, uerr); err != nil {
		return fmt.Errorf("tables of limits: %w", err)
	}
	r.sweepUsers()
	return nil
}
