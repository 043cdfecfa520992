package mux_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/nat/nattest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// translate adds rules to a host, and returns a host behind it.
func translate(t *testing.T, h *netlab.Host, rules func(*nattest.Table)) (inner *netlab.Host) {
	t.Helper()
	inner, err := nattest.Inner(h)
	must(t, err)
	t.Cleanup(func() { inner.NS.Close() })
	must(t, h.Do(func() error {
		table, err := nattest.NewTable("nat")
		if err != nil {
			return err
		}
		rules(table)
		return table.Flush()
	}))
	return inner
}

// exchange sends a datagram, which another socket answers, and wants the answer.
func exchange(t *testing.T, client *net.UDPConn, to string, server *net.UDPConn) (seenAs netip.AddrPort) {
	t.Helper()
	sendTo(t, client, to, "question")
	from := readFrom(t, server, "question")
	_, err := server.WriteToUDPAddrPort([]byte("answer"), from)
	must(t, err)
	must(t, client.SetReadDeadline(time.Now().Add(5*time.Second)))
	readFrom(t, client, "answer")
	return from
}

// A port that a masqueraded flow of somebody else has been given cannot be claimed, by number or
// as part of a block, and none such is chosen, so that the answers to the flow go on
// reaching it.
func TestPortOfAMasqueradedFlow(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	inner := translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPostrouting, nattest.OIFName(expr.CmpOpEq, l.A.Interface), nattest.Masquerade())
	})
	server := kernelUDP(t, l.B, "10.0.0.2:9000")
	client := kernelUDP(t, inner, nattest.InnerAddr+":7001")
	if seen := exchange(t, client, "10.0.0.2:9000", server); seen != netip.MustParseAddrPort("10.0.0.1:7001") {
		t.Fatalf("masqueraded as %v", seen)
	}
	a := l.open()
	for _, tag := range []endpoint.Tag{udpTag("10.0.0.1:7001"), udpBlock("10.0.0.1:6976")} {
		if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	exchange(t, client, "10.0.0.2:9000", server)
	a.nothing("of the flow")
	for _, tag := range []endpoint.Tag{tcpTag("10.0.0.1:7001"), udpTag("10.0.0.1:7002"), udpBlock("10.0.0.1:7040")} {
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v, which the flow does not use: %v", tag, err)
		}
	}

	// What the kernel would choose, and does not know to be in use.
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40003")
	for _, port := range []string{"40000", "40002", "40003"} {
		exchange(t, kernelUDP(t, inner, nattest.InnerAddr+":"+port), "10.0.0.2:9000", server)
	}
	eventually(t, "the last flow is known", func() bool { // what is known is up to a second old
		_, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:40003"))
		if err == nil {
			must(t, a.lease.Unclaim(t.Context(), udpTag("10.0.0.1:40003")))
		}
		return errors.Is(err, endpoint.ErrTagHeld)
	})
	if got, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); err != nil || got != udpTag("10.0.0.1:40001") {
		t.Errorf("chosen %v, %v", got, err)
	}
	if got, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("when no other is left, got %v, %v", got, err)
	}
}

// A port that is forwarded to another host cannot be claimed, so that what is sent there
// goes on arriving.
func TestForwardedPort(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	inner := translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPrerouting, nattest.Protocol(expr.CmpOpEq, unix.IPPROTO_UDP), nattest.DPort(expr.CmpOpEq, 8080), nattest.DNAT(nattest.InnerAddr+":80"))
		table.Rule(nftables.ChainHookPrerouting, nattest.Protocol(expr.CmpOpEq, unix.IPPROTO_TCP), nattest.DPort(expr.CmpOpEq, 8081), nattest.Redirect(81))
	})
	a := l.open()
	for _, tag := range []endpoint.Tag{udpTag("10.0.0.1:8080"), udpBlock("10.0.0.1:8064"), tcpTag("10.0.0.1:8081")} {
		if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	exchange(t, kernelUDP(t, l.B, "10.0.0.2:9000"), "10.0.0.1:8080", kernelUDP(t, inner, nattest.InnerAddr+":80"))
	for _, tag := range []endpoint.Tag{tcpTag("10.0.0.1:8080"), udpTag("10.0.0.1:8081"), udpTag("10.0.0.1:80")} {
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v, which is not forwarded: %v", tag, err)
		}
	}
}

// An address that translation gives to flows is not granted as a whole.
func TestWholeAddressOfTranslation(t *testing.T) {
	l := openLab(t, mux.ModeGeneric)
	translate(t, l.A, func(table *nattest.Table) {
		table.Rule(nftables.ChainHookPostrouting, nattest.SNAT("10.0.0.77", 0, 0))
		table.Rule(nftables.ChainHookPostrouting, nattest.Masquerade())
	})
	a := l.open()
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.77")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("an address that a rule gives: %v", err)
	}
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.78")); err != nil {
		t.Errorf("another one: %v", err)
	}
}
