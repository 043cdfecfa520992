//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// ip runs ip(8) on a host. What it writes is returned.
func ip(t *testing.T, h *netlab.Host, line string) []byte {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("ip", strings.Fields(line)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := h.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil && !strings.Contains(line, "route get") {
		t.Fatalf("ip %s: %v: %s", line, err, errOut.String())
	}
	return out.Bytes()
}

// routes is unetd route --json.
func (s *site) routes(t *testing.T, args ...string) (list []endpoint.UplinkRoute) {
	t.Helper()
	testutil.Must(t, json.Unmarshal([]byte(s.run(t, "route", append(args, "--json")...)), &list))
	return list
}

// unetd route shows what ip route get says, and beside it the source that a connected socket has, if it leaves by the
// uplink.
func TestRoute(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true})
	a := pair.A
	s := newSite(t, a)
	addVethPair(t, a, "aside", "10.70.0.1/24")
	for _, line := range []string{
		"addr add 10.0.0.5/24 dev uplink", "addr add 10.20.0.1/24 dev uplink",
		"addr add fd00::5/64 dev uplink nodad preferred_lft 0", "addr add fd70::1/64 dev aside nodad",
		"route add 10.90.0.0/16 via 10.0.0.2 mtu 1400", "route add 10.91.0.0/16 via 10.0.0.2 src 10.20.0.1",
		"route add blackhole 10.92.0.0/16", "-6 route add fd90::/16 via fd00::2 mtu 1300", "-6 route add unreachable fd92::/16",
		"route add 10.93.0.0/16 dev uplink", "route add 10.93.0.0/16 dev aside table 100", "rule add from 10.0.0.5 lookup 100",
		"neigh add 10.93.0.9 lladdr 02:00:00:00:00:99 dev uplink",
		"rule add from 10.0.0.1 to 10.94.0.0/16 lookup 101", "route add 10.94.0.0/16 via 10.0.0.2", "route add 10.94.0.0/16 via 10.20.0.2 table 101",
		"neigh add 10.20.0.2 lladdr 02:00:00:00:00:98 dev uplink",
	} {
		ip(t, a, strings.Replace(line, "dev uplink", "dev "+a.Interface, 1))
	}
	d := s.serve(t)
	differ := map[string]string{
		"10.70.0.9": "by aside: ", "fd70::9": "by aside: ", "10.93.0.9 from 10.0.0.5": "by aside: ",
		"10.94.0.9": "the next hop: a rule for the source 10.0.0.1 ", "10.70.0.1": "an address of this host",
	}
	for _, c := range []string{
		"10.0.0.2", "10.0.0.2 from 10.0.0.5", "10.0.0.2 from 10.20.0.1", "10.90.0.9", "10.91.0.9", "10.92.0.9", "10.93.0.9", "10.93.0.9 from 10.0.0.5",
		"10.94.0.9", "10.94.0.9 from 10.0.0.1", "10.0.0.1", "10.70.0.1", "10.70.0.9", "10.0.0.255", "192.0.2.1", "224.0.0.5",
		"fd00::2", "fd00::2 from fd00::5", "fd90::9", "fd92::9", "fd70::9", "2001:db8::1",
	} {
		to, from, _ := strings.Cut(c, " from ")
		args := []string{to}
		if from != "" {
			args = append(args, "--from", from)
		}
		list := s.routes(t, args...)
		if len(list) != 1 || list[0].Interface != a.Interface || list[0].Kernel == nil {
			t.Errorf("%s: %+v", c, list)
			continue
		}
		r, k := list[0], list[0].Kernel
		var all []struct {
			Type, Gateway, Dev, Prefsrc string
			Metrics                     []struct{ Mtu uint32 }
		}
		_ = json.Unmarshal(ip(t, a, "-j route get "+c), &all) // nothing if there is no route
		switch {
		case len(all) == 0:
			if k.Error == "" || k.Interface != "" || r.Route != nil || r.Error == "" {
				t.Errorf("%s: %+v, but ip shows no route", c, r)
			}
			continue
		case k.Error != "" || k.Interface != all[0].Dev || all[0].Type != "" && k.Type != all[0].Type:
			t.Errorf("%s: %+v, but ip: %+v", c, *k, all[0])
		}
		if want := all[0].Gateway; want != "" && k.NextHop.String() != want || want == "" && k.NextHop.String() != to {
			t.Errorf("%s: next hop %v, but ip: %+v", c, k.NextHop, all[0])
		}
		if want := all[0].Prefsrc; want != "" && from == "" && k.Source.String() != want {
			t.Errorf("%s: source %v, but ip: %+v", c, k.Source, all[0])
		}
		if len(all[0].Metrics) > 0 && k.MTU != all[0].Metrics[0].Mtu {
			t.Errorf("%s: mtu %d, but ip: %+v", c, k.MTU, all[0])
		}
		var source string
		_ = a.Do(func() error { // what a socket gets
			local := &net.UDPAddr{}
			if from != "" {
				local.IP = net.ParseIP(from)
			}
			socket, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 9)))
			if err == nil {
				source = netip.MustParseAddrPort(socket.LocalAddr().String()).Addr().String()
				socket.Close()
			}
			return err
		})
		leaves := k.Interface == a.Interface || k.Type == "local" && to == "10.0.0.1"
		switch {
		case leaves != (r.Route != nil), leaves == (r.Error != ""):
			t.Errorf("%s: %+v, with the kernel's %+v", c, r, *k)
		case leaves && source != "" && r.Route.Source.String() != source:
			t.Errorf("%s: source %v, a socket has %s", c, r.Route.Source, source)
		}
		text := s.run(t, "route", args...)
		_, says, has := strings.Cut(text, "\n  differs    ")
		if want, differs := differ[c]; has != differs || !strings.HasPrefix(says, want) {
			t.Errorf("%s:\n%s", c, text)
		}
		for line := range strings.Lines(text) {
			if len(line) > 81 && !strings.HasPrefix(line, "  endpoint") { // an error
				t.Errorf("%s: longer than 80 columns: %s", c, line)
			}
		}
	}
	d.stop(syscall.SIGTERM)
}

// unetd route shows the addresses with their flags, to users whom the policy gives anything on the interface.
func TestRouteOfUsers(t *testing.T) {
	t.Parallel()
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	s := newSite(t, pair.A)
	addVethPair(t, pair.A, "second", "10.70.0.1/24")
	ip(t, pair.A, "addr add 10.0.0.5/24 dev "+pair.A.Interface)
	ip(t, pair.A, "addr add fd00::5/64 dev "+pair.A.Interface+" nodad preferred_lft 0")
	file := policyFile(t, fmt.Sprintf("rules:\n  - {name: nobodys, users: [nobody], interfaces: [%s], endpoints: 1, memory: 1MiB, tags: [\"msg:1-9\"]}\n", pair.A.Interface))
	d := s.serve(t, "--interface", "second", "--socket-mode", "0666", "--policy", file)
	shown := func(list []endpoint.UplinkRoute) (text []string) {
		for _, r := range list {
			for _, a := range r.Addrs {
				text = append(text, strings.Join(append([]string{r.Interface, a.Prefix.String()}, a.Flags...), " "))
			}
		}
		return text
	}
	var want []string // of the kernel
	onHost(t, pair.A, func() error {
		for _, name := range []string{pair.A.Interface, "second"} {
			link, err := netlink.LinkByName(name)
			testutil.Must(t, err)
			addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			testutil.Must(t, err)
			for _, a := range addrs {
				text := name + " " + a.IPNet.String()
				if a.Flags&unix.IFA_F_SECONDARY != 0 {
					text += " secondary"
				}
				if a.Flags&unix.IFA_F_DEPRECATED != 0 {
					text += " deprecated"
				}
				if a.Flags&unix.IFA_F_TENTATIVE != 0 {
					text += " tentative"
				}
				want = append(want, text)
			}
		}
		return nil
	})
	list := s.routes(t)
	got := shown(list)
	if text := s.run(t, "route"); !strings.HasPrefix(text, pair.A.Interface+"\n  addresses  10.0.0.1/24\n             10.0.0.5/24 secondary\n             ") ||
		!strings.Contains(text, "  fd00::5/64 deprecated\n") || !strings.Contains(text, "\nsecond\n  addresses  10.70.0.1/24\n") {
		t.Errorf("%s", text)
	}
	if first := pair.A.Interface + " " + pair.A.Addr.String(); len(got) == 0 || got[0] != first {
		t.Errorf("%q, want %s first", got, first)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%q, the kernel has %q", got, want)
	}
	as := func(uid uint32, args ...string) (code int, stdout, stderr string) {
		cmd := s.command("route", args...)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		return finish(t, pair.A, cmd)
	}
	code, stdout, stderr := as(65534, "10.0.0.2", "--json")
	list = nil
	if err := json.Unmarshal([]byte(stdout), &list); code != 0 || err != nil || len(list) != 1 || list[0].Route == nil || list[0].Interface != pair.A.Interface {
		t.Errorf("nobody: exit %d, %v, %s%s", code, err, stdout, stderr)
	}
	for _, c := range [][]string{{"--interface", "second"}, {"--interface", "third"}} {
		if code, stdout, stderr := as(65534, c...); code != 1 || stdout != "" || !strings.Contains(stderr, c[1]) {
			t.Errorf("nobody, %v: exit %d, %s%s", c, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := as(4711, "10.0.0.2"); code != 1 || stdout != "" || !strings.Contains(stderr, "permission denied") {
		t.Errorf("a user without a rule: exit %d, %s%s", code, stdout, stderr)
	}
	d.stop(syscall.SIGTERM)
}
