//go:build linux

package policy

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/unet-go/unet/mux"
)

// Policy is a list of rules.
type Policy struct {
	File  string // "": built in
	Rules []*Rule
}

// BuiltIn is the policy without a file: uid 0 may do everything, other users nothing.
func BuiltIn() *Policy {
	all := Rule{
		Name:       "built-in",
		Users:      []Principal{{Name: "0"}},
		Interfaces: []string{"*"},
		Endpoints:  Unlimited,
		Memory:     Unlimited,
		Ports:      Unlimited,
		Trusted:    true,
		Operator:   true,

		Infrastructure: true,
		NATWarn:        true,
	}
	for _, text := range []string{"udp:*:*", "udp:224.0.0.0/4:*", "udp:[ff00::/8]:*", "udp:255.255.255.255:*", "tcp:*:*", "addr:*", "msg:*"} {
		p, err := ParsePattern(text)
		if err != nil {
			panic(fmt.Sprintf("BUG: pattern %s: %v", text, err))
		}
		all.Tags = append(all.Tags, p)
	}
	return &Policy{Rules: []*Rule{&all}}
}

// String names the policy in messages.
func (p *Policy) String() string {
	if p.File == "" {
		return "the built-in policy"
	}
	return p.File
}

// Match is the rule for an owner on an interface; nil: there is none, so nothing is permitted.
func (p *Policy) Match(o mux.Owner, interfaceName string, alternative ...string) *Rule {
	for _, r := range p.Rules {
		if r.isFor(o) && (r.isOn(interfaceName) || slices.ContainsFunc(alternative, r.isOn)) {
			return r
		}
	}
	return nil
}

// MatchAll are the rules for an owner on any interface, in order, up to the first one that is for
// all interfaces.
func (p *Policy) MatchAll(o mux.Owner) []*Rule {
	var all []*Rule
	for _, r := range p.Rules {
		if !r.isFor(o) {
			continue
		}
		all = append(all, r)
		if r.onAll() {
			break
		}
	}
	return all
}

// changes compares p with an earlier policy, a line for each difference.
func (p *Policy) changes(before *Policy) []string {
	lines := []string{}
	if p.File != before.File {
		lines = append(lines, fmt.Sprintf("%v instead of %v", p, before))
	}
	old, now := map[string]*Rule{}, map[string]bool{}
	for _, r := range p.Rules {
		now[r.Name] = true
	}
	var kept, oldOrder []string
	for _, r := range before.Rules {
		old[r.Name] = r
		if now[r.Name] {
			oldOrder = append(oldOrder, r.Name)
		} else {
			lines = append(lines, "rule "+r.Name+": removed")
		}
	}
	for _, r := range p.Rules {
		was := old[r.Name]
		if was == nil {
			lines = append(lines, "rule "+r.Name+": added")
			continue
		}
		kept = append(kept, r.Name)
		as := *was
		as.Line = r.Line // not a change
		if !reflect.DeepEqual(&as, r) {
			lines = append(lines, "rule "+r.Name+": changed")
		}
	}
	if !slices.Equal(kept, oldOrder) {
		lines = append(lines, "the order of the rules has changed")
	}
	return lines
}

// Error is an error at one place of a policy file.
type Error struct {
	File    string
	Line    int // from 1
	Column  int // from 1
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
}

// Errors are all errors of a file, in the order of their places.
type Errors []*Error

// Error has a line for each error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// Bytes writes a limit in bytes as in a policy file.
func Bytes(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return mux.Size(n).String()
}

// Count writes a limit that is a number, as in a policy file.
func Count(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}
