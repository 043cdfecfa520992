package netlab

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// KnownNamespaces is how many other network namespaces the host's has numbers for
// (RTM_GETNSID). It has one for each in which the other end of one of its veth pairs is.
func (h *Host) KnownNamespaces() (n int, err error) {
	err = h.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETNSID, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtGenMsg())
		msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNSID)
		n = len(msgs)
		return err
	})
	return n, err
}
