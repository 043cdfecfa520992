//go:build linux

package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/unet-go/unet/endpoint"
)

// parser collects the errors of a file.
type parser struct {
	file  string
	names Names
	errs  Errors
	rated map[*Rule]bool // rules with rates of their own
}

// Parse reads a policy. The error is an [Errors].
func Parse(file string, text []byte, names Names) (*Policy, error) {
	p := &parser{file: file, names: names, rated: map[*Rule]bool{}}
	policy := &Policy{File: file}
	if doc := p.document(text); doc != nil {
		policy.Rules = p.policy(doc)
	}
	if p.errs != nil {
		p.errs.sort()
		return nil, p.errs
	}
	return policy, nil
}

func (p *parser) fail(n *yaml.Node, format string, args ...any) {
	p.failAt(n.Line, n.Column, format, args...)
}

func (p *parser) failAt(line, column int, format string, args ...any) {
	p.errs = append(p.errs, &Error{p.file, max(line, 1), max(column, 1), oneLine(fmt.Sprintf(format, args...))})
}

// oneLine replaces control characters, so that an error is one line of a log.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}

// document is the root of the only document of a file.
func (p *parser) document(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF), err == nil && len(doc.Content) == 0:
		p.failAt(1, 1, "there is nothing in this file: write rules: and a list of rules (an empty list, [], permits nobody anything)")
		return nil
	case err != nil:
		p.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&next); {
	case err == nil:
		p.fail(&next, "a second document begins here: write all rules into one, and remove the ---")
	case !errors.Is(err, io.EOF):
		p.syntax(err)
	}
	return doc.Content[0]
}

// syntax reports an error of the YAML library, whose text has the line. Errors of the library's
// parser count lines from 0, those of its scanner from 1.
func (p *parser) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, found := strings.CutPrefix(text, "line "); found {
		if number, message, found := strings.Cut(rest, ": "); found {
			if n, err := strconv.Atoi(number); err == nil {
				line, text = n, message
			}
		}
	}
	for _, grammar := range []string{"expected key", "expected '-'", "expected ','", "expected node", "<document start>"} {
		if strings.Contains(text, grammar) {
			line++
			break
		}
	}
	advice := ""
	switch {
	case strings.Contains(text, "alphabetic or numeric"): // the reader reads * as an alias
		advice = `: write "*" in quotes`
	case strings.Contains(text, "start any token"), strings.Contains(text, "tab character"):
		advice = ": indent by spaces, and put what begins with a special character into quotes"
	}
	p.failAt(line, 1, "not YAML, here or in the lines around: %s%s", text, advice)
}

// kinds are the names of node kinds in messages.
var kinds = map[yaml.Kind]string{
	yaml.MappingNode: "a mapping (name: value)", yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value", 0: "nothing",
}

// field is a key of a mapping and the function that reads its value.
type field struct {
	name string
	read func(value *yaml.Node)
}

// mapping reads a mapping that has some of the fields, each once.
func (p *parser) mapping(n *yaml.Node, what string, fields []field) {
	n = target(n)
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%s is a mapping (name: value), and this is %s", what, kindOf(n))
		return
	}
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := slices.Index(names, key.Value)
		if at < 0 || key.Kind != yaml.ScalarNode {
			p.fail(key, "%s has no field %q: want %s", what, key.Value, strings.Join(names, ", "))
			continue
		}
		if line, again := seen[key.Value]; again {
			p.fail(key, "%s is here a second time, after line %d: remove one of them", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		fields[at].read(value)
	}
}

// target is the node that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func kindOf(n *yaml.Node) string {
	if isNull(n) {
		return kinds[0]
	}
	return kinds[n.Kind]
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// list reads the elements of a list.
func (p *parser) list(n *yaml.Node, what, example string, read func(*yaml.Node)) {
	n = target(n)
	if n.Kind != yaml.SequenceNode {
		p.fail(n, "%s is a list, and this is %s: write %s", what, kindOf(n), example)
		return
	}
	for _, element := range n.Content {
		read(target(element))
	}
}

// scalar is the text of a single value.
func (p *parser) scalar(n *yaml.Node, what string) (text string, ok bool) {
	n = target(n)
	switch {
	case n.Kind == yaml.MappingNode:
		p.fail(n, "%s is a single value, and this is a mapping: put what has a colon at its end into quotes", what)
	case n.Kind == yaml.ScalarNode && !isNull(n) && n.Value == "":
		p.fail(n, "%s is empty: write something, or leave it out", what)
	case n.Kind != yaml.ScalarNode || isNull(n):
		p.fail(n, "%s is a single value, and this is %s", what, kindOf(n))
	default:
		return n.Value, true
	}
	return "", false
}

func (p *parser) policy(root *yaml.Node) []*Rule {
	var rules []*Rule
	var usual endpoint.Rates
	seen := false
	p.mapping(root, "a policy", []field{
		{"rules", func(n *yaml.Node) {
			seen = true
			p.list(n, "rules", "one rule after another, each beginning with -", func(n *yaml.Node) { rules = append(rules, p.rule(n)) })
		}},
		{"rates", func(n *yaml.Node) { usual = p.rates(n) }},
	})
	if !seen && p.errs == nil {
		p.fail(root, "a policy without rules: write rules: and a list of them")
	}
	for _, r := range rules {
		if !p.rated[r] && r.Endpoints != 0 && !r.givesQueues() {
			r.Rates = usual
		}
	}
	p.compare(rules)
	return rules
}

func (p *parser) rule(n *yaml.Node) *Rule {
	r := &Rule{Line: n.Line, Interfaces: []string{"*"}, Ports: DefaultPorts}
	before := len(p.errs)
	given := map[string]*yaml.Node{}
	fields := []field{
		{"name", func(n *yaml.Node) { r.Name, _ = p.scalar(n, "a name") }},
		{"users", func(n *yaml.Node) {
			p.list(n, "users", `[alice, 1001], or ["*"] for everybody`, func(n *yaml.Node) { r.Users = append(r.Users, p.principal(n, "user")) })
		}},
		{"groups", func(n *yaml.Node) {
			p.list(n, "groups", "[staff, 1001]", func(n *yaml.Node) { r.Groups = append(r.Groups, p.principal(n, "group")) })
		}},
		{"cgroups", func(n *yaml.Node) {
			p.list(n, "cgroups", `[/system.slice/web.service, "/kubepods.slice/*"]`, func(n *yaml.Node) { r.Cgroups = append(r.Cgroups, p.cgroup(n)) })
		}},
		{"interfaces", func(n *yaml.Node) {
			r.Interfaces = nil
			p.list(n, "interfaces", `[eth0, "ens*"]`, func(n *yaml.Node) { r.Interfaces = append(r.Interfaces, p.interfaceName(n)) })
		}},
		{"tags", func(n *yaml.Node) {
			p.list(n, "tags", `["udp:*:7000-7999"]`, func(n *yaml.Node) { r.Tags = append(r.Tags, p.pattern(n)) })
		}},
		{"endpoints", func(n *yaml.Node) { r.Endpoints = p.limit(n, "endpoints", "a number such as 16", count) }},
		{"memory", func(n *yaml.Node) { r.Memory = p.limit(n, "memory", "a size such as 64MiB", bytesOf) }},
		{"ports", func(n *yaml.Node) { r.Ports = p.limit(n, "ports", "a number such as 8192", count) }},
		{"trusted", func(n *yaml.Node) { r.Trusted = p.choice(n, "trusted", "true", "false") }},
		{"queues", func(n *yaml.Node) {
			r.Queues = Queues{}
			p.list(n, "queues", "[0-3, 8]", func(n *yaml.Node) { r.Queues = append(r.Queues, p.queues(n)...) })
			if r.Queues = Queues(merge(r.Queues)); r.Queues == nil {
				r.Queues = Queues{}
			}
		}},
		{"infrastructure", func(n *yaml.Node) { r.Infrastructure = p.choice(n, "infrastructure", "true", "false") }},
		{"memory_paths", func(n *yaml.Node) { r.NoMemoryPaths = !p.choice(n, "memory_paths", "true", "false") }},
		{"operator", func(n *yaml.Node) { r.Operator = p.choice(n, "operator", "true", "false") }},
		{"rates", func(n *yaml.Node) { r.Rates, p.rated[r] = p.rates(n), true }},
		{"nat", func(n *yaml.Node) { r.NATWarn = p.choice(n, "nat", "warn", "refuse") }},
	}
	for i, f := range fields {
		fields[i].read = func(n *yaml.Node) { given[f.name] = n; f.read(n) }
	}
	p.mapping(n, "a rule", fields)
	if len(p.errs) == before {
		p.complete(n, r, given)
	}
	return r
}

// complete refuses a rule with fields that are correct one by one but make no sense together.
func (p *parser) complete(n *yaml.Node, r *Rule, given map[string]*yaml.Node) {
	gives := r.Trusted || len(r.Tags) > 0 || r.Memory != 0
	switch {
	case r.Name == "":
		p.fail(n, "a rule without a name: write name: and one that messages can call it by")
	case given["cgroups"] != nil && len(r.Cgroups) == 0:
		p.fail(given["cgroups"], "rule %s is for no cgroup: leave cgroups out if it is for all", r.Name)
	case len(r.Users)+len(r.Groups) == 0 && (len(r.Cgroups) == 0 || given["users"] != nil || given["groups"] != nil):
		p.fail(n, `rule %s is for nobody: write users:, groups: or cgroups: (users: ["*"] for everybody)`, r.Name)
	case len(r.Interfaces) == 0:
		p.fail(given["interfaces"], "rule %s is about no interface: leave interfaces out if it is about all", r.Name)
	case given["ports"] != nil && r.Ports == 0:
		p.fail(given["ports"], "ports: 0: write how many, or leave tags out")
	case given["queues"] != nil && !r.Trusted:
		p.fail(given["queues"], "queues: only trusted users may attach to queues: write trusted: true, or leave queues out")
	case r.Rates != (endpoint.Rates{}) && r.givesQueues():
		p.fail(given["rates"], "rates: nothing limits what is sent on a queue, and trusted users may attach to queues: write queues: [], or remove trusted: or rates:")
	case r.Rates != (endpoint.Rates{}) && r.Endpoints == 0:
		p.fail(given["rates"], "rates: rule %s gives no endpoints: write endpoints: and how many, or leave rates out", r.Name)
	case r.NoMemoryPaths && r.Endpoints == 0:
		p.fail(given["memory_paths"], "memory_paths: rule %s gives no endpoints: write endpoints: and how many, or leave memory_paths out", r.Name)
	case r.Endpoints == 0 && gives:
		p.fail(n, "rule %s gives tags, memory or trust, but no endpoints: write endpoints: and how many, or unlimited", r.Name)
	case r.Endpoints == 0 && !r.Operator && given["endpoints"] == nil:
		p.fail(n, "rule %s gives nothing: write endpoints: and how many (0 if it is there to refuse)", r.Name)
	case r.Endpoints != 0 && r.Memory == 0:
		p.fail(n, "rule %s gives endpoints, but no memory: write memory: and a size, or unlimited", r.Name)
	case r.Endpoints != 0 && len(r.Tags) == 0 && !r.Trusted:
		p.fail(n, "rule %s gives endpoints, but no tags to send and receive by: write tags: and a list", r.Name)
	}
}

// compare refuses rules with the same name, and rules after one that is for all users on all
// interfaces.
func (p *parser) compare(rules []*Rule) {
	lines := map[string]int{}
	var last *Rule // for all users on all interfaces
	for _, r := range rules {
		if line, again := lines[r.Name]; again && r.Name != "" {
			p.failAt(r.Line, 1, "there is a rule %s in line %d: choose another name", r.Name, line)
		}
		lines[r.Name] = r.Line
		if last != nil {
			p.failAt(r.Line, 1, "rule %s is never used: rule %s in line %d is for everybody on every interface: move that one to the end", r.Name, last.Name, last.Line)
		} else if r.onAll() && r.Cgroups == nil && slices.ContainsFunc(r.Users, func(u Principal) bool { return u.Name == everybody }) {
			last = r
		}
	}
}

// principal reads a user or group, by name or number.
func (p *parser) principal(n *yaml.Node, what string) Principal {
	text, ok := p.scalar(n, "a "+what)
	if !ok || what == "user" && text == everybody {
		return Principal{Name: text}
	}
	if id, err := strconv.ParseUint(text, 10, 32); err == nil && id < noGroup {
		return Principal{text, uint32(id)}
	}
	find := p.names.User
	if what == "group" {
		find = p.names.Group
	}
	id, err := find(text)
	var noUser user.UnknownUserError
	var unknownGroup user.UnknownGroupError
	switch {
	case errors.As(err, &noUser), errors.As(err, &unknownGroup):
		p.fail(n, "there is no %s %q on this system: correct it, or write the number", what, text)
	case err != nil:
		p.fail(n, "cannot look %s %q up: %v", what, text, err)
	}
	return Principal{text, id}
}

// maxInterfaceName is ALTIFNAMSIZ without its NUL, bytes: a rule can have an alternative name.
const maxInterfaceName = 127

func (p *parser) interfaceName(n *yaml.Node) string {
	text, ok := p.scalar(n, "an interface")
	bad := func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("/:?[]", r) }
	if ok && (len(strings.ReplaceAll(text, "*", "")) > maxInterfaceName || strings.ContainsFunc(text, bad)) {
		p.fail(n, "%q cannot be the name of an interface: want one such as eth0, or ens* for all that begin so", text)
	}
	return text
}

func (p *parser) cgroup(n *yaml.Node) string {
	text, ok := p.scalar(n, "a cgroup")
	if ok && (path.Clean(text) != text || !path.IsAbs(text) || strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || strings.ContainsRune("?[]", r) })) {
		p.fail(n, "%q cannot be the path of a cgroup: want one such as /system.slice/web.service, as /proc/PID/cgroup shows it after 0::, or with * between two slashes", text)
	}
	return text
}

func (p *parser) pattern(n *yaml.Node) Pattern {
	text, ok := p.scalar(n, "a tag")
	if !ok {
		return Pattern{}
	}
	pattern, err := ParsePattern(text)
	if err != nil {
		p.fail(n, "tag %q: %v", text, err)
	}
	return pattern
}

// queues reads a queue or a range of queues. The kernel numbers queues in 16 bits.
func (p *parser) queues(n *yaml.Node) Queues {
	text, ok := p.scalar(n, "a queue")
	if !ok {
		return nil
	}
	q, ok := parseRange(text)
	if !ok || q.last > math.MaxUint16 || q.first > q.last {
		p.fail(n, "queues: %q: write a number such as 8, or a range such as 0-3; leave queues out for all", text)
	}
	return Queues{q}
}

// choice reads one of two words.
func (p *parser) choice(n *yaml.Node, what, yes, no string) bool {
	text, ok := p.scalar(n, what)
	if ok && text != yes && text != no {
		p.fail(n, "%s: %q: write %s or %s", what, text, yes, no)
	}
	return text == yes
}

// limit reads a number, or unlimited.
func (p *parser) limit(n *yaml.Node, what, want string, read func(string) (int64, bool)) int64 {
	text, ok := p.scalar(n, what)
	if !ok || text == "unlimited" {
		return Unlimited
	}
	v, ok := read(text)
	if !ok {
		p.fail(n, "%s: %q: write %s, or unlimited", what, text, want)
	}
	return v
}

func count(text string) (int64, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int64(n), err == nil
}

// bytesOf reads a size with a binary unit.
func bytesOf(text string) (int64, bool) {
	for _, unit := range []struct {
		name  string
		bytes uint64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}} {
		if number, found := strings.CutSuffix(text, unit.name); found {
			n, err := strconv.ParseUint(strings.TrimSuffix(number, " "), 10, 64)
			return int64(n * unit.bytes), err == nil && n <= math.MaxInt64/unit.bytes
		}
	}
	return 0, text == "0"
}
