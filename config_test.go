package unet

import (
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"reflect"
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
		{"UNET_ADDR", "10.0.0.7", Config{HostConfig: HostConfig{Addrs: []netip.Addr{addr}}}, ""},
		{"UNET_ADDR", "10.0.0.7,fd00::7", Config{HostConfig: HostConfig{Addrs: []netip.Addr{addr, addr6}}}, ""},
		{"UNET_ADDR", "10.0.0.7, fd00::7", Config{}, "addresses"},
		{"UNET_ADDR", "10.0.0.7,", Config{}, "addresses"},
		{"UNET_ADDR", "", Config{}, ""},
		{"UNET_ADDR", "10.0.0.7/24", Config{}, "addresses"},
		{"UNET_ADDR", "fd00::7", Config{HostConfig: HostConfig{Addrs: []netip.Addr{addr6}}}, ""},
		{"UNET_WAIT", "spin", Config{HostConfig: HostConfig{Wait: endpoint.WaitSpin}}, ""},
		{"UNET_WAIT", "fast", Config{}, "adaptive, spin or block"},
		{"UNET_SPIN_BUDGET", "10us", Config{HostConfig: HostConfig{SpinBudget: 10 * time.Microsecond}}, ""},
		{"UNET_SPIN_BUDGET", "10", Config{}, "a duration"},
	} {
		check := func(as string, got Config, err error) {
			t.Helper()
			if !reflect.DeepEqual(got, c.want) {
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
	cfg := Config{Socket: "/s", HostConfig: HostConfig{Wait: endpoint.WaitBlock, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")}}}
	before := cfg
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	cfg.RegisterFlags(flags)
	if err := flags.Parse(nil); err != nil || !reflect.DeepEqual(cfg, before) {
		t.Errorf("%+v, %v", cfg, err)
	}
	for name, want := range map[string]string{"unet-socket": "/s", "unet-wait": "block", "unet-addr": "10.0.0.7,fd00::7", "unet-huge": "false"} {
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

// A field with a value that does not exist or has no effect is an error that names the field, and nothing is opened.
func TestConfigIsValidated(t *testing.T) {
	ctx := t.Context()
	addr, addr6 := netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")
	owned := func(addrs ...netip.Addr) Config { return Config{HostConfig: HostConfig{Addrs: addrs}} }
	for _, c := range []struct {
		cfg   Config
		field string
	}{
		{Config{Queue: 1}, "Config.Queue"},
		{Config{Attach: 7}, "Config.Attach"},
		{Config{HostConfig: HostConfig{Wait: 9}}, "HostConfig.Wait"},
		{Config{HostConfig: HostConfig{SpinBudget: -1}}, "HostConfig.SpinBudget"},
		{Config{HostConfig: HostConfig{SpinBudget: 1, Wait: endpoint.WaitSpin}}, "HostConfig.SpinBudget"},
		{owned(netip.Addr{}), "HostConfig.Addrs"},
		{owned(addr, addr), "HostConfig.Addrs"},
		{owned(addr6, netip.MustParseAddr("fe80::7")), "HostConfig.Addrs"},
		{owned(addr, netip.AddrFrom16(addr.As16())), "HostConfig.Addrs"}, // the same, as IPv4 in IPv6
		{owned(addr, addr6, addr), "HostConfig.Addrs"},
		{owned(addr, addr6.WithZone("eth0")), "HostConfig.Addrs"},
		{owned(addr6.WithZone("eth0")), "HostConfig.Addrs"},
	} {
		check := func(way string, err error) {
			t.Helper()
			if wrong, ok := errors.AsType[*ConfigError](err); !ok || wrong.Field != c.field {
				t.Errorf("%s with %+v: %v", way, c.cfg, err)
			}
		}
		c.cfg.Socket = "/nonexistent/socket"
		_, err := Open(ctx, c.cfg)
		check("Open", err)
		_, err = OpenNetwork(ctx, c.cfg, Kernel())
		check("OpenNetwork", err)
		if strings.HasPrefix(c.field, "HostConfig") {
			_, err = New(ctx, &endpoint.Grant{}, &memLease{done: make(chan struct{})}, c.cfg.HostConfig)
			check("New", err)
		}
	}
	for _, cfg := range []Config{owned(), owned(addr), owned(addr6), owned(addr, addr6), owned(addr6, addr)} {
		if err := cfg.Validate(); err != nil {
			t.Errorf("%v: %v", cfg.Addrs, err)
		}
	}
}
