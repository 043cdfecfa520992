//go:build linux

package addresses

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

var rows = []row{
	{"an address that the interface does not have", func(s *scene) {
		s.open()
		for _, f := range []family{four, six} {
			probes := append(dials(f.own(1), f.peer(1)), probe{name: "listen at " + f.own(1), observe: func(d *side) string {
				v, err := serve(d.host, "", d.at(d.A, f.own(1), 0))
				if err == nil {
					v.close()
				}
				return class(err)
			}})
			s.same(probes...)
			s.ip(f.add(f.own(1)))
			s.same(probes...)
			s.ip(f.del(f.own(1)))
			s.same(probes...)
		}
	}},
	virtual("a virtual IPv4 address", four, "10.50.0.1", "/32"),
	virtual("a virtual IPv6 address", six, "2001:db8:50::1", "/128"),
	{"only a link-local address, then a global one", func(s *scene) {
		s.open()
		s.listen("", "")
		probes := append(reaches("", "fe80::1"), dials("", "fe80::2")...)
		s.same(probes...)
		s.ip(six.add(six.own(0)))
		s.same(append(probes, six.view(six.own(0))...)...)
	}},
	{"no address and no IPv6, then an address", func(s *scene) {
		s.sysctl("ipv6/conf/uplink/disable_ipv6", "1", "0")
		s.open()
		s.listen("", "")
		s.same(dials("", four.peer(0))...)
		s.ip(four.add(four.own(0)))
		s.same(four.view(four.own(0))...)
	}},
	secondary("secondary addresses go with the first", "0"),
	secondary("a secondary address becomes the first", "1"),
	{"a subnet of two addresses", func(s *scene) {
		s.peers("addr add 10.60.0.1/31 dev uplink", "addr del 10.60.0.1/31 dev uplink")
		s.ip(four.add(four.own(0)) + "; addr add 10.60.0.0/31 dev uplink")
		s.open()
		s.listen("", "")
		s.same(append(four.view(four.own(0), "10.60.0.0"), dials("", "10.60.0.1")...)...)
	}},
	{"single addresses with routes", func(s *scene) {
		s.peers("addr add 10.61.0.2/32 dev uplink; route add 10.61.0.1 dev uplink", "addr del 10.61.0.2/32 dev uplink; route del 10.61.0.1")
		s.ip("addr add 10.62.0.1/32 dev uplink; addr add 10.61.0.1/32 dev uplink; route add 10.61.0.2 dev uplink src 10.61.0.1")
		s.open()
		s.listen("", "")
		s.same(append(reaches("10.61.0.2", "10.61.0.1"), dials("", "10.61.0.2")...)...)
	}},
	routeSource("the source of an IPv4 route", four, "10.11.0.0/24 dev uplink"),
	routeSource("the source of an IPv6 route", six, "2001:db8:11::/64 dev uplink metric 1"), // the kernel's own has 256
	rule("a rule for an IPv4 source", four, "", "", "192.168.50.2"),
	rule("a rule for an IPv4 source, listened at", four, four.own(0), "", "192.168.50.2"),
	rule("a rule for an IPv6 source", six, "", "-6 ", "2001:db8:c::2"),
	rule("a rule for an IPv6 source, listened at", six, six.own(0), "-6 ", "2001:db8:c::2"),
	verdicts("IPv4 routes that go nowhere", four, "192.0.2.1"),
	verdicts("IPv6 routes that go nowhere", six, "2001:db8:ee::1"),
	metrics("MTU and MSS of an IPv4 route", four, "192.168.60.2"),
	metrics("MTU and MSS of an IPv6 route", six, "2001:db8:60::2"),
	{"a route that leaves by another interface", (*scene).otherInterface},
	{"addresses come and go under load", (*scene).load},
}

// listening has a row for each way to listen on a host of both families with several addresses.
func listening() (rows []row) {
	for _, at := range [][2]string{
		{"", ""}, {"4", ""}, {"6", ""}, {"", "0.0.0.0"}, {"4", "0.0.0.0"}, {"", "::"},
		{"", four.own(0)}, {"", four.own(1)}, {"4", four.own(1)}, {"", six.own(0)}, {"6", six.own(1)}, {"", "fe80::1"},
	} {
		rows = append(rows, row{"listen/tcp" + at[0] + " " + at[1] + " port", func(s *scene) {
			s.ip(strings.Join([]string{four.add(four.own(0)), four.add(four.own(1)), six.add(six.own(0)), six.add(six.own(1))}, ";"))
			s.open()
			s.listen(at[0], at[1])
			s.same(reaches("", four.own(0), four.own(1), six.own(0), six.own(1), "fe80::1")...)
		}})
	}
	return rows
}

// virtual is an address beside another that comes, goes and comes back while a service is there.
func virtual(name string, f family, addr, bits string) row {
	return row{name, func(s *scene) {
		s.ip(f.add(f.own(0)))
		s.open()
		s.listen("", "")
		stays := s.connect("tcp", f.own(0))
		probes := append(reaches("", addr, f.own(0)), dial("tcp", "", f.peer(0)), stays.goesOn())
		s.ip("addr add " + addr + bits + " dev uplink" + f.options)
		s.same(probes...)
		returns := s.connect("tcp", addr)
		for range 2 {
			s.ip("addr del " + addr + bits + " dev uplink")
			s.same(probes...)
			s.ip("addr add " + addr + bits + " dev uplink" + f.options)
			s.same(append(probes, returns.goesOn())...)
		}
	}}
}

// secondary is a row in which an interface with three addresses of one subnet loses the first.
func secondary(name, promote string) row {
	return row{name, func(s *scene) {
		s.sysctl("ipv4/conf/uplink/promote_secondaries", promote, "0")
		have := []string{four.own(0), "10.10.0.5", "10.10.0.6"}
		for _, a := range have {
			s.ip(four.add(a))
		}
		s.open()
		s.listen("", "")
		s.same(four.view(have...)...)
		s.ip(four.del(have[0]))
		s.same(four.view(have...)...)
		s.ip(four.add(have[0]))
		s.same(four.view(have...)...)
	}}
}

// routeSource is a route whose source (RTA_PREFSRC) is not the address of its subnet.
func routeSource(name string, f family, route string) row {
	return row{name, func(s *scene) {
		view := f.view(f.own(0), f.own(1), f.own(2))
		s.ip(f.add(f.own(0)) + ";" + f.add(f.own(1)) + ";" + f.add(f.own(2)))
		s.with("route replace "+route+" src "+f.own(0), "route del "+route)
		s.open()
		s.listen("", "")
		s.same(view...)
		s.ip("route replace " + route + " src " + f.own(2))
		s.same(view...)
	}}
}

// rule is a client behind a gateway that only the table of one source knows.
func rule(name string, f family, listen, options, client string) row {
	return row{name, func(s *scene) {
		s.peers("addr add "+client+" dev lo", "addr del "+client+" dev lo")
		s.ip(f.add(f.own(0)) + ";" + f.add(f.own(1)))
		s.with(options+"route add "+client+" via "+f.peer(0)+" table 100; rule add from "+f.own(0)+" lookup 100 pref 100",
			options+"rule del pref 100; route flush table 100")
		s.open()
		s.listen("", listen)
		s.same(slices.Concat(reaches(client, f.own(0)), reaches("", f.own(0), f.own(1)),
			dials(f.own(0), client), dials(f.own(1), client), dials("", client), dials("", f.peer(0)))...)
	}}
}

// verdicts are routes of the types that have no next hop.
func verdicts(name string, f family, to string) row {
	return row{name, func(s *scene) {
		s.ip(f.add(f.own(0)))
		s.open()
		ip := "route"
		if f == six {
			ip = "-6 route"
		}
		probes := append(dials("", to), dials(f.own(0), to)...)
		for _, kind := range []string{"unreachable", "throw", "blackhole", "prohibit"} {
			s.ip("route add " + kind + " " + to)
			s.same(probes...)
			s.ip("route del " + kind + " " + to)
		}
		// A route of type throw ends the look-up in its table: the next rule decides.
		options := strings.TrimSuffix(ip, "route")
		s.with(options+"route add throw "+to+" table 100; rule add to "+to+" lookup 100 pref 100", options+"rule del pref 100; route flush table 100")
		s.same(probes...)
		for _, kind := range []string{"unreachable", "blackhole", "prohibit"} {
			s.ip(options + "rule add to " + to + " " + kind + " pref 101")
			s.same(probes...)
			s.ip(options + "rule del pref 101")
		}
	}}
}

// metrics are routes with an MTU and an MSS: what either side announces, and whether it forbids fragments.
func metrics(name string, f family, client string) row {
	return row{name, func(s *scene) {
		s.peers("addr add "+client+" dev lo", "addr del "+client+" dev lo")
		s.ip(f.add(f.own(0)))
		s.with("route add "+client+" via "+f.peer(0), "route del "+client)
		s.open()
		s.listen("", "")
		for _, metrics := range []string{"", "advmss 1000", "advmss 1400 mtu 1300", "mtu 1350", "mtu lock 1350", "mtu lock 1350 advmss 1100", ""} {
			s.ip("route replace " + client + " via " + f.peer(0) + " " + metrics)
			s.same(announcedTo(client), announcedFrom(client, f.own(0)), mayFragment(client))
		}
	}}
}

// otherInterface is about unet alone, since the kernel sends there.
func (s *scene) otherInterface() {
	s.ip(four.add(four.own(0)))
	s.with("link add aside type veth peer name beside; addr add 10.70.0.1/24 dev aside; link set aside up", "link del aside")
	s.with("route add "+four.peer(1)+" dev uplink", "route del "+four.peer(1))
	s.open()
	leaves := func(err error) bool { return class(err) == "ENETUNREACH" && strings.Contains(err.Error(), "aside") }
	for _, network := range []string{"tcp", "udp", datagrams} {
		send := func(to string) error {
			c, err := connect(s.unet.host, network, "", to)
			if err == nil {
				_, err = c.Write([]byte("x"))
				c.Close()
			}
			return err
		}
		s.ip("route replace " + four.peer(1) + " dev uplink")
		// The first datagram to a destination is held until its route is known.
		err := send("10.70.0.2:9")
		if !leaves(err) && (network == "tcp" || !s.soon(func() bool { err = send("10.70.0.2:9"); return leaves(err) })) {
			s.Errorf("%s: %v, want ENETUNREACH that names the interface", network, err)
		}
		if !s.soon(func() bool { err = send(four.peer(1) + ":9"); return !leaves(err) }) {
			s.Errorf("%s by the uplink: %v", network, err)
		}
		s.ip("route replace " + four.peer(1) + " dev aside")
		if !s.soon(func() bool { err = send(four.peer(1) + ":9"); return leaves(err) }) {
			s.Errorf("%s after the change of the route: %v, want ENETUNREACH that names the interface", network, err)
		}
	}
}

// sources has a row for each set of addresses among which RFC 6724 chooses.
func sources() (rows []row) {
	const a, b, local, old = "2001:db8:a::1/64", "2001:db8:b::1/64", "fd0a::1/64", " preferred_lft 0"
	for _, c := range []struct {
		name  string
		addrs []string
	}{
		{"two prefixes", []string{a, b}},
		{"in the other order", []string{b, a}},
		{"and a local one", []string{local, a, b}},
		{"only a local one", []string{local}},
		{"the first is deprecated", []string{a + old, b}},
		{"the second is deprecated", []string{a, b + old}},
		{"both are deprecated", []string{a + old, b + old}},
		{"the global ones are deprecated", []string{a + old, b + old, local}},
		{"temporary", []string{a + " mngtmpaddr"}},
	} {
		rows = append(rows, row{"source/" + c.name, func(s *scene) { s.source(c.addrs) }})
	}
	return rows
}

// temporary is an address that the kernel makes for one that is mngtmpaddr (RFC 8981).
var temporary = regexp.MustCompile(`2001:db8:a:0:[0-9a-f:]+`)

func (s *scene) source(addrs []string) {
	s.peers("addr add 2001:db8:a::2/64 dev uplink nodad; addr add fd0a::2/64 dev uplink nodad; addr add 2001:db8:ff::2 dev lo; route add 2001:db8:b::/64 dev uplink",
		"addr del 2001:db8:a::2/64 dev uplink; addr del fd0a::2/64 dev uplink; addr del 2001:db8:ff::2 dev lo; route del 2001:db8:b::/64")
	s.sysctl("ipv6/conf/uplink/use_tempaddr", "2", "0")
	s.with("route add default via fe80::2 dev uplink", "route del default via fe80::2 dev uplink")
	var view []probe
	var last netip.Prefix
	for _, addr := range addrs {
		s.ip("addr add " + addr + " dev uplink nodad")
		last = netip.MustParsePrefix(strings.Fields(addr)[0])
		view = append(view, reaches("", last.Addr().String())...)
	}
	for _, to := range []string{"2001:db8:a::2", "2001:db8:ff::2", "fd0a::2", "fe80::2"} {
		view = append(view, dials("", to)...)
	}
	for i, p := range view {
		view[i].observe = func(d *side) string { return temporary.ReplaceAllString(p.observe(d), "temporary") }
	}
	s.open()
	s.listen("", "")
	s.same(view...)
	s.ip("addr change " + last.String() + " dev uplink nodad preferred_lft 0 valid_lft 3600")
	s.same(view...)
}
