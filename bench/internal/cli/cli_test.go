package cli

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/spf13/cobra"
)

// TestUsageErrors: wrong flags and arguments are errors in the command line, failures are not.
func TestUsageErrors(t *testing.T) {
	failure := errors.New("failure")
	for _, c := range []struct {
		args []string
		want bool
	}{{nil, true}, {[]string{"one"}, false}, {[]string{"one", "two"}, true}, {[]string{"--none"}, true}} {
		cmd := Root(&cobra.Command{Use: "test", Args: Args(1), RunE: func(*cobra.Command, []string) error { return failure }})
		cmd.SetArgs(c.args)
		cmd.SetOut(io.Discard)
		if err := cmd.Execute(); err == nil || IsUsage(err) != c.want || IsUsage(fmt.Errorf("%w", err)) != c.want || errors.Is(err, failure) == c.want {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}
