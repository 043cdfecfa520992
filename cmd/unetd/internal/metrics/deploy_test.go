//go:build linux

package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/unet-go/unet/bpf"
)

const deploy = "../../../../deploy/"

// selector matches a metric of unetd in an expression, with its matchers.
var (
	selector = regexp.MustCompile(`(unet_[a-z_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!=|=)"([^"]*)"`)
)

// checkExpression checks that an expression names metrics and labels that exist, that their matchers
// match what is exported, and that only counters have rates.
func checkExpression(t *testing.T, where, expr string) {
	t.Helper()
	descriptions := map[string]string{} // by name
	for _, d := range all {
		text := fmt.Sprint(d)
		descriptions[strings.Split(text, `"`)[1]] = text
	}
	var counters []string
	for i := range bpf.NumCounters {
		counters = append(counters, bpf.CounterName(bpf.Counter(i)))
	}
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
		t.Errorf("%s: brackets in %s", where, expr)
	}
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		name, matchers := m[1], m[2]
		desc, exists := descriptions[name]
		if !exists {
			t.Errorf("%s: there is no %s", where, name)
		}
		for _, l := range matcher.FindAllStringSubmatch(matchers, -1) {
			label, value := l[1], l[3]
			if label != "instance" && !regexp.MustCompile(`variableLabels: \{[^}]*\b`+label+`\b`).MatchString(desc) {
				t.Errorf("%s: %s has no label %s: %s", where, name, label, desc)
			}
			if label == "counter" && !slices.ContainsFunc(counters, regexp.MustCompile("^("+value+")$").MatchString) {
				t.Errorf("%s: no counter is %s", where, value)
			}
		}
	}
	for _, m := range regexp.MustCompile(`(?:rate|increase)\((unet_[a-z_]+)`).FindAllStringSubmatch(expr, -1) {
		if !strings.HasSuffix(m[1], "_total") {
			t.Errorf("%s: the rate of %s, which is no counter", where, m[1])
		}
	}
}

// The alert rules use metrics that unetd exports.
func TestAlertRules(t *testing.T) {
	text, err := os.ReadFile(deploy + "prometheus/unet.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
				t.Errorf("%+v", r)
			}
			seen[r.Alert] = true
			if _, err := model.ParseDuration(r.For); r.For != "" && err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			checkExpression(t, r.Alert, r.Expr)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// The dashboard uses metrics that unetd exports, and its panels do not overlap.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(deploy + "grafana/unet.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID, Title string
		Panels     []struct {
			ID                 int
			Title, Description string
			GridPos            struct{ X, Y, W, H int }
			Targets            []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	cells := map[[2]int]string{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("%+v", p)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, taken := cells[at]; taken || at[0] >= 24 {
					t.Errorf("%s lies on %s or beyond the page", p.Title, other)
				}
				cells[at] = p.Title
			}
		}
		for _, target := range p.Targets {
			checkExpression(t, p.Title, target.Expr)
		}
	}
	for _, v := range board.Templating.List {
		checkExpression(t, v.Name, v.Definition)
	}
	if board.UID == "" || len(ids) < 10 {
		t.Errorf("%s: %d panels", board.UID, len(ids))
	}
}
