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
	Field string // "Config.Wait", "UNET_WAIT" or "-unet-wait"
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
	{"unet-addr", "an address to own, such as 10.0.0.7; empty: share the interface's",
		func(c *Config, s string) error { return setAddr(&c.Addr, s) },
		func(c *Config) string { return addrText(c.Addr) }},
	{"unet-addr6", "an IPv6 address to own beside unet-addr, such as fd00::7",
		func(c *Config, s string) error { return setAddr(&c.Addr6, s) },
		func(c *Config) string { return addrText(c.Addr6) }},
	{"unet-wait", "adaptive, spin or block",
		func(c *Config, s string) (err error) { c.Wait, err = endpoint.ParseWaitMode(s); return err },
		func(c *Config) string { return c.Wait.String() }},
	{"unet-spin-budget", "a duration such as 50us, with wait adaptive",
		func(c *Config, s string) (err error) { c.SpinBudget, err = time.ParseDuration(s); return err },
		func(c *Config) string { return c.SpinBudget.String() }},
	{"unet-fallback", "kernel or none",
		func(c *Config, s string) error {
			switch s {
			case "kernel":
				c.Fallback = Kernel()
			case "none":
				c.Fallback = nil
			default:
				return strconv.ErrSyntax
			}
			return nil
		},
		func(c *Config) string {
			if c.Fallback == nil {
				return "none"
			}
			return "kernel"
		}},
}

// setAddr reads an address; an empty text is none.
func setAddr(a *netip.Addr, text string) (err error) {
	if *a = (netip.Addr{}); text != "" {
		*a, err = netip.ParseAddr(text)
	}
	return err
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
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
// UNET_QUEUE, UNET_HUGE, UNET_ADDR, UNET_ADDR6, UNET_WAIT, UNET_SPIN_BUDGET and UNET_FALLBACK ("kernel"
// or "none"). The error is a [ConfigError] with the variable and the accepted values.
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
// effect with the others: Queue without AttachQueue, SpinBudget without endpoint.WaitAdaptive, Addr6 without
// an IPv4 Addr, Fallback with Addr, which is no address of the kernel's. [Open], [OpenNetwork] and [New] call it.
func (c *Config) Validate() error {
	fail := func(field string, value any, want string) error {
		return &ConfigError{"Config." + field, fmt.Sprint(value), want}
	}
	switch {
	case c.Attach > endpoint.AttachQueue:
		return fail("Attach", uint8(c.Attach), "endpoint.AttachPort or endpoint.AttachQueue")
	case c.Queue != 0 && c.Attach != endpoint.AttachQueue:
		return fail("Queue", c.Queue, "0, or Config.Attach to be endpoint.AttachQueue")
	case c.Wait > endpoint.WaitBlock:
		return fail("Wait", uint8(c.Wait), "endpoint.WaitAdaptive, endpoint.WaitSpin or endpoint.WaitBlock")
	case c.SpinBudget < 0:
		return fail("SpinBudget", c.SpinBudget, "a duration that is not negative")
	case c.SpinBudget != 0 && c.Wait != endpoint.WaitAdaptive:
		return fail("SpinBudget", c.SpinBudget, "0, or Config.Wait to be endpoint.WaitAdaptive")
	case c.Addr6.IsValid() && c.Addr6.Unmap().Is4():
		return fail("Addr6", c.Addr6, "an IPv6 address")
	case c.Addr6.IsValid() && !c.Addr.Unmap().Is4():
		return fail("Addr6", c.Addr6, "zero, or Config.Addr to be an IPv4 address: an IPv6 address alone goes into Config.Addr")
	case c.Addr.Zone() != "":
		return fail("Addr", c.Addr, "an address without a zone: it is one of the interface")
	case c.Addr6.Zone() != "":
		return fail("Addr6", c.Addr6, "an address without a zone: it is one of the interface")
	case c.Fallback != nil && c.Addr.IsValid():
		return fail("Fallback", flagValue{c, &settings[len(settings)-1]}, "nil, or Config.Addr to be zero: other sockets do not have that address")
	}
	return nil
}

// validateNew is Validate for New, to which unetd's part of the fields does not apply.
func (c *Config) validateNew() error {
	var field string
	var value any
	switch {
	case c.Socket != "":
		field, value = "Socket", c.Socket
	case c.Interface != "":
		field, value = "Interface", c.Interface
	case c.Attach != endpoint.AttachPort:
		field, value = "Attach", c.Attach
	case c.Geometry != endpoint.Geometry{}:
		field, value = "Geometry", c.Geometry
	case c.Huge:
		field, value = "Huge", c.Huge
	case c.Fallback != nil:
		field, value = "Fallback", "set"
	default:
		return c.Validate()
	}
	return &ConfigError{"Config." + field, fmt.Sprint(value), "the zero value with New: the grant has it"}
}
