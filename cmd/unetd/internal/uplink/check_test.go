//go:build linux

package uplink

import (
	"encoding/binary"
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

// The error names the capabilities that are missing in /proc/self/status.
func TestCheckCapabilities(t *testing.T) {
	for _, c := range []struct{ status, want string }{
		{"Name:\tunetd\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n", ""},
		{"CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n", "CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_IPC_LOCK, CAP_SETUID missing"},
		{fmt.Sprintf("CapEff:\t%016x\n", 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_NET_RAW|1<<unix.CAP_IPC_LOCK|1<<unix.CAP_SETUID), "permission denied: CAP_SYS_ADMIN missing"},
		{"CapEff:\tall\n", "invalid syntax"},
		{"", "mount proc(5)"},
	} {
		err := checkCapabilities(c.status)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.status, err, c.want)
		}
		if strings.Contains(c.want, "missing") && !errors.Is(err, os.ErrPermission) {
			t.Errorf("%q: %v", c.status, err)
		}
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

// The XDP programs in a netlink attribute, also if it is too short.
func TestXDPPrograms(t *testing.T) {
	attr := func(kind uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	for _, c := range []struct {
		nested []byte
		want   string
	}{
		{attr(2, 0), "[]"},
		{append(attr(2, 2), attr(iflaXDPSKBProg, 7, 0, 0, 0)...), "[{xdpgeneric 7}]"},
		{append(attr(iflaXDPDriverProg, 7, 0, 0, 0), attr(iflaXDPSKBProg, 8, 0, 0, 0)...), "[{xdpdrv 7} {xdpgeneric 8}]"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0), "[{xdpoffload 7}]"},
		{attr(iflaXDPHWProg, 7, 0, 0, 0)[:6], "[]"},
		{attr(iflaXDPHWProg, 7), "[]"},
		{make([]byte, 8), "[]"},
	} {
		if got := fmt.Sprint(xdpPrograms(c.nested)); got != c.want {
			t.Errorf("%v: %q, want %q", c.nested, got, c.want)
		}
	}
}
