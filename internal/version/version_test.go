package version

import (
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionOfBuildInfo(t *testing.T) {
	settings := func(pairs ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	ours := func(version string) debug.Module { return debug.Module{Path: module, Version: version} }
	other := debug.Module{Path: "example.com/service", Version: "v7.0.0"}
	for _, c := range []struct {
		name string
		info debug.BuildInfo
		want string
	}{
		{"go install of a tag", debug.BuildInfo{Main: ours("v0.3.0")}, "v0.3.0"},
		{"a clone at a tag", debug.BuildInfo{Main: ours("v0.3.0"), Settings: settings("vcs.revision", commit, "vcs.modified", "false")}, "v0.3.0"},
		{"a clone after a tag, changed", debug.BuildInfo{Main: ours("v0.3.1-0.20261122183306-0123456789ab+dirty"), Settings: settings("vcs.revision", commit, "vcs.modified", "true")},
			"v0.3.1-0.20261122183306-0123456789ab+dirty"},
		{"a commit and no version", debug.BuildInfo{Main: ours("(devel)"), Settings: settings("vcs.revision", commit, "vcs.modified", "false")}, "devel"},
		{"the same, changed", debug.BuildInfo{Main: ours("(devel)"), Settings: settings("vcs.modified", "true", "vcs.revision", commit)}, "devel"},
		{"no version control", debug.BuildInfo{Main: ours("(devel)")}, "devel"},
		{"a test", debug.BuildInfo{Main: ours("")}, "devel"},
		{"a command of the module beside this one", debug.BuildInfo{Main: debug.Module{Path: module + "/bench", Version: "v0.0.0-20261122183306-0123456789ab"},
			Deps: []*debug.Module{{Path: module, Version: "v0.0.0", Replace: &debug.Module{Path: "../"}}}}, "v0.0.0-20261122183306-0123456789ab"},
		{"a tool of another module", debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: "example.com/x", Version: "v9.0.0"}, {Path: module, Version: "v0.3.0"}},
			Settings: settings("vcs.revision", commit)}, "v0.3.0"},
		{"replaced by a folder", debug.BuildInfo{Main: other, Deps: []*debug.Module{{Path: module, Version: "v0.3.0", Replace: &debug.Module{Path: "../unet"}}},
			Settings: settings("vcs.revision", commit)}, "devel"},
	} {
		if got := of(&c.info); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// The line of a command has its version, its protocol, the release of Go and the system.
func TestVersionLine(t *testing.T) {
	line := Line("unetd", "control protocol 1")
	if !regexp.MustCompile(`^unetd \S+, control protocol 1, go1\.\S+ \w+/\w+$`).MatchString(line) || strings.Contains(line, "\n") {
		t.Errorf("%q", line)
	}
}
