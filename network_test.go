package unet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet/endpoint"
)

// logged returns what is logged by slog.Default while f runs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	var log bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	f()
	return log.String()
}

// Without unetd, OpenNetwork returns the kernel's sockets and logs that once. FellBack is the reason.
func TestFallback(t *testing.T) {
	ctx := t.Context()
	cfg := Config{Socket: filepath.Join(t.TempDir(), "unetd.sock")}
	var n *Opened
	var err error
	log := logged(t, func() { n, err = OpenNetwork(ctx, cfg, Kernel()) })
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if n.Network != Kernel() || n.Host() != nil || !absent(n.FellBack()) {
		t.Errorf("%v, host %v, %v", n.Network, n.Host(), n.FellBack())
	}
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "level=WARN") || !strings.Contains(log, "falling back") {
		t.Errorf("logged %q", log)
	}
	l, err := n.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := n.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	p, err := n.ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := n.Resolver().LookupPort(ctx, "tcp", "http"); err != nil {
		t.Error(err)
	}
}

// Without a fallback, with addresses to own, and after the end of the context, the error is that of Open.
func TestNoFallback(t *testing.T) {
	cfg := Config{Socket: filepath.Join(t.TempDir(), "unetd.sock")}
	log := logged(t, func() {
		if n, err := OpenNetwork(t.Context(), cfg, nil); n != nil || !absent(err) {
			t.Errorf("%v, %v", n, err)
		}
		owns := cfg
		owns.Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.7")}
		if n, err := OpenNetwork(t.Context(), owns, Kernel()); n != nil || !absent(err) {
			t.Errorf("with an address to own: %v, %v", n, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if n, err := OpenNetwork(ctx, cfg, Kernel()); n != nil || err == nil {
			t.Errorf("after the end of the context: %v, %v", n, err)
		}
	})
	if log != "" {
		t.Errorf("logged %q", log)
	}
}

// The errors of Open that mean that this process cannot use unetd, for which the kernel is used instead.
func TestErrorsThatAllowTheFallback(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.ENOENT:           true,
		syscall.ECONNREFUSED:     true,
		syscall.EACCES:           true,
		fs.ErrPermission:         true, // the policy gives no endpoint
		endpoint.ErrTagDenied:    true,
		errors.ErrUnsupported:    true,
		errSystem:                true,
		endpoint.ErrBusy:         false,
		endpoint.ErrGeometry:     false,
		endpoint.ErrHugePages:    false,
		endpoint.ErrTagHeld:      false,
		context.DeadlineExceeded: false,
	} {
		if got := absent(fmt.Errorf("open: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
