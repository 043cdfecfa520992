//go:build linux

package show

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// Question is what a user may have by a policy.
type Question struct {
	Owner       mux.Owner
	User        string   // as on the command line
	Interface   string   // "": on each interface
	Alternative []string // other names of Interface
	Tags        []endpoint.Tag
}

// Answer writes the rules of a policy without mistakes that apply to the question, and what each permits. The error
// says how many tags one of them refuses; if none applies, all are refused.
func (q *Question) Answer(w io.Writer, p *policy.Policy) error {
	var applies []*policy.Rule
	if q.Interface == "" {
		applies = p.MatchAll(q.Owner)
	} else if rule := p.Match(q.Owner, q.Interface, q.Alternative...); rule != nil {
		applies = append(applies, rule)
	}
	subject := fmt.Sprintf("user %s (uid %d)", q.User, q.Owner.UID)
	if q.Owner.Cgroup != "" {
		subject += " in cgroup " + q.Owner.Cgroup
	}
	if q.Interface != "" {
		subject += " on " + q.Interface
	}
	var b strings.Builder
	if len(applies) == 0 {
		fmt.Fprintf(&b, "%s: no rule of %s applies: nothing is permitted\n", subject, p)
	}
	refused := map[endpoint.Tag]bool{}
	for _, t := range q.Tags {
		refused[t] = len(applies) == 0
	}
	for i, rule := range applies {
		if i > 0 {
			subject = "else"
		}
		fmt.Fprint(&b, subject)
		if q.Interface == "" {
			fmt.Fprintf(&b, " on %s", strings.Join(rule.Interfaces, ", "))
		}
		if rule.Line > 0 {
			fmt.Fprintf(&b, ": rule %s, line %d\n", rule.Name, rule.Line)
		} else {
			fmt.Fprintf(&b, ": %s\n", p)
		}
		trials := p.Try(rule, q.Owner, q.Interface, q.Tags)
		permits(&b, rule, q.Owner.UID, trials)
		for _, t := range trials {
			refused[t.Tag] = refused[t.Tag] || t.Err != nil
		}
	}
	if n := len(applies); n > 0 && q.Interface == "" && !slices.Contains(applies[n-1].Interfaces, "*") {
		fmt.Fprintln(&b, "else: no rule applies: nothing is permitted")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	maps.DeleteFunc(refused, func(_ endpoint.Tag, is bool) bool { return !is })
	if len(refused) > 0 {
		return fmt.Errorf("refused: %d of %d tags", len(refused), len(q.Tags))
	}
	return nil
}

// permits writes what a rule permits a user.
func permits(b *strings.Builder, rule *policy.Rule, uid uint32, trials []policy.Trial) {
	t := table(b)
	fmt.Fprintf(t, "  endpoints\t%s\n", policy.Count(rule.Endpoints))
	fmt.Fprintf(t, "  memory\t%s\n", policy.Bytes(rule.Memory))
	fmt.Fprintf(t, "  ports\t%s\n", policy.Count(rule.Ports))
	name := "tags"
	for _, p := range rule.Tags {
		note := ""
		if floor := policy.Floor(uid); p.Open() && floor > 1 {
			note = fmt.Sprintf(" (ports from %d on)", floor)
		}
		fmt.Fprintf(t, "  %s\t%s%s\n", name, p, note)
		name = ""
	}
	if len(rule.Tags) == 0 {
		fmt.Fprint(t, "  tags\tnone\n")
	}
	queues := "none"
	if rule.Trusted {
		queues = rule.Queues.String()
	}
	fmt.Fprintf(t, "  queues\t%s\n", queues)
	if rule.Rates != (endpoint.Rates{}) {
		fmt.Fprintf(t, "  rates\tendpoint: %s\n  \tuser: %s\n", policy.Rate(rule.Rates.Endpoint), policy.Rate(rule.Rates.User))
	}
	if rule.Infrastructure {
		fmt.Fprint(t, "  infrastructure\tyes\n")
	}
	if rule.NoMemoryPaths {
		fmt.Fprint(t, "  memory_paths\tno\n")
	}
	fmt.Fprintf(t, "  operator\t%s\n", either(rule.Operator || uid == 0, "yes", "no"))
	fmt.Fprintf(t, "  nat\t%s\n", either(rule.NATWarn, "warn", "refuse"))
	for _, trial := range trials {
		if trial.Err != nil {
			fmt.Fprintf(t, "  refused\t%v: %v\n", trial.Tag, trial.Err)
		} else {
			fmt.Fprintf(t, "  granted\t%v, by %s\n", trial.Tag, trial.Pattern)
		}
	}
	t.Flush()
}

func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

// Rules writes a line for each rule of a policy without mistakes.
func Rules(w io.Writer, p *policy.Policy) error {
	switch n := len(p.Rules); {
	case p.File == "":
		fmt.Fprintf(w, "there is no %s: the built-in policy applies\n\n", policy.DefaultFile)
	case n == 0:
		_, err := fmt.Fprintf(w, "%s: OK, no rules: nothing is permitted\n", p)
		return err
	case n == 1:
		fmt.Fprintf(w, "%s: OK, 1 rule\n\n", p)
	default:
		fmt.Fprintf(w, "%s: OK, %d rules\n\n", p, n)
	}
	t := table(w)
	fmt.Fprintln(t, "RULE\tUSERS\tGROUPS\tINTERFACES\tENDPOINTS\tMEMORY\tPORTS\tALSO\tTAGS")
	for _, rule := range p.Rules {
		var also []string
		note := func(has bool, text string) {
			if has {
				also = append(also, text)
			}
		}
		note(rule.Trusted, "trusted")
		for _, c := range rule.Cgroups {
			note(true, "cgroup:"+c)
		}
		note(rule.Queues != nil, "queues:"+rule.Queues.String())
		note(rule.Rates != (endpoint.Rates{}), "rates")
		note(rule.Infrastructure, "infrastructure")
		note(rule.NoMemoryPaths, "memory_paths:false")
		note(rule.Operator, "operator")
		note(rule.NATWarn, "nat:warn")
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", rule.Name, joined(names(rule.Users)), joined(names(rule.Groups)), joined(rule.Interfaces),
			policy.Count(rule.Endpoints), policy.Bytes(rule.Memory), policy.Count(rule.Ports), joined(also), joined(rule.Tags))
	}
	return t.Flush()
}

func joined[T any](list []T) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

func names(list []policy.Principal) (texts []string) {
	for _, p := range list {
		texts = append(texts, p.Name)
	}
	return texts
}
