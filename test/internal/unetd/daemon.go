//go:build linux

package unetd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/testutil"
)

// Everything is a policy that permits root and user nobody everything.
var Everything = fmt.Sprintf(`
rules:
  - name: tests
    users: [0, %d]
    tags: ["udp:*:*", "tcp:*:*", "addr:*", "msg:*"]
    endpoints: unlimited
    memory: unlimited
    trusted: true
`, netlab.NobodyID)

// Daemon is unetd on a host, with a socket to which every user may connect.
type Daemon struct {
	*Process
	Socket string
	Policy string // path of its file
	BPFFS  string

	host  *netlab.Host
	flags []string
}

// Options are how unetd is started.
type Options struct {
	Policy string   // [Everything] if empty
	BPFFS  string   // a new one if empty
	Flags  []string // more of them
}

// Serve starts unetd and returns when it is ready.
func Serve(t testing.TB, h *netlab.Host, o Options) *Daemon {
	t.Helper()
	if o.Policy == "" {
		o.Policy = Everything
	}
	if o.BPFFS == "" {
		o.BPFFS = netlab.BPFFS(t)
	}
	dir, err := os.MkdirTemp("", "unet-sock-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &Daemon{
		Socket: filepath.Join(dir, "unetd.sock"),
		Policy: filepath.Join(dir, "policy.yaml"),
		BPFFS:  o.BPFFS,
		host:   h,
		flags:  o.Flags,
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Policy, []byte(o.Policy), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Start(t)
	return d
}

// Start starts unetd, or starts it again after it has ended.
func (d *Daemon) Start(t testing.TB) {
	t.Helper()
	d.Process = Start(t, d.host, netlab.Bound(), Command(t, "unetd"), append([]string{
		"serve", "--interface", d.host.Interface, "--socket", d.Socket, "--socket-mode", "0666",
		"--policy", d.Policy, "--bpffs", d.BPFFS}, d.flags...)...)
	d.Await(t, "ready")
}

// Links are the names of a host's network devices.
func Links(t testing.TB, h *netlab.Host) (names []string) {
	t.Helper()
	for _, l := range links(t, h) {
		names = append(names, l.Attrs().Name)
	}
	return names
}

func links(t testing.TB, h *netlab.Host) []netlink.Link {
	t.Helper()
	handle, err := netlink.NewHandleAt(h.NS)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	all, err := route.Dump(handle.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Left is what is on a host that unet could have left there: devices and
// programs.
func Left(t testing.TB, h *netlab.Host) (left []string) {
	t.Helper()
	for _, l := range links(t, h) {
		a := l.Attrs()
		if a.Name != "lo" && a.Name != h.Interface {
			left = append(left, a.Name)
		}
		if a.Xdp != nil && a.Xdp.Attached {
			left = append(left, fmt.Sprintf("XDP program %d on %s", a.Xdp.ProgId, a.Name))
		}
		var tcx *link.QueryResult
		if err := h.Do(func() (err error) {
			tcx, err = link.QueryPrograms(link.QueryOptions{Target: a.Index, Attach: ebpf.AttachTCXIngress})
			return err
		}); errors.Is(err, syscall.ENODEV) {
			continue // deleted since it was listed
		} else if err != nil {
			t.Fatal(err)
		}
		for _, p := range tcx.Programs {
			left = append(left, fmt.Sprintf("TCX program %d on %s", p.ID, a.Name))
		}
	}
	return left
}

// Untouched fails the test if anything of unet's remains on the host. The kernel removes
// devices asynchronously, so it checks until [TestTimeout] ends.
func Untouched(t testing.TB, h *netlab.Host) {
	t.Helper()
	var left []string
	if !testutil.Until(func() bool { left = Left(t, h); return len(left) == 0 }) {
		t.Errorf("left on host %s: %v", h.Name, left)
	}
}
