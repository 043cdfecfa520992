//go:build linux

package mux_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// reuses are the socket options, SO_REUSEADDR and SO_REUSEPORT, of programs that bind a port in use.
var reuses = []struct{ addr, port bool }{{false, false}, {true, false}, {false, true}, {true, true}}

// programsAt are programs that bind a port of one of the uplink's addresses, or of all addresses.
func programsAt(tag endpoint.Tag, port uint16) (list []program) {
	network, any, both := "udp", "0.0.0.0", "::"
	if tag.Kind == endpoint.TagTCP {
		network = "tcp"
	}
	one := network + "4"
	if tag.Addr.Is6() {
		one, any = network+"6", "::"
	}
	for _, r := range reuses {
		for _, listen := range []bool{false, true} {
			if listen && tag.Kind == endpoint.TagUDP {
				continue
			}
			for _, at := range []struct{ network, addr string }{{one, tag.Addr.String()}, {one, any}, {network, both}} {
				list = append(list, program{network: at.network, at: fmt.Sprint(netip.AddrPortFrom(netip.MustParseAddr(at.addr), port)),
					reuseAddr: r.addr, reusePort: r.port, listen: listen})
			}
		}
	}
	return list
}

// Ports of each protocol and family, single ones and blocks.
var sharedTags = []endpoint.Tag{
	udpTag("10.0.0.1:7000"), tcpTag("10.0.0.1:7000"), udpTag("[fd00::1]:7000"), tcpTag("[fd00::1]:7000"),
	udpBlock("10.0.0.1:40000"), tcpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("[fd00::1]:40000"),
}

// No program of the kernel's network stack can bind a claimed port, with any options. It can bind all
// others, and that port after it was given back.
func TestProgramsCannotBindClaimedPorts(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, tag := range sharedTags {
		before := listObjects(t, l.A)
		if got, err := a.lease.Claim(t.Context(), tag); err != nil || got != tag {
			t.Fatalf("claim %v: %v, %v", tag, got, err)
		}
		l.wantClaims(int(tag.LastPort()-tag.Port)+1, tag)
		try := func(port uint16, want error) {
			t.Helper()
			for _, p := range programsAt(tag, port) {
				fd, err := p.start(l.A)
				if !errors.Is(err, want) {
					t.Errorf("%v is claimed, and %v: %v, want %v", tag, p, err, want)
				}
				if err == nil {
					unix.Close(fd)
				}
			}
		}
		for _, port := range slices.Compact([]uint16{tag.Port, tag.Port + (tag.LastPort()-tag.Port)/2, tag.LastPort()}) {
			try(port, unix.EADDRINUSE)
		}
		try(tag.Port-1, nil)
		try(tag.LastPort()+1, nil)
		testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
		l.wantClaims(0)
		try(tag.Port, nil)
		wantObjects(t, l.A, before)
	}
}

// A port that a program has bound cannot be claimed, nor a block with such a port. A refused claim leaves no
// descriptor.
func TestClaimOfBoundPortIsRefused(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	for _, tag := range sharedTags {
		before := listObjects(t, l.A)
		for _, port := range slices.Compact([]uint16{tag.Port, tag.LastPort()}) {
			for _, p := range programsAt(tag, port) {
				fd, err := p.start(l.A)
				testutil.Must(t, err)
				open := openDescriptors(t)
				_, err = a.lease.Claim(t.Context(), tag)
				if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), fmt.Sprint("port ", port)) {
					t.Errorf("claim %v beside %v: %v", tag, p, err)
				}
				testutil.Eventually(t, "the refused claim has left no descriptor", func() bool { return openDescriptors(t) <= open })
				unix.Close(fd)
			}
		}
		wantObjects(t, l.A, before)
		if _, err := a.lease.Claim(t.Context(), tag); err != nil {
			t.Errorf("claim %v when it is free: %v", tag, err)
		}
		testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
	}
}

// The same port number of another protocol, family or address is another tag.
func TestSamePortOfOtherProtocolIsOtherTag(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	addrOn(t, l.A, l.A.Interface, "10.0.0.9/24")
	tags := append(sharedTags, udpTag("10.0.0.9:7000"), tcpBlock("10.0.0.9:40000"))
	l.open(tags[:3]...)
	a := l.open(tags[3:]...)
	l.wantClaims(5+5*64, tags...)
	// A program can bind them on the addresses without a claim.
	program{network: "udp4", at: "127.0.0.1:7000"}.keep(t, l.A)
	program{network: "tcp4", at: "10.0.0.9:7000", listen: true}.keep(t, l.A)
	testutil.Must(t, a.lease.Close())
	l.wantClaims(3, tags[:3]...)
}

// A port of a TCP connection of the kernel is refused, also without a listener and in TIME-WAIT.
func TestClaimOfPortOfConnectionIsRefused(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	for _, hosts := range [][2]string{{"10.0.0.1", "10.0.0.2"}, {"[fd00::1]", "[fd00::2]"}} {
		network := "tcp4"
		if hosts[0][0] == '[' {
			network = "tcp6"
		}
		peer, err := l.B.Listen(network, hosts[1]+":80")
		testutil.Must(t, err)
		defer peer.Close()
		service, err := l.A.Listen(network, hosts[0]+":7000")
		testutil.Must(t, err)
		out, err := l.A.Dial(network, hosts[1]+":80")
		testutil.Must(t, err)
		in, err := l.B.Dial(network, hosts[0]+":7000")
		testutil.Must(t, err)
		ours, err := service.Accept()
		testutil.Must(t, err)
		theirs, err := peer.Accept()
		testutil.Must(t, err)
		testutil.Must(t, service.Close())
		tags := []endpoint.Tag{tcpTag(out.LocalAddr().String()), tcpTag(hosts[0] + ":7000")}
		refused := func(when string, tags ...endpoint.Tag) {
			t.Helper()
			for _, tag := range tags {
				for _, tag := range []endpoint.Tag{tag, tag.AsBlock()} {
					if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
						t.Errorf("claim %v of a connection %s: %v", tag, when, err)
					}
				}
			}
		}
		refused("established", tags...)
		testutil.Must(t, errors.Join(out.Close(), ours.Close())) // host A first, so TIME-WAIT is there
		testutil.Must(t, errors.Join(theirs.Close(), in.Close()))
		testutil.Eventually(t, "two connections in TIME-WAIT", func() bool {
			const timeWait = " 06 " // enum of include/net/tcp_states.h
			return strings.Count(netFile(t, l.A, strings.Replace(network, "4", "", 1)), timeWait) == 2
		})
		refused("in TIME-WAIT", tags[0]) // the other one is the server's: TestClaimOfPortInTimeWait
	}
}

// The kernel chooses no claimed port for its own connections, whether it chooses at bind or at connect.
func TestKernelChoosesNoClaimedPort(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	// Sometimes the kernel leaves out one port of a range with an odd number of ports.
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40065")
	l.open(udpBlock("10.0.0.1:40000"), tcpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"), tcpBlock("[fd00::1]:40000"))
	for _, network := range []string{"udp4", "tcp4", "udp6", "tcp6"} {
		from, any, to := "10.0.0.1:0", "0.0.0.0:0", "10.0.0.2:80"
		if strings.HasSuffix(network, "6") {
			from, any, to = "[fd00::1]:0", "[::]:0", "[fd00::2]:80"
		}
		for _, p := range []program{
			{network: network, at: from},
			{network: network, at: from, reuseAddr: true, reusePort: true},
			{network: network, at: any},
			{network: network, at: from, connects: true},
			{network: network, at: any, connects: true},
		} {
			for range 3 {
				fd, err := p.start(l.A)
				testutil.Must(t, err)
				err = connect(fd, to)
				if port := boundTo(t, fd); err != nil || port < 40064 {
					t.Errorf("%v got port %d, %v", p, port, err)
				}
				unix.Close(fd)
			}
		}
	}
}

// If a claim names no port, the kernel chooses one of its range of local ports.
func TestClaimOfAnyPort(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	sysctl(t, l.A, "ipv4/ip_local_port_range", "40000 40001")
	a := l.open()
	for _, c := range []struct {
		tag  endpoint.Tag
		addr string
	}{
		{udpTag("10.0.0.1:0"), "10.0.0.1"},
		{tcpTag("0.0.0.0:0"), "10.0.0.1"},
		{udpTag("[fd00::1]:0"), "fd00::1"},
		{tcpTag("[::]:0"), "fd00::1"},
	} {
		got := map[uint16]bool{}
		for range 2 {
			tag, err := a.lease.Claim(t.Context(), c.tag)
			if err != nil || tag.Kind != c.tag.Kind || tag.Block || tag.Addr.String() != c.addr {
				t.Errorf("claim %v: %v, %v", c.tag, tag, err)
			}
			got[tag.Port] = true
		}
		if !got[40000] || !got[40001] {
			t.Errorf("claim %v: ports %v", c.tag, got)
		}
		if _, err := a.lease.Claim(t.Context(), c.tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v when all are held: %v", c.tag, err)
		}
	}
	testutil.Must(t, a.lease.Close())
	l.wantClaims(0)
}

// A port belongs to one endpoint and one tag, alone or in a block.
func TestPortBelongsToOneTag(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	owned, owned6 := addrTag("10.0.0.77"), addrTag("fd00::77")
	a := l.open(owned, owned6)
	b := l.open()
	held, denied := endpoint.ErrTagHeld, endpoint.ErrTagDenied
	for _, at := range []string{"10.0.0.1", "[fd00::1]", "10.0.0.77", "[fd00::77]"} {
		for _, tag := range []func(string) endpoint.Tag{udpTag, tcpTag} {
			other := b
			if strings.Contains(at, "77") {
				other = a
			}
			single, block := tag(at+":40010"), tag(at+":40000").AsBlock()
			claim := func(by *app, tag endpoint.Tag, want error) {
				t.Helper()
				if got, err := by.lease.Claim(t.Context(), tag); !errors.Is(err, want) || err == nil && got != tag {
					t.Errorf("claim %v: %v, %v; want %v", tag, got, err, want)
				}
			}
			unclaim := func(tag endpoint.Tag) {
				t.Helper()
				testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
			}
			claim(a, single, nil)
			claim(a, block, held) // its own port is another tag's
			claim(other, block, held)
			claim(a, tag(at+":40064").AsBlock(), nil) // the next one
			claim(a, tag(at+":40063"), nil)
			unclaim(single)
			claim(a, block, held) // there is one left
			unclaim(tag(at + ":40063"))
			claim(a, block, nil)
			claim(a, block, held)
			claim(other, block, held)
			claim(a, single, held)
			claim(other, single, held)
			claim(other, tag(at+":40000"), held)
			claim(other, tag(at+":40063"), held)
			claim(other, tag(at+":40128"), nil)
			if err := a.lease.Unclaim(t.Context(), single); !errors.Is(err, denied) {
				t.Errorf("unclaim a port of a block: %v", err)
			}
			unclaim(block)
			claim(other, single, nil)

			odd := block
			odd.Port++
			claim(a, odd, denied)
		}
	}
	for _, tag := range []endpoint.Tag{udpBlock("10.0.0.77:40000"), tcpBlock("[fd00::77]:40000")} {
		if _, err := b.lease.Claim(t.Context(), tag); !errors.Is(err, held) || !strings.Contains(err.Error(), "another endpoint owns the address") {
			t.Errorf("claim %v of another's address: %v", tag, err)
		}
	}
	for _, tag := range []endpoint.Tag{udpBlock("10.0.0.2:40000"), tcpBlock("[::1]:40000"), tcpBlock("[fd00::2]:0")} {
		if _, err := b.lease.Claim(t.Context(), tag); !errors.Is(err, denied) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	testutil.Must(t, a.lease.Close())
	testutil.Must(t, b.lease.Close())
	l.wantClaims(0)
	if n := l.mux.CountedClaims(); n != 0 {
		t.Errorf("%d entries of the indexes are left", n)
	}
}

// A chosen block is free in the mux and in the kernel, and has no port excluded from automatic choice.
func TestClaimOfAnyBlock(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	const free, unfree = 50048, 50112
	sysctl(t, l.A, "ipv4/ip_local_reserved_ports", fmt.Sprintf("80,32768-%d,%d,%d-65535", free-1, unfree+64, unfree+65))
	program{network: "udp", at: fmt.Sprintf("[::]:%d", unfree+63)}.keep(t, l.A)
	program{network: "tcp", at: fmt.Sprintf("[::]:%d", unfree), listen: true}.keep(t, l.A)
	for _, c := range []struct{ tag, want endpoint.Tag }{
		{udpBlock("10.0.0.1:0"), udpBlock("10.0.0.1:50048")},
		{tcpBlock("0.0.0.0:0"), tcpBlock("10.0.0.1:50048")},
		{udpBlock("[fd00::1]:0"), udpBlock("[fd00::1]:50048")},
		{endpoint.Tag{Kind: endpoint.TagTCP, Addr: netip.IPv6Unspecified(), Block: true}, tcpBlock("[fd00::1]:50048")},
	} {
		if got, err := a.lease.Claim(t.Context(), c.tag); err != nil || got != c.want {
			t.Errorf("claim %v: %v, %v; want %v", c.tag, got, err, c.want)
		}
		before := listObjects(t, l.A)
		if got, err := a.lease.Claim(t.Context(), c.tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v when none is left: %v, %v", c.tag, got, err)
		}
		wantObjects(t, l.A, before)
		testutil.Must(t, a.lease.Unclaim(t.Context(), c.want))
	}
	// A block with a port that is held by itself is not free.
	if _, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:50050")); err != nil {
		t.Fatal(err)
	}
	if got, err := a.lease.Claim(t.Context(), udpBlock("10.0.0.1:0")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("got %v, %v", got, err)
	}
	// Nor are ports chosen that need a privilege.
	sysctl(t, l.A, "ipv4/ip_local_reserved_ports", "\n")
	sysctl(t, l.A, "ipv4/ip_local_port_range", "65500 65535")
	sysctl(t, l.A, "ipv4/ip_unprivileged_port_start", "65472")
	if got, err := a.lease.Claim(t.Context(), udpBlock("10.0.0.1:0")); err != nil || got.Port != 65472 {
		t.Errorf("got %v, %v", got, err)
	}
}

// Part of the ports from 32768 on is left to the kernel's programs: when endpoints have many ports of
// a protocol, blocks of it are chosen below.
func TestAnyBlockIsBelow32768WhenManyPortsAreHeld(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(tcpTag("10.0.0.1:7000"))
	claim := func(tag endpoint.Tag, low bool) {
		t.Helper()
		got, err := a.lease.Claim(t.Context(), tag)
		if err != nil || !got.Block || got.Port < 1024 || (got.Port < 32768) != low {
			t.Errorf("any block: %v, %v; want one below 32768: %v", got, err, low)
		}
	}
	l.mux.CountAsShared(endpoint.TagTCP, mux.MostHigh-2)
	claim(tcpBlock("10.0.0.1:0"), false)
	for range 20 {
		claim(tcpBlock("10.0.0.1:0"), true)
	}
	claim(udpBlock("10.0.0.1:0"), false)
	l.mux.CountAsShared(endpoint.TagTCP, -mux.MostHigh)
	claim(tcpBlock("10.0.0.1:0"), false)
}

// All ports of an owned address can be claimed: 512 blocks from 32768 on, in random order.
func TestClaimsOfAllBlocksOfOwnedAddress(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open(addrTag("fd00::77"))
	seen := map[uint16]bool{}
	ordered := true
	var last uint16
	for i := range 512 {
		tag, err := a.lease.Claim(t.Context(), tcpBlock("[fd00::77]:0"))
		testutil.Must(t, err)
		if tag.Port < 32768 || tag.Port%64 != 0 || seen[tag.Port] || !tag.Block || tag.Addr != netip.MustParseAddr("fd00::77") {
			t.Fatalf("got %v", tag)
		}
		seen[tag.Port] = true
		ordered = ordered && (i == 0 || tag.Port == last+64)
		last = tag.Port
	}
	if ordered {
		t.Error("the blocks were given in ascending order, not in a random one")
	}
	for _, tag := range []endpoint.Tag{tcpBlock("[fd00::77]:0"), tcpTag("[fd00::77]:0")} {
		if got, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v, %v", tag, got, err)
		}
	}
	if got, err := a.lease.Claim(t.Context(), udpTag("[fd00::77]:0")); err != nil || got.Port < 49152 {
		t.Errorf("got %v, %v", got, err)
	}
	testutil.Must(t, a.lease.Unclaim(t.Context(), tcpBlock("[fd00::77]:65472")))
	if got, err := a.lease.Claim(t.Context(), tcpTag("[fd00::77]:0")); err != nil || got.Port < 65472 {
		t.Errorf("got %v, %v", got, err)
	}
}

// The ports of a mux whose process died are reserved again, except those that a program has bound
// since; all claims stay.
func TestReadmitReservesPortsAgain(t *testing.T) {
	l := openLab6(t)
	tags := []endpoint.Tag{
		udpTag("10.0.0.77:9"), addrTag("10.0.0.77"), tcpBlock("[fd00::77]:40000"), addrTag("fd00::77"), endpoint.MessageTag(7),
		udpTag("10.0.0.1:7000"), tcpTag("[fd00::1]:7000"), tcpBlock("10.0.0.1:40000"), udpBlock("[fd00::1]:40000"),
	}
	a := l.open(tags...)
	before := listObjects(t, l.A)
	l.wantClaims(1+1+1+64+64, tags...)
	testutil.Must(t, l.mux.ForgetClaims())
	for _, at := range []string{"10.0.0.1:40001", "10.0.0.1:40062"} {
		program{network: "tcp4", at: at, listen: true}.keep(t, l.A)
	}
	// Owned addresses come first, as in adopt.
	order := slices.Clone(tags)
	slices.SortStableFunc(order, func(a, b endpoint.Tag) int { return cmp.Compare(int(b.Kind), int(a.Kind)) })
	for _, tag := range order {
		err := a.lease.Readmit(tag)
		if tag != tcpBlock("10.0.0.1:40000") {
			testutil.Must(t, err)
		} else if err == nil || !strings.Contains(err.Error(), "2 ports") || !strings.Contains(err.Error(), "port 40001") {
			t.Errorf("readmit %v: %v", tag, err)
		}
	}
	l.wantClaims(1+1+1+62+64, tags...)
	wantObjects(t, l.A, before) // two for the programs, two less reserved
	for _, c := range []struct {
		tag  endpoint.Tag
		port uint16
	}{{udpTag("10.0.0.1:7000"), 7000}, {tcpTag("[fd00::1]:7000"), 7000}, {tcpBlock("10.0.0.1:40000"), 40000}, {udpBlock("[fd00::1]:40000"), 40063}} {
		for _, p := range programsAt(c.tag, c.port) {
			if _, err := p.start(l.A); err == nil {
				t.Errorf("%v was bound, and %v is reserved again", p, c.tag)
			}
		}
	}
	// A wildcard does not choose a held port that could not be reserved.
	b := l.open()
	if _, err := b.lease.Claim(t.Context(), tcpTag("10.0.0.1:40001")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("got %v", err)
	}
	for _, tag := range tags {
		if tag.Kind != endpoint.TagAddr {
			testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
		}
	}
	testutil.Must(t, a.lease.Close())
	l.wantClaims(0)
}

// Reserved ports leave descriptors for other uses.
func TestReservedPortsLeaveDescriptors(t *testing.T) {
	l := openLab6(t)
	a := l.open()
	var usual unix.Rlimit
	testutil.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &usual))
	defer func() { testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &usual)) }()
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 800, Max: usual.Max}))
	var tags []endpoint.Tag
	for range 600 / 64 {
		tag, err := a.lease.Claim(t.Context(), tcpBlock("10.0.0.1:0"))
		testutil.Must(t, err)
		tags = append(tags, tag)
	}
	if _, err := a.lease.Claim(t.Context(), udpBlock("[fd00::1]:40000")); !errors.Is(err, mux.ErrTableFull) {
		t.Errorf("a block too many: %v", err)
	}
	for range 600 % 64 {
		tag, err := a.lease.Claim(t.Context(), udpTag("[fd00::1]:0"))
		testutil.Must(t, err)
		tags = append(tags, tag)
	}
	if _, err := a.lease.Claim(t.Context(), udpTag("10.0.0.1:7000")); !errors.Is(err, mux.ErrTableFull) {
		t.Errorf("a port too many: %v", err)
	}
	l.wantClaims(600, tags...)
	testutil.Must(t, l.mux.ForgetClaims())
	testutil.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 796, Max: usual.Max}))
	refused := 0
	for _, tag := range tags {
		if err := a.lease.Readmit(tag); errors.Is(err, mux.ErrTableFull) {
			refused++
		} else {
			testutil.Must(t, err)
		}
	}
	if refused == 0 {
		t.Error("all tags were reserved again with fewer descriptors than they need")
	}
	l.wantClaims(597, tags...)
	testutil.Must(t, a.lease.Close())
	l.wantClaims(0)
}

// A search for a block on a host where each block has a port in use does not block other claims, and
// ends with its lease.
func TestSearchForBlockDoesNotDelayOtherClaims(t *testing.T) {
	l := openLab6(t)
	for first := 32768; first < 65536; first += 64 {
		program{network: "udp4", at: fmt.Sprintf("0.0.0.0:%d", first+63)}.keep(t, l.A)
	}
	a, b := l.open(), l.open()
	const rounds = 3
	searched := make(chan error)
	go func() {
		for range rounds {
			_, err := a.lease.Claim(context.Background(), udpBlock("10.0.0.1:0"))
			searched <- err
		}
		close(searched)
	}()
	done, meanwhile := 0, 0
	for done < rounds {
		select {
		case err := <-searched:
			done++
			if !errors.Is(err, endpoint.ErrTagHeld) {
				t.Errorf("got %v", err)
			}
		default:
			tag, err := b.lease.Claim(t.Context(), endpoint.MessageTag(0))
			testutil.Must(t, err)
			testutil.Must(t, b.lease.Unclaim(t.Context(), tag))
			meanwhile++
		}
	}
	if meanwhile <= 2*rounds { // one before and one after each
		t.Errorf("%d claims of another endpoint meanwhile", meanwhile)
	}
	// The lease ends in one of many searches.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := a.lease.Claim(context.Background(), udpBlock("10.0.0.1:0")); errors.Is(err, endpoint.ErrLeaseClosed) {
				return
			}
		}
	}()
	testutil.Must(t, a.lease.Close())
	<-ended
	testutil.Must(t, b.lease.Close())
	l.wantClaims(0)
}
