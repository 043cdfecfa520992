//go:build linux

package policy

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const valid = "rules:\n  - {name: one, users: [bob], operator: true}\n"

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The policy in force stays until a correct file replaces it.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	log := slog.New(slog.DiscardHandler)
	if _, err := OpenSource(file, "", testNames(), log); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a named file that is not there: %v", err)
	}
	s, err := OpenSource("", file, testNames(), log)
	if err != nil || s.Policy().File != "" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := s.Reload(); err != nil || s.Policy().File != "" {
		t.Errorf("%v, %v", s.Policy(), err)
	}
	write(t, file, "rules: [\n")
	if _, err := s.Reload(); err == nil || !strings.HasPrefix(err.Error(), file+":") || s.Policy().File != "" {
		t.Errorf("%v, %v", s.Policy(), err)
	}
	var changes []*Policy
	s.OnChange(func() { changes = append(changes, s.Policy()) })
	write(t, file, valid)
	if c, err := s.Reload(); err != nil || c.Policy != file || c.Rules != 1 || !slices.Equal(c.Changes, []string{
		file + " instead of the built-in policy", "rule built-in: removed", "rule one: added"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	if c, err := s.Reload(); err != nil || len(c.Changes) != 0 || s.Policy().File != file || s.Policy().String() != file {
		t.Fatalf("%+v, %v, %v", c, s.Policy(), err)
	}
	before := s.Policy()
	write(t, file, "rules: [\n")
	if _, err := s.Reload(); err == nil || s.Policy() != before {
		t.Errorf("%v, %v", s.Policy(), err)
	}
	if len(changes) != 2 || changes[1] != before {
		t.Errorf("OnChange was called with %v", changes)
	}
	// Removing the file does not restore the built-in policy.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(); !errors.Is(err, fs.ErrNotExist) || s.Policy() != before {
		t.Errorf("%v, %v", s.Policy(), err)
	}
}

// Reload returns the names of the rules that have changed. A rule that only moved to another line has not changed.
func TestReloadListsChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, file, "rules:\n  - {name: a, users: [bob], operator: true}\n  - {name: b, users: [bob], endpoints: 1, memory: 1MiB, tags: [\"udp:*:7\"]}\n  - {name: c, users: [bob], operator: true}\n")
	s, err := OpenSource(file, "", testNames(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want []string
	}{
		{"# moved\nrules:\n  - {name: a, users: [bob], operator: true}\n  - {name: b, users: [bob], endpoints: 1, memory: 1MiB, tags: [\"udp:*:7\"]}\n  - {name: c, users: [bob], operator: true}\n", nil},
		{"rules:\n  - {name: a, users: [bob], operator: true}\n  - {name: b, users: [bob], endpoints: 1, memory: 1MiB, tags: [\"udp:*:8\"]}\n  - {name: c, users: [bob], endpoints: 0}\n", []string{"rule b: changed", "rule c: changed"}},
		{"rules:\n  - {name: c, users: [bob], endpoints: 0}\n  - {name: d, users: [bob], operator: true}\n  - {name: a, users: [bob], operator: true}\n", []string{"rule b: removed", "rule d: added", "the order of the rules has changed"}},
	} {
		write(t, file, c.text)
		if got, err := s.Reload(); err != nil || !slices.Equal(got.Changes, c.want) {
			t.Errorf("%s: %q, %v, want %q", c.text, got.Changes, err, c.want)
		}
	}
}

// A directory and a file above maxFile are errors.
func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := Load(dir, testNames()); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Error(err)
	}
	file := filepath.Join(dir, "p")
	write(t, file, "rules: []"+strings.Repeat("\n", maxFile))
	if _, _, err := Load(file, testNames()); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Error(err)
	}
	write(t, file, "rules: []"+strings.Repeat("\n", maxFile-9))
	if _, _, err := Load(file, testNames()); err != nil {
		t.Error(err)
	}
}

// Load warns if users other than root can write to the file.
func TestWarningOfWritablePolicy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p")
	write(t, file, valid)
	for _, c := range []struct {
		mode     fs.FileMode
		uid, gid int
		want     string
	}{
		{0o644, 0, 0, ""},
		{0o664, 0, 0, ""}, // group root
		{0o646, 0, 0, "chmod o-w"},
		{0o664, 0, 4242, "group 4242 can write"},
		{0o644, 4242, 0, "uid 4242 owns"},
	} {
		if os.Geteuid() != 0 {
			t.Skip("only root can give files away")
		}
		if err := errors.Join(os.Chown(file, c.uid, c.gid), os.Chmod(file, c.mode)); err != nil {
			t.Fatal(err)
		}
		_, warning, err := Load(file, testNames())
		if err != nil || !strings.Contains(warning, c.want) || (c.want == "") != (warning == "") {
			t.Errorf("%+v: %q, %v", c, warning, err)
		}
	}
}

// The first port that any user may bind, from the text of the sysctl.
func TestFirstUnprivileged(t *testing.T) {
	for text, want := range map[string]uint16{"1024\n": 1024, "0\n": 1, "80\n": 80, "": 1024, "many": 1024, "65536": 65535} {
		if got := firstUnprivileged([]byte(text), nil); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := firstUnprivileged(nil, fs.ErrNotExist); got != 1024 {
		t.Errorf("unreadable: %d", got)
	}
	if Floor(0) != 1 || Floor(1) != FirstUnprivileged() {
		t.Error("the floor is not 1 for root and FirstUnprivileged for others")
	}
}

// Bytes writes sizes in the units in which they are read.
func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1", 1023: "1023", 1024: "1KiB", 1536: "1536", 3 << 19: "1536KiB", 8 << 20: "8MiB", 1 << 40: "1024GiB", Unlimited: "unlimited"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
		if back, ok := bytesOf(want); n >= 1<<10 && n%1024 == 0 && (back != n || !ok) {
			t.Errorf("%s is read as %d, %v", want, back, ok)
		}
	}
}
