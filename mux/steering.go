//go:build linux

package mux

import (
	"errors"
	"fmt"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/steer"
)

// A frame can be redirected only to a socket on the queue that it came in on. So the frames of a
// tag of an endpoint on a queue have to come in there. If the uplink spreads received frames over
// several queues, the mux inserts a classification rule into the driver (ethtool -N) when it has
// added the tag, and removes it before it deletes the tag. A tag whose frames cannot be led to the queue is
// refused. Where the sender chooses the queue, it is accepted with a warning: on a virtual link, and
// with virtio_net in native mode, which adds queues for XDP on which the device receives
// (virtnet_xdp_set in drivers/net/virtio_net.c).

// spread reads how the uplink spreads received frames now.
func (m *Mux) spread() (s steer.Spread, err error) {
	err = route.Within(m.ns, func() (err error) {
		s, err = steer.ReadSpread(m.nl, m.up.Index, m.up.Queues)
		return err
	})
	return s, err
}

// steer makes the frames of a tag come in on the queue of its endpoint, if that is on one. It
// returns the rules that the tag needs, for unsteer. adopting: the tag and its rules are those of
// an earlier process. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) steer(t endpoint.Tag, adopting bool) ([]steer.Rule, error) {
	m := l.m
	if !l.holdsQueue {
		return nil, nil
	}
	ofAddr := m.tags.held[endpoint.AddrTag(t.Addr)]
	rules, over, err := m.steering.Lead(t, l.queue, hasPorts(t) && ofAddr != nil && ofAddr.by == l, adopting)
	var why *steer.Refused
	if errors.As(err, &why) {
		return nil, denied(t, "%w", why)
	}
	if err != nil {
		return nil, err
	}
	if len(rules) > 0 && !adopting {
		m.log.Debug("frames are led to the queue of an endpoint", "tag", t, "queue", l.queue, "rules", len(rules))
	}
	if over != 0 {
		if l.spreadOver == 0 {
			m.log.Warn("frames of an endpoint on a queue also come in on other queues, as the sender chooses: these go to the kernel (rx_pass_other_queue)",
				"interface", m.up.Name, "queues", over, "queue", l.queue, "tag", t)
		}
		l.spreadOver = over
	}
	return rules, nil
}

// steerAgain leads the frames of tags that have no rule, when the number of queues or the RSS table
// may have changed.
func (m *Mux) steerAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		l.steerAgain() // +checklocksignore: a lease of this mux
	}
}

// steerAgain leads the frames of the tags of a lease that have no rule. m.mu is held.
//
// +checklocks:l.m.mu
func (l *Lease) steerAgain() {
	m := l.m
	l.spreadOver = 0
	if !l.holdsQueue {
		return
	}
	var failed error
	for t := range l.tags {
		c := m.tags.held[t]
		if len(c.rules) > 0 {
			continue
		}
		var err error
		if c.rules, err = l.steer(t, false); err != nil {
			failed = err
		}
	}
	if failed != nil {
		m.log.Warn("frames of an endpoint on a queue come in on other queues now: these go to the kernel (rx_pass_other_queue)",
			"interface", m.up.Name, "queue", l.queue, "endpoint", l.id, "error", failed)
	}
}

// unsteer removes the rules of a tag, except those that other tags need. m.mu is held.
//
// +checklocks:m.mu
func (m *Mux) unsteer(rules []steer.Rule) error {
	if err := m.steering.Release(rules); err != nil {
		m.log.Warn("a classification rule cannot be removed: this is tried again with the next one (ethtool -n)", "interface", m.up.Name, "error", err)
		return fmt.Errorf("classification rules of %s: %w", m.up.Name, err)
	}
	return nil
}
