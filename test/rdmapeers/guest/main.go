//go:build linux

// Guest is process 1 of the virtual machine of package rdmapeers. It makes the software RDMA
// device rxe0 on eth0, whose address is GUEST_ADDR of the kernel's command line, and runs the
// programs that it is told to run.
package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/test/internal/guest/agent"
)

func main() { agent.Main(openRXE) }

// openRXE sets eth0 up with addr, makes rxe0 on it, and returns when addr is a GID of rxe0.
func openRXE(addr string) error {
	if err := agent.OpenLink("eth0", addr); err != nil {
		return err
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", "eth0"); err != nil {
		return fmt.Errorf("rxe0: %w", err)
	}
	ip, _, err := net.ParseCIDR(addr)
	if err != nil {
		return err
	}
	b := ip.To4()
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3])
	const port = "/sys/class/infiniband/rxe0/ports/1/"
	return agent.Await(func() error {
		gid, err := os.ReadFile(port + "gids/1")
		if err != nil {
			return err
		}
		state, err := os.ReadFile(port + "state")
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(gid)) != want || !strings.Contains(string(state), "ACTIVE") {
			return fmt.Errorf("rxe0: state %q, GID 1 is %q, want %s", state, gid, want)
		}
		return nil
	})
}
