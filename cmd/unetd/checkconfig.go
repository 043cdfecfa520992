//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/show"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/endpoint"
)

// checkFlags are the flags of unetd check-config.
type checkFlags struct {
	user, iface string
	groups      []string
	cgroup      string
}

func newCheckConfig() *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:   "check-config [FILE] [TAG...]",
		Short: "Check a policy file, or what it permits a user",
		Long: `Check-config reads a policy file, ` + policy.DefaultFile + ` by default, and lists
its rules, or all its mistakes by line and column. With --as it prints the rule that
applies to a user and what it permits; with --interface, on one interface. With tags it
also says for each whether the user would get it in one request, and by which pattern of
the rule, or with which error. Exit status 1 if one is refused. An open port or message
tag is 0, an open address 0.0.0.0 or [::]: with --interface, that of the interface.

It needs no running unetd, and does not make one read the file again. What others have
claimed, programs that use a port, and network address translation are not looked at.

The file is described in docs/policy.md.`,
		Example: `  unetd check-config
  unetd check-config ./policy.yaml --as alice
  unetd check-config --as 1001 --group video --interface eth0
  unetd check-config --as www-data --interface eth0 tcp:0.0.0.0:80 udp:10.0.0.1:0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&f.user, "as", "", "print what applies to this user, a name or a number")
	cmd.Flags().StringSliceVar(&f.groups, "group", nil, "with --as: further groups of the process, names or numbers")
	cmd.Flags().StringVar(&f.cgroup, "cgroup", "", "with --as: path of the version 2 cgroup of the process, for rules with cgroups")
	cmd.Flags().StringVar(&f.iface, "interface", "", "with --as: on this interface (default: on each)")
	completeInterface(cmd)
	return cmd
}

func (f checkFlags) run(args []string, stdout, stderr io.Writer) error {
	file, tags, err := f.parseArgs(args)
	if err != nil {
		return err
	}
	named := file != ""
	if !named {
		file = policy.DefaultFile
	}
	p, warning, err := policy.Load(file, policy.SystemNames())
	if !named && errors.Is(err, fs.ErrNotExist) {
		p, err = policy.BuiltIn(), nil
	}
	var mistakes policy.Errors
	if err != nil && !errors.As(err, &mistakes) {
		return failure{err}
	}
	if warning != "" {
		fmt.Fprintln(stderr, "unetd: warning:", warning)
	}
	switch {
	case len(mistakes) == 1:
		fmt.Fprintln(stderr, mistakes)
		return failure{fmt.Errorf("%s has a mistake", file)}
	case mistakes != nil:
		fmt.Fprintln(stderr, mistakes)
		return failure{fmt.Errorf("%s has %d mistakes", file, len(mistakes))}
	case f.user == "":
		return failed(show.Rules(stdout, p))
	}
	q := show.Question{User: f.user, Tags: tags}
	if q.Owner, err = policy.OwnerOf(f.user); err != nil {
		return failure{err}
	}
	for _, g := range f.groups {
		id, err := policy.GroupOf(g)
		if err != nil {
			return failure{err}
		}
		q.Owner.Groups = append(q.Owner.Groups, id)
	}
	q.Owner.Cgroup = f.cgroup
	q.Interface, q.Alternative = uplink.Names(f.iface)
	return failed(q.Answer(stdout, p))
}

// parseArgs divides the arguments into a file ("": none) and tags. With an interface of this host, an
// open address is that of the interface, as for an application.
func (f checkFlags) parseArgs(args []string) (file string, tags []endpoint.Tag, err error) {
	for i, arg := range args {
		kind, _, _ := strings.Cut(arg, ":")
		switch isTag := slices.Contains([]string{"udp", "tcp", "addr", "msg"}, kind); {
		case isTag:
			t, err := endpoint.ParseTag(arg)
			if err != nil {
				return "", nil, err
			}
			tags = append(tags, ofInterface(t, f.iface))
		case i == 0:
			file = arg
		default:
			return "", nil, fmt.Errorf("%q is no tag: want udp:ADDR:PORT, tcp:ADDR:PORT, addr:ADDR or msg:NUMBER", arg)
		}
	}
	for _, c := range []struct {
		given bool
		what  string
	}{{f.iface != "", "--interface"}, {len(f.groups) > 0, "--group"}, {f.cgroup != "", "--cgroup"}, {len(tags) > 0, "a tag"}} {
		if c.given && f.user == "" {
			return "", nil, errors.New(c.what + " without --as")
		}
	}
	return file, tags, nil
}

// ofInterface gives a tag with an open address the first address of that family that the interface has.
func ofInterface(t endpoint.Tag, name string) endpoint.Tag {
	if t.Kind != endpoint.TagUDP && t.Kind != endpoint.TagTCP || !t.Addr.IsUnspecified() {
		return t
	}
	name, _ = uplink.Names(name)
	i, err := net.InterfaceByName(name)
	if err != nil {
		return t
	}
	list, _ := i.Addrs() // after an error it is empty
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Is4() == t.Addr.Is4() && prefix.Addr().IsGlobalUnicast() {
			t.Addr = prefix.Addr()
			return t
		}
	}
	return t
}
