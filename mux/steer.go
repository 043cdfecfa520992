//go:build linux

package mux

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/mux/internal/nic"
)

// A frame can be redirected only to a socket on the queue that it came in on. So the frames of a
// tag of an endpoint on a queue have to come in there. If the uplink spreads received frames over
// several queues, the mux inserts a classification rule into the driver (ethtool -N) when it has
// entered the tag, and removes it before it deletes the tag. A tag whose frames cannot be led to the queue is
// refused. Where the sender chooses the queue, it is accepted with a warning: on a virtual link, and
// with virtio_net in native mode, which adds queues for XDP on which the device receives
// (virtnet_xdp_set in drivers/net/virtio_net.c).
//
// Nothing about rules is stored. A process that takes over a mux, and takeDown, take a rule that
// leads a tag to its endpoint's queue for one that the mux has inserted.

// spread is how the uplink spreads received frames over its queues.
type spread struct {
	queues   uint32   // number of queues on which frames come in
	channels uint32   // of these, those by which sockets can send: a driver may add queues for XDP
	table    []uint32 // queues by hash value (RSS indirection table); nil: there is none
	// filtersOff: the driver has classification rules, and they are turned off.
	filtersOff bool
}

// spread reads how the uplink spreads received frames now.
func (m *Mux) spread() (s spread, err error) {
	err = route.Within(m.ns, func() error {
		name, err := nic.NameOf(m.nl, m.up.Index)()
		if err != nil {
			return err
		}
		if s.channels, err = nic.ActiveQueues(name, m.up.Queues); err != nil {
			return err
		}
		if s.queues = max(s.channels, nic.ReceivingQueues(m.up.Index, m.up.Queues)); s.queues <= 1 {
			return nil
		}
		s.channels = min(s.channels, nic.SendingQueues(m.up.Index, m.up.Queues)) // virtio_net counts those that it has added, too
		if s.table, err = nic.RSSTable(m.up.Index); err != nil {
			return err
		}
		states, err := nic.Features(name)
		rules := states["rx-ntuple-filter"]
		s.filtersOff = rules.Changeable && !rules.Active
		return err
	})
	return s, err
}

// leads reports whether all frames of a tag come in on a queue without a rule. Frames without an
// IP header are not hashed: most devices put them on queue 0.
func (s spread) leads(t endpoint.Tag, queue uint32) bool {
	if s.queues <= 1 {
		return true
	}
	hashed := len(s.table) > 0 && !slices.ContainsFunc(s.table, func(q uint32) bool { return q != queue })
	switch {
	case t.Kind == endpoint.TagMessage:
		return queue == 0 && s.table != nil
	case t.Kind == endpoint.TagAddr && t.Addr.Is4(): // with ARP
		return hashed && queue == 0
	}
	return hashed
}

// steering is the classification rules that the mux has inserted. Mux.mu guards it.
type steering struct {
	driver   classifier
	spread   func() (spread, error)
	inserted map[flowRule]*inserted // by flows
}

// inserted is a rule in the driver.
type inserted struct {
	at   uint32   // location
	rule flowRule // as the driver reports it
	tags int      // claims that need it; 0: it could not be removed
}

// errElsewhere: a rule leads the frames of a tag to another queue.
var errElsewhere = errors.New("frames are led to another queue")

// steer makes the frames of a tag come in on the queue of its endpoint, if that is on one. It
// returns the rules that the tag needs, for unsteer. adopting: the tag and its rules are those of
// an earlier process. m.mu is held.
func (m *Mux) steer(l *Lease, t endpoint.Tag, adopting bool) ([]flowRule, error) {
	if !l.holdsQueue {
		return nil, nil
	}
	unneeded := func() ([]flowRule, error) {
		if !adopting {
			return nil, nil
		}
		return m.steering.find(t, l.queue)
	}
	if owned := m.tags.held[endpoint.AddrTag(t.Addr)]; hasPorts(t) && owned != nil && owned.by == l {
		return unneeded() // the rules of the owned address lead its frames
	}
	rx, err := m.steering.spread()
	if err != nil {
		return nil, fmt.Errorf("receive queues of %s: %w", m.up.Name, err)
	}
	if rx.leads(t, l.queue) {
		return unneeded()
	}
	rules, err := m.steering.insert(t, l.queue, adopting)
	switch {
	case err == nil:
		m.log.Debug("frames are led to the queue of an endpoint", "tag", t, "queue", l.queue, "rules", len(rules))
		return rules, nil
	case errors.Is(err, errElsewhere):
		return nil, denied(t, "%w", err)
	case m.up.Virtual, rx.channels <= 1 && rx.table == nil:
		if l.spreadOver == 0 {
			m.log.Warn("frames of an endpoint on a queue also come in on other queues, as the sender chooses: these go to the kernel (rx_pass_other_queue)",
				"interface", m.up.Name, "queues", rx.queues, "queue", l.queue, "tag", t)
		}
		l.spreadOver = rx.queues
		return nil, nil
	}
	return nil, denied(t, "%s spreads received frames over %d queues, and the endpoint is on queue %d (%w): %s",
		m.up.Name, rx.queues, l.queue, err, rx.remedy(m.up.Name, t, l.queue))
}

// steerAgain leads the frames of tags that have no rule, when the number of queues or the RSS table
// may have changed.
func (m *Mux) steerAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		l.spreadOver = 0
		if !l.holdsQueue {
			continue
		}
		var failed error
		for t := range l.tags {
			c := m.tags.held[t]
			if len(c.rules) > 0 {
				continue
			}
			var err error
			if c.rules, err = m.steer(l, t, false); err != nil {
				failed = err
			}
		}
		if failed != nil {
			m.log.Warn("frames of an endpoint on a queue come in on other queues now: these go to the kernel (rx_pass_other_queue)",
				"interface", m.up.Name, "queue", l.queue, "endpoint", l.id, "error", failed)
		}
	}
}

// remedy is what an operator or an application can do about a tag that cannot be led to a queue.
func (s spread) remedy(uplink string, t endpoint.Tag, queue uint32) string {
	list := []string{"attach to a port"}
	if s.filtersOff {
		list = append(list, fmt.Sprintf("turn rules on (ethtool -K %s ntuple on)", uplink))
	}
	if all := (spread{queues: 2, table: []uint32{queue}}); s.table != nil && all.leads(t, queue) {
		list = append(list, fmt.Sprintf("lead all frames to the queue (ethtool -X %s start %d equal 1)", uplink, queue))
	}
	list = append(list, fmt.Sprintf("use one queue, queue 0 (ethtool -L %s combined 1)", uplink))
	return strings.Join(list, ", or ")
}

// unsteer removes the rules of a tag, except those that other tags need.
func (m *Mux) unsteer(rules []flowRule) error {
	if err := m.steering.release(rules); err != nil {
		m.log.Warn("a classification rule cannot be removed: this is tried again with the next one (ethtool -n)", "interface", m.up.Name, "error", err)
		return fmt.Errorf("classification rules of %s: %w", m.up.Name, err)
	}
	return nil
}

// insert inserts the rules of a tag, all or none, or finds those that lead its frames already. It
// returns those that release shall remove.
func (s *steering) insert(t endpoint.Tag, queue uint32, adopting bool) (rules []flowRule, err error) {
	s.retry()
	table, err := s.read()
	if err != nil {
		return nil, err
	}
	for _, alternative := range rulesOf(t, queue) {
		if rules, err = s.insertAll(table, alternative, adopting); err == nil || errors.Is(err, errElsewhere) {
			return rules, err
		}
	}
	return nil, err
}

func (s *steering) insertAll(table *ruleTable, list []flowRule, adopting bool) (rules []flowRule, err error) {
	for _, r := range list {
		counted, err := s.insertOne(table, r, adopting)
		if err != nil {
			return nil, errors.Join(err, s.release(rules))
		}
		if counted {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// insertOne inserts a rule. counted is false if a rule that the mux has not inserted leads these
// frames to the queue.
func (s *steering) insertOne(table *ruleTable, r flowRule, adopting bool) (counted bool, err error) {
	if have := s.inserted[r.flows()]; have != nil {
		if have.rule.ring != r.ring {
			return false, fmt.Errorf("%w: another endpoint gets them on queue %d", errElsewhere, have.rule.ring)
		}
		have.tags++
		return true, nil
	}
	if adopting && s.take(table, r) {
		return true, nil
	}
	if led, err := table.leads(r); led || err != nil {
		return false, err
	}
	at := uint32(anyLocation)
	if !table.chooses {
		if at, err = s.freeLocation(table); err != nil {
			return false, err
		}
		if err := table.precedes(r, at); err != nil {
			return false, err
		}
	}
	if at, err = s.driver.insert(r, at); err != nil {
		return false, fmt.Errorf("classification rule: %w", err)
	}
	reported, found, err := s.driver.get(at)
	switch {
	case err != nil:
	case !found:
		err = fmt.Errorf("the driver has no rule at location %d, where it inserted one", at)
	default:
		err = table.precedes(r, at)
	}
	if err != nil {
		return false, errors.Join(err, s.driver.remove(at))
	}
	s.enter(r, at, reported)
	return true, nil
}

// find takes over those rules of a tag that an earlier process has inserted, without inserting others:
// the tag needs none now. It returns those that release shall remove.
func (s *steering) find(t endpoint.Tag, queue uint32) (rules []flowRule, err error) {
	table, err := s.read()
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Concat(rulesOf(t, queue)...) {
		if have := s.inserted[r.flows()]; have != nil {
			if have.rule.ring != r.ring {
				continue
			}
			have.tags++
		} else if !s.take(table, r) {
			continue
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// take enters a rule that is in the driver already. It reports whether there is one.
func (s *steering) take(table *ruleTable, r flowRule) bool {
	for at, other := range table.byLocation() {
		if other == r {
			delete(table.others, at)
			s.enter(r, at, other)
			return true
		}
	}
	return false
}

func (s *steering) enter(r flowRule, at uint32, reported flowRule) {
	if s.inserted == nil {
		s.inserted = map[flowRule]*inserted{}
	}
	s.inserted[r.flows()] = &inserted{at: at, rule: reported, tags: 1}
}

// freeLocation is the lowest location without a rule: of several rules that match, the lowest has
// effect. A rule of another program that is inserted there at this moment would be replaced;
// ethtool(8) takes the highest free location.
func (s *steering) freeLocation(table *ruleTable) (uint32, error) {
	for at := range table.size {
		if table.used[at] {
			continue
		}
		table.used[at] = true
		other, found, err := s.driver.get(at)
		if err != nil || !found {
			return at, err
		}
		table.others[at] = other
	}
	return 0, fmt.Errorf("all %d classification rules of the driver are in use: %w", table.size, unix.ENOSPC)
}

// ruleTable is the rules of the driver.
type ruleTable struct {
	used    map[uint32]bool     // locations
	others  map[uint32]flowRule // rules that the mux has not inserted, by location
	size    uint32
	chooses bool // the driver chooses locations
}

// byLocation iterates over others, the lowest location first.
func (t *ruleTable) byLocation() iter.Seq2[uint32, flowRule] {
	return func(yield func(uint32, flowRule) bool) {
		for _, at := range slices.Sorted(maps.Keys(t.others)) {
			if !yield(at, t.others[at]) {
				return
			}
		}
	}
}

// leads reports whether a rule of others leads the frames of r where r does: of those that cover r
// the lowest one. A rule with the flows of r that leads them elsewhere is an error.
func (t *ruleTable) leads(r flowRule) (bool, error) {
	for at, other := range t.byLocation() {
		if other.flows() == r.flows() && other.ring != r.ring {
			return false, ledBy(at, other)
		}
	}
	for _, other := range t.byLocation() {
		if other.covers(r) {
			return other.ring == r.ring, nil
		}
	}
	return false, nil
}

// precedes returns an error if a rule of others at a location lower than at leads all frames of r
// elsewhere.
func (t *ruleTable) precedes(r flowRule, at uint32) error {
	for lower, other := range t.byLocation() {
		if lower < at && other.ring != r.ring && other.covers(r) {
			return ledBy(lower, other)
		}
	}
	return nil
}

// ledBy is the error for the frames of a rule that another one leads elsewhere.
func ledBy(at uint32, other flowRule) error {
	return fmt.Errorf("%w: rule %d of the driver leads them to queue %d (ethtool -n)", errElsewhere, at, other.ring)
}

func (s *steering) read() (*ruleTable, error) {
	list, size, chooses, err := s.driver.locations()
	if err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = unix.EOPNOTSUPP
		}
		return nil, fmt.Errorf("the driver's classification rules: %w", err)
	}
	table := &ruleTable{map[uint32]bool{}, map[uint32]flowRule{}, size, chooses}
	mine := map[uint32]bool{}
	for _, r := range s.inserted {
		mine[r.at] = true
	}
	for _, at := range list {
		table.used[at] = true
		if mine[at] {
			continue
		}
		r, found, err := s.driver.get(at)
		if err != nil {
			return nil, fmt.Errorf("classification rule %d: %w", at, err)
		}
		if found {
			table.others[at] = r
		}
	}
	return table, nil
}

// release undoes insert. A rule that another program has replaced stays. A rule that cannot be
// removed now is removed later.
func (s *steering) release(rules []flowRule) error {
	s.retry()
	var err error
	for _, r := range rules {
		have := s.inserted[r.flows()]
		if have.tags--; have.tags == 0 {
			err = errors.Join(err, s.drop(r.flows()))
		}
	}
	return err
}

// drop removes a rule that no claim needs. After an error its entry stays.
func (s *steering) drop(flows flowRule) error {
	have := s.inserted[flows]
	now, found, err := s.driver.get(have.at)
	if err == nil && found && now == have.rule {
		err = s.driver.remove(have.at)
	}
	if err = nic.AbsentDeviceIsFine(err); err == nil {
		delete(s.inserted, flows)
	}
	return err
}

// retry removes the rules that could not be removed before. Their errors are known.
func (s *steering) retry() {
	for flows, have := range s.inserted {
		if have.tags == 0 {
			_ = s.drop(flows)
		}
	}
}

// sweep removes the rules that lead dead tags to queues, except those that living ones need, after
// the process that inserted them has died.
func (s *steering) sweep(dead, alive map[endpoint.Tag]uint32) error {
	if len(dead) == 0 {
		return nil
	}
	table, err := s.read()
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return nic.AbsentDeviceIsFine(err)
	}
	stale := map[flowRule]bool{}
	for t, queue := range dead {
		for _, r := range slices.Concat(rulesOf(t, queue)...) {
			stale[r] = true
		}
	}
	for t, queue := range alive {
		for _, r := range slices.Concat(rulesOf(t, queue)...) {
			delete(stale, r)
		}
	}
	for at, r := range table.others {
		if stale[r] {
			err = errors.Join(err, nic.AbsentDeviceIsFine(s.driver.remove(at)))
		}
	}
	return err
}

// onQueuesOf are the tags of endpoints on queues, with their queues.
func onQueuesOf(tags map[endpoint.Tag]bpf.Owner) map[endpoint.Tag]uint32 {
	list := map[endpoint.Tag]uint32{}
	for t, owner := range tags {
		if owner.Port == 0 {
			list[t] = uint32(owner.Queue)
		}
	}
	return list
}

// unsteerPinned removes the rules of the tags in pinned tables. The calling thread is in the
// uplink's namespace, which is h's.
func unsteerPinned(h *netlink.Handle, ifindex int, keep *pins) error {
	spec, err := bpf.LoadMux()
	if err != nil {
		return err
	}
	var tables bpf.MuxMaps
	for name, table := range map[string]**ebpf.Map{bpf.MuxMapTags: &tables.Tags, bpf.MuxMapTags6: &tables.Tags6} {
		m, err := ebpf.LoadPinnedMap(keep.at(name), nil)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("pinned map: %w", err)
		}
		defer m.Close()
		if m.KeySize() != spec.Maps[name].KeySize || m.ValueSize() != spec.Maps[name].ValueSize {
			return nil // made by another version
		}
		*table = m
	}
	tags, err := tagsInKernel(&tables)
	if err != nil {
		return err
	}
	rules, err := newDriverRules(nic.NameOf(h, ifindex))
	if err != nil {
		return err
	}
	defer rules.close()
	s := steering{driver: rules}
	return s.sweep(onQueuesOf(tags), nil)
}
