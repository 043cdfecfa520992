//go:build linux

package nat_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat"
	. "github.com/unet-go/unet/internal/nat/nattest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

var (
	pre  = nftables.ChainHookPrerouting
	post = nftables.ChainHookPostrouting
	out  = nftables.ChainHookOutput

	eq, neq = expr.CmpOpEq, expr.CmpOpNeq
)

const udp, tcp = unix.IPPROTO_UDP, unix.IPPROTO_TCP

// lab is a host A that translates, an inner host behind it, and a host B outside.
type lab struct {
	*netlab.Pair
	inner *netlab.Host
	t     *testing.T
}

func newLab(t *testing.T, rules func(*Table)) *lab {
	t.Helper()
	l := &lab{Pair: netlab.RequirePair(t, netlab.Config{}), t: t}
	var err error
	l.inner, err = Inner(l.A)
	testutil.Must(t, err)
	t.Cleanup(func() { l.inner.NS.Close() })
	testutil.Must(t, l.B.Do(func() error {
		_, behind, _ := net.ParseCIDR("10.1.0.0/24")
		return netlink.RouteAdd(&netlink.Route{Dst: behind, Gw: l.A.Addr.Addr().AsSlice()})
	}))
	if rules != nil {
		testutil.Must(t, l.A.Do(func() error {
			table, err := NewTable("nat")
			if err != nil {
				return err
			}
			rules(table)
			return table.Flush()
		}))
	}
	return l
}

// look reads the ports without the cache.
func (l *lab) look(whole ...string) map[netip.Addr]*nat.Ports {
	l.t.Helper()
	var found map[netip.Addr]*nat.Ports
	var addrs []netip.Addr
	for _, a := range whole {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	testutil.Must(l.t, l.A.Do(func() error {
		link, err := net.InterfaceByName(l.A.Interface)
		if err != nil {
			return err
		}
		found, err = nat.NewReader(nat.Link{Name: link.Name, Index: link.Index}).Look([]netip.Addr{l.A.Addr.Addr()}, addrs)
		return err
	}))
	return found
}

func (l *lab) ports() *nat.Ports {
	l.t.Helper()
	return l.look()[l.A.Addr.Addr()]
}

func tag(protocol int, port uint16) endpoint.Tag {
	ap := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port)
	if protocol == tcp {
		return endpoint.TCPTag(ap)
	}
	return endpoint.UDPTag(ap)
}

// The kernel forwards datagrams to another host if and only if their port is one that was found. The rules are
// those of nftables and of iptables on nftables.
func TestForwardedPortsMatchKernel(t *testing.T) {
	inside := InnerAddr + ":9"
	toInner := DNAT(inside)
	set := func(table *Table, s *nftables.Set, elements ...nftables.SetElement) *nftables.Set {
		s.Table, s.Anonymous, s.Constant, s.KeyType = table.Table, true, true, nftables.TypeInetService
		must0(table.AddSet(s, elements))
		return s
	}
	lookup := func(s *nftables.Set, invert bool) []expr.Any {
		return append(Payload(expr.PayloadBaseTransportHeader, 2, 2), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert})
	}
	key := func(port uint16) nftables.SetElement { return nftables.SetElement{Key: Port(port)} }
	end := func(port uint16) nftables.SetElement {
		return nftables.SetElement{Key: Port(port), IntervalEnd: true}
	}
	for _, c := range []struct {
		name  string
		rules func(*Table)
		// some: a condition is not understood, so some found ports are not forwarded. all: the rule names no
		// port, so that any may be used. masquerade: flows may get any port.
		some, all, masquerade bool
	}{
		{name: "a port", rules: func(t *Table) { t.Rule(pre, Protocol(eq, udp), DPort(eq, 8080), toInner) }},
		{name: "of tcp", rules: func(t *Table) { t.Rule(pre, Protocol(eq, tcp), DPort(eq, 8080), toInner) }},
		{name: "not tcp", rules: func(t *Table) { t.Rule(pre, Protocol(neq, tcp), DPort(eq, 8080), toInner) }},
		{name: "by the interface", rules: func(t *Table) {
			t.Rule(pre, IIFName(eq, "uplink"), Protocol(eq, udp), DPort(eq, 8080), toInner)
			t.Rule(pre, IIFName(eq, "upl*"), Protocol(eq, udp), DPort(eq, 8081), toInner)
			t.Rule(pre, IIFName(neq, "docker0"), Protocol(eq, udp), DPort(eq, 8082), toInner)
			t.Rule(pre, IIFName(eq, "inside"), Protocol(eq, udp), DPort(eq, 8083), toInner)
			t.Rule(pre, IIFName(eq, "uplink0"), Protocol(eq, udp), DPort(eq, 8084), toInner)
			t.Rule(pre, IIFName(neq, "uplink"), Protocol(eq, udp), DPort(eq, 8085), toInner)
		}},
		{name: "for an address", rules: func(t *Table) {
			t.Rule(pre, DAddr(eq, "10.0.0.1"), Protocol(eq, udp), DPort(eq, 8080), toInner)
			t.Rule(pre, DAddr(eq, "10.96.0.1"), Protocol(eq, udp), DPort(eq, 8081), toInner)
			t.Rule(pre, DAddr(neq, "10.0.0.1"), Protocol(eq, udp), DPort(eq, 8082), toInner)
			t.Rule(pre, DAddr(neq, "10.96.0.1"), Protocol(eq, udp), DPort(eq, 8083), toInner)
			prefix := func(op expr.CmpOp, b ...byte) []expr.Any { // 10.0.0.0/8, as nft writes it
				return append(Payload(expr.PayloadBaseNetworkHeader, 16, uint32(len(b))), &expr.Cmp{Op: op, Register: 1, Data: b})
			}
			t.Rule(pre, prefix(eq, 10), Protocol(eq, udp), DPort(eq, 8084), toInner)
			t.Rule(pre, prefix(eq, 10, 1), Protocol(eq, udp), DPort(eq, 8085), toInner)
			masked := func(op expr.CmpOp, b ...byte) []expr.Any { // /20
				return append(Payload(expr.PayloadBaseNetworkHeader, 16, 4),
					&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{255, 255, 240, 0}, Xor: make([]byte, 4)},
					&expr.Cmp{Op: op, Register: 1, Data: b})
			}
			t.Rule(pre, masked(eq, 10, 0, 0, 0), Protocol(eq, udp), DPort(eq, 8086), toInner)
			t.Rule(pre, masked(eq, 10, 0, 16, 0), Protocol(eq, udp), DPort(eq, 8087), toInner)
			t.Rule(pre, masked(neq, 10, 0, 16, 0), Protocol(eq, udp), DPort(eq, 8088), toInner)
		}},
		{name: "ranges", rules: func(t *Table) {
			t.Rule(pre, Protocol(eq, udp), DPort(expr.CmpOpGte, 8080), []expr.Any{&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: Port(8082)}}, toInner)
			t.Rule(pre, Protocol(eq, udp), DPort(expr.CmpOpGt, 8084), []expr.Any{&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: Port(8086)}}, toInner)
			t.Rule(pre, Protocol(eq, udp), Payload(expr.PayloadBaseTransportHeader, 2, 2), []expr.Any{&expr.Range{Op: eq, Register: 1, FromData: Port(8088), ToData: Port(8089)}}, toInner)
		}},
		{name: "all but some", rules: func(t *Table) {
			t.Rule(pre, Protocol(eq, udp), Payload(expr.PayloadBaseTransportHeader, 2, 2), []expr.Any{&expr.Range{Op: neq, Register: 1, FromData: Port(8081), ToData: Port(8083)}}, DPort(neq, 8085), toInner)
		}},
		{name: "a set", rules: func(t *Table) {
			s := set(t, &nftables.Set{}, key(8081), key(8084))
			t.Rule(pre, Protocol(eq, udp), lookup(s, false), toInner)
		}},
		{name: "not in a set", rules: func(t *Table) {
			s := set(t, &nftables.Set{}, key(8081), key(8084))
			t.Rule(pre, Protocol(eq, udp), lookup(s, true), toInner)
		}},
		{name: "a set of intervals", rules: func(t *Table) {
			s := set(t, &nftables.Set{Interval: true}, end(0), key(8081), end(8083), key(8085), end(8086))
			t.Rule(pre, Protocol(eq, udp), lookup(s, false), toInner)
		}},
		{name: "a map of verdicts", rules: func(t *Table) {
			a, b := t.Chain("a"), t.Chain("b")
			s := set(t, &nftables.Set{IsMap: true, DataType: nftables.TypeVerdict},
				nftables.SetElement{Key: Port(8081), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: "a"}},
				nftables.SetElement{Key: Port(8084), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: "b"}},
				nftables.SetElement{Key: Port(8085), VerdictData: &expr.Verdict{Kind: expr.VerdictAccept}})
			t.Rule(pre, Protocol(eq, udp), Payload(expr.PayloadBaseTransportHeader, 2, 2),
				[]expr.Any{&expr.Lookup{SourceRegister: 1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}})
			t.RuleOf(a, Protocol(eq, udp), toInner)
			t.RuleOf(b, Protocol(eq, udp), toInner)
		}},
		{name: "a map of verdicts by address and ports", some: true, rules: func(t *Table) {
			a := t.Chain("a")
			from, to := append([]byte{10, 0, 0, 1}, append(Port(8081), 0, 0)...), append([]byte{10, 0, 0, 1}, append(Port(8083), 0, 0)...)
			s := &nftables.Set{Table: t.Table, Anonymous: true, Constant: true, IsMap: true, Interval: true, Concatenation: true,
				KeyType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService), DataType: nftables.TypeVerdict}
			must0(t.AddSet(s, []nftables.SetElement{{Key: from, KeyEnd: to, VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: "a"}}}))
			t.Rule(pre, Protocol(eq, udp), Payload(expr.PayloadBaseNetworkHeader, 16, 4),
				[]expr.Any{
					&expr.Payload{OperationType: expr.PayloadLoad, DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
					&expr.Lookup{SourceRegister: 1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.Name, SetID: s.ID},
				})
			t.RuleOf(a, Protocol(eq, udp), DPort(neq, 8079), toInner)
		}},
		{name: "as Docker does it", masquerade: true, rules: func(t *Table) {
			t.Chain("DOCKER")
			t.Rule(pre, ToThisHost(), Jump("DOCKER"))
			t.Rule(post, OIFName(neq, "docker0"), Masquerade())
			docker := &nftables.Chain{Name: "DOCKER", Table: t.Table}
			t.RuleOf(docker, IIFName(neq, "docker0"), Protocol(eq, udp), DPort(eq, 8080), toInner)
			t.RuleOf(docker, IIFName(eq, "docker0"), Protocol(eq, udp), DPort(eq, 8081), toInner)
		}},
		{name: "by iptables", rules: func(t *Table) {
			t.Rule(pre, Protocol(eq, udp), DNATOfTables(8081, 8083, false, inside))
		}},
		{name: "inverted, by iptables", rules: func(t *Table) {
			t.Rule(pre, Protocol(eq, udp), DNATOfTables(8081, 8083, true, inside))
		}},
		{name: "for what the host sends itself", rules: func(t *Table) { t.Rule(out, Protocol(eq, udp), DPort(eq, 8080), toInner) }},
		{name: "nothing", rules: func(*Table) {}},
		{name: "a condition that is not understood", some: true, rules: func(t *Table) {
			t.Rule(pre, Protocol(eq, udp), SPort(eq, 1), DPort(eq, 8080), toInner)
		}},
		{name: "everything", all: true, rules: func(t *Table) { t.Rule(pre, Protocol(eq, udp), IIFName(eq, "uplink"), toInner) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, c.rules)
			found := l.ports()
			server, err := l.inner.ListenUDP(inside)
			testutil.Must(t, err)
			defer server.Close()
			forwarded := map[uint16]bool{}
			for port := uint16(8079); port <= 8090; port++ {
				client, err := l.B.ListenUDP("10.0.0.2:0") // two flows with the same ports cannot be distinguished
				testutil.Must(t, err)
				defer client.Close()
				_, err = client.WriteToUDPAddrPort([]byte(strconv.Itoa(int(port))), netip.AddrPortFrom(l.A.Addr.Addr(), port))
				testutil.Must(t, err)
			}
			mark, err := l.B.ListenUDP("10.0.0.2:0") // it has the same next hop, by a route
			testutil.Must(t, err)
			defer mark.Close()
			_, err = mark.WriteToUDPAddrPort([]byte("the last"), netip.MustParseAddrPort(inside))
			testutil.Must(t, err)
			testutil.Must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
			for {
				b := make([]byte, 16)
				n, err := server.Read(b)
				testutil.Must(t, err)
				if string(b[:n]) == "the last" {
					break
				}
				port, err := strconv.Atoi(string(b[:n]))
				testutil.Must(t, err)
				forwarded[uint16(port)] = true
			}
			for port := uint16(8079); port <= 8090; port++ {
				reported := found.InUse(tag(udp, port)) || c.all && found.MayUse(tag(udp, port))
				if reported != forwarded[port] && !(c.some && reported) {
					t.Errorf("port %d: reported %v, forwarded %v", port, reported, forwarded[port])
				}
			}
			if anyPort := c.all || c.masquerade; found.MayUse(tag(udp, 8079)) != anyPort || (found.MayUseBy() != "") != anyPort {
				t.Errorf("any port may be used: %v, by %q; want %v", found.MayUse(tag(udp, 8079)), found.MayUseBy(), anyPort)
			}
		})
	}
}

func must0(err error) {
	if err != nil {
		panic(err)
	}
}

// Flows of another host that leave by this one get only source ports that were found.
func TestSourcePortsMatchKernel(t *testing.T) {
	for _, c := range []struct {
		name        string
		rules       func(*Table)
		first, last uint16 // that may be used, of UDP; 0: none
		tcp         bool   // and of TCP
	}{
		{"masquerade", func(t *Table) { t.Rule(post, Masquerade()) }, 1, 65535, true},
		{"to some ports", func(t *Table) {
			t.Rule(post, OIFName(eq, "nowhere"), Masquerade())
			must0(t.Flush())
			must0(t.MasqueradeTo(udp, 5000, 5009))
		}, 5000, 5009, false},
		{"the rest of the protocols", func(t *Table) {
			in := func(invert bool) []expr.Any {
				s := &nftables.Set{Table: t.Table, Anonymous: true, Constant: true, KeyType: nftables.TypeInetProto}
				must0(t.AddSet(s, []nftables.SetElement{{Key: []byte{tcp}}, {Key: []byte{udp}}}))
				return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert}}
			}
			t.Rule(post, in(false), MasqueradeOfTables(5000, 5009))
			t.Rule(post, in(true), Masquerade())
		}, 5000, 5009, true},
		{"by iptables", func(t *Table) { t.Rule(post, Protocol(eq, udp), MasqueradeOfTables(5000, 5009)) }, 5000, 5009, false},
		{"as Docker does it", func(t *Table) { t.Rule(post, OIFName(neq, "docker0"), Masquerade()) }, 1, 65535, true},
		{"by this interface", func(t *Table) { t.Rule(post, OIFName(eq, "uplink"), Masquerade()) }, 1, 65535, true},
		{"by another interface", func(t *Table) { t.Rule(post, OIFName(eq, "inside"), Masquerade()) }, 0, 0, false},
		{"to this address", func(t *Table) {
			t.Rule(post, Protocol(eq, udp), SNAT("10.0.0.1", 6000, 6003))
			t.Rule(post, Protocol(eq, tcp), SNAT("10.0.0.1", 6000, 6003))
		}, 6000, 6003, true},
		{"to another address", func(t *Table) { t.Rule(post, SNAT("10.0.0.9", 0, 0)) }, 0, 0, false},
		{"in another chain", func(t *Table) {
			t.RuleOf(t.Chain("far"), OIFName(eq, "uplink"), Protocol(neq, tcp), Masquerade())
			t.Rule(post, Jump("far"))
		}, 1, 65535, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t, c.rules)
			found := l.ports()
			for _, port := range []uint16{1, 80, 4999, 5000, 5009, 5010, 6000, 6003, 6004, 40000, 65535} {
				want := c.first != 0 && port >= c.first && port <= c.last
				if got := found.MayUse(tag(udp, port)); got != want {
					t.Errorf("may use UDP port %d: %v (%s)", port, got, found.MayUseBy())
				}
				if got := found.MayUse(tag(tcp, port)); got != (want && c.tcp) {
					t.Errorf("may use TCP port %d: %v (%s)", port, got, found.MayUseBy())
				}
				if found.InUse(tag(udp, port)) || found.InUse(tag(tcp, port)) {
					t.Errorf("port %d in use, without a flow", port)
				}
			}
			if c.first == 0 {
				return
			}
			server, err := l.B.ListenUDP("10.0.0.2:9000")
			testutil.Must(t, err)
			defer server.Close()
			for _, from := range []string{"4999", "5003", "40000"} {
				client, err := l.inner.ListenUDP(InnerAddr + ":" + from)
				testutil.Must(t, err)
				defer client.Close()
				_, err = client.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.2:9000"))
				testutil.Must(t, err)
				testutil.Must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
				_, peer, err := server.ReadFromUDPAddrPort(make([]byte, 10))
				testutil.Must(t, err)
				if peer.Addr().Unmap() != l.A.Addr.Addr() || !found.MayUse(tag(udp, peer.Port())) {
					t.Errorf("from port %s: translated to %v, which was not reported", from, peer)
				}
				after := l.ports()
				if !after.InUse(tag(udp, peer.Port())) || after.InUse(tag(tcp, peer.Port())) || after.InUse(tag(udp, peer.Port()+1)) && c.first == 1 {
					t.Errorf("flow from %v: reported in use: UDP %v, TCP %v", peer, after.InUse(tag(udp, peer.Port())), after.InUse(tag(tcp, peer.Port())))
				}
			}
		})
	}
}

// Flows that are not translated use no ports.
func TestUntranslatedFlowsUseNoPorts(t *testing.T) {
	l := newLab(t, func(t *Table) { t.Rule(post, SNAT("10.0.0.9", 0, 0)) }) // so that flows are tracked
	testutil.Must(t, l.A.Do(func() error {
		table, err := NewTable("nat")
		if err == nil {
			table.FlushTable(table.Table)
			err = table.Flush()
		}
		return err
	}))
	server, err := l.A.ListenUDP("10.0.0.1:7000")
	testutil.Must(t, err)
	defer server.Close()
	client, err := l.B.ListenUDP("10.0.0.2:7000")
	testutil.Must(t, err)
	defer client.Close()
	_, err = client.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.0.0.1:7000"))
	testutil.Must(t, err)
	testutil.Must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 10))
	testutil.Must(t, err)
	_, err = server.WriteToUDPAddrPort([]byte("x"), from)
	testutil.Must(t, err)
	if p := l.ports(); !p.Empty() {
		t.Errorf("used: %v, may be used by %q", p.InUse(tag(udp, 7000)), p.MayUseBy())
	}
}

// An address that the host does not have is used only by rules that name it.
func TestOnlyRulesThatNameOwnedAddressUseIt(t *testing.T) {
	l := newLab(t, func(t *Table) {
		t.Rule(post, OIFName(eq, "uplink"), Protocol(eq, udp), SNAT("10.0.0.9", 5000, 5009))
		t.Rule(post, Masquerade())
		t.Rule(pre, Protocol(eq, udp), DPort(eq, 8080), DNAT(InnerAddr+":9"))
		t.Rule(pre, DAddr(eq, "10.0.0.10"), DNAT(InnerAddr+":9"))
		t.Rule(pre, DAddr(neq, "10.0.0.11"), DNAT(InnerAddr+":9"))
	})
	found := l.look("10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.12")
	for a, used := range map[string]bool{"10.0.0.9": true, "10.0.0.10": true, "10.0.0.11": false, "10.0.0.12": false} {
		if p := found[netip.MustParseAddr(a)]; p.Empty() == used {
			t.Errorf("%s: used %v, by %q", a, !p.Empty(), p.MayUseBy())
		}
	}
}

// An answer about an owned address is not used again when the host has the address: masqueraded flows
// may use its ports then.
func TestOwnedAddressBecomesHostAddress(t *testing.T) {
	l := newLab(t, func(t *Table) { t.Rule(post, OIFName(eq, "uplink"), Masquerade()) })
	testutil.Must(t, l.A.Do(func() error {
		link, err := net.InterfaceByName(l.A.Interface)
		if err != nil {
			return err
		}
		r := nat.NewReader(nat.Link{Name: link.Name, Index: link.Index})
		addr := netip.MustParseAddr("10.0.0.9")
		look := func(shared, whole []netip.Addr, want bool) error {
			found, err := r.Look(shared, whole)
			if got := found[addr].MayUse(tag(udp, 5000)); err == nil && got != want {
				t.Errorf("shared %v, whole %v: may be used %v, want %v", shared, whole, got, want)
			}
			return err
		}
		return errors.Join(look(nil, []netip.Addr{addr}, false), look([]netip.Addr{addr}, nil, true))
	}))
}

// If chains jump to one another in exponentially many ways, their evaluation ends after a limited number of steps,
// with the result that any port may be used.
func TestEvaluationOfManyJumpsEnds(t *testing.T) {
	l := newLab(t, func(t *Table) {
		last := t.Chain("c14")
		t.RuleOf(last, []expr.Any{&expr.Counter{}})
		for i := 13; i >= 0; i-- {
			c := t.Chain(fmt.Sprint("c", i))
			for range 3 {
				t.RuleOf(c, Jump(fmt.Sprint("c", i+1)))
			}
		}
		t.Rule(post, Jump("c0"))
	})
	for a, p := range l.look("10.0.0.9") { // also an owned address, which a rule that was not evaluated may name
		if !p.MayUse(tag(udp, 5000)) || !p.MayUse(tag(tcp, 1)) || p.MayUseBy() == "" || !p.Empty() {
			t.Errorf("%v: may be used by %q, empty: %v", a, p.MayUseBy(), p.Empty())
		}
	}
}

// The rules of iptables-legacy cannot be read. If they have a nat table, any port of any address may be used.
func TestLegacyTableMayUseAllPorts(t *testing.T) {
	l := newLab(t, nil)
	for a, p := range l.look("10.0.0.9") {
		if p.MayUseBy() != "" {
			t.Errorf("%v, without a table: may be used by %q", a, p.MayUseBy())
		}
	}
	err := l.A.Do(LegacyTable)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("this kernel does not have iptables-legacy")
	}
	testutil.Must(t, err)
	for a, p := range l.look("10.0.0.9") {
		if !p.MayUse(tag(udp, 5000)) || !p.MayUse(tag(tcp, 1)) || !strings.Contains(p.MayUseBy(), "iptables-legacy") || !p.Empty() {
			t.Errorf("%v: may be used by %q, empty: %v", a, p.MayUseBy(), p.Empty())
		}
	}
}

// A rule of a table of both families with a condition on the family applies to that family only, and a table of
// IPv6 does not apply to IPv4.
func TestRulesApplyToTheirFamily(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	family := func(f byte) []expr.Any {
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, &expr.Cmp{Op: eq, Register: 1, Data: []byte{f}}}
	}
	to6 := []expr.Any{&expr.Immediate{Register: 1, Data: netip.MustParseAddr("fd01::2").AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: 1}}
	addr6 := append(Payload(expr.PayloadBaseNetworkHeader, 24, 16), &expr.Cmp{Op: eq, Register: 1, Data: pair.A.Addr6.Addr().AsSlice()})
	testutil.Must(t, pair.A.Do(func() error {
		both, err := NewTableOf(nftables.TableFamilyINet, "both")
		if err != nil {
			return err
		}
		both.Rule(post, family(unix.NFPROTO_IPV4), OIFName(eq, "uplink"), Masquerade())
		both.Rule(pre, family(unix.NFPROTO_IPV6), Protocol(eq, udp), DPort(eq, 8080), to6)
		must0(both.Flush())
		six, err := NewTableOf(nftables.TableFamilyIPv6, "six")
		if err != nil {
			return err
		}
		next := append(Payload(expr.PayloadBaseNetworkHeader, 6, 1), &expr.Cmp{Op: eq, Register: 1, Data: []byte{tcp}})
		six.Rule(pre, addr6, next, DPort(eq, 8081), to6)
		return six.Flush()
	}))
	var found map[netip.Addr]*nat.Ports
	testutil.Must(t, pair.A.Do(func() (err error) {
		found, err = nat.NewReader(nat.Link{Name: "uplink"}).Look([]netip.Addr{pair.A.Addr.Addr(), pair.A.Addr6.Addr()}, nil)
		return err
	}))
	p4, p6 := found[pair.A.Addr.Addr()], found[pair.A.Addr6.Addr()]
	if !p4.MayUse(tag(udp, 8080)) || p4.InUse(tag(udp, 8080)) || p4.InUse(tag(tcp, 8081)) {
		t.Error("IPv4: wrong ports")
	}
	if p6.MayUseBy() != "" || !p6.InUse(tag(udp, 8080)) || p6.InUse(tag(tcp, 8080)) || !p6.InUse(tag(tcp, 8081)) || p6.InUse(tag(udp, 8081)) {
		t.Errorf("IPv6: wrong ports (by %q)", p6.MayUseBy())
	}
}
