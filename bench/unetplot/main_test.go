package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/unet-go/unet/bench/internal/cli"
)

func TestPlot(t *testing.T) {
	const (
		good = `{"bench":"rtt","transport":"msg","attach":"port","place":"pair","wait":"spin","size":64,"batch":1,"round":1,"n":9,"p50_us":3.5}` + "\n"
		bad  = good + "Round trips of 64 bytes\n"
	)
	execute := func(stdin string, args ...string) (stdout string, err error) {
		var out bytes.Buffer
		cmd := newCommand()
		cmd.SetArgs(args)
		cmd.SetIn(strings.NewReader(stdin))
		cmd.SetOut(&out)
		err = cmd.Execute()
		return out.String(), err
	}
	if out, err := execute(good); err != nil || !strings.Contains(out, "<svg ") {
		t.Errorf("got %v and %q", err, out)
	}
	for want, stdin := range map[string]string{"line 2: ": bad, "has 1 arguments": good} {
		args := []string{"old.svg"}
		if stdin == bad {
			args = []string{}
		}
		out, err := execute(stdin, args...)
		if err == nil || !cli.IsUsage(err) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("%v: %v, want one line about %q and code 2, and no output: %q", args, err, want, out)
		}
	}
}
