package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/cli"
)

// execute runs the command with stdin, and returns what it writes to standard output.
func execute(stdin string, args ...string) (stdout string, err error) {
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	err = cmd.Execute()
	return out.String(), err
}

func TestPlot(t *testing.T) {
	const (
		good = `{"bench":"rtt","transport":"msg","attach":"port","place":"pair","wait":"spin","size":64,"batch":1,"round":1,"n":9,"p50_us":3.5}` + "\n"
		bad  = good + "Round trips of 64 bytes\n"
	)
	dir := t.TempDir()
	file := func(name, contents string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	measured, broken, picture := file("good.jsonl", good), file("bad.jsonl", bad), file("old.svg", "old")

	out, err := execute("", measured)
	if err != nil || !strings.Contains(out, "<svg ") {
		t.Errorf("got %v and %q", err, out)
	}

	if fromStdin, err := execute(good); err != nil || fromStdin != out {
		t.Errorf("standard input gives another picture: %v", err)
	}

	// If the input cannot be drawn, an existing picture is not changed.
	for want, args := range map[string][]string{
		broken + ": line 2: ":  {broken},
		"no such file":         {filepath.Join(dir, "none.jsonl")},
		"takes one file":       {measured, measured},
		"unknown flag: --json": {"--json", measured},
	} {
		_, err := execute("", append([]string{"-o", picture}, args...)...)
		if err == nil || !cli.IsUsage(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want one line about %q and code 2", args, err, want)
		}
	}
	if old, err := os.ReadFile(picture); err != nil || string(old) != "old" {
		t.Errorf("a picture that was there: %q, %v", old, err)
	}

	stdout, err := execute("", measured, "-o", picture)
	if drawn, readErr := os.ReadFile(picture); err != nil || readErr != nil || stdout != "" || string(drawn) != out {
		t.Errorf("-o: %v, %v, wrote %d bytes to standard output", err, readErr, len(stdout))
	}
}
