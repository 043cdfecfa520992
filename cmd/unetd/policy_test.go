//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// policyFile writes a policy to a file that user nobody can read too.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(filepath.Dir(socketPath(t)), "policy.yaml")
	writePolicy(t, file, text)
	return file
}

func writePolicy(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// nobodys is a policy for user nobody, as whom the applications run, and for root.
const nobodys = `
rules:
  - name: nobodys
    users: [nobody]
    tags: ["udp:10.0.0.1:7000-7099", "udp:*:53", "tcp:*:*", "addr:10.0.0.128/25", "msg:1-9"]
    endpoints: 3
    memory: 1MiB
  - name: roots
    users: [root]
    tags: ["msg:*"]
    endpoints: unlimited
    memory: unlimited
    trusted: true
`

// A process without privilege gets the tags that the policy permits. Other tags are refused, in the request to
// open an endpoint and in later claims.
func TestPolicy(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, nobodys))
	d.awaitLine("msg=policy", "policy.yaml", "rules=2")
	a := startApp(t, s.socket)
	a.expect("capabilities -", fmt.Sprintf("uid %d %016x", netlab.NobodyID, 0))
	a.expect("open a frames=64 udp:10.0.0.1:7000 msg:1", "[udp:10.0.0.1:7000 msg:1]")
	for line, want := range map[string]string{
		"claim a udp:10.0.0.1:7001":        "udp:10.0.0.1:7001",
		"claim a udp:10.0.0.1:53":          "udp:10.0.0.1:53", // below 1024, but the rule names it
		"claim a tcp:10.0.0.1:8080":        "tcp:10.0.0.1:8080",
		"claim a tcp:10.0.0.1:32768-32831": "tcp:10.0.0.1:32768-32831",
		"claim a msg:9":                    "msg:9",
		"claim a addr:10.0.0.130":          "addr:10.0.0.130",
		"claim a udp:10.0.0.1:8000":        "tag-denied: tag not allowed: udp:10.0.0.1:8000: rule nobodys of ",
		"claim a udp:10.0.0.1:7040-7103":   "tag-denied: ", // the rule permits only a part of the block
		"claim a tcp:10.0.0.1:80":          "tag-denied: tag not allowed: tcp:10.0.0.1:80: rule nobodys of ",
		"claim a msg:10":                   "tag-denied: ",
		"claim a addr:10.0.0.100":          "tag-denied: ",
		"open b frames=64 msg:2 msg:10":    "tag-denied: ",
		"open b queue frames=64":           "permission: ",
	} {
		if got := a.expect(line, want); strings.HasPrefix(line, "claim a tcp:10.0.0.1:80 ") && !strings.Contains(got, "below 1024") {
			t.Errorf("%s", got)
		}
	}
	// The owner of an address may claim any of its ports.
	a.expect("claim a udp:10.0.0.130:7", "udp:10.0.0.130:7")
	// A claim of any port gets a permitted port.
	for range 5 {
		a.expect("claim a udp:10.0.0.1:0", "udp:10.0.0.1:70")
		a.expect("claim a udp:0.0.0.0:0", "udp:10.0.0.1:70")
	}
	a.expect("claim a tcp:0.0.0.0:0", "tcp:10.0.0.1:")
	a.expect("claim a tcp:10.0.0.1:0-63", "tcp:10.0.0.1:")
	a.expect("claim a udp:10.0.0.1:0-63", "tag-denied: ") // no block is permitted as a whole
	a.expect("claim a tcp:[fd00::1]:8080", "tcp:[fd00::1]:8080")
	a.expect("claim a tcp:[::]:0-63", "tcp:[fd00::1]:")
	a.expect("claim a udp:[::]:0", "tag-denied: ")
	for range 7 {
		a.expect("claim a msg:0", "msg:")
	}
	a.expect("claim a msg:0", "tag-held: ")
	a.expect("open b frames=64 udp:10.0.0.1:0 msg:0", "tag-held: ") // all tags of a request or none
	a.expect("open b frames=64 udp:0.0.0.0:0 tcp:10.0.0.1:9999 udp:10.0.0.1:0", "[udp:10.0.0.1:70")

	// The rule of root.
	g, l, err := control.Open(context.Background(), s.socket, endpoint.Request{Attach: endpoint.AttachQueue})
	if err != nil {
		t.Errorf("queue attachment of a trusted user: %v", err)
	} else {
		l.Close()
		g.Close()
	}
	_, _, err = control.Open(context.Background(), s.socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(pair.A.Addr.Addr(), 7050))}})
	if !errors.Is(err, endpoint.ErrTagDenied) || !strings.Contains(err.Error(), "rule roots of") {
		t.Errorf("root: %v", err)
	}
	d.stop(syscall.SIGTERM)
	a.expect("ended a", "lease closed: unetd was stopped")
}

// check-config predicts for tags whether unetd grants them.
func TestCheckConfigPredicts(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	s := newSite(t, pair.A)
	const groupRules = `
  - name: few
    groups: [4711]
    tags: ["udp:10.0.0.1:7000-7099", "tcp:[fd00::/64]:80", "tcp:[fd00::/64]:81-6463", "addr:10.0.0.128/25"]
    endpoints: unlimited
    memory: unlimited
    ports: 64
  - {name: none, groups: [4712], operator: true}`
	// Without limits of endpoints and memory, because an endpoint that was closed still counts for a short time.
	others := strings.NewReplacer("\nrules:", "", "endpoints: 3", "endpoints: unlimited", "memory: 1MiB", "memory: unlimited").Replace(nobodys)
	file := policyFile(t, "rules:"+groupRules+others)
	s.serve(t, "--socket-mode", "0666", "--policy", file)
	for _, group := range []string{"4711", "4712", "4713"} {
		gid, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		a := startApp(t, s.socket, uint32(gid))
		granted := 0
		for _, tags := range []string{
			"udp:10.0.0.1:7000", "udp:10.0.0.1:7100", "udp:10.0.0.1:0", "udp:0.0.0.0:0", "udp:0.0.0.0:7099", "udp:0.0.0.0:7100", "udp:[::]:0", "udp:10.0.0.1:53", "udp:10.0.0.1:54",
			"udp:10.0.0.1:7040-7103", "udp:10.0.0.1:0-63", "udp:10.0.0.1:7040",
			"tcp:10.0.0.1:1023", "tcp:10.0.0.1:1024", "tcp:[fd00::1]:80", "tcp:[fd00::1]:64-127", "tcp:[fd00::1]:128-191", "tcp:[fd00::1]:0-63", "tcp:[::]:0",
			"msg:1", "msg:10", "msg:0", "addr:10.0.0.130", "addr:10.0.0.3", "udp:10.0.0.130:9", "addr:10.0.0.130 udp:10.0.0.130:9", "msg:1 msg:10",
			"tcp:[fd00::1]:128-191 udp:10.0.0.1:7000",
		} {
			// As user nobody in this group, by its number: the group database need not have it.
			code, stdout, stderr := runHere(t, pair.A, append([]string{"check-config", file, "--as", "65534", "--group", group, "--interface", pair.A.Interface}, strings.Fields(tags)...)...)
			answer := a.ask("open x frames=64 " + tags)
			got := strings.HasPrefix(answer, "[")
			if got != (code == 0) || code > 1 || got != (stderr == "") {
				t.Errorf("group %s, %s: exit %d, but unetd said %s\n%s%s", group, tags, code, answer, stdout, stderr)
			}
			if !got {
				continue
			}
			granted++
			a.expect("close x", "ok")
			a.expect("drop x", "ok")
		}
		if some := map[string]bool{"4711": true, "4712": false, "4713": true}[group]; some != (granted > 5) || granted > 20 {
			t.Errorf("group %s: %d were granted", group, granted)
		}
	}
}

// A claim with a wildcard address is refused if the rule does not permit the tag on the uplink's address. It is
// refused before the mux claims the tag: otherwise the error would show whether another endpoint holds it.
func TestWildcardAddressOutsidePolicyIsRefused(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	first, second := pair.A.Addr.Addr(), netip.MustParseAddr("10.0.0.5")
	err := pair.A.Do(func() error {
		link, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: second.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, `
rules:
  - {name: second, users: [nobody], tags: ["udp:10.0.0.5:53", "tcp:10.0.0.5:7000-7001"], endpoints: 8, memory: 1MiB}
  - {name: roots, users: [root], tags: ["udp:*:53", "tcp:*:7000-7001"], endpoints: 1, memory: unlimited}`))
	held := []endpoint.Tag{endpoint.UDPTag(netip.AddrPortFrom(first, 53)), endpoint.TCPTag(netip.AddrPortFrom(first, 7000)), endpoint.TCPTag(netip.AddrPortFrom(first, 7001))}
	g, l, err := control.Open(context.Background(), s.socket, endpoint.Request{Tags: held})
	if err != nil {
		t.Fatal(err)
	}
	a := startApp(t, s.socket)
	a.expect("open a frames=64", "[]")
	for wildcard, concrete := range map[string]string{"udp:0.0.0.0:53": "udp:10.0.0.1:53", "tcp:0.0.0.0:0": "tcp:10.0.0.1:0", "tcp:0.0.0.0:7001": "tcp:10.0.0.1:7001"} {
		want := "tag-denied: tag not allowed: " + concrete + ": rule second of "
		a.expect("claim a "+wildcard, want)
		a.expect("open b frames=64 "+wildcard, "tag-denied: ")
	}
	if err := errors.Join(l.Close(), g.Close()); err != nil {
		t.Error(err)
	}
	a.expect("claim a udp:0.0.0.0:53", "tag-denied: ")
	a.expect("claim a udp:10.0.0.5:53", "udp:10.0.0.5:53")
	a.expect("claim a tcp:10.0.0.5:0", "tcp:10.0.0.5:700")
	d.stop(syscall.SIGTERM)
}

// Without a policy file only root gets endpoints.
func TestNoPolicy(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	if _, err := os.Stat("/etc/unet/policy.yaml"); err == nil {
		t.Skip("this machine has a policy")
	}
	d := s.serve(t, "--socket-mode", "0666")
	startApp(t, s.socket).expect("open a", "permission: unetd at "+s.socket+": permission denied: uid 65534 on uplink: without a policy file only uid 0 gets endpoints: ")
	d.stop(syscall.SIGTERM)
	// With the default mode of the socket the error of connect names mode and owner.
	d = s.serve(t)
	if got := startApp(t, s.socket).ask("open a"); !strings.Contains(got, "mode 0600, owner root") {
		t.Errorf("%s", got)
	}
	d.stop(syscall.SIGTERM)
}

// A rule can apply by a supplementary group of the process.
func TestPolicyByGroup(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, `
rules:
  - {name: other, groups: [4242], interfaces: ["eth*"], tags: ["msg:*"], endpoints: 1, memory: unlimited}
  - {name: lab, groups: [4242], interfaces: ["up*"], tags: ["msg:7"], endpoints: 1, memory: unlimited}`))
	startApp(t, s.socket).expect("open a frames=64 msg:7", "permission: ")
	startApp(t, s.socket, 17, 4242).expect("open a frames=64 msg:8", "tag-denied: ")
	startApp(t, s.socket, 17, 4242).expect("open a frames=64 msg:7", "[msg:7]")
	d.stop(syscall.SIGTERM)
}

// A closed endpoint counts against the limits until all its descriptors are closed.
func TestQuota(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	d := s.serve(t, "--socket-mode", "0666", "--policy", policyFile(t, nobodys))
	a := startApp(t, s.socket)
	// 64 frames of 2048 bytes are 128 KiB, and count as 144 KiB with their rings.
	for _, name := range []string{"a", "b", "c"} {
		a.expect("open "+name+" frames=64", "[]")
	}
	atLimit := "busy: unetd at " + s.socket + ": busy: uid 65534 has 3 of at most 3 endpoints (rule nobodys of "
	a.expect("open d frames=64", atLimit)
	startApp(t, s.socket).expect("open d frames=64", atLimit) // another process of the same user
	a.expect("close a", "ok")
	a.expect("open d frames=64", atLimit)
	a.expect("drop-xsk a", "ok") // the segment is still open
	a.expect("open d frames=64", atLimit)
	freed := func(line string) {
		t.Helper()
		testutil.Eventually(t, line, func() bool { return strings.HasPrefix(a.ask(line), "[]") })
	}
	a.ask("drop a")
	freed("open d frames=64")
	// Memory has a limit of its own.
	a.expect("close b", "ok")
	a.expect("drop b", "ok")
	testutil.Eventually(t, "endpoint b is freed", func() bool {
		return strings.HasPrefix(a.ask("open e frames=512"), "busy: unetd at "+s.socket+": busy: uid 65534 has 288KiB of at most 1MiB of memory in segments and rings (rule nobodys of ")
	})
	a.expect("open e frames=368", "[]") // 736 KiB, whose rings do not count: 1 MiB in all
	// The endpoints of a process that has ended do not count.
	a.kill()
	a = startApp(t, s.socket)
	freed("open a frames=512")
	d.stop(syscall.SIGTERM)
}

// SIGHUP changes what later requests get. Endpoints keep what they have.
func TestReload(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	file := policyFile(t, nobodys)
	d := s.serve(t, "--socket-mode", "0666", "--policy", file)
	hup := func(parts ...string) {
		t.Helper()
		d.signal(syscall.SIGHUP)
		d.awaitLine(parts...)
	}
	a := startApp(t, s.socket)
	a.expect("open a frames=64 msg:1", "[msg:1]")
	a.expect("open b frames=64", "[]")

	writePolicy(t, file, strings.Replace(nobodys, "endpoints: 3", "endpoints: 1", 1)+"  - {name: broken, users: [no-such-user], endpoint: 1}\n")
	hup("policy not reloaded, the old one stays", file+`:14:28: there is no user \"no-such-user\"`)
	d.awaitLine("policy not reloaded, the old one stays", file+`:14:43: a rule has no field \"endpoint\"`)
	a.expect("open c frames=64 msg:2", "[msg:2]")

	writePolicy(t, file, strings.NewReplacer("endpoints: 3", "endpoints: 1", "msg:1-9", "msg:2-9").Replace(nobodys))
	hup("policy reloaded", "rules=2")
	a.expect("open d frames=64", "busy: unetd at "+s.socket+": busy: uid 65534 has 3 of at most 1 endpoints")
	a.expect("claim a msg:3", "msg:3")
	if list := s.run(t, "list"); strings.Count(list, " leased ") != 3 || !strings.Contains(list, "msg:1") {
		t.Errorf("%s", list)
	}
	a.expect("unclaim a msg:1", "ok")
	a.expect("claim a msg:1", "tag-denied: ")

	writePolicy(t, file, "rules: []")
	hup("policy reloaded", "rules=0")
	a.expect("claim a msg:4", "tag-denied: tag not allowed: msg:4: no rule of "+file+" is for uid 65534 on uplink")
	a.expect("unclaim a msg:3", "ok")
	a.expect("open d", "permission: ")

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	hup("policy not reloaded, the old one stays", "no such file")
	a.expect("open d", "permission: ")

	if err := errors.Join(os.WriteFile(file, []byte(nobodys), 0o600), os.Chmod(file, 0o666)); err != nil {
		t.Fatal(err)
	}
	hup("level=WARN", "everybody can write to "+file)
	d.awaitLine("policy reloaded")
	a.expect("close a", "ok")
	a.expect("drop a", "ok")
	testutil.Eventually(t, "endpoint a is freed, and the limit is 3 again", func() bool { return a.ask("open d frames=64 msg:5") == "[msg:5]" })
	d.stop(syscall.SIGTERM)
}
