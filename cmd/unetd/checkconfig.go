//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
)

// checkFlags are the flags of unetd check-config.
type checkFlags struct {
	user, iface string
	asJSON      bool
}

func newCheckConfig() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check-config [FILE]",
		Short: "Check a policy file, or what it permits a user",
		Long: `Check-config reads a policy file, ` + policy.DefaultFile + ` by default, and lists
its rules, or all its mistakes by line and column. With --user it prints the rule that
applies to a user and what it permits; with --interface, on one interface. It needs no
running unetd, and does not make one read the file again.

The file is described in docs/policy.md.`,
		Example: `  unetd check-config
  unetd check-config ./policy.yaml --user alice
  unetd check-config --user 1001 --interface eth0 --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&f.user, "user", "", "print what applies to this user, a name or a number")
	cmd.Flags().StringVar(&f.iface, "interface", "", "with --user: on this interface (default: on each)")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "write JSON")
	return cmd
}

func (f checkFlags) run(args []string, stdout, stderr io.Writer) error {
	if f.iface != "" && f.user == "" {
		return errors.New("--interface without --user")
	}
	file := policy.DefaultFile
	if len(args) > 0 {
		file = args[0]
	}
	p, warning, err := policy.Load(file, policy.SystemNames())
	if len(args) == 0 && errors.Is(err, fs.ErrNotExist) {
		p, err = policy.BuiltIn(), nil
	}
	var mistakes policy.Errors
	if err != nil && !errors.As(err, &mistakes) {
		return failure{err}
	}
	if warning != "" {
		fmt.Fprintln(stderr, "unetd: warning:", warning)
	}
	if mistakes != nil {
		return f.mistakes(file, mistakes, stdout, stderr)
	}
	report := show.PolicyReport{Policy: p}
	if f.user != "" {
		s, err := policy.SubjectOf(f.user)
		if err != nil {
			return failure{err}
		}
		report.Ask(s, f.user, f.iface)
	}
	if f.asJSON {
		err = report.JSON(stdout)
	} else {
		err = report.Text(stdout)
	}
	if err != nil {
		return failure{err}
	}
	return nil
}

// mistakes writes the mistakes of a file, a line each.
func (f checkFlags) mistakes(file string, list policy.Errors, stdout, stderr io.Writer) error {
	if f.asJSON {
		if err := show.Mistakes(stdout, file, list); err != nil {
			return failure{err}
		}
	} else {
		fmt.Fprintln(stderr, list)
	}
	if len(list) == 1 {
		return failure{fmt.Errorf("%s has a mistake", file)}
	}
	return failure{fmt.Errorf("%s has %d mistakes", file, len(list))}
}
