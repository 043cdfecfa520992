//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/cmd/unetd/internal/daemon"
	"github.com/unet-go/unet/cmd/unetd/internal/policy"
	"github.com/unet-go/unet/cmd/unetd/internal/uplink"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/mux"
)

func files(ctx context.Context, e *examination) {
	bpffs(e)
	socket(ctx, e)
	policyFile(e)
	sysctlWritable(e)
}

func bpffs(e *examination) {
	mounted, own, err := uplink.InspectBPFFS(e.BPFFS)
	switch {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		e.unseen("bpffs", err)
		return
	case err != nil:
		e.problem("bpffs", "", "%v", err)
		return
	case !mounted && own:
		e.problem("bpffs", "in a container mount that of the host there, as docker run -v "+e.BPFFS+":"+e.BPFFS+" does; else use nsenter --net=/run/netns/NAME instead of ip netns exec NAME",
			"%s is no BPF file system, and the one that unetd mounts there ends with this container or mount namespace: if it ends, all endpoints end", e.BPFFS)
		return
	case !mounted:
		e.note("bpffs", "mount -t bpf bpf "+e.BPFFS, "%s is no BPF file system: unetd mounts one", e.BPFFS)
		return
	case own:
		e.problem("bpffs", "use nsenter --net=/run/netns/NAME instead of ip netns exec NAME, or mount one outside (mount -t bpf bpf DIR) and name it by --bpffs",
			"%s is in a mount namespace of its own and ends with it: endpoints do not outlive unetd", e.BPFFS)
	case uplink.Contained():
		e.note("bpffs", "mount that of the host there, as docker run -v "+e.BPFFS+":"+e.BPFFS+" does",
			"%s is mounted; from a container it does not show whether it is that of the host, by which endpoints outlive the container", e.BPFFS)
	default:
		e.ok("bpffs", "%s is mounted, and is that of the system", e.BPFFS)
	}
	pins(e)
}

func pins(e *examination) {
	list, err := mux.Pins(e.BPFFS)
	if err != nil {
		e.unseen("pins", err)
		return
	}
	if len(list) == 0 {
		e.ok("pins", "none")
	}
	for _, p := range list {
		switch {
		case p.Served:
			e.ok("pins", "%s: a running unetd serves %s", p.Path, orElsewhere(p.Interface))
		case p.Gone:
			e.note("pins", "unetd cleanup --bpffs "+e.BPFFS, "%s: left behind; its interface is gone", p.Path)
		case !p.Here:
			e.note("pins", "start unetd there again, or unetd cleanup in that network namespace", "%s: of another network namespace, and no unetd serves it", p.Path)
		default:
			e.note("pins", "unetd serve --interface "+p.Interface+" takes it over; unetd cleanup --bpffs "+e.BPFFS+" removes it",
				"%s: no unetd serves %s, and its programs are still attached", p.Path, p.Interface)
		}
	}
}

func orElsewhere(interfaceName string) string {
	if interfaceName == "" {
		return "an interface of another network namespace"
	}
	return interfaceName
}

// answerWait is how long a unetd may take to answer.
const answerWait = 5 * time.Second

func socket(ctx context.Context, e *examination) {
	path, err := filepath.Abs(e.Socket)
	if err != nil {
		e.unseen("socket", err)
		return
	}
	if len(path) > daemon.MaxSocketPath {
		e.problem("socket", fmt.Sprintf("choose a --socket of at most %d bytes", daemon.MaxSocketPath), "the path %s has %d bytes", path, len(path))
		return
	}
	folder := filepath.Dir(path)
	switch info, err := os.Stat(folder); {
	case errors.Is(err, fs.ErrNotExist):
		e.ok("socket", "%s does not exist: unetd makes it", folder)
		return
	case err != nil:
		e.unseen("socket", err)
		return
	case !info.IsDir():
		e.problem("socket", "remove it, or choose another --socket", "%s is not a folder", folder)
		return
	default:
		st, _ := info.Sys().(*syscall.Stat_t)
		mode := info.Mode()
		if st != nil && (st.Uid != 0 || mode.Perm()&0o002 != 0) && mode&fs.ModeSticky == 0 {
			e.problem("socket folder", "chown root "+folder+" && chmod 0755 "+folder,
				"uid %d owns %s, mode %#o: others than root can put a socket of their own there", st.Uid, folder, mode.Perm())
		} else if mode.Perm()&0o001 == 0 {
			e.note("socket folder", "chmod 0755 "+folder+", if others than its owner and group are to connect", "%s has mode %#o", folder, mode.Perm())
		} else {
			e.ok("socket folder", "%s, mode %#o", folder, mode.Perm())
		}
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		e.ok("socket", "no unetd is running at %s", path)
		return
	}
	if err != nil {
		e.unseen("socket", err)
		return
	}
	asking, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	_, err = control.Operator{Socket: path}.List(asking)
	switch {
	case err == nil, errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EACCES):
		e.ok("socket", "a unetd answers at %s, mode %#o", path, info.Mode().Perm())
		if info.Mode().Perm()&0o066 == 0 {
			e.note("socket", "unetd serve --socket-mode 0666 or --socket-group; the policy decides who gets what", "only its owner can connect to %s", path)
		}
	case errors.Is(err, unix.ECONNREFUSED) && info.Mode()&fs.ModeSocket != 0:
		e.note("socket", "start unetd, or unetd cleanup --socket "+path, "%v", err)
	case errors.Is(err, unix.EACCES):
		e.unseen("socket", err)
	default:
		e.problem("socket", "remove it, choose another --socket, or look at the unetd there", "%v", err)
	}
}

func policyFile(e *examination) {
	file := e.Policy
	if file == "" {
		file = policy.DefaultFile
	}
	p, warning, err := policy.Load(file, policy.SystemNames())
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Policy == "":
		e.note("policy", "write "+file+" (docs/policy.md)", "there is no %s: only uid 0 gets endpoints", file)
	case errors.Is(err, fs.ErrPermission):
		e.unseen("policy", err)
	case err != nil:
		e.problem("policy", "unetd check-config "+file, "%v", err)
	case warning != "":
		e.problem("policy", "", "%s", warning)
	default:
		e.ok("policy", "%s, rules: %d", file, len(p.Rules))
	}
}

// sysctlWritable: while it serves, unetd sets accept_local of lo; for each port, settings of the
// outer end.
func sysctlWritable(e *examination) {
	const name = "/proc/sys/net/ipv4/conf/lo/accept_local"
	switch err := unix.Access(name, unix.W_OK); {
	case errors.Is(err, unix.EROFS):
		e.problem("sysctl", "make it writable: podman run --security-opt unmask=/proc/sys, docker run --security-opt systempaths=unconfined, or mount -o remount,rw /proc/sys", "/proc/sys is read-only, and unetd has to set %s", strings.TrimPrefix(name, "/proc/sys/"))
	case err != nil:
		e.unseen("sysctl", err)
	default:
		e.ok("sysctl", "/proc/sys/net can be written")
	}
}
