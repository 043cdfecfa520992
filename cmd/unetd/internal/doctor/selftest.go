//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"

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
	type result struct {
		warned []string
		err    error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		log, warned := newWarnings()
		err := openEndpoint(ctx, mux.Config{Interface: "unet0", Log: log, Policy: mux.Permit(mux.Terms{
			Rule: "doctor", Endpoints: 1, // not Registered: the kernel counts the endpoints of this user elsewhere, too
		})})
		done <- result{*warned, err}
	}()
	r := <-done
	for _, w := range r.warned {
		e.note("endpoint", "", "the test of an endpoint warns: %s", w)
	}
	if r.err != nil {
		remedy := ""
		if errors.Is(r.err, errors.ErrUnsupported) || errors.Is(r.err, mux.ErrFillRings) {
			remedy = newer
		}
		e.problem("endpoint", remedy, "an endpoint in a network namespace of its own: %v", r.err)
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
