//go:build linux

package main

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/nat/nattest"
	"github.com/unet-go/unet/internal/netlab"
)

// masquerade makes a host masquerade what leaves by its interface, as Docker does.
func masquerade(t *testing.T, h *netlab.Host) *nattest.Table {
	t.Helper()
	var table *nattest.Table
	err := h.Do(func() (err error) {
		if table, err = nattest.NewTable("nat"); err != nil {
			return err
		}
		table.Rule(nftables.ChainHookPostrouting, nattest.OIFName(expr.CmpOpNeq, "docker0"), nattest.Masquerade())
		return table.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// underNAT is a policy for hosts that masquerade.
const underNAT = `
rules:
  - name: nobodys
    users: [nobody]
    tags: ["udp:*:*", "tcp:*:7000-7099", "addr:10.0.0.128/25", "msg:*"]
    endpoints: 3
    memory: 1MiB
`

// If masquerading may use any port, no port is granted; owned addresses and message tags
// are. With nat: warn ports are granted too, and one warning is logged.
func TestPortsThatNATMayUse(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	masquerade(t, pair.A)
	s := newSite(t, pair.A)
	file := policyFile(t, underNAT)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	d.awaitLine("level=WARN", "network address translation", "chain postrouting of table ip nat")
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	for _, line := range []string{
		"claim a udp:10.0.0.1:7001", "claim a udp:0.0.0.0:7001", "claim a udp:10.0.0.1:0", "claim a udp:10.0.0.1:0-63", "claim a udp:0.0.0.0:0",
		"claim a tcp:10.0.0.1:7001", "claim a tcp:10.0.0.1:0", "open b frames=64 udp:10.0.0.1:7001", "open b frames=64 udp:0.0.0.0:0",
	} {
		if got := a.expect(line, "tag-denied: "); !strings.Contains(got, "nat: warn in rule nobodys of ") || !strings.Contains(got, "chain postrouting of table ip nat") {
			t.Errorf("%s: %s", line, got)
		}
	}
	a.expect("claim a addr:10.0.0.130", "addr:10.0.0.130")
	a.expect("claim a udp:10.0.0.130:7001", "udp:10.0.0.130:7001")

	writePolicy(t, file, underNAT+"    nat: warn\n")
	d.signal(syscall.SIGHUP)
	d.awaitLine("policy reloaded")
	for line, want := range map[string]string{
		"claim a udp:10.0.0.1:7001": "udp:10.0.0.1:7001",
		"claim a udp:10.0.0.1:0":    "udp:10.0.0.1:",
		"claim a udp:0.0.0.0:0-63":  "udp:10.0.0.1:",
		"claim a tcp:10.0.0.1:0":    "tcp:10.0.0.1:70",
	} {
		a.expect(line, want)
	}
	d.awaitLine("level=WARN", "ports are claimed that", "rule=nobodys")
	d.stop(syscall.SIGTERM)
}

// If masquerading uses a range of ports only, the others are granted, and are chosen.
func TestPortsOutsideNATRange(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	table := masquerade(t, pair.A)
	err := pair.A.Do(func() error {
		table.FlushTable(table.Table)
		if err := table.Flush(); err != nil {
			return err
		}
		// All UDP ports from 7010 on except 40001 to 40100.
		for _, ports := range [][2]uint16{{7010, 40000}, {40101, 65535}} {
			if err := table.MasqueradeTo(unix.IPPROTO_UDP, ports[0], ports[1]); err != nil {
				return err
			}
		}
		return table.MasqueradeTo(unix.IPPROTO_TCP, 7001, 7098)
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, strings.Replace(underNAT, "udp:*:*", "udp:*:7005-40100", 1)))
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	a.expect("claim a udp:10.0.0.1:7009", "udp:10.0.0.1:7009")
	a.expect("claim a udp:10.0.0.1:7010", "tag-denied: ")
	a.expect("claim a udp:10.0.0.1:40100", "udp:10.0.0.1:40100")
	a.expect("claim a udp:10.0.0.1:40000-40063", "tag-denied: ") // masquerading may use 40000
	for range 2 {
		a.expect("claim a tcp:10.0.0.1:0", "tcp:10.0.0.1:70")
	}
	a.expect("claim a tcp:10.0.0.1:0", "tag-held: ") // only 7000 and 7099 are left to endpoints
	for range 30 {
		got := netip.MustParseAddrPort(strings.TrimPrefix(a.expect("claim a udp:10.0.0.1:0", "udp:10.0.0.1:"), "udp:"))
		if got.Port() >= 7010 && got.Port() <= 40000 {
			t.Errorf("chosen %v, which masquerading may use", got)
		}
	}
	d.stop(syscall.SIGTERM)
}

// Without a policy root may claim ports that masquerading may use, with a warning in the log.
func TestRootIsWarnedOfNAT(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	masquerade(t, pair.A)
	s := newSite(t, pair.A)
	d := s.serve(t)
	a := newApplication(s.socket)
	if got, err := a.do(strings.Fields("open a frames=64 udp:10.0.0.1:7000")); err != nil || got != "[udp:10.0.0.1:7000]" {
		t.Errorf("%s, %v", got, err)
	}
	d.awaitLine("level=WARN", "ports are claimed that", "rule=built-in")
	for _, line := range []string{"close a", "drop a"} {
		if _, err := a.do(strings.Fields(line)); err != nil {
			t.Error(err)
		}
	}
	d.stop(syscall.SIGTERM)
}
