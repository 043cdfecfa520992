//go:build linux

package steer

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/steer/steertest"
)

// modelDriver is a driver of classification rules.
type modelDriver = steertest.Model[Rule]

func newModelDriver(size uint32) *modelDriver { return steertest.NewModel[Rule](size) }

func tagOfText(t *testing.T, text string) endpoint.Tag {
	t.Helper()
	tag, err := endpoint.ParseTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// nonzero is the bytes of b that are not 0, by offset.
func nonzero(b []byte) string {
	var list []string
	for i := 0; i < len(b); i++ {
		from := i
		for i < len(b) && b[i] != 0 {
			i++
		}
		if i > from {
			list = append(list, fmt.Sprintf("%d:%x", from, b[from:i]))
		}
	}
	return strings.Join(list, " ")
}

// The commands have the bytes of those of a C program that was compiled with linux/ethtool.h.
func TestRulesHaveKernelLayout(t *testing.T) {
	const all16 = "ffffffffffffffffffffffffffffffff"
	for _, c := range []struct {
		tag  string
		want []string
	}{
		{"udp:10.0.0.1:7000", []string{"0:32 16:02 24:0a 27:01 30:1b58 96:ffffffff 102:ffff 168:02 176:05"}},
		{"tcp:10.0.0.1:40000-40063", []string{"0:32 16:01 24:0a 27:01 30:9c40 96:ffffffff 102:ffc0 168:02 176:05"}},
		{"tcp:[fd01:203::1]:443", []string{"0:32 16:05 36:fd010203 51:01 54:01bb 108:" + all16 + " 126:ffff 168:02 176:05"}},
		{"udp:[fd01:203::1]:443", []string{"0:32 16:06 36:fd010203 51:01 54:01bb 108:" + all16 + " 126:ffff 168:02 176:05"}},
		{"addr:10.0.0.77", []string{"0:32 16:0d 24:0a 27:4d 33:01 96:ffffffff 168:02 176:05", "0:32 16:12 32:0806 104:ffff 168:02 176:05"}},
		{"addr:fd01::12:3477", []string{"0:32 16:0e 36:fd01 49:123477 108:" + all16 + " 168:02 176:05", "0:32 16:0e 36:ff02 47:01ff123477 108:" + all16 + " 168:02 176:05"}},
		{"msg:7", []string{"0:32 16:12 32:88b5 104:ffff 168:02 176:05"}},
	} {
		var got []string
		for _, r := range RulesOf(tagOfText(t, c.tag), 2)[0] {
			b := newRxnfc(unix.ETHTOOL_SRXCLSRLINS, 0)
			b.putRule(r, 5)
			got = append(got, nonzero(b))
			if back := b.rule(); back != r {
				t.Errorf("%s: %+v was read as %+v", c.tag, r, back)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.tag, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// A rule with conditions that unet's rules do not have does not count as one of them.
func TestRulesWithOtherConditionsAreNotOurs(t *testing.T) {
	ours := RulesOf(tagOfText(t, "udp:10.0.0.1:7000"), 2)[0][0]
	b := newRxnfc(unix.ETHTOOL_GRXCLSRULE, 0)
	b.putRule(ours, 5)
	b.put32(rxnfcFlow, flowUDP4|0x80000000)
	if b.rule() != ours {
		t.Error("FLOW_EXT without a further field")
	}
	b[rxnfcMaskExt+10] = 0x0f // of the VLAN tag
	if r := b.rule(); r == ours || r.covers(ours) {
		t.Error("a rule for one VLAN counts as a rule for all frames")
	}
	b = newRxnfc(unix.ETHTOOL_GRXCLSRULE, 0)
	b.putRule(ours, 5)
	b.put32(rxnfcFlow, flowUDP4|0x20000000) // FLOW_RSS
	if r := b.rule(); r == ours || r.covers(ours) {
		t.Error("a rule to an RSS context counts as a rule to a queue")
	}
}

// A driver that answers EINVAL to the count of rules has none. Other errors stay errors.
func TestDriverWithoutRules(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		none  bool
	}{{unix.EINVAL, true}, {unix.EOPNOTSUPP, true}, {unix.EIO, false}} {
		d := DriverRules{
			name:    func() (string, error) { return "uplink", nil },
			command: func(string, []byte) error { return c.errno },
		}
		if _, _, _, err := d.Locations(); errors.Is(err, unix.EOPNOTSUPP) != c.none || !errors.Is(err, c.errno) {
			t.Errorf("%v: %v", c.errno, err)
		}
		s := Steering{driver: &d}
		if err := s.Drop(map[endpoint.Tag]uint32{tagOfText(t, "udp:10.0.0.1:7000"): 1}, nil); (err == nil) != c.none {
			t.Errorf("%v: sweep of the rules of ended endpoints: %v", c.errno, err)
		}
	}
}

// The tags whose frames come in on a queue without a classification rule, by the spread of the device.
func TestQueueOfTagWithoutRule(t *testing.T) {
	const port, owned4, owned6, message = "tcp:10.0.0.1:80", "addr:10.0.0.77", "addr:fd00::77", "msg:7"
	for _, c := range []struct {
		s     Spread
		queue uint32
		leads []string // of the four
	}{
		{Spread{Queues: 1}, 0, []string{port, owned4, owned6, message}},
		{Spread{Queues: 4, Table: []uint32{0, 1, 2, 3}}, 0, []string{message}},
		{Spread{Queues: 4, Table: []uint32{0, 1, 2, 3}}, 1, nil},
		{Spread{Queues: 4, Table: []uint32{2, 2}}, 2, []string{port, owned6}},
		{Spread{Queues: 4, Table: []uint32{2, 2}}, 0, []string{message}},
		{Spread{Queues: 4, Table: []uint32{0, 0}}, 0, []string{port, owned4, owned6, message}},
		{Spread{Queues: 4}, 0, nil}, // as virtio_net without RSS: the host chooses
	} {
		for _, tag := range []string{port, owned4, owned6, message} {
			if got := c.s.leads(tagOfText(t, tag), c.queue); got != slices.Contains(c.leads, tag) {
				t.Errorf("%+v: %s to queue %d: %v", c.s, tag, c.queue, got)
			}
		}
	}
}

// A driver that cannot mask ports gets one rule for each port of a block. If one of them is refused, the others
// of the block are removed.
func TestBlockOnDriverWithoutPortMasks(t *testing.T) {
	d := newModelDriver(100)
	d.Accepts = func(r Rule) error {
		if m := r.mask[atPort4 : atPort4+2]; m[0] != 0xff || m[1] != 0xff {
			return unix.EINVAL
		}
		return nil
	}
	s := Steering{driver: d}
	block := tagOfText(t, "udp:10.0.0.1:40000-40063")
	rules, err := s.insert(block, 1, false)
	if err != nil || len(rules) != 64 || len(d.Rules) != 64 {
		t.Fatalf("%d rules, %d in the driver, %v", len(rules), len(d.Rules), err)
	}
	if _, err := s.insert(tagOfText(t, "udp:10.0.0.1:40064-40127"), 1, false); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a block that has no room: %v", err)
	}
	if len(d.Rules) != 64 {
		t.Errorf("%d rules after an error", len(d.Rules))
	}
	if err := s.Release(rules); err != nil || len(d.Rules) != 0 || len(s.inserted) != 0 {
		t.Errorf("%d rules are left: %v", len(d.Rules), err)
	}
}

// One rule is for all messages, and one for all ARP requests. Endpoints on the same queue share it, and an
// endpoint on another queue gets an error.
func TestRulesThatTagsShare(t *testing.T) {
	d := newModelDriver(16)
	s := Steering{driver: d}
	first, err := s.insert(tagOfText(t, "msg:7"), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.insert(tagOfText(t, "msg:8"), 1, false)
	if err != nil || len(d.Rules) != 1 {
		t.Fatalf("%d rules, %v", len(d.Rules), err)
	}
	if _, err := s.insert(tagOfText(t, "msg:9"), 2, false); !errors.Is(err, errElsewhere) {
		t.Errorf("on another queue: %v", err)
	}
	if _, err := s.insert(tagOfText(t, "addr:10.0.0.77"), 1, false); err != nil || len(d.Rules) != 3 {
		t.Fatalf("%d rules, %v", len(d.Rules), err)
	}
	if _, err := s.insert(tagOfText(t, "addr:10.0.0.78"), 2, false); !errors.Is(err, errElsewhere) || len(d.Rules) != 3 {
		t.Errorf("%d rules, %v", len(d.Rules), err)
	}
	if err := s.Release(first); err != nil || len(d.Rules) != 3 {
		t.Errorf("%d rules after the first of two, %v", len(d.Rules), err)
	}
	if err := s.Release(second); err != nil || len(d.Rules) != 2 {
		t.Errorf("%d rules after both, %v", len(d.Rules), err)
	}
}

// A rule of the operator that leads a tag to the queue is used and stays. One that leads it to
// another queue is an error.
func TestRulesOfTheOperator(t *testing.T) {
	tag := tagOfText(t, "tcp:10.0.0.1:80")
	exact := RulesOf(tag, 2)[0][0]
	ofAddress := RulesOf(tagOfText(t, "addr:10.0.0.1"), 2)[0][0]
	ofPort := Rule{kind: flowTCP4, ring: 2}.where(atPort4, []byte{0, 80}, nil)
	for _, r := range []Rule{exact, ofAddress, ofPort} {
		d := newModelDriver(16)
		d.Rules[9] = r
		s := Steering{driver: d}
		rules, err := s.insert(tag, 2, false)
		if err != nil || len(rules) != 0 || len(d.Rules) != 1 {
			t.Errorf("%+v: %v, %d rules", r, err, len(d.Rules))
		}
		if err := s.Release(rules); err != nil || d.Rules[9] != r {
			t.Errorf("%+v did not stay: %v", r, err)
		}
	}
	for _, r := range []Rule{
		RulesOf(tagOfText(t, "udp:10.0.0.1:80"), 2)[0][0],
		RulesOf(tagOfText(t, "tcp:10.0.0.2:80"), 2)[0][0],
		RulesOf(tagOfText(t, "addr:10.0.0.2"), 2)[0][0],
		exact.where(8, []byte{0, 9}, nil),    // one source port only
		ofAddress.where(14, []byte{17}, nil), // UDP only
		RulesOf(tagOfText(t, "msg:1"), 2)[0][0],
		{kind: flowTCP4, ring: 3},
	} {
		d := newModelDriver(16)
		d.Rules[9] = r
		s := Steering{driver: d}
		if rules, err := s.insert(tag, 2, false); err != nil || !slices.Equal(rules, []Rule{exact}) || d.Rules[0] != exact || d.Rules[9] != r {
			t.Errorf("%+v counts as a rule that leads the tag: %v", r, err)
		}
	}
	d := newModelDriver(16)
	d.Rules[9] = RulesOf(tag, 3)[0][0]
	s := Steering{driver: d}
	if _, err := s.insert(tag, 2, false); !errors.Is(err, errElsewhere) || len(d.Rules) != 1 {
		t.Errorf("to another queue: %v, %d rules", err, len(d.Rules))
	}
}

// Of several rules that match, the lowest location has effect. A rule of the operator that leads
// more than the tag to another queue is an error only if it stands below the tag's own rule.
func TestRulesOfTheOperatorByLocation(t *testing.T) {
	tag := tagOfText(t, "tcp:10.0.0.1:80")
	exact := RulesOf(tag, 2)[0][0]
	toQueue := func(queue uint64) Rule {
		r := RulesOf(tagOfText(t, "addr:10.0.0.1"), 0)[0][0]
		r.ring = queue
		return r
	}
	for _, c := range []struct {
		what      string
		rules     map[uint32]Rule
		chooses   bool
		elsewhere bool
		inserted  int
	}{
		{"elsewhere at 0", map[uint32]Rule{0: toQueue(3)}, false, true, 0},
		{"elsewhere at 1", map[uint32]Rule{1: toQueue(3)}, false, false, 1},
		{"elsewhere at 0, to the queue at 1", map[uint32]Rule{0: toQueue(3), 1: toQueue(2)}, false, true, 0},
		{"to the queue at 0, elsewhere at 1", map[uint32]Rule{0: toQueue(2), 1: toQueue(3)}, false, false, 0},
		{"elsewhere at 1, to the queue at 2", map[uint32]Rule{1: toQueue(3), 2: toQueue(2)}, false, false, 1},
		{"to the queue at 0, the tag elsewhere at 1", map[uint32]Rule{0: toQueue(2), 1: RulesOf(tag, 3)[0][0]}, false, true, 0},
		{"the driver chooses a higher location", map[uint32]Rule{0: toQueue(3)}, true, true, 0},
		{"the driver chooses a lower location", map[uint32]Rule{15: toQueue(3)}, true, false, 1},
	} {
		d := newModelDriver(16)
		d.Rules, d.Chooses = maps.Clone(c.rules), c.chooses
		s := Steering{driver: d}
		rules, err := s.insert(tag, 2, false)
		if errors.Is(err, errElsewhere) != c.elsewhere || !c.elsewhere && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if len(rules) != c.inserted || len(d.Rules) != len(c.rules)+c.inserted {
			t.Errorf("%s: %d rules for the tag, the driver has %v", c.what, len(rules), d.Rules)
		}
	}
	// An earlier process's rule is found beside one that covers it, in whatever order they are read.
	for range 50 {
		d := newModelDriver(16)
		d.Rules[0], d.Rules[5] = toQueue(2), exact
		s := Steering{driver: d}
		rules, err := s.insert(tag, 2, true)
		if err != nil || !slices.Equal(rules, []Rule{exact}) {
			t.Fatalf("taken over: %v, %v", rules, err)
		}
		if err := s.Release(rules); err != nil || !maps.Equal(d.Rules, map[uint32]Rule{0: toQueue(2)}) {
			t.Fatalf("left: %v, %v", d.Rules, err)
		}
	}
}

// A process that takes over knows the rules of tags of endpoints that exist, and removes those of endpoints that
// have ended.
func TestRulesAreTakenOver(t *testing.T) {
	d := newModelDriver(16)
	before := Steering{driver: d}
	held, ended, other := tagOfText(t, "tcp:10.0.0.1:80"), tagOfText(t, "addr:10.0.0.77"), tagOfText(t, "udp:10.0.0.1:9")
	for _, tag := range []endpoint.Tag{held, ended} {
		if _, err := before.insert(tag, 1, false); err != nil {
			t.Fatal(err)
		}
	}
	operators := RulesOf(other, 3)[0][0]
	d.Rules[7] = operators
	s := Steering{driver: d}
	// The rule of all messages is also that of a tag that is held.
	messages := [2]endpoint.Tag{tagOfText(t, "msg:7"), tagOfText(t, "msg:8")}
	if _, err := before.insert(messages[0], 1, false); err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(map[endpoint.Tag]uint32{ended: 1, messages[0]: 1}, map[endpoint.Tag]uint32{held: 1, messages[1]: 1}); err != nil || len(d.Rules) != 3 {
		t.Errorf("%d rules without those of ended endpoints: %v", len(d.Rules), err)
	}
	rules, err := s.insert(held, 1, true)
	if err != nil || len(rules) != 1 {
		t.Fatalf("%v, %d rules", err, len(d.Rules))
	}
	ofMessages, err := s.insert(messages[1], 1, true)
	if err != nil || len(ofMessages) != 1 || len(d.Rules) != 3 {
		t.Fatalf("%v, %d rules", err, len(d.Rules))
	}
	rules = append(rules, ofMessages...)
	if err := s.Release(rules); err != nil || len(d.Rules) != 1 || d.Rules[7] != operators {
		t.Errorf("%v are left: %v", d.Rules, err)
	}
}

// A process that takes over removes the rules of a tag with the tag, also if the tag needs no rule any
// more: its frames come in on the queue without one, or the endpoint has the owned address, too.
func TestRulesThatAreNotNeededAreTakenOver(t *testing.T) {
	block := tagOfText(t, "tcp:10.0.0.1:40000-40063")
	for _, ofOwned := range []bool{false, true} {
		d := newModelDriver(16)
		before := Steering{driver: d}
		if _, err := before.insert(block, 1, false); err != nil {
			t.Fatal(err)
		}
		rx := Spread{Queues: 4, Table: []uint32{1, 1}}
		s := New("", false, d, func() (Spread, error) { return rx, nil })
		if ofOwned {
			rx.Table = []uint32{0, 1}
		}
		if rules, _, err := s.Lead(block, 1, ofOwned, false); err != nil || len(rules) != 0 {
			t.Errorf("a new tag: %v, %v", rules, err)
		}
		rules, _, err := s.Lead(block, 1, ofOwned, true)
		if err != nil || len(rules) != 1 || len(d.Rules) != 1 {
			t.Errorf("%v, %v, the driver has %v", rules, err, d.Rules)
		}
		if err := s.Release(rules); err != nil || len(d.Rules) != 0 {
			t.Errorf("left: %v, %v", d.Rules, err)
		}
	}
}

// Another program inserts and deletes rules at any time. Its rules stay, and each claimed tag has its rule.
func TestRulesBesideAnotherProgram(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := newModelDriver(24)
		d.Chooses = seed%5 == 0
		theirs := map[uint32]Rule{}
		port := uint16(0)
		other := func() {
			port++
			at := d.Highest()
			if rng.IntN(2) == 0 { // where the mux inserts next
				for at = 0; d.Rules[at] != (Rule{}); at++ {
				}
			}
			if at < d.Size {
				r := RulesOf(endpoint.TCPTag(netip.AddrPortFrom(netip.MustParseAddr("10.9.9.9"), port)), 3)[0][0]
				d.Rules[at], theirs[at] = r, r
			}
		}
		d.Listed = func() {
			switch rng.IntN(4) {
			case 0:
				other()
			case 1:
				for at := range theirs {
					delete(d.Rules, at)
					delete(theirs, at)
					break
				}
			}
		}
		s := Steering{driver: d}
		held := map[endpoint.Tag][]Rule{}
		for range 200 {
			tag := endpoint.UDPTag(netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(1+rng.IntN(20))))
			if rules, is := held[tag]; is {
				if err := s.Release(rules); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				delete(held, tag)
			} else if rules, err := s.insert(tag, 1, false); err == nil {
				held[tag] = rules
			} else if !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			want := maps.Clone(theirs)
			for tag := range held {
				r := RulesOf(tag, 1)[0][0]
				at := s.inserted[r.flows()].at
				want[at] = r
			}
			if !maps.Equal(want, d.Rules) {
				t.Fatalf("seed %d: the driver has %v, want %v", seed, d.Rules, want)
			}
		}
	}
}

// A rule that another program has replaced is not removed with the tag.
func TestReplacedRuleStays(t *testing.T) {
	d := newModelDriver(16)
	s := Steering{driver: d}
	rules, err := s.insert(tagOfText(t, "tcp:10.0.0.1:80"), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	replaced := RulesOf(tagOfText(t, "tcp:10.0.0.1:81"), 3)[0][0]
	d.Rules[0] = replaced
	if err := s.Release(rules); err != nil || d.Rules[0] != replaced {
		t.Errorf("%v, %v", d.Rules, err)
	}
}

// A rule that cannot be removed with its tag is removed with the next change, and serves its tag
// until then if that is claimed again.
func TestRuleThatCannotBeRemoved(t *testing.T) {
	first, second := tagOfText(t, "tcp:10.0.0.1:80"), tagOfText(t, "tcp:10.0.0.1:81")
	for _, ofGet := range []bool{false, true} {
		d := newModelDriver(16)
		s := Steering{driver: d}
		insert := func(tag endpoint.Tag, queue uint32) []Rule {
			t.Helper()
			rules, err := s.insert(tag, queue, false)
			if err != nil || len(rules) != 1 {
				t.Fatalf("%v: %v, %v", tag, rules, err)
			}
			return rules
		}
		left := func(rules []Rule) {
			t.Helper()
			if ofGet {
				d.GetErr = unix.EIO
			} else {
				d.RemoveErr = unix.EIO
			}
			if err := s.Release(rules); !errors.Is(err, unix.EIO) || len(s.inserted) == 0 {
				t.Errorf("%v, %d entries", err, len(s.inserted))
			}
			d.GetErr = nil
		}
		want := func(what string, n int) {
			t.Helper()
			if len(d.Rules) != n || len(s.inserted) != n {
				t.Errorf("%s: %d rules, %d entries, want %d", what, len(d.Rules), len(s.inserted), n)
			}
		}
		other := insert(second, 1)
		left(insert(first, 1))
		want("not removed", 2)
		again := insert(first, 1)
		want("claimed again", 2)
		left(again)
		d.RemoveErr = nil
		if err := s.Release(other); err != nil {
			t.Error(err)
		}
		want("another tag's is removed", 0)
		left(insert(first, 1))
		d.RemoveErr = nil
		moved := insert(first, 2)
		want("on another queue", 1)
		if err := s.Release(moved); err != nil {
			t.Error(err)
		}
		want("all", 0)
	}
}
