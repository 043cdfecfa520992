package unet

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// ConfigError is the error for a setting that is not valid or does not apply.
type ConfigError struct {
	Field string // "HostConfig.Wait", "UNET_WAIT" or "-unet-wait"
	Value string
	Want  string // the accepted values, or what the field applies to
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("unet: %s is %q: want %s", e.Field, e.Value, e.Want)
}

// setting is a field of Config that has a name for flags and the environment.
type setting struct {
	name string // of the flag; that of the variable is derived from it
	want string // the accepted values
	set  func(*Config, string) error
	get  func(*Config) string
}

var settings = []setting{
	{"unet-socket", "the path of unetd's socket",
		func(c *Config, s string) error { c.Socket = s; return nil },
		func(c *Config) string { return c.Socket }},
	{"unet-interface", "the name of an interface, where unetd serves several",
		func(c *Config, s string) error { c.Interface = s; return nil },
		func(c *Config) string { return c.Interface }},
	{"unet-attach", "port or queue",
		func(c *Config, s string) (err error) { c.Attach, err = endpoint.ParseAttachment(s); return err },
		func(c *Config) string { return c.Attach.String() }},
	{"unet-queue", "the number of a queue, with attachment queue",
		func(c *Config, s string) error {
			n, err := strconv.ParseUint(s, 10, 32)
			c.Queue = uint32(n)
			return err
		},
		func(c *Config) string { return strconv.FormatUint(uint64(c.Queue), 10) }},
	{"unet-huge", "true or false",
		func(c *Config, s string) (err error) { c.Huge, err = strconv.ParseBool(s); return err },
		func(c *Config) string { return strconv.FormatBool(c.Huge) }},
	{"unet-addr", "addresses to own, such as 10.0.0.7,fd00::7; empty: share the interface's",
		func(c *Config, s string) (err error) { c.Addrs, err = parseAddrs(s); return err },
		func(c *Config) string { return joinAddrs(c.Addrs) }},
	{"unet-wait", "adaptive, spin or block",
		func(c *Config, s string) (err error) { c.Wait, err = endpoint.ParseWaitMode(s); return err },
		func(c *Config) string { return c.Wait.String() }},
	{"unet-spin-budget", "a duration such as 50us, with wait adaptive",
		func(c *Config, s string) (err error) { c.SpinBudget, err = time.ParseDuration(s); return err },
		func(c *Config) string { return c.SpinBudget.String() }},
	{"unet-memory", "on or off: memory paths to endpoints of the same host",
		func(c *Config, s string) (err error) { c.NoMemoryPaths, err = parseOff(s); return err },
		func(c *Config) string {
			if c.NoMemoryPaths {
				return "off"
			}
			return "on"
		}},
}

// parseOff reads "on" as false and "off" as true.
func parseOff(text string) (off bool, err error) {
	if text != "on" && text != "off" {
		return false, strconv.ErrSyntax
	}
	return text == "off", nil
}

// parseAddrs reads addresses with commas between them; an empty text is none.
func parseAddrs(text string) (addrs []netip.Addr, err error) {
	if text == "" {
		return nil, nil
	}
	for s := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}

func (s *setting) variable() string {
	return strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// assign sets the field, or leaves it as it is if value is not accepted.
func (s *setting) assign(c *Config, as, value string) error {
	changed := *c
	if s.set(&changed, value) != nil {
		return &ConfigError{as, value, s.want}
	}
	*c = changed
	return nil
}

// FromEnv sets the fields of c whose environment variables are set: UNET_SOCKET, UNET_INTERFACE, UNET_ATTACH,
// UNET_QUEUE, UNET_HUGE, UNET_ADDR (addresses with commas between them), UNET_WAIT, UNET_SPIN_BUDGET and UNET_MEMORY.
// The error is a [ConfigError] with the variable and the accepted values.
func (c *Config) FromEnv() error {
	for i := range settings {
		s := &settings[i]
		if value, ok := os.LookupEnv(s.variable()); ok {
			if err := s.assign(c, s.variable(), value); err != nil {
				return err
			}
		}
	}
	return nil
}

// RegisterFlags defines a flag for each variable of [Config.FromEnv], such as -unet-wait,
// whose default is what c has now. With FromEnv before it, flags override the environment:
//
//	var cfg unet.Config
//	err := cfg.FromEnv()
//	cfg.RegisterFlags(flag.CommandLine)
//	flag.Parse()
func (c *Config) RegisterFlags(flags *flag.FlagSet) {
	for i := range settings {
		flags.Var(flagValue{c, &settings[i]}, settings[i].name, settings[i].want+" ($"+settings[i].variable()+")")
	}
}

// flagValue is a flag.Value.
type flagValue struct {
	c *Config
	s *setting
}

func (f flagValue) String() string {
	if f.c == nil { // package flag calls it so, to find out whether a default is the zero value
		return ""
	}
	return f.s.get(f.c)
}

func (f flagValue) Set(value string) error { return f.s.assign(f.c, "-"+f.s.name, value) }

func (f flagValue) IsBoolFlag() bool { return f.s.name == "unet-huge" }

// Validate returns a [ConfigError] if a field has a value that does not exist, or that has no
// effect with the others: Queue without AttachQueue, SpinBudget without WaitAdaptive, a second
// address of a family. [Open] and [OpenNetwork] call it.
func (c *Config) Validate() error {
	switch {
	case c.Attach > endpoint.AttachQueue:
		return &ConfigError{"Config.Attach", fmt.Sprint(uint8(c.Attach)), "endpoint.AttachPort or endpoint.AttachQueue"}
	case c.Queue != 0 && c.Attach != endpoint.AttachQueue:
		return &ConfigError{"Config.Queue", fmt.Sprint(c.Queue), "0, or Config.Attach to be endpoint.AttachQueue"}
	}
	return c.HostConfig.validate()
}

func (c *HostConfig) validate() error {
	fail := func(field string, value any, want string) error {
		return &ConfigError{"HostConfig." + field, fmt.Sprint(value), want}
	}
	switch {
	case c.Wait > endpoint.WaitBlock:
		return fail("Wait", uint8(c.Wait), "endpoint.WaitAdaptive, endpoint.WaitSpin or endpoint.WaitBlock")
	case c.SpinBudget < 0:
		return fail("SpinBudget", c.SpinBudget, "a duration that is not negative")
	case c.SpinBudget != 0 && c.Wait != endpoint.WaitAdaptive:
		return fail("SpinBudget", c.SpinBudget, "0, or HostConfig.Wait to be endpoint.WaitAdaptive")
	}
	families := map[bool]int{} // how many addresses are IPv4, and how many are IPv6
	for _, a := range c.Addrs {
		families[a.Unmap().Is4()]++
		switch {
		case !a.IsValid() || families[a.Unmap().Is4()] > 1:
			return fail("Addrs", joinAddrs(c.Addrs), "one IPv4 address, one IPv6 address, or both")
		case a.Zone() != "":
			return fail("Addrs", joinAddrs(c.Addrs), "addresses without a zone: it is one of the interface")
		}
	}
	return nil
}
