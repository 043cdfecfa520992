package unet

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

func TestConfigFromEnvAndFlags(t *testing.T) {
	addr, addr6 := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")
	for _, c := range []struct {
		name, value string
		want        Config
		accepted    string // in the error; empty: value is valid
	}{
		{"UNET_SOCKET", "/tmp/s", Config{Socket: "/tmp/s"}, ""},
		{"UNET_ATTACH", "queue", Config{Attach: endpoint.AttachQueue}, ""},
		{"UNET_ATTACH", "que", Config{}, "port or queue"},
		{"UNET_QUEUE", "3", Config{Queue: 3}, ""},
		{"UNET_QUEUE", "-1", Config{}, "the number of a queue"},
		{"UNET_HUGE", "true", Config{Huge: true}, ""},
		{"UNET_HUGE", "much", Config{}, "true or false"},
		{"UNET_ADDR", "10.0.0.7", Config{Addr: addr}, ""},
		{"UNET_ADDR", "", Config{}, ""},
		{"UNET_ADDR", "10.0.0.7/24", Config{}, "an address"},
		{"UNET_ADDR", "fd00::7", Config{Addr: addr6}, ""},
		{"UNET_ADDR6", "fd00::7", Config{Addr6: addr6}, ""},
		{"UNET_ADDR6", "", Config{}, ""},
		{"UNET_ADDR6", "fd00::7/64", Config{}, "an IPv6 address"},
		{"UNET_WAIT", "spin", Config{Wait: endpoint.WaitSpin}, ""},
		{"UNET_WAIT", "fast", Config{}, "adaptive, spin or block"},
		{"UNET_SPIN_BUDGET", "10us", Config{SpinBudget: 10 * time.Microsecond}, ""},
		{"UNET_SPIN_BUDGET", "10", Config{}, "a duration"},
		{"UNET_FALLBACK", "kernel", Config{Fallback: Kernel()}, ""},
		{"UNET_FALLBACK", "none", Config{}, ""},
		{"UNET_FALLBACK", "yes", Config{}, "kernel or none"},
	} {
		check := func(as string, got Config, err error) {
			t.Helper()
			if got != c.want {
				t.Errorf("%s=%s: %+v", as, c.value, got)
			}
			if c.accepted == "" {
				if err != nil {
					t.Errorf("%s=%s: %v", as, c.value, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), as+` is "`+c.value+`": want `+c.accepted) {
				t.Errorf("%s=%s: error %v", as, c.value, err)
			}
		}
		t.Setenv(c.name, c.value)
		var cfg Config
		err := cfg.FromEnv()
		check(c.name, cfg, err)
		os.Unsetenv(c.name)

		cfg = Config{}
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.SetOutput(io.Discard)
		cfg.RegisterFlags(flags)
		name := "-" + strings.ToLower(strings.ReplaceAll(c.name, "_", "-"))
		check(name, cfg, flags.Parse([]string{name + "=" + c.value}))
	}
}

// A flag's default is what the configuration had before, and a flag that is not given
// changes nothing.
func TestFlagDefaults(t *testing.T) {
	cfg := Config{Socket: "/s", Wait: endpoint.WaitBlock, Fallback: Kernel(), Addr: netip.MustParseAddr("10.0.0.7")}
	before := cfg
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	cfg.RegisterFlags(flags)
	if err := flags.Parse(nil); err != nil || cfg != before {
		t.Errorf("%+v, %v", cfg, err)
	}
	for name, want := range map[string]string{"unet-socket": "/s", "unet-wait": "block", "unet-fallback": "kernel", "unet-addr": "10.0.0.7", "unet-huge": "false"} {
		if got := flags.Lookup(name).DefValue; got != want {
			t.Errorf("default of -%s: %q, want %q", name, got, want)
		}
	}
	var usage strings.Builder
	flags.SetOutput(&usage)
	flags.PrintDefaults()
	if s := usage.String(); !strings.Contains(s, "adaptive, spin or block ($UNET_WAIT)") || strings.Contains(s, "panic") {
		t.Error(s)
	}
}

// A field that does not apply to the call (Open, OpenNetwork or New) is an error that names the
// field, and nothing is opened.
func TestConfigFieldsThatDoNotApply(t *testing.T) {
	ctx := t.Context()
	ways := map[string]func(Config) error{
		"Open": func(c Config) error { _, err := Open(ctx, c); return err },
		"OpenNetwork": func(c Config) error {
			c.Socket = "/nonexistent/socket"
			_, err := OpenNetwork(ctx, c)
			return err
		},
		"New": func(c Config) error {
			_, err := New(ctx, &endpoint.Grant{}, &memLease{done: make(chan struct{})}, c)
			return err
		},
	}
	addr, addr6 := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")
	for _, c := range []struct {
		cfg   Config
		field string
		ways  string
	}{
		{Config{Queue: 1}, "Queue", "Open OpenNetwork New"},
		{Config{Attach: 7}, "Attach", "Open OpenNetwork New"},
		{Config{Wait: 9}, "Wait", "Open OpenNetwork New"},
		{Config{SpinBudget: -1}, "SpinBudget", "Open OpenNetwork New"},
		{Config{SpinBudget: 1, Wait: endpoint.WaitSpin}, "SpinBudget", "Open OpenNetwork New"},
		{Config{Addr6: addr6}, "Addr6", "Open OpenNetwork New"},
		{Config{Addr: addr6, Addr6: addr6}, "Addr6", "Open OpenNetwork New"},
		{Config{Addr: addr, Addr6: addr}, "Addr6", "Open OpenNetwork New"},
		{Config{Addr: addr, Addr6: addr6.WithZone("eth0")}, "Addr6", "Open OpenNetwork New"},
		{Config{Addr: addr6.WithZone("eth0")}, "Addr", "Open OpenNetwork New"},
		{Config{Fallback: Kernel(), Addr: addr}, "Fallback", "Open OpenNetwork New"},
		{Config{Fallback: Kernel()}, "Fallback", "Open New"},
		{Config{Socket: "/s"}, "Socket", "New"},
		{Config{Attach: endpoint.AttachQueue}, "Attach", "New"},
		{Config{Geometry: endpoint.Geometry{FrameSize: 2048}}, "Geometry", "New"},
		{Config{Huge: true}, "Huge", "New"},
	} {
		for _, way := range strings.Fields(c.ways) {
			err := ways[way](c.cfg)
			if wrong, ok := errors.AsType[*ConfigError](err); !ok || wrong.Field != "Config."+c.field {
				t.Errorf("%s with %s: %v", way, c.field, err)
			}
		}
	}
}
