//go:build linux

// Package nattest makes network address translation for tests: a host behind another one,
// and rules of nftables.
package nattest

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// Where the host behind is: its address, that of the host in front of it, and the
// interface there.
const (
	InnerAddr = "10.1.0.2"
	frontAddr = "10.1.0.1"
	frontLink = "inside"
)

// Inner makes a host behind front, which forwards its packets. The caller closes it.
func Inner(front *netlab.Host) (*netlab.Host, error) {
	inner, err := netlab.NewHost("inner")
	if err != nil {
		return nil, err
	}
	inner.Interface = "outside"
	err = front.Do(func() error {
		cable := netlink.NewVeth(netlink.LinkAttrs{Name: frontLink})
		cable.PeerName, cable.PeerNamespace = inner.Interface, netlink.NsFd(inner.NS)
		return errors.Join(
			netlink.LinkAdd(cable),
			up(frontLink, frontAddr),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
	})
	err = errors.Join(err, inner.Do(func() error {
		return errors.Join(up(inner.Interface, InnerAddr), netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(frontAddr)}))
	}))
	if err == nil {
		err = awaitInner(front, inner)
	}
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	return inner, nil
}

// awaitInner returns when packets come through: the kernel activates a veth later.
func awaitInner(front, inner *netlab.Host) error {
	server, err := inner.ListenUDP(InnerAddr + ":1")
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := front.Dial("udp", InnerAddr+":1")
	if err != nil {
		return err
	}
	defer client.Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := client.Write([]byte("x")); err != nil && time.Now().After(deadline) {
			return err
		}
		if err := server.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		if _, err := server.Read(make([]byte, 1)); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func up(name, addr string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(24, 32)}}),
		netlink.LinkSetUp(link))
}

// Table is a table of the calling thread's namespace to which rules are added.
type Table struct {
	*nftables.Conn
	*nftables.Table
	chains map[nftables.ChainHook]*nftables.Chain
}

// NewTable makes a table of family ip.
func NewTable(name string) (*Table, error) { return NewTableOf(nftables.TableFamilyIPv4, name) }

// NewTableOf makes a table of a family.
func NewTableOf(family nftables.TableFamily, name string) (*Table, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	t := conn.AddTable(&nftables.Table{Name: name, Family: family})
	return &Table{conn, t, map[nftables.ChainHook]*nftables.Chain{}}, nil
}

// Rule adds a rule to the translating chain at a hook.
func (t *Table) Rule(hook *nftables.ChainHook, parts ...[]expr.Any) {
	c := t.chains[*hook]
	if c == nil {
		names := map[nftables.ChainHook]string{*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookPostrouting: "postrouting", *nftables.ChainHookOutput: "output"}
		priority := nftables.ChainPriorityNATDest
		if *hook == *nftables.ChainHookPostrouting {
			priority = nftables.ChainPriorityNATSource
		}
		c = t.AddChain(&nftables.Chain{Name: names[*hook], Table: t.Table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority})
		t.chains[*hook] = c
	}
	t.RuleOf(c, parts...)
}

// RuleOf adds a rule to a chain.
func (t *Table) RuleOf(c *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	t.AddRule(&nftables.Rule{Table: t.Table, Chain: c, Exprs: all})
}

// Chain adds a chain that others jump to.
func (t *Table) Chain(name string) *nftables.Chain {
	return t.AddChain(&nftables.Chain{Name: name, Table: t.Table})
}

// OIFName and the functions below are conditions. An iptables that translates to nftables writes
// them so, too.
func OIFName(op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: padded(name)}}
}

func IIFName(op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: padded(name)}}
}

// padded is a name as nft writes it; one that ends with * is the beginning of one.
func padded(name string) []byte {
	if n := len(name) - 1; name[n] == '*' {
		return []byte(name[:n])
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func Protocol(op expr.CmpOp, p byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte{p}}}
}

// Payload loads a field of the network or transport header.
func Payload(base expr.PayloadBase, offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: 1, Base: base, Offset: offset, Len: length}}
}

func DPort(op expr.CmpOp, port uint16) []expr.Any {
	return append(Payload(expr.PayloadBaseTransportHeader, 2, 2), &expr.Cmp{Op: op, Register: 1, Data: Port(port)})
}

func SPort(op expr.CmpOp, port uint16) []expr.Any {
	return append(Payload(expr.PayloadBaseTransportHeader, 0, 2), &expr.Cmp{Op: op, Register: 1, Data: Port(port)})
}

func DAddr(op expr.CmpOp, addr string) []expr.Any {
	return append(Payload(expr.PayloadBaseNetworkHeader, 16, 4), &expr.Cmp{Op: op, Register: 1, Data: netip.MustParseAddr(addr).AsSlice()})
}

// Port is a port as packets have it.
func Port(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }

// Masquerade gives flows the address of the interface they leave by.
func Masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// MasqueradeTo is Masquerade to one of some ports, for flows of a protocol, in the
// postrouting chain that Rule has made and Flush has sent: `meta l4proto P masquerade to
// :FIRST-LAST`. The library does not send the flag by which the kernel looks at the ports.
func (t *Table) MasqueradeTo(protocol byte, first, last uint16) error {
	attr := func(parent *nl.RtAttr, kind int, data []byte) *nl.RtAttr {
		return parent.AddRtAttr(kind, data)
	}
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	exprs := nl.NewRtAttr(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, nil)
	add := func(name string) *nl.RtAttr {
		e := attr(exprs, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil)
		attr(e, unix.NFTA_EXPR_NAME, nl.ZeroTerminated(name))
		return attr(e, unix.NFTA_EXPR_DATA|unix.NLA_F_NESTED, nil)
	}
	value := func(e *nl.RtAttr, kind int, data []byte) {
		attr(attr(e, kind|unix.NLA_F_NESTED, nil), unix.NFTA_DATA_VALUE, data)
	}
	e := add("meta")
	attr(e, unix.NFTA_META_KEY, number(unix.NFT_META_L4PROTO))
	attr(e, unix.NFTA_META_DREG, number(unix.NFT_REG_1))
	e = add("cmp")
	attr(e, unix.NFTA_CMP_SREG, number(unix.NFT_REG_1))
	attr(e, unix.NFTA_CMP_OP, number(unix.NFT_CMP_EQ))
	value(e, unix.NFTA_CMP_DATA, []byte{protocol})
	for reg, port := range map[uint32]uint16{unix.NFT_REG_1: first, unix.NFT_REG_2: last} {
		e = add("immediate")
		attr(e, unix.NFTA_IMMEDIATE_DREG, number(reg))
		value(e, unix.NFTA_IMMEDIATE_DATA, Port(port))
	}
	e = add("masq")
	attr(e, unix.NFTA_MASQ_FLAGS, number(unix.NF_NAT_RANGE_PROTO_SPECIFIED))
	attr(e, unix.NFTA_MASQ_REG_PROTO_MIN, number(unix.NFT_REG_1))
	attr(e, unix.NFTA_MASQ_REG_PROTO_MAX, number(unix.NFT_REG_2))

	message := func(kind, flags int, family byte, attrs ...*nl.RtAttr) []byte {
		req := nl.NewNetlinkRequest(kind, flags)
		resource := uint16(0)
		if kind < unix.NFNL_SUBSYS_NFTABLES<<8 {
			resource = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFNL_SUBSYS_NFTABLES>>8
		}
		req.AddData(&nl.Nfgenmsg{NfgenFamily: family, ResId: resource})
		for _, a := range attrs {
			req.AddData(a)
		}
		return req.Serialize()
	}
	batch := slices.Concat(
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC),
		message(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ACK, unix.NFPROTO_IPV4,
			nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(t.Name)), nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated("postrouting")), exprs),
		message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC))
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return errors.New("short answer")
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

// MasqueradeOfTables is the target of iptables.
func MasqueradeOfTables(first, last uint16) []expr.Any {
	info := xt.NatIPv4MultiRangeCompat{{Flags: uint(xt.NatRangeProtoSpecified), MinIP: net.IPv4zero, MaxIP: net.IPv4zero, MinPort: first, MaxPort: last}}
	return []expr.Any{&expr.Target{Name: "MASQUERADE", Info: &info}}
}

// DNATOfTables are the match and the target of iptables that forward UDP.
func DNATOfTables(first, last uint16, invert bool, to string) []expr.Any {
	ap := netip.MustParseAddrPort(to)
	match := &xt.Udp{SrcPorts: [2]uint16{0, 1<<16 - 1}, DstPorts: [2]uint16{first, last}}
	if invert {
		match.InvFlags = xt.UdpInvDestPorts
	}
	return []expr.Any{&expr.Match{Name: "udp", Info: match}, &expr.Target{Name: "DNAT", Rev: 2, Info: &xt.NatRange2{NatRange: xt.NatRange{
		Flags: uint(xt.NatRangeMapIPs | xt.NatRangeProtoSpecified), MinIP: ap.Addr().AsSlice(), MaxIP: ap.Addr().AsSlice(), MinPort: ap.Port(), MaxPort: ap.Port()}}}}
}

// SNAT gives flows an address, and ports as Masquerade does.
func SNAT(addr string, first, last uint16) []expr.Any {
	list := []expr.Any{&expr.Immediate{Register: 1, Data: netip.MustParseAddr(addr).AsSlice()}}
	e := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}
	if first != 0 {
		list = append(list, &expr.Immediate{Register: 2, Data: Port(first)}, &expr.Immediate{Register: 3, Data: Port(last)})
		e.RegProtoMin, e.RegProtoMax, e.Specified = 2, 3, true
	}
	return append(list, e)
}

// DNAT forwards to another host.
func DNAT(to string) []expr.Any {
	ap := netip.MustParseAddrPort(to)
	return []expr.Any{&expr.Immediate{Register: 1, Data: ap.Addr().AsSlice()}, &expr.Immediate{Register: 2, Data: Port(ap.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true}}
}

// Redirect sends what arrives to a port of the host itself.
func Redirect(port uint16) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: Port(port)}, &expr.Redir{RegisterProtoMin: 1}}
}

func Jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// ToThisHost is `fib daddr type local`.
func ToThisHost() []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)}}
}

// LegacyTable makes the nat table of iptables-legacy in the calling thread's namespace, without
// rules; errors.ErrUnsupported: the kernel does not have it.
func LegacyTable() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The kernel makes the table at the first request that names it. This one is struct
	// xt_counters_info (linux/netfilter/x_tables.h) with a wrong number of counters: EINVAL.
	const addCounters = 65 // IPT_SO_SET_ADD_COUNTERS
	info := make([]byte, 32, 64)
	copy(info, "nat")
	info = append(binary.NativeEndian.AppendUint32(info, 1), make([]byte, 4+16)...)
	switch err = unix.SetsockoptString(fd, unix.IPPROTO_IP, addCounters, string(info)); err {
	case nil, unix.EINVAL:
		return nil
	case unix.ENOENT, unix.ENOPROTOOPT:
		return errors.ErrUnsupported
	}
	return os.NewSyscallError("setsockopt IPT_SO_SET_ADD_COUNTERS", err)
}
