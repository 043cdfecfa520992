//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// onHost runs f in the namespace of a host.
func onHost(t *testing.T, h *netlab.Host, f func() error) {
	t.Helper()
	if err := h.Do(f); err != nil {
		t.Fatal(err)
	}
}

// addVethPair makes a veth pair with both ends on one host. The first end has an address.
func addVethPair(t *testing.T, h *netlab.Host, name, address string) {
	t.Helper()
	onHost(t, h, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = name, net.HardwareAddr{2, 0, 0, 0, 1, 1}
		veth := netlink.NewVeth(attrs)
		veth.PeerName = name + "-peer"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(veth.PeerName)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return errors.Join(netlink.AddrAdd(veth, addr), netlink.LinkSetUp(veth), netlink.LinkSetUp(peer))
	})
}

// onDevice changes a device of a host.
func onDevice(t *testing.T, h *netlab.Host, name string, change func(netlink.Link) error) {
	t.Helper()
	onHost(t, h, func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return change(l)
	})
}

// If unetd serves two interfaces, a request is for the interface that it names, or that has the addresses of its
// tags, or that the policy permits its user. The next unetd takes the endpoints of both over.
func TestTwoUplinks(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	addVethPair(t, pair.A, "second", "10.9.0.1/24")
	flags := []string{"--interface", "second", "--socket-mode", "0666", "--policy", policyFile(t, `
rules:
  - {name: second, users: [nobody], groups: [4242], interfaces: [second], tags: ["udp:*:*", "msg:*"], endpoints: 4, memory: 1MiB}
  - {name: first, groups: [4242], interfaces: [uplink], tags: ["udp:*:*", "msg:*", "addr:10.0.0.128/25"], endpoints: 4, memory: 1MiB}`)}
	d := s.serve(t, flags...)
	d.awaitLine("msg=ready", `interface="uplink, second"`, `mode="tcx, tcx"`)

	// The policy gives this user nothing on uplink: the only rule for it is of group 4242.
	onSecond := startApp(t, s.socket)
	onSecond.expect("open a frames=64 msg:7", "[msg:7]")
	onSecond.expect("open b frames=64 interface=uplink", "permission: ")
	onSecond.expect("close a", "ok")
	onSecond.kill()

	a := startApp(t, s.socket, 4242)
	prefix := "uplink: unetd at " + s.socket + ": which interface: "
	a.expect("open a frames=64 msg:7", prefix+"this unetd serves uplink, second: name one (Config.Interface, UNET_INTERFACE)")
	a.expect("open a frames=64 interface=eth7", prefix+`this unetd does not serve "eth7": choose one of uplink, second`)
	a.expect("open a frames=64 udp:10.0.0.1:7000 udp:10.9.0.1:7000", prefix+"tags with addresses of uplink and of second: an endpoint is on one interface")
	a.expect("open a frames=64 udp:10.0.0.1:7000", "[udp:10.0.0.1:7000]")
	a.expect("open b frames=64 udp:10.9.0.1:7000 msg:7", "[udp:10.9.0.1:7000 msg:7]")
	a.expect("open c frames=64 interface=uplink msg:7", "[msg:7]") // each interface has message tags of its own
	a.expect("open d frames=64 addr:10.0.0.130", "[addr:10.0.0.130]")
	a.expect("claim b udp:10.0.0.1:7001", "tag-denied: ")

	list := func() string {
		t.Helper()
		var found []string
		for line := range strings.Lines(s.run(t, "list")) {
			f := strings.Fields(line)
			found = append(found, fmt.Sprint(f[0], " ", f[len(f)-1]))
		}
		return strings.Join(found, "; ")
	}
	want := "INTERFACE TAGS; uplink udp:10.0.0.1:7000; second msg:7; uplink msg:7; uplink addr:10.0.0.130"
	if got := list(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if out := s.run(t, "counters", "--all"); !strings.Contains(out, "  rx_pass  ") || strings.Count(out, "  second  ") != strings.Count(out, "  uplink  ") || !strings.Contains(strings.Join(strings.Fields(out), " "), " 5 lease_granted all ") {
		t.Errorf("%s", out)
	}
	d.kill()
	d = s.serve(t, flags...)
	testutil.Eventually(t, "all are presented", func() bool { return strings.Count(s.run(t, "list"), " leased ") == 4 })
	if got := list(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	// The number of an endpoint that has ended is not used again, also not on the other interface.
	ids := map[string]bool{}
	a.expect("close a", "ok")
	a.expect("open e frames=64 interface=second", "[]")
	for line := range strings.Lines(s.run(t, "list")) {
		ids[strings.Fields(line)[1]] = true
	}
	if len(ids) != 5 || ids["2"] {
		t.Errorf("numbers %v", ids)
	}
	d.stop(syscall.SIGTERM)
	onDevice(t, pair.A, "second", netlink.LinkDel)
	s.expectNothingLeft(t)
}

// When an interface is deleted, moved to another namespace, or gets another MAC address, its endpoints end, and those
// of the other interface go on. unetd serves it again when there is an interface of its name. A rename, and down
// and up, end no endpoint.
func TestUplinkIsServedAgain(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	s := newSite(t, pair.A)
	const second, address = "second", "10.9.0.1/24"
	addVethPair(t, pair.A, second, address)
	d := s.serve(t, "--interface", second, "--socket-mode", "0666", "--policy", policyFile(t, `
rules: [{name: r, users: [nobody], tags: ["udp:*:*", "msg:*"], endpoints: unlimited, memory: unlimited}]`))
	a := startApp(t, s.socket)
	a.expect("open stays frames=64 interface=uplink msg:1", "[msg:1]")
	a.expect("open a frames=64 interface=second msg:1", "[msg:1]")

	// Down, up and a rename leave it as it is.
	onDevice(t, pair.A, second, netlink.LinkSetDown)
	testutil.Eventually(t, "it is down", func() bool { return strings.Contains(s.run(t, "uplinks"), "down") })
	onDevice(t, pair.A, second, func(l netlink.Link) error { return netlink.LinkSetName(l, "other") })
	d.awaitLine("the interface has been renamed", "interface=second", "renamed=other")
	onDevice(t, pair.A, "other", netlink.LinkSetUp)
	testutil.Eventually(t, "it is up", func() bool { return !strings.Contains(s.run(t, "uplinks"), "down") })
	a.expect("claim a udp:10.9.0.1:7000", "udp:10.9.0.1:7000")
	onDevice(t, pair.A, "other", func(l netlink.Link) error { return netlink.LinkSetName(l, second) })
	d.awaitLine("the interface has been renamed", "renamed=second")

	servedAgain := func(reason string) { // and the endpoint has ended with this reason
		t.Helper()
		a.expect("ended a", "lease closed: the uplink has changed: "+reason)
		a.expect("claim stays msg:0", "msg:")
		a.expect("unclaim stays msg:1", "ok")
		a.expect("claim stays msg:1", "msg:1")
		d.awaitLine("the interface is served again", "interface=second")
		a.expect("open a frames=64 interface=second udp:10.9.0.1:7000", "[udp:10.9.0.1:7000]")
	}
	// Another MAC address.
	onDevice(t, pair.A, second, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 1, 2}) })
	servedAgain("the MAC address of second is 02:00:00:00:01:02 now, and endpoints use 02:00:00:00:01:01")

	// Deleted, and made again.
	gone := func() {
		t.Helper()
		testutil.Eventually(t, "it is gone", func() bool {
			return strings.Contains(s.run(t, "uplinks"), "unusable: the uplink has changed: second was deleted or moved to another network namespace")
		})
		for _, request := range []string{"interface=second", "udp:10.9.0.1:7000"} {
			a.expect("open b frames=64 "+request, "busy: unetd at "+s.socket+": busy: second cannot be used now: the uplink has changed: ")
		}
	}
	onDevice(t, pair.A, second, netlink.LinkDel)
	gone()
	addVethPair(t, pair.A, second, address)
	servedAgain("second was deleted or moved to another network namespace")

	// In another namespace, and back. Its addresses are lost there.
	onDevice(t, pair.A, second, func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(pair.B.NS)) })
	gone()
	onDevice(t, pair.B, second, func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(pair.A.NS)) })
	onDevice(t, pair.A, second, func(l netlink.Link) error {
		addr, err := netlink.ParseAddr(address)
		return errors.Join(err, netlink.AddrAdd(l, addr), netlink.LinkSetUp(l))
	})
	servedAgain("second was deleted or moved to another network namespace")

	onDevice(t, pair.A, second, netlink.LinkDel)
	gone()
	d.stop(syscall.SIGTERM) // without the interface
	s.expectNothingLeft(t)
}

// Each command takes an alternative name of an interface, and so do rules and requests.
func TestAlternativeNames(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{})
	const long = "an-alternative-name-of-more-than-15-bytes"
	onDevice(t, pair.A, pair.A.Interface, func(l netlink.Link) error { return netlink.LinkAddAltName(l, long) })
	s := newSite(t, pair.A)
	file := policyFile(t, "rules: [{name: alt, users: [nobody], interfaces: ["+long+"], tags: ['msg:*'], endpoints: 1, memory: 1MiB}]")
	if code, _, stderr := runHere(t, s.host, s.args("serve", "--interface", long)...); code != 2 || !strings.Contains(stderr, "given twice") { // args has the other name
		t.Errorf("exit %d: %s", code, stderr)
	}
	d := serveCommand(t, s.host, s.socket, command(roleUnetd, "serve", "--socket", s.socket, "--bpffs", s.bpffs, "--ready-fd", "3", "--interface", long,
		"--socket-mode", "0666", "--policy", file))
	d.awaitLine("msg=ready", "interface="+pair.A.Interface)
	a := startApp(t, s.socket)
	a.expect("open a frames=64 interface="+long+" msg:7", "[msg:7]")
	for _, args := range [][]string{
		{"check-config", file, "--as", "nobody", "--interface", long},
		{"doctor", "--interface", long, "--socket", s.socket, "--bpffs", s.bpffs, "--policy", file},
	} {
		_, stdout, stderr := runHere(t, s.host, args...)
		if strings.Contains(stdout+stderr, "no interface") || !strings.Contains(stdout, map[string]string{"check-config": "alt", "doctor": pair.A.Interface}[args[0]]) {
			t.Errorf("%v: %s%s", args, stdout, stderr)
		}
	}
	startCapture(t, s, nil, "--interface", long, "--bpffs", s.bpffs).stop()
	d.stop(syscall.SIGTERM)
}
