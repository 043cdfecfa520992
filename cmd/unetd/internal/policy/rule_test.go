//go:build linux

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

func tag(t *testing.T, text string) endpoint.Tag {
	t.Helper()
	parsed, err := endpoint.ParseTag(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// ruleWithTags is a rule with only patterns of tags.
func ruleWithTags(t *testing.T, patterns ...string) *Rule {
	t.Helper()
	r := &Rule{}
	for _, text := range patterns {
		p, err := ParsePattern(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		r.Tags = append(r.Tags, p)
	}
	return r
}

// Match returns the first rule for the subject, by uid or a group, and for the interface.
func TestMatch(t *testing.T) {
	p := parse(t, `
rules:
  - {name: bob-lab, users: [bob], interfaces: ["lab*", eth7], operator: true}
  - {name: bob, users: [bob], endpoints: 0}
  - {name: staff, groups: [staff], interfaces: ["*0"], operator: true}
  - {name: some, users: [alice], groups: [33], operator: true}
  - {name: rest, users: ["*"], interfaces: [eth1], operator: true}
`)
	for _, c := range []struct {
		s    mux.Owner
		on   string
		want string
	}{
		{mux.Owner{UID: 1002, GID: 9}, "lab", "bob-lab"},
		{mux.Owner{UID: 1002, GID: 9}, "lab0", "bob-lab"},
		{mux.Owner{UID: 1002, GID: 9}, "eth7", "bob-lab"},
		{mux.Owner{UID: 1002, GID: 9}, "eth70", "bob"},
		{mux.Owner{UID: 1002, GID: 50}, "eth0", "bob"}, // the first rule, though staff applies too
		{mux.Owner{UID: 1, GID: 50}, "eth0", "staff"},
		{mux.Owner{UID: 1, GID: 1, Groups: []uint32{7, 50}}, "eth0", "staff"},
		{mux.Owner{UID: 1, GID: 1, Groups: []uint32{7, 50}}, "eth1", "rest"},
		{mux.Owner{UID: 50, GID: 1}, "eth0", ""},
		{mux.Owner{UID: 1001, GID: 1}, "wlan", "some"},
		{mux.Owner{UID: 5, GID: 33}, "wlan", "some"},
		{mux.Owner{UID: 33, GID: 1}, "wlan", ""},
		{mux.Owner{UID: 0, GID: 0}, "eth0", ""}, // root, by *
		{mux.Owner{UID: 0, GID: 0}, "eth1", "rest"},
	} {
		got := ""
		if r := p.Match(c.s, c.on); r != nil {
			got = r.Name
		}
		if got != c.want {
			t.Errorf("%+v on %s: rule %q, want %q", c.s, c.on, got, c.want)
		}
	}
	var names []string
	for _, r := range p.MatchAll(mux.Owner{UID: 1002, GID: 50}) {
		names = append(names, r.Name)
	}
	if fmt.Sprint(names) != "[bob-lab bob]" {
		t.Errorf("%v", names)
	}
}

// A rule with cgroups is for users in these cgroups and in those below them; without users and groups
// it is for all users there. A cgroup that is not known is none.
func TestCgroups(t *testing.T) {
	p := parse(t, `
rules:
  - {name: web, users: [bob], cgroups: [/system.slice/web.service], operator: true}
  - {name: pods, cgroups: ["/kubepods.slice/*/cri-*.scope", '/a\x2d*'], operator: true}
  - {name: all, users: ["*"], cgroups: ["/"], interfaces: [eth1], operator: true}
  - {name: bob, users: [bob], operator: true}
`)
	for _, c := range []struct {
		uid              uint32
		cgroup, on, want string
	}{
		{1002, "/system.slice/web.service", "eth0", "web"},
		{1002, "/system.slice/web.service/worker", "eth0", "web"},
		{1002, "/system.slice/web.service2", "eth0", "bob"},
		{1002, "/system.slice", "eth0", "bob"},
		{1002, "/x/system.slice/web.service", "eth0", "bob"},
		{1002, "", "eth0", "bob"},
		{1001, "/system.slice/web.service", "eth0", ""},
		{1001, "/kubepods.slice/pod7/cri-0a.scope", "eth0", "pods"},
		{1001, "/kubepods.slice/pod7/cri-0a.scope/init", "eth0", "pods"},
		{1001, "/kubepods.slice/burstable/pod7/cri-0a.scope", "eth0", ""}, // * is one level
		{1001, `/a\x2db`, "eth0", "pods"},
		{1001, "/a-b", "eth0", ""},
		{1001, "/", "eth1", "all"},
		{1001, "/any/thing", "eth1", "all"},
		{1001, "", "eth1", ""},
	} {
		got := ""
		if r := p.Match(mux.Owner{UID: c.uid, GID: 9, Cgroup: c.cgroup}, c.on); r != nil {
			got = r.Name
		}
		if got != c.want {
			t.Errorf("uid %d in %q on %s: rule %q, want %q", c.uid, c.cgroup, c.on, got, c.want)
		}
	}
}

// * in the name of an interface stands for any text.
func TestGlobs(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"eth0", "eth0", true}, {"eth0", "eth01", false}, {"*", "x", true}, {"*", "", true}, {"e*0", "eth0", true}, {"e*0", "e0", true},
		{"e*0", "eth1", false}, {"*.100", "eth0.100", true}, {"*.100", "eth0.1000", false}, {"e*h*1*", "eth21", true}, {"e*h*1*", "eth2", false},
		{"a*a", "a", false}, {"a**b", "ab", true}, {"*aab", "aaab", true}, {"a.b", "axb", false}, {`a\b`, `a\b`, true}, {`a\b`, "ab", false},
	} {
		if got := (&Rule{Interfaces: []string{c.glob}}).isOn(c.name); got != c.want {
			t.Errorf("%s, %s: %v", c.glob, c.name, got)
		}
	}
}

// The tags that patterns permit, with 1024 as the first port that any user may bind.
func TestPermits(t *testing.T) {
	for _, c := range []struct {
		patterns string
		yes, no  string
	}{
		{"udp:10.0.0.1:7000-7999", "udp:10.0.0.1:7000 udp:10.0.0.1:7999 udp:10.0.0.1:7040-7103 udp:10.0.0.1:7936-7999", "udp:10.0.0.1:6999 udp:10.0.0.1:8000 udp:10.0.0.2:7000 tcp:10.0.0.1:7000 udp:10.0.0.1:6976-7039"},
		{"tcp:*:8080", "tcp:10.0.0.1:8080 tcp:[fd00::1]:8080", "tcp:10.0.0.1:80 udp:10.0.0.1:8080 tcp:10.0.0.1:8064-8127"},
		{"udp:*:* udp:0.0.0.0/0:5000 udp:[::/0]:5000", "udp:10.0.0.1:5000", "udp:239.1.2.3:5000 udp:[ff02::1]:5000 udp:255.255.255.255:5000"},
		{"udp:239.1.0.0/16:5000 udp:[ff00::/8]:*", "udp:239.1.2.3:5000 udp:[ff02::1]:5000", "udp:239.2.2.3:5000 udp:239.1.2.3:5001 udp:[ff02::1]:53 udp:10.0.0.1:5000 udp:[fd00::1]:5000"},
		{"udp:224.0.0.0/4:* udp:255.255.255.255:67", "udp:239.1.2.3:5000 udp:255.255.255.255:67", "udp:255.255.255.255:68 udp:10.0.0.255:67"},
		{"udp:*:*", "udp:10.0.0.1:1024 udp:10.0.0.1:65535 udp:[fd00::1]:5000 udp:10.0.0.1:1024-1087", "udp:10.0.0.1:1023 udp:10.0.0.1:960-1023 addr:10.0.0.1 msg:1"},
		{"udp:*:* udp:*:53 udp:*:123-124", "udp:10.0.0.1:53 udp:10.0.0.1:124 udp:10.0.0.1:1024", "udp:10.0.0.1:125 udp:10.0.0.1:54"},
		{"udp:*:1-65535", "udp:10.0.0.1:1 udp:10.0.0.1:960-1023", "tcp:10.0.0.1:1"},
		{"tcp:[fd00::1]:443", "tcp:[fd00::1]:443", "tcp:[fd00::2]:443 tcp:10.0.0.1:443"},
		{"tcp:[fd00::/64]:8443", "tcp:[fd00::7]:8443", "tcp:[fd00:0:0:1::7]:8443"},
		{"udp:10.0.0.0/24:5000", "udp:10.0.0.0:5000 udp:10.0.0.255:5000", "udp:10.0.1.0:5000 udp:[fd00::1]:5000"},
		{"udp:0.0.0.0/0:5000", "udp:1.2.3.4:5000", "udp:[fd00::1]:5000"},
		{"addr:10.0.0.128/25", "addr:10.0.0.128 addr:10.0.0.255", "addr:10.0.0.127 udp:10.0.0.130:7"},
		{"addr:fd00::/64", "addr:fd00::1", "addr:fd01::1 addr:10.0.0.1"},
		{"addr:*", "addr:10.0.0.1 addr:fd00::1", "udp:10.0.0.1:5000"},
		{"addr:10.0.0.9", "addr:10.0.0.9", "addr:10.0.0.8"},
		{"msg:1-1000", "msg:1 msg:1000", "msg:1001"},
		{"msg:7", "msg:7", "msg:8"},
		{"msg:*", "msg:1 msg:4294967295", "addr:10.0.0.1"},
		{"", "", "msg:1 udp:10.0.0.1:5000 addr:10.0.0.1"},
		// Several patterns together can permit a block.
		{"udp:*:6400-6430 udp:10.0.0.0/8:6431-6463", "udp:10.0.0.1:6400-6463", "udp:11.0.0.1:6400-6463"},
		{"udp:*:6400-6430 udp:*:6432-6463", "udp:10.0.0.1:6432", "udp:10.0.0.1:6400-6463 udp:10.0.0.1:6431"},
	} {
		r := ruleWithTags(t, strings.Fields(c.patterns)...)
		for want, texts := range map[bool]string{true: c.yes, false: c.no} {
			for _, text := range strings.Fields(texts) {
				if got := r.Permits(tag(t, text), 1024); got != want {
					t.Errorf("%q, %s: %v", c.patterns, text, got)
				}
			}
		}
	}
	// A system with another first port for all users, and root.
	if r := ruleWithTags(t, "udp:*:*"); !r.Permits(tag(t, "udp:10.0.0.1:1"), 1) || !r.Permits(tag(t, "udp:10.0.0.1:80"), 80) || r.Permits(tag(t, "udp:10.0.0.1:79"), 80) {
		t.Error("port * does not begin at the port that was given")
	}
	if r := ruleWithTags(t, "udp:10.0.0.1:5000"); !r.Permits(endpoint.Tag{Kind: endpoint.TagUDP, Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Port: 5000}, 1024) {
		t.Error("an IPv4 address in IPv6 form is not taken for the IPv4 address")
	}
	if ruleWithTags(t, "msg:*").Permits(endpoint.Tag{}, 1) {
		t.Error("the zero tag is permitted")
	}
}

// The tags among which a claim of any port or message tag chooses.
func TestChoices(t *testing.T) {
	for _, c := range []struct {
		patterns, wildcard string
		count              uint64
		first, last        string
		free               bool
	}{
		{"udp:*:7000-7999", "udp:10.0.0.1:0", 1000, "udp:10.0.0.1:7000", "udp:10.0.0.1:7999", false},
		{"udp:*:53 udp:*:7000", "udp:10.0.0.1:0", 1, "udp:10.0.0.1:7000", "udp:10.0.0.1:7000", false},
		{"udp:*:1000-1030", "udp:10.0.0.1:0", 7, "udp:10.0.0.1:1024", "udp:10.0.0.1:1030", false},
		{"udp:*:53", "udp:10.0.0.1:0", 0, "", "", false},
		{"udp:*:*", "udp:10.0.0.1:0", 64512, "udp:10.0.0.1:1024", "udp:10.0.0.1:65535", true},
		{"udp:*:1-65535", "udp:10.0.0.1:0", 64512, "udp:10.0.0.1:1024", "udp:10.0.0.1:65535", true},
		{"udp:10.0.0.0/24:1-30000 udp:*:30001-65535", "udp:10.0.0.1:0", 64512, "udp:10.0.0.1:1024", "udp:10.0.0.1:65535", true},
		{"tcp:*:*", "tcp:10.0.0.1:0-63", 1008, "tcp:10.0.0.1:1024-1087", "tcp:10.0.0.1:65472-65535", true},
		{"tcp:*:32768-33000", "tcp:10.0.0.1:0-63", 3, "tcp:10.0.0.1:32768-32831", "tcp:10.0.0.1:32896-32959", false},
		{"tcp:*:32769-32894", "tcp:10.0.0.1:0-63", 0, "", "", false},
		{"tcp:*:32769-32895", "tcp:10.0.0.1:0-63", 1, "tcp:10.0.0.1:32832-32895", "tcp:10.0.0.1:32832-32895", false},
		{"tcp:10.0.0.2:*", "tcp:10.0.0.1:0", 0, "", "", false},
		{"msg:5-6 msg:9", "msg:0", 3, "msg:5", "msg:9", false},
		{"msg:*", "msg:0", 1<<32 - 1, "msg:1", "msg:4294967295", true},
		{"udp:239.1.0.0/16:5000", "udp:0.0.0.0:0", 0, "", "", false},
		{"udp:*:*", "msg:0", 0, "", "", false},
		// The address stays a wildcard.
		{"udp:10.0.0.1:7000 udp:10.0.0.2:8000", "udp:0.0.0.0:0", 2, "udp:0.0.0.0:7000", "udp:0.0.0.0:8000", false},
		{"udp:[fd00::1]:*", "udp:0.0.0.0:0", 0, "", "", false},
		{"udp:[fd00::1]:*", "udp:[::]:0", 64512, "udp:[::]:1024", "udp:[::]:65535", true},
		{"udp:*:53", "udp:0.0.0.0:53", 1, "udp:0.0.0.0:53", "udp:0.0.0.0:53", false},
		{"udp:*:*", "udp:0.0.0.0:53", 0, "", "", false},
		{"udp:*:6400-6463", "udp:0.0.0.0:6400-6463", 1, "udp:0.0.0.0:6400-6463", "udp:0.0.0.0:6400-6463", false},
	} {
		got := ruleWithTags(t, strings.Fields(c.patterns)...).Choices(tag(t, c.wildcard), 1024, 1024)
		if got.Count() != c.count || got.Free != c.free {
			t.Errorf("%q, %s: %d choices, free %v", c.patterns, c.wildcard, got.Count(), got.Free)
		} else if c.count > 0 && (got.At(0).String() != c.first || got.At(c.count-1).String() != c.last) {
			t.Errorf("%q, %s: from %v to %v", c.patterns, c.wildcard, got.At(0), got.At(c.count-1))
		}
	}
}

// For random patterns the choices are all permitted tags, each once.
func TestChoicesAndPermitsAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	addr := netip.MustParseAddr("10.0.0.1")
	for range 50 {
		var patterns []string
		for range 1 + random.IntN(6) {
			first := 1 + random.IntN(65535)
			last := min(65535, first+random.IntN(1<<random.IntN(16)))
			patterns = append(patterns, fmt.Sprintf("udp:*:%d-%d", first, last))
		}
		r := ruleWithTags(t, patterns...)
		dynamic := uint16(1 + random.IntN(5000))
		for _, block := range []bool{false, true} {
			wildcard := endpoint.Tag{Kind: endpoint.TagUDP, Addr: addr, Block: block}
			choices := r.Choices(wildcard, dynamic, dynamic)
			chosen := map[endpoint.Tag]bool{}
			for i := range choices.Count() {
				chosen[choices.At(i)] = true
			}
			permitted := 0
			for port := int(dynamic); port <= 65535; port++ {
				c := wildcard
				c.Port = uint16(port)
				if block && port%endpoint.BlockPorts != 0 {
					continue
				}
				if r.Permits(c, dynamic) {
					permitted++
					if !chosen[c] {
						t.Fatalf("%v: %v is permitted and no choice", patterns, c)
					}
				}
			}
			if permitted != len(chosen) || uint64(permitted) != choices.Count() {
				t.Fatalf("%v, block %v: %d permitted, %d choices", patterns, block, permitted, choices.Count())
			}
		}
	}
}

// The errors of patterns that are not correct.
func TestPatternErrors(t *testing.T) {
	for text, want := range map[string]string{
		"udp":                      "want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER",
		"":                         "want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER",
		"UDP:*:7":                  `"UDP" is not a kind of tag: want udp, tcp, addr or msg`,
		"tcp:239.1.2.3:80":         "239.1.2.3 is a group, which TCP has not: write udp:239.1.2.3:80",
		"addr:ff00::/8":            "ff00::/8 is a group, which no endpoint has as a whole: write udp:ff00::/8:PORT, with an IPv6 address in brackets",
		"udp:*":                    "want udp:ADDR:PORT: write udp:*:* for all ports",
		"udp:*:":                   `"" is not a port: want a number from 1 to 65535, a range N-M, or *`,
		"udp:*:http":               `"http" is not a port: want a number from 1 to 65535, a range N-M, or *`,
		"udp:*:65536":              `"65536" is not a port: want a number from 1 to 65535, a range N-M, or *`,
		"udp:*:0":                  "port 0 means any free one in a claim: begin at 1, or write * for all",
		"udp:*:0-7":                "port 0 means any free one in a claim: begin at 1, or write * for all",
		"udp:*:9-7":                `"9-7" ends before it begins: write 7-9`,
		"udp:*:7-":                 `"7-" is not a port: want a number from 1 to 65535, a range N-M, or *`,
		"udp:10.0.0.0/33:7":        `"10.0.0.0/33" is not an address: want one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/24, or *`,
		"udp:host:7":               `"host" is not an address: want one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/24, or *`,
		"udp:10.0.0.5/24:7":        "10.0.0.5/24 has bits beyond its length: write 10.0.0.0/24",
		"udp:0.0.0.0:7":            "0.0.0.0 is the unspecified address: write * for all addresses",
		"tcp:fd00::1:443":          "an IPv6 address before a port is in brackets: write [fd00::1]",
		"tcp:[10.0.0.1]:443":       `"[10.0.0.1]": brackets are for an IPv6 address or prefix, such as [fd00::1] or [fd00::/64]`,
		"tcp:[fd00::1:443":         `"[fd00::1": brackets are for an IPv6 address or prefix, such as [fd00::1] or [fd00::/64]`,
		"tcp:[fe80::1%eth0]:443":   "fe80::1%eth0: an address has no zone here: write fe80::1",
		"tcp:[::ffff:10.0.0.1]:80": "::ffff:10.0.0.1 is an IPv4 address in IPv6 form: write it as IPv4",
		"addr:":                    `"" is not an address: want one such as 10.0.0.1 or fd00::1, a prefix such as 10.0.0.0/24, or *`,
		"addr:::":                  ":: is the unspecified address: write * for all addresses",
		"msg:0":                    "message tag 0 means any free one in a claim: begin at 1, or write * for all",
		"msg:4294967296":           `"4294967296" is not a message tag: want a number from 1 to 4294967295, a range N-M, or *`,
	} {
		if _, err := ParsePattern(text); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Without a file root may do everything, and other users nothing.
func TestBuiltIn(t *testing.T) {
	p := BuiltIn()
	r := p.Match(mux.Owner{}, "eth0")
	if r == nil || r.Endpoints != Unlimited || r.Memory != Unlimited || !r.Trusted || !r.Infrastructure || !r.Operator {
		t.Fatalf("%+v", r)
	}
	for _, text := range []string{"udp:10.0.0.1:1", "tcp:[fd00::1]:65535", "addr:10.0.0.1", "addr:fd00::1", "msg:1", "tcp:10.0.0.1:64-127"} {
		if !r.Permits(tag(t, text), 1) {
			t.Errorf("%s is not permitted", text)
		}
	}
	if r := p.Match(mux.Owner{UID: 1, GID: 0, Groups: []uint32{0}}, "eth0"); r != nil {
		t.Errorf("group 0 got %+v", r)
	}
}
