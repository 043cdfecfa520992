//go:build linux

package nat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h.
const (
	msgGet = 1 // IPCTNL_MSG_CT_GET

	attrOriginal   = 1  // CTA_TUPLE_ORIG
	attrReply      = 2  // CTA_TUPLE_REPLY
	attrStatus     = 3  // CTA_STATUS
	attrStatusMask = 26 // CTA_STATUS_MASK

	attrTupleIP    = 1 // CTA_TUPLE_IP
	attrTupleProto = 2 // CTA_TUPLE_PROTO
	attrDst4       = 2 // CTA_IP_V4_DST
	attrDst6       = 4 // CTA_IP_V6_DST
	attrProtocol   = 1 // CTA_PROTO_NUM
	attrDstPort    = 3 // CTA_PROTO_DST_PORT

	statusSourceTranslated      = 1 << 4 // IPS_SRC_NAT
	statusDestinationTranslated = 1 << 5 // IPS_DST_NAT
)

// readFlows adds the ports of flows that are translated now. Frames of a flow with a translated
// source come to the destination of its reply direction; frames of a flow with a translated
// destination come to the destination of its original direction.
func readFlows(found map[netip.Addr]*Ports) error {
	// Without the module for connection tracking there is no such file. A request would load
	// the module.
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(count)) == "0" {
		return nil
	}
	if err != nil {
		return err
	}
	if err := readFlowsWith(statusSourceTranslated, attrReply, found); err != nil {
		return err
	}
	return readFlowsWith(statusDestinationTranslated, attrOriginal, found)
}

// readFlowsWith adds the destinations of one direction of the flows that have a status bit.
func readFlowsWith(status uint32, direction uint16, found map[netip.Addr]*Ports) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|msgGet, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(attrStatus, binary.BigEndian.AppendUint32(nil, status)))
	req.AddData(nl.NewRtAttr(attrStatusMask, binary.BigEndian.AppendUint32(nil, status)))
	var malformed error
	err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
		malformed = addFlow(msg, status, direction, found)
		return malformed == nil
	})
	switch {
	case unsupported(err): // a kernel without ctnetlink
		return nil
	case errors.Is(err, netlink.ErrDumpInterrupted): // only flows that began or ended are missing
		err = nil
	}
	if err = errors.Join(err, malformed); err != nil {
		return fmt.Errorf("connection tracking table: %w", err)
	}
	return nil
}

// unsupported reports whether the kernel does not have the subsystem of a request (EINVAL from
// nfnetlink).
func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT)
}

func addFlow(msg []byte, status uint32, direction uint16, found map[netip.Addr]*Ports) error {
	if len(msg) < nl.SizeofNfgenmsg {
		return errors.New("short message")
	}
	flow, err := attributes(msg[nl.SizeofNfgenmsg:])
	if err != nil {
		return err
	}
	// A kernel without this filter (before 5.15) returns all flows.
	if s := flow[attrStatus]; len(s) != 4 || binary.BigEndian.Uint32(s)&status == 0 {
		return nil
	}
	tuple, err := attributes(flow[direction])
	if err != nil {
		return err
	}
	ip, err := attributes(tuple[attrTupleIP])
	if err != nil {
		return err
	}
	proto, err := attributes(tuple[attrTupleProto])
	if err != nil {
		return err
	}
	dst, ok := netip.AddrFromSlice(append(ip[attrDst4], ip[attrDst6]...)) // one of them is empty
	ports := found[dst]
	if !ok || ports == nil || len(proto[attrProtocol]) != 1 || len(proto[attrDstPort]) != 2 {
		return nil
	}
	port := binary.BigEndian.Uint16(proto[attrDstPort])
	switch proto[attrProtocol][0] {
	case unix.IPPROTO_UDP:
		made(&ports.inUse[udp]).add(port, port)
	case unix.IPPROTO_TCP:
		made(&ports.inUse[tcp]).add(port, port)
	}
	return nil
}

// attributes are netlink attributes by type.
func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	m := make(map[uint16][]byte, len(list))
	for _, a := range list {
		m[a.Attr.Type&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return m, nil
}
