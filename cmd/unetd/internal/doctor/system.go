//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/internal/xsk"
)

// newer is the remedy for a missing feature.
const newer = "use Linux 6.6 or newer, built with CONFIG_XDP_SOCKETS, CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT, CONFIG_NET_CLS_ACT, CONFIG_DEBUG_INFO_BTF, CONFIG_VETH and CONFIG_IFB, as distributions have it"

func system(ctx context.Context, e *examination) {
	kernel(e)
	missing := capabilities(e)
	kernelFeatures(e)
	jit(e)
	limits(e)
	if missing {
		e.note("endpoint", "run unetd doctor as root", "no endpoint was opened to test it: that needs the capabilities of unetd")
		return
	}
	selfTest(ctx, e)
}

func kernel(e *examination) {
	release, err := e.read("proc/sys/kernel/osrelease")
	if err != nil {
		e.unseen("kernel", err)
		return
	}
	found := fmt.Sprintf("Linux %s on %s", release, runtime.GOARCH)
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err == nil && (major < 6 || major == 6 && minor < 6) {
		e.note("kernel", newer, "%s: unet is not tested on it", found)
		return
	}
	if runtime.GOARCH != "amd64" {
		e.note("kernel", "", "%s: unet is tested on amd64 only", found)
		return
	}
	e.ok("kernel", found)
}

// capabilities reports whether some are missing.
func capabilities(e *examination) bool {
	missing, err := uplink.MissingCapabilities()
	switch {
	case err != nil:
		e.unseen("privileges", err)
		return true
	case len(missing) > 0:
		e.note("privileges", "run unetd doctor as root, or with the capabilities that deploy/systemd/unetd.service gives unetd",
			"uid %d without %s: unetd cannot run so, and not everything is examined", os.Geteuid(), strings.Join(missing, ", "))
		return true
	}
	e.ok("privileges", "uid %d with the capabilities that unetd needs", os.Geteuid())
	return false
}

func kernelFeatures(e *examination) {
	if err := uplink.CheckSocket(); err != nil {
		e.problem("AF_XDP", "", "%v", err)
	} else {
		e.ok("AF_XDP", "the kernel has AF_XDP sockets")
	}
	if _, err := btf.LoadKernelSpec(); err != nil {
		e.problem("BTF", "use a kernel that was built with CONFIG_DEBUG_INFO_BTF, and mount sysfs", "no types of the kernel: %v", err)
	} else {
		e.ok("BTF", "the kernel shows its types")
	}
	socketOptions(e)
}

// socketOptions asks for options of unix sockets.
func socketOptions(e *examination) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		e.unseen("SO_PASSRIGHTS", err)
		return
	}
	defer unix.Close(fd)
	if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); err != nil {
		e.note("SO_PASSRIGHTS", "use Linux 6.16 or newer if local users are hostile",
			"the kernel does not have it: a local user can keep some of unetd's descriptors for a time by what it sends to connections that are refused")
		return
	}
	e.ok("SO_PASSRIGHTS", "the kernel has it")
}

func jit(e *examination) {
	const setting = "net.core.bpf_jit_enable"
	switch value, err := e.read("proc/sys/net/core/bpf_jit_enable"); {
	case errors.Is(err, os.ErrNotExist): // CONFIG_BPF_JIT_ALWAYS_ON in a namespace shows none
		e.ok("BPF JIT", "%s is not shown in this network namespace", setting)
	case err != nil:
		e.unseen("BPF JIT", err)
	case value == "0":
		e.problem("BPF JIT", "sysctl -w "+setting+"=1", "%s is 0: programs are interpreted, several times slower", setting)
	default:
		e.ok("BPF JIT", "on (%s is %s)", setting, value)
	}
}

func limits(e *examination) {
	limit, err := xsk.MaxCharge()
	switch {
	case err != nil:
		e.unseen("locked memory", err)
	case limit == unix.RLIM_INFINITY:
		e.ok("locked memory", "RLIMIT_MEMLOCK can be unlimited")
	default:
		e.note("locked memory", "LimitMEMLOCK=infinity in the unit of unetd, or CAP_SYS_RESOURCE",
			"the hard limit (RLIMIT_MEMLOCK) of this process is %v: memory of users whose rule allows more than %v is not counted by the kernel",
			policy.Bytes(int64(limit)), policy.Bytes(int64(limit/policy.RegisteredTimes)))
	}
	var files unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); {
	case err != nil:
		e.unseen("open files", err)
	case files.Max < daemon.OpenFiles && unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files.Cur, Max: daemon.OpenFiles}) != nil:
		e.note("open files", fmt.Sprintf("LimitNOFILE=%d in the unit of unetd, or CAP_SYS_RESOURCE", daemon.OpenFiles),
			"the hard limit (RLIMIT_NOFILE) of this process is %d: there are fewer tags than the 131,072 of %d", files.Max, daemon.OpenFiles)
	default:
		e.ok("open files", "RLIMIT_NOFILE can be %d", daemon.OpenFiles)
	}
	memoryCgroup(e)
}

func memoryCgroup(e *examination) {
	limit, segments, err := uplink.MemoryBound()
	switch {
	case err != nil:
		e.unseen("memory cgroup", err)
	case limit == policy.Unlimited:
		e.ok("memory cgroup", "this process's has no limit")
	default:
		e.note("memory cgroup", "MemoryMax= in the unit of unetd, if that is too little",
			"the limit of this process's is %v: a unetd in it limits the segments of all users to %v", policy.Bytes(limit), policy.Bytes(segments))
	}
}
