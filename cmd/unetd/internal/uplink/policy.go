package uplink

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
)

// errQueue answers a request for a queue that the operator did not allow.
var errQueue = fmt.Errorf("%w: queues of the interface are not given out here: attach to a port, or have unetd serve started with --allow-queue", os.ErrPermission)

// unprivilegedPorts is where the kernel says from which port on anybody may
// bind (ip-sysctl), in the network namespace of the process that reads it.
const unprivilegedPorts = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// allowTags holds a claim to the rule that the kernel has for its own UDP
// ports: those below ip_unprivileged_port_start are root's. Whose a wildcard
// becomes is the kernel's choice, which is not below.
func allowTags(peer control.Peer, tags ...endpoint.Tag) error {
	if peer.UID == 0 {
		return nil
	}
	first := 0 // not read yet
	for _, t := range tags {
		if t.Kind != endpoint.TagUDP || t.Port == 0 {
			continue
		}
		if first == 0 {
			first = firstUnprivileged(os.ReadFile(unprivilegedPorts))
		}
		if int(t.Port) < first {
			return fmt.Errorf("%w: %v: ports below %d need uid 0", endpoint.ErrTagDenied, t, first)
		}
	}
	return nil
}

// firstUnprivileged is at least 1, which stands for no privileged port. What
// cannot be read is the kernel's default.
func firstUnprivileged(text []byte, err error) int {
	if err == nil {
		var n int
		if n, err = strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return max(n, 1)
		}
	}
	return 1024
}
