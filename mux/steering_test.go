//go:build linux

package mux

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux/internal/steer"
	"github.com/unet-go/unet/mux/internal/steer/steertest"
)

// A rule that cannot be removed with its tag is in the log.
func TestRuleThatCannotBeRemovedIsLogged(t *testing.T) {
	var log strings.Builder
	d := steertest.NewModel[steer.Rule](16)
	spread := func() (steer.Spread, error) { return steer.Spread{Queues: 2, Channels: 2}, nil }
	m := &Mux{log: slog.New(slog.NewTextHandler(&log, nil)), steering: steer.New("eth0", false, d, spread)}
	l := &Lease{m: m, holdsQueue: true, queue: 1}
	rules, err := l.steer(endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:80")), false)
	if err != nil || len(rules) != 1 {
		t.Fatalf("%v, %v", rules, err)
	}
	d.RemoveErr = unix.EIO
	if err := m.unsteer(rules); !errors.Is(err, unix.EIO) || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("%v, log %q", err, log.String())
	}
	d.RemoveErr = nil
	if err := m.unsteer(nil); err != nil || len(d.Rules) != 0 {
		t.Errorf("%v, the driver has %v", err, d.Rules)
	}
}
