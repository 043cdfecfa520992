//go:build linux

package steer

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/nic"
)

// Spread is how the uplink spreads received frames over its queues.
type Spread struct {
	Queues   uint32   // number of queues on which frames come in
	Channels uint32   // of these, those by which sockets can send: a driver may add queues for XDP
	Table    []uint32 // queues by hash value (RSS indirection table); nil: there is none
	// FiltersOff: the driver has classification rules, and they are turned off.
	FiltersOff bool
}

// ReadSpread reads how an uplink spreads received frames now. queues is the number of its queues. The
// calling thread is in the uplink's namespace, which is h's.
func ReadSpread(h *netlink.Handle, ifindex int, queues uint32) (s Spread, err error) {
	name, err := nic.NameOf(h, ifindex)()
	if err != nil {
		return s, err
	}
	if s.Channels, err = nic.ActiveQueues(name, queues); err != nil {
		return s, err
	}
	if s.Queues = max(s.Channels, nic.ReceivingQueues(ifindex, queues)); s.Queues <= 1 {
		return s, nil
	}
	s.Channels = min(s.Channels, nic.SendingQueues(ifindex, queues)) // virtio_net counts those that it has added, too
	if s.Table, err = nic.RSSTable(ifindex); err != nil {
		return s, err
	}
	states, err := nic.Features(name)
	rules := states["rx-ntuple-filter"]
	s.FiltersOff = rules.Changeable && !rules.Active
	return s, err
}

// leads reports whether all frames of a tag come in on a queue without a rule. Frames without an
// IP header are not hashed: most devices put them on queue 0.
func (s Spread) leads(t endpoint.Tag, queue uint32) bool {
	if s.Queues <= 1 {
		return true
	}
	hashed := len(s.Table) > 0 && !slices.ContainsFunc(s.Table, func(q uint32) bool { return q != queue })
	switch {
	case t.Kind == endpoint.TagMessage:
		return queue == 0 && s.Table != nil
	case t.Kind == endpoint.TagAddr && t.Addr.Is4(): // with ARP
		return hashed && queue == 0
	}
	return hashed
}

// Steering is the classification rules that the mux has inserted. Its methods may not be called at the same
// time.
type Steering struct {
	uplink   string
	virtual  bool // the uplink is a virtual link
	driver   Driver
	spread   func() (Spread, error)
	inserted map[Rule]*inserted // by flows
}

// New is for an uplink. spread reads how it spreads received frames.
func New(uplink string, virtual bool, driver Driver, spread func() (Spread, error)) *Steering {
	return &Steering{uplink: uplink, virtual: virtual, driver: driver, spread: spread}
}

// inserted is a rule in the driver.
type inserted struct {
	at   uint32 // location
	rule Rule   // as the driver reports it
	tags int    // claims that need it; 0: it could not be removed
}

// errElsewhere: a rule leads the frames of a tag to another queue.
var errElsewhere = errors.New("frames are led to another queue")

// Refused is the reason why the frames of a tag cannot be led to its queue.
type Refused struct{ why error }

// Error is the reason.
func (r *Refused) Error() string { return r.why.Error() }

// Unwrap returns the reason.
func (r *Refused) Unwrap() error { return r.why }

// Lead makes the frames of a tag come in on a queue, and returns the rules that the tag needs, for Release. owned:
// the rules of its owned address lead its frames. adopting: the tag and its rules are those of an earlier
// process. spreadOver is not 0 if the frames also come in on other queues of that many, as the sender
// chooses. Errors: Refused.
func (s *Steering) Lead(t endpoint.Tag, queue uint32, owned, adopting bool) (rules []Rule, spreadOver uint32, err error) {
	unneeded := func() ([]Rule, uint32, error) {
		if !adopting {
			return nil, 0, nil
		}
		rules, err := s.adoptAll(t, queue)
		return rules, 0, err
	}
	if owned {
		return unneeded()
	}
	rx, err := s.spread()
	if err != nil {
		return nil, 0, fmt.Errorf("receive queues of %s: %w", s.uplink, err)
	}
	if rx.leads(t, queue) {
		return unneeded()
	}
	rules, err = s.insert(t, queue, adopting)
	switch {
	case err == nil:
		return rules, 0, nil
	case errors.Is(err, errElsewhere):
		return nil, 0, &Refused{err}
	case s.virtual, rx.Channels <= 1 && rx.Table == nil:
		return nil, rx.Queues, nil
	}
	return nil, 0, &Refused{fmt.Errorf("%s spreads received frames over %d queues, and the endpoint is on queue %d (%w): %s",
		s.uplink, rx.Queues, queue, err, rx.remedy(s.uplink, t, queue))}
}

// remedy is what an operator or an application can do about a tag that cannot be led to a queue.
func (s Spread) remedy(uplink string, t endpoint.Tag, queue uint32) string {
	list := []string{"attach to a port"}
	if s.FiltersOff {
		list = append(list, fmt.Sprintf("turn rules on (ethtool -K %s ntuple on)", uplink))
	}
	if all := (Spread{Queues: 2, Table: []uint32{queue}}); s.Table != nil && all.leads(t, queue) {
		list = append(list, fmt.Sprintf("lead all frames to the queue (ethtool -X %s start %d equal 1)", uplink, queue))
	}
	list = append(list, fmt.Sprintf("use one queue, queue 0 (ethtool -L %s combined 1)", uplink))
	return strings.Join(list, ", or ")
}

// insert inserts the rules of a tag, all or none, or finds those that lead its frames already. It
// returns those that Release shall remove.
func (s *Steering) insert(t endpoint.Tag, queue uint32, adopting bool) (rules []Rule, err error) {
	s.retry()
	table, err := s.read()
	if err != nil {
		return nil, err
	}
	for _, alternative := range RulesOf(t, queue) {
		if rules, err = s.insertAll(table, alternative, adopting); err == nil || errors.Is(err, errElsewhere) {
			return rules, err
		}
	}
	return nil, err
}

func (s *Steering) insertAll(table *ruleTable, list []Rule, adopting bool) (rules []Rule, err error) {
	for _, r := range list {
		counted, err := s.insertOne(table, r, adopting)
		if err != nil {
			return nil, errors.Join(err, s.Release(rules))
		}
		if counted {
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// insertOne inserts a rule. counted is false if a rule that the mux has not inserted leads these
// frames to the queue.
func (s *Steering) insertOne(table *ruleTable, r Rule, adopting bool) (counted bool, err error) {
	if have := s.inserted[r.flows()]; have != nil {
		if have.rule.ring != r.ring {
			return false, fmt.Errorf("%w: another endpoint gets them on queue %d", errElsewhere, have.rule.ring)
		}
		have.tags++
		return true, nil
	}
	if adopting && s.adopt(table, r) {
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
	if at, err = s.driver.Insert(r, at); err != nil {
		return false, fmt.Errorf("classification rule: %w", err)
	}
	reported, found, err := s.driver.Get(at)
	switch {
	case err != nil:
	case !found:
		err = fmt.Errorf("the driver has no rule at location %d, where it inserted one", at)
	default:
		err = table.precedes(r, at)
	}
	if err != nil {
		return false, errors.Join(err, s.driver.Remove(at))
	}
	s.add(r, at, reported)
	return true, nil
}

// adoptAll takes over those rules of a tag that an earlier process has inserted, without inserting others:
// the tag needs none now. It returns those that Release shall remove.
func (s *Steering) adoptAll(t endpoint.Tag, queue uint32) (rules []Rule, err error) {
	table, err := s.read()
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Concat(RulesOf(t, queue)...) {
		if have := s.inserted[r.flows()]; have != nil {
			if have.rule.ring != r.ring {
				continue
			}
			have.tags++
		} else if !s.adopt(table, r) {
			continue
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// adopt adds a rule that is in the driver already. It reports whether there is one.
func (s *Steering) adopt(table *ruleTable, r Rule) bool {
	for at, other := range table.byLocation() {
		if other == r {
			delete(table.others, at)
			s.add(r, at, other)
			return true
		}
	}
	return false
}

func (s *Steering) add(r Rule, at uint32, reported Rule) {
	if s.inserted == nil {
		s.inserted = map[Rule]*inserted{}
	}
	s.inserted[r.flows()] = &inserted{at: at, rule: reported, tags: 1}
}

// freeLocation is the lowest location without a rule: of several rules that match, the lowest has
// effect. A rule of another program that is inserted there at this moment would be replaced;
// ethtool(8) takes the highest free location.
func (s *Steering) freeLocation(table *ruleTable) (uint32, error) {
	for at := range table.size {
		if table.used[at] {
			continue
		}
		table.used[at] = true
		other, found, err := s.driver.Get(at)
		if err != nil || !found {
			return at, err
		}
		table.others[at] = other
	}
	return 0, fmt.Errorf("all %d classification rules of the driver are in use: %w", table.size, unix.ENOSPC)
}

// ruleTable is the rules of the driver.
type ruleTable struct {
	used    map[uint32]bool // locations
	others  map[uint32]Rule // rules that the mux has not inserted, by location
	size    uint32
	chooses bool // the driver chooses locations
}

// byLocation iterates over others, the lowest location first.
func (t *ruleTable) byLocation() iter.Seq2[uint32, Rule] {
	return func(yield func(uint32, Rule) bool) {
		for _, at := range slices.Sorted(maps.Keys(t.others)) {
			if !yield(at, t.others[at]) {
				return
			}
		}
	}
}

// leads reports whether a rule of others leads the frames of r where r does: of those that cover r
// the lowest one. A rule with the flows of r that leads them elsewhere is an error.
func (t *ruleTable) leads(r Rule) (bool, error) {
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
func (t *ruleTable) precedes(r Rule, at uint32) error {
	for lower, other := range t.byLocation() {
		if lower < at && other.ring != r.ring && other.covers(r) {
			return ledBy(lower, other)
		}
	}
	return nil
}

// ledBy is the error for the frames of a rule that another one leads elsewhere.
func ledBy(at uint32, other Rule) error {
	return fmt.Errorf("%w: rule %d of the driver leads them to queue %d (ethtool -n)", errElsewhere, at, other.ring)
}

func (s *Steering) read() (*ruleTable, error) {
	list, size, chooses, err := s.driver.Locations()
	if err != nil {
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = unix.EOPNOTSUPP
		}
		return nil, fmt.Errorf("the driver's classification rules: %w", err)
	}
	table := &ruleTable{map[uint32]bool{}, map[uint32]Rule{}, size, chooses}
	mine := map[uint32]bool{}
	for _, r := range s.inserted {
		mine[r.at] = true
	}
	for _, at := range list {
		table.used[at] = true
		if mine[at] {
			continue
		}
		r, found, err := s.driver.Get(at)
		if err != nil {
			return nil, fmt.Errorf("classification rule %d: %w", at, err)
		}
		if found {
			table.others[at] = r
		}
	}
	return table, nil
}

// Release undoes insert. A rule that another program has replaced stays. A rule that cannot be
// removed now is removed later.
func (s *Steering) Release(rules []Rule) error {
	s.retry()
	var err error
	for _, r := range rules {
		have := s.inserted[r.flows()]
		if have.tags--; have.tags == 0 {
			err = errors.Join(err, s.remove(r.flows()))
		}
	}
	return err
}

// remove removes a rule that no claim needs. After an error its entry stays.
func (s *Steering) remove(flows Rule) error {
	have := s.inserted[flows]
	now, found, err := s.driver.Get(have.at)
	if err == nil && found && now == have.rule {
		err = s.driver.Remove(have.at)
	}
	if err = nic.AbsentDeviceIsFine(err); err == nil {
		delete(s.inserted, flows)
	}
	return err
}

// retry removes the rules that could not be removed before. Their errors are known.
func (s *Steering) retry() {
	for flows, have := range s.inserted {
		if have.tags == 0 {
			_ = s.remove(flows)
		}
	}
}

// Drop removes the rules that lead dead tags to queues, except those that living ones need, after
// the process that inserted them has died.
func (s *Steering) Drop(dead, alive map[endpoint.Tag]uint32) error {
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
	stale := map[Rule]bool{}
	for t, queue := range dead {
		for _, r := range slices.Concat(RulesOf(t, queue)...) {
			stale[r] = true
		}
	}
	for t, queue := range alive {
		for _, r := range slices.Concat(RulesOf(t, queue)...) {
			delete(stale, r)
		}
	}
	for at, r := range table.others {
		if stale[r] {
			err = errors.Join(err, nic.AbsentDeviceIsFine(s.driver.Remove(at)))
		}
	}
	return err
}
