//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// testUID is the owner of the endpoint of the self-test.
const testUID = 65534

// selfTest opens a mux on a veth pair in a network namespace of this thread's own, and an
// endpoint with a tag for a user who is not trusted. So the kernel checks all programs and has all
// that unetd needs. The thread and the namespace end with the goroutine.
func selfTest(ctx context.Context, e *examination) {
	var warned strings.Builder
	log := slog.New(slog.NewTextHandler(&warned, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}}))
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- openEndpoint(ctx, mux.Config{Interface: "unet0", Log: log, Policy: mux.Permit(mux.Terms{
			Rule: "doctor", Endpoints: 1, // not Registered: the kernel counts the endpoints of this user elsewhere, too
		})})
	}()
	err := <-done
	for w := range strings.Lines(warned.String()) {
		e.note("endpoint", "", "the test of an endpoint warns: %s", strings.TrimPrefix(w, slog.MessageKey+"="))
	}
	if err != nil {
		remedy := ""
		if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, mux.ErrFillRings) {
			remedy = newer
		}
		e.problem("endpoint", remedy, "an endpoint in a network namespace of its own: %v", err)
		return
	}
	e.ok("endpoint", "an endpoint was opened for uid %d in a network namespace of its own: the kernel accepts the programs and checks fill rings", testUID)
}

// openEndpoint moves the calling thread to a new network namespace.
func openEndpoint(ctx context.Context, cfg mux.Config) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot make a network namespace: %w", err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: cfg.Interface}, PeerName: "unet1"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("cannot make a veth pair (modprobe veth): %w", err)
	}
	for _, name := range []string{"lo", pair.Name, pair.PeerName} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			return fmt.Errorf("cannot set %s up: %w", name, err)
		}
	}
	m, err := mux.Open(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	grant, lease, err := m.OpenEndpointFor(ctx, mux.Owner{UID: testUID, GID: testUID}, endpoint.Request{
		Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, CompletionSize: 32, RxSize: 32, TxSize: 32},
		Tags:     []endpoint.Tag{endpoint.MessageTag(1)},
	})
	if err != nil {
		return err
	}
	return errors.Join(lease.Close(), grant.Close())
}
