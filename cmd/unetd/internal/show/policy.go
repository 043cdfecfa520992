//go:build linux

package show

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// PolicyReport is a report on a policy without mistakes: its rules, or what it permits a
// user.
type PolicyReport struct {
	Policy *policy.Policy

	asked   bool
	owner   mux.Owner
	user    string // as on the command line
	iface   string // "": on each interface
	applies []*policy.Rule
	tags    []endpoint.Tag
	tried   map[*policy.Rule][]policy.Trial
}

// Ask makes the report one about a user, on one interface, which may have other names too, or on each.
func (r *PolicyReport) Ask(o mux.Owner, user, interfaceName string, alternative ...string) {
	r.asked, r.owner, r.user, r.iface = true, o, user, interfaceName
	if interfaceName == "" {
		r.applies = r.Policy.MatchAll(o)
	} else if rule := r.Policy.Match(o, interfaceName, alternative...); rule != nil {
		r.applies = []*policy.Rule{rule}
	}
}

// Try adds what would become of a request with these tags. Call it after Ask.
func (r *PolicyReport) Try(tags []endpoint.Tag) {
	r.tags, r.tried = tags, map[*policy.Rule][]policy.Trial{}
	for _, rule := range r.applies {
		r.tried[rule] = r.Policy.Try(rule, r.owner, r.iface, tags)
	}
}

// Refused is an error if a tag of Try is refused by a rule that applies, or none applies.
func (r *PolicyReport) Refused() error {
	refused := map[endpoint.Tag]bool{}
	for _, t := range r.tags {
		refused[t] = len(r.applies) == 0
	}
	for _, trials := range r.tried {
		for _, t := range trials {
			refused[t.Tag] = refused[t.Tag] || t.Err != nil
		}
	}
	n := 0
	for _, is := range refused {
		if is {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("refused: %d of %d tags", n, len(refused))
}

// Text writes the report as text.
func (r *PolicyReport) Text(w io.Writer) error {
	if !r.asked {
		return r.summary(w)
	}
	subject := fmt.Sprintf("user %s (uid %d)", r.user, r.owner.UID)
	if r.owner.Cgroup != "" {
		subject += " in cgroup " + r.owner.Cgroup
	}
	if r.iface != "" {
		subject += " on " + r.iface
	}
	if len(r.applies) == 0 {
		_, err := fmt.Fprintf(w, "%s: no rule of %s applies: nothing is permitted\n", subject, r.Policy)
		return err
	}
	for i, rule := range r.applies {
		line := subject + ": "
		if r.iface == "" {
			line = fmt.Sprintf("%s on %s: ", subject, strings.Join(rule.Interfaces, ", "))
			if i > 0 {
				line = fmt.Sprintf("else on %s: ", strings.Join(rule.Interfaces, ", "))
			}
		}
		if err := r.rule(w, line, rule); err != nil {
			return err
		}
	}
	if last := r.applies[len(r.applies)-1]; r.iface == "" && !slices.Contains(last.Interfaces, "*") {
		_, err := fmt.Fprintln(w, "else: no rule applies: nothing is permitted")
		return err
	}
	return nil
}

// rule writes what a rule permits the user.
func (r *PolicyReport) rule(w io.Writer, intro string, rule *policy.Rule) error {
	if rule.Line > 0 {
		fmt.Fprintf(w, "%srule %s, line %d\n", intro, rule.Name, rule.Line)
	} else {
		fmt.Fprintf(w, "%s%s\n", intro, r.Policy)
	}
	t := table(w)
	fmt.Fprintf(t, "  endpoints\t%s\n", policy.Count(rule.Endpoints))
	fmt.Fprintf(t, "  memory\t%s\n", policy.Bytes(rule.Memory))
	fmt.Fprintf(t, "  ports\t%s\n", policy.Count(rule.Ports))
	name := "tags"
	for _, p := range rule.Tags {
		note := ""
		if floor := policy.Floor(r.owner.UID); p.Open() && floor > 1 {
			note = fmt.Sprintf(" (ports from %d on)", floor)
		}
		fmt.Fprintf(t, "  %s\t%s%s\n", name, p, note)
		name = ""
	}
	if len(rule.Tags) == 0 {
		fmt.Fprint(t, "  tags\tnone\n")
	}
	fmt.Fprintf(t, "  queues\t%s\n", queues(rule))
	if rule.Rates != (endpoint.Rates{}) {
		fmt.Fprintf(t, "  rates\tendpoint: %s\n  \tuser: %s\n", policy.Rate(rule.Rates.Endpoint), policy.Rate(rule.Rates.User))
	}
	if rule.Infrastructure {
		fmt.Fprint(t, "  infrastructure\tyes\n")
	}
	fmt.Fprintf(t, "  operator\t%s\n", yes(rule.Operator || r.owner.UID == 0))
	fmt.Fprintf(t, "  nat\t%s\n", nat(rule))
	for _, trial := range r.tried[rule] {
		if trial.Err != nil {
			fmt.Fprintf(t, "  refused\t%v: %v\n", trial.Tag, trial.Err)
		} else {
			fmt.Fprintf(t, "  granted\t%v, by %s\n", trial.Tag, trial.Pattern)
		}
	}
	return t.Flush()
}

// queues are the queues of an interface to which the rule's users may attach.
func queues(r *policy.Rule) string {
	if !r.Trusted {
		return "none"
	}
	return r.Queues.String()
}

func nat(r *policy.Rule) string {
	if r.NATWarn {
		return "warn"
	}
	return "refuse"
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// summary writes a line for each rule.
func (r *PolicyReport) summary(w io.Writer) error {
	switch n := len(r.Policy.Rules); {
	case r.Policy.File == "":
		fmt.Fprintf(w, "there is no %s: the built-in policy applies\n\n", policy.DefaultFile)
	case n == 0:
		_, err := fmt.Fprintf(w, "%s: OK, no rules: nothing is permitted\n", r.Policy)
		return err
	case n == 1:
		fmt.Fprintf(w, "%s: OK, 1 rule\n\n", r.Policy)
	default:
		fmt.Fprintf(w, "%s: OK, %d rules\n\n", r.Policy, n)
	}
	t := table(w)
	fmt.Fprintln(t, "RULE\tUSERS\tGROUPS\tINTERFACES\tENDPOINTS\tMEMORY\tPORTS\tALSO\tTAGS")
	for _, rule := range r.Policy.Rules {
		tags := make([]string, len(rule.Tags))
		for i, p := range rule.Tags {
			tags[i] = p.String()
		}
		var also []string
		if rule.Trusted {
			also = append(also, "trusted")
		}
		for _, c := range rule.Cgroups {
			also = append(also, "cgroup:"+c)
		}
		if rule.Queues != nil {
			also = append(also, "queues:"+rule.Queues.String())
		}
		if rule.Rates != (endpoint.Rates{}) {
			also = append(also, "rates")
		}
		if rule.Infrastructure {
			also = append(also, "infrastructure")
		}
		if rule.Operator {
			also = append(also, "operator")
		}
		if rule.NATWarn {
			also = append(also, "nat:warn")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", rule.Name, joined(names(rule.Users)), joined(names(rule.Groups)), joined(rule.Interfaces),
			policy.Count(rule.Endpoints), policy.Bytes(rule.Memory), policy.Count(rule.Ports), joined(also), joined(tags))
	}
	return t.Flush()
}

func names(list []policy.Principal) []string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.Name
	}
	return texts
}

func joined(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, " ")
}

// ruleJSON is a rule in JSON. null as a limit: unlimited.
type ruleJSON struct {
	Name       string           `json:"name"`
	Line       int              `json:"line"`
	Users      []string         `json:"users"`
	Groups     []string         `json:"groups"`
	Cgroups    []string         `json:"cgroups,omitempty"`
	Interfaces []string         `json:"interfaces"`
	Tags       []policy.Pattern `json:"tags"`
	Endpoints  *int64           `json:"endpoints"`
	Memory     *int64           `json:"memory_bytes"`
	Ports      *int64           `json:"ports"`
	Trusted    bool             `json:"trusted"`
	Queues     string           `json:"queues"`
	Operator   bool             `json:"operator"`

	Infrastructure bool           `json:"infrastructure"`
	NAT            string         `json:"nat"`
	Rates          endpoint.Rates `json:"rates,omitzero"` // none: no limit

	Tried []trialJSON `json:"tried,omitempty"`
}

// trialJSON is what would become of a tag in a request.
type trialJSON struct {
	Tag     endpoint.Tag `json:"tag"`
	Granted bool         `json:"granted"`
	Pattern string       `json:"pattern,omitempty"`
	Error   string       `json:"error,omitempty"`
}

func trialsJSON(trials []policy.Trial) (list []trialJSON) {
	for _, t := range trials {
		one := trialJSON{Tag: t.Tag, Granted: t.Err == nil, Pattern: t.Pattern}
		if t.Err != nil {
			one.Error = t.Err.Error()
		}
		list = append(list, one)
	}
	return list
}

func rulesJSON(rules []*policy.Rule, tried map[*policy.Rule][]policy.Trial) []ruleJSON {
	limit := func(n int64) *int64 {
		if n == policy.Unlimited {
			return nil
		}
		return &n
	}
	list := []ruleJSON{}
	for _, r := range rules {
		list = append(list, ruleJSON{
			Name: r.Name, Line: r.Line, Users: names(r.Users), Groups: names(r.Groups), Cgroups: r.Cgroups, Interfaces: r.Interfaces,
			Tags: append([]policy.Pattern{}, r.Tags...), Endpoints: limit(r.Endpoints), Memory: limit(r.Memory), Ports: limit(r.Ports),
			Trusted: r.Trusted, Queues: queues(r), Operator: r.Operator, Infrastructure: r.Infrastructure, NAT: nat(r), Rates: r.Rates, Tried: trialsJSON(tried[r]),
		})
	}
	return list
}

// JSON writes the report as JSON: all rules, and those that apply to the user, in the
// order in which they are tried.
func (r *PolicyReport) JSON(w io.Writer) error {
	type subject struct {
		User      string     `json:"user"`
		UID       uint32     `json:"uid"`
		Interface string     `json:"interface,omitempty"`
		Applies   []ruleJSON `json:"applies"`
	}
	report := struct {
		File  string     `json:"file"` // "": built in
		OK    bool       `json:"ok"`
		Rules []ruleJSON `json:"rules"`
		*subject
	}{File: r.Policy.File, OK: true, Rules: rulesJSON(r.Policy.Rules, nil)}
	if r.asked {
		report.subject = &subject{r.user, r.owner.UID, r.iface, rulesJSON(r.applies, r.tried)}
	}
	return writeJSON(w, report)
}

// Mistakes writes the mistakes of a policy file as JSON.
func Mistakes(w io.Writer, file string, list policy.Errors) error {
	return writeJSON(w, struct {
		File   string        `json:"file"`
		OK     bool          `json:"ok"`
		Errors policy.Errors `json:"errors"`
	}{file, false, list})
}
