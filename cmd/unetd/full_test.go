//go:build linux

package main

import (
	"os"
	"testing"

	"github.com/unet-go/unet/internal/netlab"
)

// A command whose output cannot be written fails, with an error of one line.
func TestOutputToFullDisk(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	s.serve(t, "--policy", policyFile(t, "rules: [{name: all, users: [root], tags: ['udp:*:*'], endpoints: 1, memory: 64MiB}]"))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	s.open(t, ":7000")
	check := func(args []string, code int, stderr, stdout string) {
		t.Helper()
		if code != exitFailure || stderr != "unetd: write "+stdout+": no space left on device\n" {
			t.Errorf("unetd %v: exit %d, %s", args, code, stderr)
		}
	}
	for _, args := range [][]string{
		{"list"}, {"status"}, {"status", "--json"}, {"counters"}, {"counters", "--check"}, {"uplinks"}, {"reload"}, {"drain", "--undo"}, {"revoke", "1"},
		{"version"}, {"check-config", policyFile(t, nobodys)},
	} {
		code, stderr := runHereTo(t, pair.A, full, s.args(args[0], args[1:]...)...)
		check(args, code, stderr, full.Name())
	}
	for _, args := range [][]string{{"cleanup"}, {"doctor", "--interface", pair.A.Interface}} {
		code, stderr := finishTo(t, pair.A, s.command(args[0], args[1:]...), full)
		check(args, code, stderr, "/dev/stdout")
	}
}
