package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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

	out, _, err := execute(context.Background(), "plot", measured)
	if err != nil || !strings.Contains(out, "<svg ") {
		t.Errorf("got %v and %q", err, out)
	}

	cmd := newCommand()
	var fromStdin, errs lockedBuffer
	cmd.SetArgs([]string{"plot"})
	cmd.SetIn(strings.NewReader(good))
	cmd.SetOut(&fromStdin)
	cmd.SetErr(&errs)
	if err := cmd.Execute(); err != nil || fromStdin.String() != out {
		t.Errorf("standard input gives another picture: %v", err)
	}

	// What cannot be drawn leaves the picture alone that is there.
	for want, args := range map[string][]string{
		broken + ": line 2: ":  {broken},
		"no such file":         {filepath.Join(dir, "none.jsonl")},
		"takes one file":       {measured, measured},
		"unknown flag: --json": {"--json", measured},
	} {
		_, _, err := execute(context.Background(), append([]string{"plot", "-o", picture}, args...)...)
		if err == nil || !isUsage(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want one line about %q and code 2", args, err, want)
		}
	}
	if old, err := os.ReadFile(picture); err != nil || string(old) != "old" {
		t.Errorf("a picture that was there: %q, %v", old, err)
	}

	stdout, _, err := execute(context.Background(), "plot", measured, "-o", picture)
	if drawn, readErr := os.ReadFile(picture); err != nil || readErr != nil || stdout != "" || string(drawn) != out {
		t.Errorf("-o: %v, %v, wrote %d bytes to standard output", err, readErr, len(stdout))
	}
}
