//go:build linux

package policy

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"testing"

	"github.com/unet-go/unet/bpf"
)

// testNames are the users and groups of the tests.
func testNames() Names {
	find := func(ids map[string]uint32, unknown func(string) error) func(string) (uint32, error) {
		return func(name string) (uint32, error) {
			if id, ok := ids[name]; ok {
				return id, nil
			}
			return 0, unknown(name)
		}
	}
	return Names{
		User: find(map[string]uint32{"root": 0, "alice": 1001, "bob": 1002, "nobody": 65534, "www-data": 33},
			func(name string) error { return user.UnknownUserError(name) }),
		Group: find(map[string]uint32{"staff": 50, "www-data": 33, "adm": 4},
			func(name string) error { return user.UnknownGroupError(name) }),
	}
}

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("p", []byte(text), testNames())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// All fields of rules.
func TestParse(t *testing.T) {
	p := parse(t, `
# Comments are as everywhere.
rules:
  - name: web
    users: [alice, 1007]
    groups:
      - www-data
      - 4242
    interfaces: [eth0, "ens*"]
    tags:
      - tcp:*:8080
      - tcp:[fd00::1]:443
      - msg:1-1000
    endpoints: 16
    memory: 256MiB
    trusted: true
    infrastructure: true
    memory_paths: false
  - {name: reader, users: [bob], operator: true}
  - name: others
    users: ["*"]
    endpoints: 0
`)
	web := p.Rules[0]
	if fmt.Sprint(web.Users, web.Groups, web.Interfaces, web.Tags) != "[{alice 1001} {1007 1007}] [{www-data 33} {4242 4242}] [eth0 ens*] [tcp:*:8080 tcp:[fd00::1]:443 msg:1-1000]" ||
		web.Name != "web" || web.Line != 4 || web.Endpoints != 16 || web.Memory != 256<<20 || !web.Trusted || !web.Infrastructure || !web.NoMemoryPaths || web.Operator {
		t.Errorf("%+v", web)
	}
	reader := p.Rules[1]
	if reader.Endpoints != 0 || reader.Memory != 0 || !reader.Operator || reader.Trusted || reader.Infrastructure || reader.NoMemoryPaths || reader.Line != 19 || !reader.onAll() {
		t.Errorf("%+v", reader)
	}
	if others := p.Rules[2]; others.Line != 20 || others.Endpoints != 0 || others.Users[0].Name != everybody {
		t.Errorf("%+v", others)
	}
	if p := parse(t, "rules: []"); len(p.Rules) != 0 {
		t.Errorf("%+v", p)
	}
}

// The units of memory, and unlimited.
func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"1KiB": 1 << 10, "64 MiB": 64 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40, "unlimited": Unlimited,
	} {
		p := parse(t, `rules: [{name: a, users: [bob], tags: ["msg:*"], endpoints: unlimited, memory: `+text+`}]`)
		if got := p.Rules[0]; got.Memory != want || got.Endpoints != Unlimited {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// rule is a file of one rule with the given lines in it; they begin in line 4.
func rule(lines ...string) string {
	return "rules:\n  - name: a\n    users: [alice]\n    " + strings.Join(lines, "\n    ") + "\n"
}

// complete are the fields that a rule needs besides its name and users.
const complete = "tags: [\"msg:*\"]\n    endpoints: 1\n    memory: 1MiB"

// Each error has its line and column, and the correction.
func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "1:1: there is nothing in this file: write rules: and a list of rules (an empty list, [], permits nobody anything)"},
		{"# nothing\n", "1:1: there is nothing in this file: write rules: and a list of rules (an empty list, [], permits nobody anything)"},
		{"~", "1:1: a policy is a mapping (name: value), and this is nothing"},
		{"- name: a\n", "1:1: a policy is a mapping (name: value), and this is a list"},
		{"{}", "1:1: a policy without rules: write rules: and a list of them"},
		{"rule: []\n", `1:1: a policy has no field "rule": want rules, rates`},
		{"rules:\n", "1:7: rules is a list, and this is nothing: write one rule after another, each beginning with -"},
		{"rules: {name: a}\n", "1:8: rules is a list, and this is a mapping (name: value): write one rule after another, each beginning with -"},
		{"rules: []\nrules: []\n", "2:1: rules is here a second time, after line 1: remove one of them"},
		{"rules: []\n---\nrules: []\n", "2:1: a second document begins here: write all rules into one, and remove the ---"},
		{"rules: []\n---\n[\n", "4:1: not YAML, here or in the lines around: did not find expected node content"},
		{"rules: [alice]\n", "1:9: a rule is a mapping (name: value), and this is a single value"},
		{"rules:\n  - users: [alice]\n    " + complete + "\n", "2:5: a rule without a name: write name: and one that messages can call it by"},
		{"rules:\n  - name: a\n    " + complete + "\n", `2:5: rule a is for nobody: write users:, groups: or cgroups: (users: ["*"] for everybody)`},
		{"rules:\n  - name: a\n    users: []\n    cgroups: [/a]\n    " + complete + "\n", `2:5: rule a is for nobody: write users:, groups: or cgroups: (users: ["*"] for everybody)`},
		{rule("operator: true", "cgroups: []"), "5:14: rule a is for no cgroup: leave cgroups out if it is for all"},
		{rule("operator: true", "cgroups: [/a, b]"), `5:19: "b" cannot be the path of a cgroup: want one such as /system.slice/web.service, as /proc/PID/cgroup shows it after 0::, or with * between two slashes`},
		{rule("operator: true", "cgroups: [/a/../b]"), `5:15: "/a/../b" cannot be the path of a cgroup: want one such as /system.slice/web.service, as /proc/PID/cgroup shows it after 0::, or with * between two slashes`},
		{rule("operator: true", "cgroups: [\"/a/?\"]"), `5:15: "/a/?" cannot be the path of a cgroup: want one such as /system.slice/web.service, as /proc/PID/cgroup shows it after 0::, or with * between two slashes`},
		{rule(), "2:5: rule a gives nothing: write endpoints: and how many (0 if it is there to refuse)"},
		{rule("tags: [\"msg:1\"]"), "2:5: rule a gives tags, memory or trust, but no endpoints: write endpoints: and how many, or unlimited"},
		{rule("endpoints: 0", "trusted: true"), "2:5: rule a gives tags, memory or trust, but no endpoints: write endpoints: and how many, or unlimited"},
		{rule("endpoints: 1", "tags: [\"msg:1\"]"), "2:5: rule a gives endpoints, but no memory: write memory: and a size, or unlimited"},
		{rule("endpoints: 1", "memory: 1MiB"), "2:5: rule a gives endpoints, but no tags to send and receive by: write tags: and a list"},
		{rule("interfaces: []", complete), "4:17: rule a is about no interface: leave interfaces out if it is about all"},
		{rule(complete, "colour: red"), `7:5: a rule has no field "colour": want name, users, groups, cgroups, interfaces, tags, endpoints, memory, ports, trusted, queues, infrastructure, memory_paths, operator, rates, nat`},
		{rule(complete, "users: [bob]"), "7:5: users is here a second time, after line 3: remove one of them"},
		{rule(complete, "? [a]\n    : b"), `7:7: a rule has no field "": want name, users, groups, cgroups, interfaces, tags, endpoints, memory, ports, trusted, queues, infrastructure, memory_paths, operator, rates, nat`},
		{rule(complete, "groups: staff"), "7:13: groups is a list, and this is a single value: write [staff, 1001]"},
		{rule(complete, "groups: [staff, stuff]"), `7:21: there is no group "stuff" on this system: correct it, or write the number`},
		{rule(complete, "groups: [4294967295]"), `7:14: there is no group "4294967295" on this system: correct it, or write the number`},
		{rule(complete, "groups: [-1]"), `7:14: there is no group "-1" on this system: correct it, or write the number`},
		{rule(complete, `groups: ["*"]`), `7:14: there is no group "*" on this system: correct it, or write the number`},
		{rule(complete, `groups: [""]`), "7:14: a group is empty: write something, or leave it out"},
		{"rules:\n  - name: a\n    users: [carol]\n    " + complete + "\n", `3:13: there is no user "carol" on this system: correct it, or write the number`},
		{"rules:\n  - name: a\n    users: [*]\n    " + complete + "\n", `3:1: not YAML, here or in the lines around: did not find expected alphabetic or numeric character: write "*" in quotes`},
		{"rules:\n  - name: a\n    users: [bob, ~]\n    " + complete + "\n", "3:18: a user is a single value, and this is nothing"},
		{"rules:\n  - name: \"a\\nb\"\n    users: []\n    " + complete + "\n", `2:5: rule a b is for nobody: write users:, groups: or cgroups: (users: ["*"] for everybody)`},
		{rule(complete, "interfaces: [eth 0]"), `7:18: "eth 0" cannot be the name of an interface: want one such as eth0, or ens* for all that begin so`},
		{rule(complete, "interfaces: ["+strings.Repeat("n", 128)+"]"), `7:18: "` + strings.Repeat("n", 128) + `" cannot be the name of an interface: want one such as eth0, or ens* for all that begin so`},
		{rule(complete, `interfaces: ["eth[01]"]`), `7:18: "eth[01]" cannot be the name of an interface: want one such as eth0, or ens* for all that begin so`},
		{rule(complete, "infrastructure: vrrp"), `7:21: infrastructure: "vrrp": write true or false`},
		{rule(complete, "memory_paths: no"), `7:19: memory_paths: "no": write true or false`},
		{rule("operator: true", "memory_paths: false"), "5:19: memory_paths: rule a gives no endpoints: write endpoints: and how many, or leave memory_paths out"},
		{rule(complete, "trusted: yes"), `7:14: trusted: "yes": write true or false`},
		{rule(complete, "queues: [0-3]"), "7:13: queues: only trusted users may attach to queues: write trusted: true, or leave queues out"},
		{rule(complete, "trusted: true", "queues: 0-3"), "8:13: queues is a list, and this is a single value: write [0-3, 8]"},
		{rule(complete, "trusted: true", "queues: [0, all]"), `8:17: queues: "all": write a number such as 8, or a range such as 0-3; leave queues out for all`},
		{rule(complete, "trusted: true", "queues: [3-0]"), `8:14: queues: "3-0": write a number such as 8, or a range such as 0-3; leave queues out for all`},
		{rule(complete, "rates: 5"), `7:12: rates: "5": write {endpoint: {packets: 100000/s, bits: 1Gbit/s}}, with user: for all endpoints of a user together, or unlimited`},
		{rule(complete, "rates: [5]"), "7:12: rates is a mapping (name: value), and this is a list"},
		{rule(complete, "rates: {packets: 5/s}"), `7:13: rates has no field "packets": want endpoint, user`},
		{rule(complete, "rates: {user: 5/s}"), "7:19: the rate of a user is a mapping (name: value), and this is a single value"},
		{rule(complete, "rates: {user: {bytes: 5/s}}"), `7:20: the rate of a user has no field "bytes": want packets, bits, burst`},
		{rule(complete, "rates: {endpoint: {packets: 5}}"), `7:33: packets: "5": write a rate such as 100000/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {packets: 0/s}}"), `7:33: packets: "0/s": write a rate such as 100000/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {packets: 1000000001/s}}"), `7:33: packets: "1000000001/s": write a rate such as 100000/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {bits: 1GB/s}}"), `7:30: bits: "1GB/s": write a rate such as 1Gbit/s, 500Mbit/s or 64kbit/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {bits: 401Gbit/s}}"), `7:30: bits: "401Gbit/s": write a rate such as 1Gbit/s, 500Mbit/s or 64kbit/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {bits: 18446744073709551616kbit/s}}"), `7:30: bits: "18446744073709551616kbit/s": write a rate such as 1Gbit/s, 500Mbit/s or 64kbit/s, or unlimited`},
		{rule(complete, "rates: {endpoint: {packets: 5/s, burst: 1s}}"), `7:45: burst: "1s": write a time from 1ms to 100ms`},
		{rule(complete, "rates: {endpoint: {packets: 5/s, burst: 64}}"), `7:45: burst: "64": write a time from 1ms to 100ms`},
		{rule(complete, "rates: {endpoint: {burst: 5ms}}"), "7:31: burst: there is no rate that it belongs to: write packets: or bits:, or leave burst out"},
		{rule(complete, "trusted: true", "rates: {user: {packets: 5/s}}"), "8:12: rates: nothing limits what is sent on a queue, and trusted users may attach to queues: write queues: [], or remove trusted: or rates:"},
		{rule("operator: true", "rates: {user: {packets: 5/s}}"), "5:12: rates: rule a gives no endpoints: write endpoints: and how many, or leave rates out"},
		{rule(complete, "nat: allow"), `7:10: nat: "allow": write warn or refuse`},
		{rule(complete, "nat: [warn]"), "7:10: nat is a single value, and this is a list"},
		{rule(complete, "operator: [true]"), "7:15: operator is a single value, and this is a list"},
		{rule("endpoints: many"), `4:16: endpoints: "many": write a number such as 16, or unlimited`},
		{rule("endpoints: -1"), `4:16: endpoints: "-1": write a number such as 16, or unlimited`},
		{rule("ports: -1"), `4:12: ports: "-1": write a number such as 8192, or unlimited`},
		{rule("memory: 64"), `4:13: memory: "64": write a size such as 64MiB, or unlimited`},
		{rule("memory: 64MB"), `4:13: memory: "64MB": write a size such as 64MiB, or unlimited`},
		{rule("memory: 8388608TiB"), `4:13: memory: "8388608TiB": write a size such as 64MiB, or unlimited`},
		{rule("memory: 1.5GiB"), `4:13: memory: "1.5GiB": write a size such as 64MiB, or unlimited`},
		{rule("tags: udp:*:*"), `4:11: tags is a list, and this is a single value: write ["udp:*:7000-7999"]`},
		{rule("tags:", "  - udp:*:7", "  - addr:fd00::"), "6:9: a tag is a single value, and this is a mapping: put what has a colon at its end into quotes"},
		{rule("tags: [sctp:*:7]"), `4:12: tag "sctp:*:7": "sctp" is not a kind of tag: want udp, tcp, addr or msg`},
		{rule("tags: [all]"), `4:12: tag "all": want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER`},
		{"rules:\n\t- name: a\n", "2:1: not YAML, here or in the lines around: found character that cannot start any token: indent by spaces, and put what begins with a special character into quotes"},
		{"rules:\n  - name: a\n   users: [alice]\n", "2:1: not YAML, here or in the lines around: did not find expected '-' indicator"},
		{"rules:\n  - name: a\n    users: [alice\n    tags: []\n", "3:1: not YAML, here or in the lines around: did not find expected ',' or ']'"},
		{"rules: \x80\n", "1:1: not YAML, here or in the lines around: invalid leading UTF-8 octet"},
		{
			"rules:\n  - {name: a, users: [\"*\"], endpoints: 0}\n  - {name: b, users: [bob], endpoints: 0}\n",
			"3:1: rule b is never used: rule a in line 2 is for everybody on every interface: move that one to the end",
		},
		{
			"rules:\n  - {name: a, users: [alice], endpoints: 0}\n  - {name: a, users: [bob], endpoints: 0}\n",
			"3:1: there is a rule a in line 2: choose another name",
		},
		{ // all errors, in order
			"rules:\n  - {name: a, users: [carol, dave], endpoints: x}\n  - {name: b, groups: [none]}\n",
			"2:23: there is no user \"carol\" on this system: correct it, or write the number\n" +
				"2:30: there is no user \"dave\" on this system: correct it, or write the number\n" +
				"2:48: endpoints: \"x\": write a number such as 16, or unlimited\n" +
				"3:24: there is no group \"none\" on this system: correct it, or write the number",
		},
	} {
		_, err := Parse("FILE", []byte(c.text), testNames())
		var all Errors
		if !errors.As(err, &all) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
			continue
		}
		if got := strings.ReplaceAll(all.Error(), "FILE:", ""); got != c.want {
			t.Errorf("%q:\n got %s\nwant %s", c.text, got, c.want)
		}
	}
}

// If a user cannot be looked up, the error is not that there is no such user.
func TestFailedUserLookup(t *testing.T) {
	broken := Names{User: func(string) (uint32, error) { return 0, errors.New("no answer") }}
	_, err := Parse("p", []byte(rule(complete)), broken)
	if err == nil || err.Error() != `p:3:13: cannot look user "alice" up: no answer` {
		t.Error(err)
	}
}

// An alias is equal to its target, also if that is a mapping or a list.
func TestAliases(t *testing.T) {
	p := parse(t, `
rules:
  - name: a
    users: &who [alice]
    tags: &what [&one "msg:1", "msg:3"]
    endpoints: 1
    memory: &size 1MiB
  - name: b
    groups: [staff]
    users: *who
    tags: [*one]
    endpoints: 2
    memory: *size
`)
	if b := p.Rules[1]; fmt.Sprint(b.Users, b.Tags, b.Memory) != "[{alice 1001}] [msg:1] 1048576" {
		t.Errorf("%+v", b)
	}
}

// Users of the system, by name and by number.
func TestSystemNames(t *testing.T) {
	n := SystemNames()
	if id, err := n.User("root"); id != 0 || err != nil {
		t.Errorf("%d, %v", id, err)
	}
	var unknown user.UnknownUserError
	if _, err := n.User("no-such-user-here"); !errors.As(err, &unknown) {
		t.Errorf("%v", err)
	}
	if s, err := OwnerOf("root"); err != nil || s.UID != 0 || s.GID != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := OwnerOf("4000000000"); err != nil || s.UID != 4000000000 || s.GID != noGroup || s.Groups != nil {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := OwnerOf("no-such-user-here"); err == nil || !strings.Contains(err.Error(), "write a name or a uid") {
		t.Error(err)
	}
}

// FuzzParse: no file makes the parser panic, each error is one line with a place in the file, and the
// rules of an accepted policy can be used.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../../../../docs/policy.example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(example)
	for _, text := range []string{
		"rules: []", rule(complete), rule(complete, "trusted: true", "operator: true", "nat: warn"), rule(complete, "infrastructure: true"), rule(complete, "memory_paths: false"), "rules: [{name: a, cgroups: [/a], operator: true}]", "rules:\n\t-", "rules: &a [*a]", "a: &a [*a, *a]\nrules: *a", "--- \n...\n--- x",
		"rates: {endpoint: {packets: 5/s, bits: 5kbit/s, burst: 1ms}}\n" + rule(complete), rule(complete, "rates: unlimited"), rule(complete, "rates: {endpoint: {packets: unlimited}, user: {bits: 400Gbit/s, burst: 100ms}}"),
		rule("tags: [\"udp:10.0.0.0/24:5000\", \"tcp:[fd00::1]:443\", \"addr:fd00::/64\", \"msg:1-4294967295\"]", "endpoints: 1", "memory: unlimited"),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse("file", text, testNames())
		var all Errors
		switch {
		case err == nil:
			for _, r := range p.Rules {
				if r.Name == "" || len(r.Users)+len(r.Groups)+len(r.Cgroups) == 0 || len(r.Interfaces) == 0 || r.Endpoints < Unlimited || r.Memory < Unlimited || max(r.Rates.Endpoint.ByteBurst, r.Rates.User.ByteBurst) > bpf.MaxBucket {
					t.Errorf("%+v", r)
				}
				for _, pattern := range r.Tags {
					again, err := ParsePattern(pattern.String())
					if err != nil || again != pattern {
						t.Errorf("%+v becomes %+v, %v", pattern, again, err)
					}
				}
			}
		case p != nil || !errors.As(err, &all) || len(all) == 0:
			t.Errorf("%v, %v", p, err)
		}
		lines := 1 + strings.Count(string(text), "\n") + strings.Count(string(text), "\r")
		for _, other := range []string{"\u0085", "\u2028", "\u2029"} { // YAML's
			lines += strings.Count(string(text), other)
		}
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Line > lines+1 || e.Message == "" || strings.ContainsAny(e.Message, "\n\r") {
				t.Errorf("%+v of %q", e, text)
			}
		}
	})
}

// The limit of ports has a default, and is at least one.
func TestPortsOfARule(t *testing.T) {
	for text, want := range map[string]int64{"": DefaultPorts, ", ports: 1": 1, ", ports: 64512": 64512, ", ports: unlimited": Unlimited} {
		p := parse(t, `rules: [{name: a, users: [bob], tags: ["msg:*"], endpoints: 1, memory: 1MiB`+text+`}]`)
		if got := p.Rules[0].Ports; got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	_, err := Parse("f", []byte(`rules: [{name: a, users: ["1"], tags: ["msg:*"], endpoints: 1, memory: 1MiB, ports: 0}]`), Names{})
	if err == nil || !strings.Contains(err.Error(), "ports: 0: write how many, or leave tags out") {
		t.Errorf("no ports: %v", err)
	}
}
