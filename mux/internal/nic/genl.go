//go:build linux

package nic

import (
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// genlHeader is the length of struct genlmsghdr in bytes.
const genlHeader = 4

// genl sends a request to a family of generic netlink (linux/genetlink.h) in the namespace of the
// calling thread, and returns the attributes of each answer. It does not use nl.Genlmsg, as
// netlink.GenlFamilyGet does: that serializes four bytes of a struct of two, and the kernel refuses
// some requests if the last two are not 0.
func genl(family uint16, command, version byte, attrs ...*nl.RtAttr) (answers [][]syscall.NetlinkRouteAttr, err error) {
	body := []byte{command, version, 0, 0}
	for _, a := range attrs {
		body = append(body, a.Serialize()...)
	}
	req := nl.NewNetlinkRequest(int(family), 0)
	req.AddRawData(body)
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		a, err := nl.ParseRouteAttr(m[min(genlHeader, len(m)):])
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// genlFamily is a family of generic netlink: its number and its multicast groups.
type genlFamily struct {
	id     uint16
	groups map[string]uint32
}

// findGenl finds a family by name. ENOENT: the kernel has none of that name.
func findGenl(name string) (f genlFamily, err error) {
	answers, err := genl(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION,
		nl.NewRtAttr(unix.CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(name)))
	if err != nil {
		return f, fmt.Errorf("netlink family %s: %w", name, err)
	}
	f.groups = map[string]uint32{}
	for _, attrs := range answers {
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.CTRL_ATTR_FAMILY_ID && len(a.Value) >= 2:
				f.id = nl.NativeEndian().Uint16(a.Value)
			case a.Attr.Type == unix.CTRL_ATTR_MCAST_GROUPS:
				if err := f.addGroups(a.Value); err != nil {
					return f, fmt.Errorf("netlink family %s: %w", name, err)
				}
			}
		}
	}
	return f, nil
}

func (f *genlFamily) addGroups(b []byte) error {
	groups, err := nl.ParseRouteAttr(b)
	if err != nil {
		return err
	}
	for _, g := range groups {
		attrs, err := nl.ParseRouteAttr(g.Value)
		if err != nil {
			return err
		}
		var name string
		var id uint32
		for _, a := range attrs {
			switch {
			case a.Attr.Type == unix.CTRL_ATTR_MCAST_GRP_NAME:
				name = unix.ByteSliceToString(a.Value)
			case a.Attr.Type == unix.CTRL_ATTR_MCAST_GRP_ID && len(a.Value) >= 4:
				id = nl.NativeEndian().Uint32(a.Value)
			}
		}
		f.groups[name] = id
	}
	return nil
}
