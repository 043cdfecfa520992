//go:build linux

package session

import "testing"

// The version 2 cgroup in the text of /proc/PID/cgroup; "" if there is none, or it is outside of the namespace.
func TestCgroupOf(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/web.service\n":            "/system.slice/web.service",
		"5:memory:/a\n1:name=systemd:/b\n0::/c d\n": "/c d",
		"0::/\n":        "/",
		"4:pids:/a\n":   "",
		"0::/../host\n": "", // outside of the namespace's root
		"0::/..\n":      "",
		"0::/..a\n":     "/..a",
		"0::/system.slice/web.service (deleted)\n": "",
		"":                             "",
		"0::/a:b\n":                    "/a:b",
		"5:memory:/x0::/a\n0::/real\n": "/real",
	} {
		if got := cgroupOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
