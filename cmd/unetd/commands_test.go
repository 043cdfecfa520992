//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/internal/account"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// The output of list and counters as text and as JSON, for operators. Other users are refused.
func TestListAndCounters(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	if out := s.run(t, "list"); out != "no endpoints\n" {
		t.Errorf("%s", out)
	}
	if out := s.run(t, "list", "--json"); out != "[]\n" {
		t.Errorf("%s", out)
	}
	a := startApp(t, s.socket)
	a.expect("open a frames=64 udp:10.0.0.1:7000 tcp:10.0.0.1:32768-32831", "[")
	a.expect("open b frames=128", "[]")
	pid := strconv.Itoa(a.cmd.Process.Pid)
	want := fmt.Sprintf(`
ID  UID            %[2]s  ATTACH  DEVICE  MODE  ZERO-COPY  SEGMENT  STATE   TAGS
1   65534(nobody)  %[1]s  port    unet1   tcx   -          128KiB   leased  udp:10.0.0.1:7000 tcp:10.0.0.1:32768-32831
2   65534(nobody)  %[1]s  port    unet2   tcx   -          256KiB   leased  -
`[1:], fmt.Sprintf("%-3s", pid), fmt.Sprintf("%-*s", len(pid), "PID"))
	if out := s.run(t, "list"); out != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(s.run(t, "list", "--json")), &list); err != nil || len(list) != 2 || list[0]["uid"] != 65534. ||
		list[0]["segment_bytes"] != 131072. || list[0]["leased"] != true || list[0]["mode"] != "tcx" || list[0]["zero_copy"] != false || list[0]["copy_reason"] != "ports have no zero copy" || fmt.Sprint(list[0]["tags"]) != "[udp:10.0.0.1:7000 tcp:10.0.0.1:32768-32831]" {
		t.Errorf("%v, %v", list, err)
	}

	// A frame from the other host that no tag claims is the kernel's.
	conn, err := pair.B.Dial("udp", pair.A.Addr.Addr().String()+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var out string
	testutil.Eventually(t, "the frame is counted", func() bool {
		out = s.run(t, "counters")
		return strings.Contains(out, "  rx_pass  ")
	})
	for line := range strings.Lines(out) {
		if strings.HasPrefix(strings.TrimSpace(line), "0 ") {
			t.Errorf("a counter of 0: %s", line)
		}
	}
	all := s.run(t, "counters", "--all")
	if strings.Count(all, "\n") <= strings.Count(out, "\n") || !strings.Contains(all, "  tx_forged_link  ") {
		t.Errorf("%s", all)
	}
	var counters []struct {
		Name, Help string
		Value      uint64
	}
	if err := json.Unmarshal([]byte(s.run(t, "counters", "--json", "--all")), &counters); err != nil || len(counters) != strings.Count(all, "\n") || counters[0].Name != "rx_pass" || counters[0].Help == "" || counters[0].Value == 0 {
		t.Errorf("%+v, %v", counters, err)
	}

	if out := s.run(t, "counters", "--check"); !strings.HasPrefix(out, "received ") || !strings.Contains(out, "counted as lost: they add up\n") {
		t.Errorf("%s", out)
	}
	var verdict struct {
		Totals   []struct{ Stage string }
		In, Out  uint64
		Balanced bool
	}
	if err := json.Unmarshal([]byte(s.run(t, "counters", "--check", "--json")), &verdict); err != nil || !verdict.Balanced || len(verdict.Totals) != len(account.Stages)+1 || verdict.In != verdict.Out {
		t.Errorf("%+v, %v", verdict, err)
	}

	// Another user is refused.
	asNobody := func(name string) (int, string, string) {
		cmd := s.command(name)
		cmd.SysProcAttr = netlab.Nobody()
		return finish(t, nil, cmd)
	}
	for _, name := range []string{"list", "counters"} {
		code, stdout, stderr := asNobody(name)
		if code != 1 || stdout != "" || stderr != "unetd: unetd at "+s.socket+": permission denied: uid 65534 is not an operator: run it as root, or ask an operator for operator: true in a rule\n" {
			t.Errorf("%s: exit %d, %s, %s", name, code, stdout, stderr)
		}
	}
	writePolicy(t, file, strings.Replace(nobodys, "endpoints: 3", "endpoints: 3\n    operator: true", 1))
	d.signal(syscall.SIGHUP)
	d.awaitLine("policy reloaded")
	if code, stdout, stderr := asNobody("list"); code != 0 || stdout != s.run(t, "list") || stderr != "" {
		t.Errorf("exit %d, %s, %s", code, stdout, stderr)
	}
	d.stop(syscall.SIGTERM)
	code, _, stderr := finish(t, nil, s.command("list"))
	if code != 1 || stderr != "unetd: unetd is not running at "+s.socket+": no such file or directory\n" {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// The output and exit code of check-config.
func TestCheckConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	check := func(text string, args ...string) (code int, stdout, stderr string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr = runHere(t, nil, append([]string{"check-config", file}, args...)...)
		return code, strings.ReplaceAll(stdout, dir+"/", ""), strings.ReplaceAll(stderr, dir+"/", "")
	}
	for _, c := range []struct {
		text, args     string
		code           int
		stdout, stderr string
	}{
		{nobodys, "", 0, `
policy.yaml: OK, 2 rules

RULE     USERS   GROUPS  INTERFACES  ENDPOINTS  MEMORY     PORTS  ALSO     TAGS
nobodys  nobody  -       *           3          1MiB       8192   -        udp:10.0.0.1:7000-7099 udp:*:53 tcp:*:* addr:10.0.0.128/25 msg:1-9
roots    root    -       *           unlimited  unlimited  8192   trusted  msg:*
`, ""},
		{nobodys, "--as 65534 --interface eth0", 0, `
user 65534 (uid 65534) on eth0: rule nobodys, line 3
  endpoints  3
  memory     1MiB
  ports      8192
  tags       udp:10.0.0.1:7000-7099
             udp:*:53
             tcp:*:* (ports from FIRST on)
             addr:10.0.0.128/25
             msg:1-9
  queues     none
  operator   no
  nat        refuse
`, ""},
		{nobodys, "--as 4242", 0, `
user 4242 (uid 4242): no rule of policy.yaml applies: nothing is permitted
`, ""},
		{"rules: [{name: a, users: [root], interfaces: [eth0, eth1], endpoints: 0}, {name: b, users: [root], interfaces: [lo], operator: true}]", "--as root", 0, `
user root (uid 0) on eth0, eth1: rule a, line 1
  endpoints  0
  memory     0
  ports      8192
  tags       none
  queues     none
  operator   yes
  nat        refuse
else on lo: rule b, line 1
  endpoints  0
  memory     0
  ports      8192
  tags       none
  queues     none
  operator   yes
  nat        refuse
else: no rule applies: nothing is permitted
`, ""},
		{"rules: [{name: a, users: [root], trusted: true, queues: [8, 0-3], endpoints: 1, memory: 1MiB}]", "", 0, `
policy.yaml: OK, 1 rule

RULE  USERS  GROUPS  INTERFACES  ENDPOINTS  MEMORY  PORTS  ALSO                  TAGS
a     root   -       *           1          1MiB    8192   trusted queues:0-3,8  -
`, ""},
		{"rules: []", "", 0, "\npolicy.yaml: OK, no rules: nothing is permitted\n", ""},
		{"rules:\n  - name: a\n    users: [no-such-user]\n    tags: [udp:*:0]\n", "", 1, "\n", `
policy.yaml:3:13: there is no user "no-such-user" on this system: correct it, or write the number
policy.yaml:4:12: tag "udp:*:0": port 0 means any free one in a claim: begin at 1, or write * for all
unetd: policy.yaml has 2 mistakes
`},
		{"rules: 7\n", "", 1, "\n", `
policy.yaml:1:8: rules is a list, and this is a single value: write one rule after another, each beginning with -
unetd: policy.yaml has a mistake
`},
		{"rules: []", "--as no-such-user", 1, "\n", "\nunetd: no user no-such-user on this system: write a name or a uid\n"},
	} {
		code, stdout, stderr := check(c.text, strings.Fields(c.args)...)
		stdout = strings.ReplaceAll(stdout, fmt.Sprintf("from %d on", policy.FirstUnprivileged()), "from FIRST on")
		if code != c.code || "\n"+stdout != c.stdout || stderr != strings.TrimPrefix(c.stderr, "\n") {
			t.Errorf("%s, %q: exit %d\n%s%s\nwant %d%s%s", c.text, c.args, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
	}
	if err := os.Chmod(file, 0o602); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := check("rules: []"); code != 0 || !strings.HasPrefix(stdout, "policy.yaml: OK") || !strings.HasPrefix(stderr, "unetd: warning: everybody can write to policy.yaml") {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	code, _, stderr := runHere(t, nil, "check-config", file+".none")
	if code != 1 || !strings.HasPrefix(stderr, "unetd: policy: open ") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s", code, stderr)
	}
}
