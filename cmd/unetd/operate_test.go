//go:build linux

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// An operator revokes an endpoint of another user, reloads the policy, and drains unetd.
func TestRevokeReloadAndDrain(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	fails := func(want, name string, args ...string) {
		t.Helper()
		code, stdout, stderr := runHere(t, pair.A, s.args(name, args...)...)
		if code != 1 || stdout != "" || stderr != "unetd: unetd at "+s.socket+": "+want+"\n" {
			t.Errorf("%s %v: exit %d, %s%s, want %s", name, args, code, stdout, stderr, want)
		}
	}
	says := func(want, name string, args ...string) {
		t.Helper()
		if out := s.run(t, name, args...); out != want+"\n" {
			t.Errorf("%s %v: %s, want %s", name, args, out, want)
		}
	}
	a := startApp(t, s.socket)
	a.expect("open a frames=64 udp:10.0.0.1:7000", "[udp:10.0.0.1:7000]")
	a.expect("open b frames=64", "[]")

	fails("no such endpoint: 99", "revoke", "99")
	fails("control protocol violation: revoke: a reason of several lines, or with control characters", "revoke", "1", "--reason", "a\nb")
	says("endpoint 1 revoked", "revoke", "1", "--reason", "moved to host b")
	a.expect("ended a", "lease closed: an operator has revoked the endpoint: moved to host b")
	fails("no such endpoint: 1", "revoke", "1")
	d.awaitLine("endpoint revoked by an operator", "endpoint=1", `reason="moved to host b"`, "uid=0")
	a.expect("claim b udp:10.0.0.1:7000", "udp:10.0.0.1:7000") // the tag is free

	// A file that is no policy leaves the old policy in force.
	says(file+": reloaded, 2 rules\nno rule has changed", "reload")
	writePolicy(t, file, "\x00garbage")
	code, stdout, stderr := runHere(t, pair.A, s.args("reload")...)
	if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "unetd: unetd at "+s.socket+": the old policy stays: "+file+":") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	a.expect("claim b msg:1", "msg:1")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	fails("the old policy stays: policy: open "+file+": no such file or directory", "reload")
	writePolicy(t, file, strings.Replace(nobodys, `"msg:1-9"`, `"msg:1-99"`, 1))
	says(file+": reloaded, 2 rules\nrule nobodys: changed", "reload")
	a.expect("claim b msg:70", "msg:70")

	says("draining: no new endpoints are granted (unetd drain --undo)", "drain")
	a.expect("open c frames=64", "busy: unetd at "+s.socket+": busy: an operator drains this unetd (unetd drain), which grants no new endpoints: try later")
	a.expect("claim b msg:71", "msg:71")
	if out := s.run(t, "list"); !strings.HasSuffix(out, "\ndraining: no new endpoints are granted (unetd drain --undo)\n") {
		t.Errorf("%s", out)
	}
	uplinks := func(endpoints string, draining bool) {
		t.Helper()
		table, last, _ := strings.Cut(s.run(t, "uplinks"), "\ndraining")
		fields := strings.Fields(table)
		if len(fields) != 10 || fields[5] != pair.A.Interface || strings.Join(fields[7:], " ") != "tcx up "+endpoints || (last != "") != draining {
			t.Errorf("%s, %s", table, last)
		}
	}
	uplinks("1", true)
	d.kill()
	// The next unetd does not drain, and takes over the endpoint that there is.
	d = s.serve(t, "--socket-mode", "0666", "--policy", file)
	says("draining: no new endpoints are granted (unetd drain --undo)", "drain")
	testutil.Eventually(t, "the endpoint is presented", func() bool { return strings.Contains(s.run(t, "list"), "leased") })
	a.expect("claim b msg:72", "msg:72")
	says("new endpoints are granted", "drain", "--undo")
	uplinks("1", false)
	a.expect("open c frames=64", "[]")
	d.stop(syscall.SIGTERM)
}
