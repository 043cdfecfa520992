//go:build linux

package uplink

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// A kernel without AF_XDP is an error that names the option of the kernel. Other errors of socket(2) stay.
func TestKernelWithoutAFXDP(t *testing.T) {
	if err := explainSocket(unix.EAFNOSUPPORT); err == nil || !strings.Contains(err.Error(), "CONFIG_XDP_SOCKETS") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(explainSocket(nil), explainSocket(unix.EPERM)); err != nil {
		t.Error(err)
	}
	if err := explainSocket(unix.EMFILE); !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v", err)
	}
}

// An interface that does not exist is an error that lists the interfaces.
func TestCheckInterface(t *testing.T) {
	if err := checkInterface("lo"); err != nil {
		t.Error(err)
	}
	if err := checkInterface("no-such-if"); err == nil || !strings.Contains(err.Error(), `no interface "no-such-if": choose one of lo`) {
		t.Errorf("%v", err)
	}
}

// Errors of mux.Open get a remedy.
func TestExplainOpen(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("%w: eth0 has program 7", mux.ErrForeignProgram), "eth0 has program 7: try again, or use another"}, // there is no such interface here
		{mux.ErrNotEthernet, "another --interface"},
		{mux.ErrInUse, "stop the other unetd, or use another --interface"},
		{mux.ErrVLANOffload, "--mode tcx"},
		{errors.Join(mux.ErrVLANOffload, unix.EPERM), "as root of the initial user namespace, and in a container whose seccomp filter permits bpf(2)"},
		{&os.PathError{Op: "open", Path: "/proc/sys/net/ipv4/conf/x/rp_filter", Err: unix.EROFS}, "make /proc/sys writable: podman run --security-opt unmask=/proc/sys"},
		{&xsk.UnsupportedError{Feature: "x", MinKernel: "9.9"}, "Linux 9.9 or newer is needed"},
		{unix.ENOMEM, "cannot allocate memory"},
	} {
		err := explainOpen("eth0", c.err)
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
}
