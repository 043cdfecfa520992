//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// addrOn adds an address to an interface of a host, and addrOff deletes it.
func addrOn(t *testing.T, h *netlab.Host, iface, prefix string) {
	t.Helper()
	onDevice(t, h, iface, addAddress(prefix))
}

func addrOff(t *testing.T, h *netlab.Host, iface, prefix string) {
	t.Helper()
	onDevice(t, h, iface, deleteAddress(prefix))
}

func gone(a string) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: netip.MustParseAddr(a)}
}

// here is the notice of an address with its subnet.
func here(prefix string) endpoint.Notice {
	p := netip.MustParsePrefix(prefix)
	return endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: p.Addr(), Bits: uint8(p.Bits())}
}

// send sends a frame to the other host.
func (s *capture) send(frame []byte) {
	s.t.Helper()
	testutil.Must(s.t, unix.Send(s.fd, frame, 0))
}

// first waits for a frame that contains one of the texts.
func (s *capture) first(texts ...string) string {
	s.t.Helper()
	frame := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(s.fd, frame, 0)
		testutil.Must(s.t, err)
		for _, text := range texts {
			if strings.Contains(string(frame[:n]), text) {
				return text
			}
		}
	}
}

// wantSuspended checks that these tags and no others are suspended.
func (l *lab) wantSuspended(tags ...endpoint.Tag) {
	l.t.Helper()
	want := map[endpoint.Tag]bool{}
	for _, t := range tags {
		want[t] = true
	}
	held, inKernel, err := l.mux.Suspended()
	testutil.Must(l.t, err)
	if fmt.Sprint(held) != fmt.Sprint(want) || fmt.Sprint(inKernel) != fmt.Sprint(want) {
		l.t.Errorf("suspended %v, in the kernel %v; want %v", held, inKernel, want)
	}
}

// An address of the uplink is deleted, and another host takes it. Then the endpoint can neither send from it
// nor receive, and no other endpoint gets its tags. When the address is back the endpoint sends and receives
// as before.
func TestTagsOfRemovedAddressAreSuspended(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ addr, prefix, other string }{
		{"10.0.0.3", "10.0.0.3/24", "10.0.0.2:9000"},
		{"fd00::3", "fd00::3/64", "[fd00::2]:9000"},
	} {
		t.Run(c.addr, func(t *testing.T) {
			l := openLab6(t)
			ap := netip.AddrPortFrom(netip.MustParseAddr(c.addr), 7000).String()
			block := netip.AddrPortFrom(netip.MustParseAddr(c.addr), 40000).String()
			addrOn(t, l.A, l.A.Interface, c.prefix)
			tags := []endpoint.Tag{udpTag(ap), tcpTag(ap), udpBlock(block)}
			a := l.open(append([]endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.MessageTag(7)}, tags...)...)
			b := l.open()
			notices, _ := watchNotices(a.lease)
			others, _ := watchNotices(b.lease)
			program{network: "udp", at: c.other}.keep(t, l.B) // so that its kernel sends no errors
			frame := datagram(l.B.LinkAddr, l.A.LinkAddr, ap, c.other, "from the lost address")
			in := datagram(l.A.LinkAddr, l.B.LinkAddr, c.other, ap, "to the lost address")
			wire := openCapture(t, l.B)
			send := func(what string, counter string) {
				t.Helper()
				l.wantIncrements(what, "tx_", func() { a.send(frame) }, counter)
			}
			receive := func(what string, counter string) {
				t.Helper()
				before := l.count()[counter]
				wire.send(in)
				l.await(counter, before+1)
			}
			send("while it is there", "tx_uplink")
			receive("while it is there", "rx_port")
			a.recv()

			addrOff(t, l.A, l.A.Interface, c.prefix)
			testutil.Eventually(t, "a notice that the address is gone", func() bool { return notices.has(gone(c.addr)) })
			addrOn(t, l.B, l.B.Interface, c.prefix)
			l.wantSuspended(tags...)
			send("while it is gone", "tx_forged_tag")
			receive("while it is gone", "rx_pass_port_gone")
			a.wantNothing("for an address that is gone")
			late, _ := watchNotices(a.lease)
			testutil.Eventually(t, "a notice to a late watcher that the address is gone", func() bool { return late.has(gone(c.addr)) })
			for _, tag := range append(tags, addrTag(c.addr)) {
				if _, err := b.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) && !errors.Is(err, endpoint.ErrTagDenied) {
					t.Errorf("another claims %v: %v", tag, err)
				}
			}
			// On another interface it is an address of the host, but not of the uplink.
			addrOn(t, l.A, "lo", netip.PrefixFrom(netip.MustParseAddr(c.addr), netip.MustParseAddr(c.addr).BitLen()).String())
			addrOff(t, l.A, "lo", netip.PrefixFrom(netip.MustParseAddr(c.addr), netip.MustParseAddr(c.addr).BitLen()).String())
			l.wantSuspended(tags...)
			testutil.Must(t, a.lease.Unclaim(t.Context(), tags[1]))

			addrOff(t, l.B, l.B.Interface, c.prefix)
			addrOn(t, l.A, l.A.Interface, c.prefix)
			testutil.Eventually(t, "a notice that the address is back", func() bool { return notices.has(here(c.prefix)) })
			l.wantSuspended()
			send("when it is back", "tx_uplink")
			receive("when it is back", "rx_port")
			a.recv()
			if _, err := (program{network: "udp", at: ap}).start(l.A); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("a program binds the port: %v", err)
			}
			want := []endpoint.Notice{gone(c.addr), here(c.prefix)}
			testutil.Eventually(t, "the same notices for an endpoint without tags on the address", func() bool { return slices.Equal(others.addrs(), want) })
			testutil.Must(t, a.lease.Close())
			l.wantClaims(0)
		})
	}
}

// Suspended tags stay suspended when the mux's process dies. The next process finds the addresses that were
// added and deleted since then. The ports stay reserved until the address is back.
func TestAddressRemovedWhileNoProcessServes(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	addrOn(t, l.A, l.A.Interface, "10.0.0.4/24")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	c := l.serve(order{})
	early, later, owned := udpTag("10.0.0.3:7000"), udpTag("10.0.0.4:7000"), addrTag("10.0.0.77")
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{early, later, udpTag("10.0.0.5:7000")}})
	w := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{owned, udpTag("10.0.0.77:7000")}})
	addrOff(t, l.A, l.A.Interface, "10.0.0.5/24")
	addrOff(t, l.A, l.A.Interface, "10.0.0.3/24") // when its tag is suspended, the tag of 10.0.0.5 is suspended, too
	from3 := datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.3:7000", "10.0.0.2:9000", "from 10.0.0.3")
	from4 := datagram(l.B.LinkAddr, l.A.LinkAddr, "10.0.0.4:7000", "10.0.0.2:9000", "from 10.0.0.4")
	frames := openCapture(t, l.B)
	testutil.Eventually(t, "nothing is sent from 10.0.0.3", func() bool {
		a.send(from3)
		a.send(from4)
		if frames.first("from 10.0.0.3", "from 10.0.0.4") == "from 10.0.0.4" {
			return true
		}
		frames.first("from 10.0.0.4")
		return false
	})
	c.kill()
	addrOff(t, l.A, l.A.Interface, "10.0.0.4/24")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	addrOn(t, l.A, "lo", "10.0.0.77/32")

	var log logBuffer
	l.openConfig(mux.Config{Pin: l.pin, Log: slog.New(slog.NewTextHandler(&log, nil))})
	l.wantSuspended(early, later)
	if s := log.String(); !strings.Contains(s, "10.0.0.4") || !strings.Contains(s, "10.0.0.77") || strings.Contains(s, "another program") {
		t.Errorf("log: %s", s)
	}
	if _, _, err := l.mux.Present(t.Context(), me, w.grant.XSK, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
		t.Errorf("the endpoint whose address the host has taken: %v", err)
	}
	l.present(a)
	notices, _ := watchNotices(a.lease)
	want := []endpoint.Notice{here("10.0.0.1/24"), here("10.0.0.5/24"), {Kind: endpoint.NoticeAddrGone}}
	testutil.Eventually(t, "notices of the link and of all addresses", func() bool { return slices.Equal(notices.addrs(), want) && notices.has(linkUp) })
	l.wantIncrements("from 10.0.0.3", "tx_", func() { a.send(from3) }, "tx_forged_tag")
	l.wantIncrements("from 10.0.0.4", "tx_", func() { a.send(from4) }, "tx_forged_tag")
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	addrOn(t, l.A, l.A.Interface, "10.0.0.4/24")
	testutil.Eventually(t, "notices that both addresses are back", func() bool { return notices.has(here("10.0.0.3/24")) && notices.has(here("10.0.0.4/24")) })
	l.wantIncrements("from 10.0.0.3", "tx_", func() { a.send(from3) }, "tx_uplink")
	l.wantIncrements("from 10.0.0.4", "tx_", func() { a.send(from4) }, "tx_uplink")
	for _, at := range []string{"10.0.0.3:7000", "10.0.0.4:7000"} {
		if _, err := (program{network: "udp4", at: at}).start(l.A); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a program binds %s: %v", at, err)
		}
	}
}

// When an address that an endpoint owns is added to any interface of the host, the endpoint ends with the
// reason, and the other host reaches the host's service at the address.
func TestEndpointEndsWhenHostTakesItsAddress(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	for _, c := range []struct{ addr, prefix, iface string }{
		{"10.0.0.77", "10.0.0.77/24", l.A.Interface},
		{"10.0.0.78", "10.0.0.78/32", "lo"},
		{"fd00::77", "fd00::77/64", l.A.Interface},
	} {
		a := l.open(addrTag(c.addr), endpoint.MessageTag(7))
		addrOn(t, l.A, c.iface, c.prefix)
		testutil.Eventually(t, "the endpoint has ended", func() bool { return a.lease.Err() != nil })
		if err := a.lease.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, mux.ErrAddrTaken) || !strings.Contains(err.Error(), c.addr) {
			t.Errorf("%s: ended by %v", c.addr, err)
		}
		at := netip.AddrPortFrom(netip.MustParseAddr(c.addr), 80).String()
		ln, err := l.A.Listen("tcp", at)
		testutil.Must(t, err)
		conn, err := l.B.Dial("tcp", at)
		testutil.Must(t, err)
		testutil.Must(t, errors.Join(conn.Close(), ln.Close()))
		if _, err := l.open().lease.Claim(t.Context(), addrTag(c.addr)); !errors.Is(err, endpoint.ErrTagDenied) {
			t.Errorf("%s: claimed while the host has it: %v", c.addr, err)
		}
	}
	l.wantClaims(0)
}

// An endpoint whose address becomes the broadcast address of a new subnet ends with this reason.
func TestEndpointEndsByNewSubnet(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open(addrTag("10.0.0.63"))
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/26")
	testutil.Eventually(t, "the endpoint has ended", func() bool { return a.lease.Err() != nil })
	if err := a.lease.Err(); !errors.Is(err, mux.ErrAddrTaken) || !strings.Contains(err.Error(), "10.0.0.63, which the endpoint owned, is now the network's or broadcast address of 10.0.0.0/26") {
		t.Errorf("ended by %v", err)
	}
}

// If the host has more addresses than there is room for, that is logged, and everything else goes on.
func TestMoreAddressesOfHostThanRoom(t *testing.T) {
	t.Parallel()
	var log logBuffer
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	l.openConfig(mux.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	a := l.open(udpTag("10.0.0.1:7000"))
	restore, err := l.mux.ReplaceOwn(8)
	testutil.Must(t, err)
	defer func() { testutil.Must(t, restore()) }()
	for i := range 8 {
		addrOn(t, l.A, "lo", fmt.Sprintf("192.0.2.%d/32", i+1))
	}
	testutil.Eventually(t, "a warning", func() bool { return strings.Contains(log.String(), "the host has more addresses than the table") })
	if s := log.String(); strings.Contains(s, "cannot compare the tags") {
		t.Errorf("log: %s", s)
	}
	if _, err := a.lease.Claim(t.Context(), addrTag("10.0.0.50")); !errors.Is(err, mux.ErrTableFull) {
		t.Errorf("a claim without room: %v", err)
	}
	for i := range 8 {
		addrOff(t, l.A, "lo", fmt.Sprintf("192.0.2.%d/32", i+1))
	}
	testutil.Eventually(t, "a claim with room", func() bool {
		_, err := a.lease.Claim(t.Context(), addrTag("10.0.0.50"))
		return err == nil
	})
}

// The host takes an address during a claim of it, after the claim has read the host's addresses.
func TestHostTakesAddressDuringClaim(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	for _, how := range []string{"claim", "open"} {
		claimed := make(chan error, 1)
		var lease *mux.Lease
		if how == "claim" {
			lease = l.open().lease
		}
		tag := addrTag("10.0.0.77")
		go func() {
			var err error
			if how == "claim" {
				_, err = lease.Claim(t.Context(), tag)
			} else {
				var g *endpoint.Grant
				if g, lease, err = l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{tag}}); err == nil {
					g.Close()
				}
			}
			claimed <- err
		}()
		testutil.Eventually(t, "the address is being claimed", func() bool { return l.mux.IsBeingClaimed(tag.Addr) })
		addrOn(t, l.A, l.A.Interface, "10.0.0.77/24")
		if err := <-claimed; err == nil { // the claim was done before the address was added
			testutil.Eventually(t, "the endpoint has ended", func() bool { return lease.Err() != nil })
		} else if !errors.Is(err, endpoint.ErrTagDenied) && !errors.Is(err, mux.ErrAddrTaken) {
			t.Errorf("%s: %v", how, err)
		}
		l.wantClaims(0)
		addrOff(t, l.A, l.A.Interface, "10.0.0.77/24")
	}
}

// Addresses are added and deleted while tags are claimed. Afterwards a tag is in effect if and only if the
// uplink has its address.
func TestClaimsWhileAddressesChange(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	stop := make(chan struct{})
	done := make(chan struct{})
	a := l.open(udpTag("10.0.0.1:6999"))
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tag := udpTag(fmt.Sprintf("10.0.0.3:%d", 7000+i%50))
			if _, err := a.lease.Claim(t.Context(), tag); err == nil && i%3 == 0 {
				if err := a.lease.Unclaim(t.Context(), tag); err != nil {
					t.Errorf("unclaim %v: %v", tag, err)
				}
			}
		}
	}()
	for range 50 {
		addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
		time.Sleep(time.Millisecond) // time for some claims; the result does not depend on it
		addrOff(t, l.A, l.A.Interface, "10.0.0.3/24")
	}
	close(stop)
	<-done
	held := func() (tags []endpoint.Tag) {
		all, _, _, err := l.mux.Claims()
		testutil.Must(t, err)
		for tag := range all {
			if tag.Addr == netip.MustParseAddr("10.0.0.3") {
				tags = append(tags, tag)
			}
		}
		return tags
	}
	testutil.Eventually(t, "all are suspended", func() bool {
		s, _, err := l.mux.Suspended()
		testutil.Must(t, err)
		return len(s) == len(held())
	})
	l.wantSuspended(held()...)
	addrOn(t, l.A, l.A.Interface, "10.0.0.3/24")
	testutil.Eventually(t, "none is suspended", func() bool {
		s, _, err := l.mux.Suspended()
		testutil.Must(t, err)
		return len(s) == 0
	})
	l.wantSuspended()
}

// awaitAddrs waits until the identity of a new endpoint has these addresses.
func (l *lab) awaitAddrs(want ...string) {
	l.t.Helper()
	testutil.Eventually(l.t, fmt.Sprint("the addresses ", want), func() bool { return fmt.Sprint(l.mux.Identity().Addrs) == fmt.Sprint(want) })
}

// The identity of a new endpoint has the uplink's present addresses, in the order in which a wildcard prefers them.
func TestIdentityHasPresentAddresses(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	addrOff(t, l.A, l.A.Interface, "10.0.0.1/24")
	l.awaitAddrs("fd00::1/64")
	addrOn(t, l.A, l.A.Interface, "fe80::a/64")
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/24")
	addrOn(t, l.A, l.A.Interface, "10.0.0.6/24") // secondary
	addrOn(t, l.A, l.A.Interface, "10.0.0.5/32") // the same address in another subnet
	addrOn(t, l.A, l.A.Interface, "10.1.0.5/24")
	addrOn(t, l.A, "lo", "10.2.0.5/32")
	want := []string{"10.0.0.5/24", "10.1.0.5/24", "10.0.0.6/24", "fd00::1/64", "fe80::a/64"}
	l.awaitAddrs(want...)
	if g := l.open().grant; fmt.Sprint(g.Identity.Addrs) != fmt.Sprint(want) {
		t.Errorf("the identity of a new endpoint has %v", g.Identity.Addrs)
	}
}

// An endpoint learns of every address that comes and goes, whether it has tags or not, and of a new subnet of the same
// address. An address that is tentative is told when duplicate address detection has ended, and one that another host
// has never. A deprecated and a temporary one are told, too.
func TestLeasesLearnOfAllAddresses(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	notices, _ := watchNotices(a.lease)
	var want []endpoint.Notice
	await := func(what string, next ...endpoint.Notice) {
		t.Helper()
		want = append(want, next...)
		testutil.Eventually(t, what, func() bool { return slices.Equal(notices.addrs(), want) })
	}
	up := l.A.Interface
	addrOn(t, l.A, "lo", "10.2.0.5/32") // not of the uplink
	addrOn(t, l.A, up, "10.0.0.5/24")
	await("a new address", here("10.0.0.5/24"))
	addrOn(t, l.A, up, "10.0.0.5/25")
	addrOff(t, l.A, up, "10.0.0.5/24")
	await("another subnet", here("10.0.0.5/25"))
	addrOff(t, l.A, up, "10.0.0.5/25")
	await("a removed address", gone("10.0.0.5"))
	addAddr(t, l.A, "fd00::dead/64", func(a *netlink.Addr) { a.PreferedLft, a.ValidLft = 0, 1000 })
	await("a deprecated address", here("fd00::dead/64"))
	sysctl(t, l.A, "ipv6/conf/"+up+"/dad_transmits", "1")
	addAddr(t, l.A, "fd00::2/64", func(a *netlink.Addr) { a.Flags = 0 }) // host B has it
	addAddr(t, l.A, "fd00::3/64", func(a *netlink.Addr) { a.Flags = 0 })
	if addressFlags(t, l.A, "fd00::3")&unix.IFA_F_TENTATIVE == 0 {
		t.Error("fd00::3 is not tentative")
	}
	await("an address without a duplicate", here("fd00::3/64"))
	temporary := temporaryAddress(t, l.A, "2001:db8::1/64")
	for _, at := range []string{"2001:db8::1", temporary} {
		testutil.Eventually(t, "a managed address and its temporary one", func() bool { return notices.has(here(at + "/64")) })
	}
	l.awaitAddrs("10.0.0.1/24", "2001:db8::1/64", "fd00::3/64", "fd00::1/64", temporary+"/64", "fd00::dead/64")
	late, _ := watchNotices(a.lease)
	testutil.Eventually(t, "a late loop learns what has changed since the grant", func() bool {
		return len(late.addrs()) == 4 && late.has(here("fd00::dead/64")) && late.has(here("fd00::3/64")) && late.has(here("2001:db8::1/64")) && late.has(here(temporary+"/64"))
	})
}

// Addresses change while endpoints are opened and begin to read their notices. In the end each lease knows the present
// ones: those of its grant, with what its notices have told.
func TestOpeningMissesNoAddress(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
				change := addAddress
				if i/3%2 == 1 {
					change = deleteAddress
				}
				err = withDevice(l.A, l.A.Interface, change(fmt.Sprintf("10.0.1.%d/32", 1+i%3)))
			}
		}
		<-stop
		done <- err
	}()
	type knows struct {
		grant   *endpoint.Grant
		notices *noticeLog
	}
	var all []knows
	for range 30 {
		a := l.open()
		n, _ := watchNotices(a.lease)
		all = append(all, knows{a.grant, n})
	}
	close(stop)
	testutil.Must(t, <-done)
	addrOn(t, l.A, l.A.Interface, "10.0.2.1/24") // the last
	for i, k := range all {
		testutil.Eventually(t, "the last notice", func() bool { return k.notices.has(here("10.0.2.1/24")) })
		known := map[netip.Addr]bool{}
		for _, p := range k.grant.Identity.Addrs {
			known[p.Addr()] = true
		}
		for _, n := range k.notices.addrs() {
			if known[n.Addr] = true; n.Kind == endpoint.NoticeAddrGone {
				delete(known, n.Addr)
			}
		}
		now, err := l.mux.Addresses()
		testutil.Must(t, err)
		for _, p := range now {
			if !known[p.Addr()] {
				t.Errorf("endpoint %d does not know %v", i, p)
			}
			delete(known, p.Addr())
		}
		if len(known) > 0 {
			t.Errorf("endpoint %d knows %v, which the host does not have", i, known)
		}
	}
}

// Of more addresses than an identity has, the first notices report the others.
func TestMoreAddressesThanInIdentity(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	const more = 10
	for i := range endpoint.MaxIdentityAddrs + more - 1 {
		addrOn(t, l.A, l.A.Interface, fmt.Sprintf("10.0.1.%d/24", i+1))
	}
	now, err := l.mux.Addresses()
	testutil.Must(t, err)
	var want []endpoint.Notice
	for _, p := range now[endpoint.MaxIdentityAddrs:] {
		want = append(want, here(p.String()))
	}
	a := l.open()
	notices, _ := watchNotices(a.lease)
	if got := a.grant.Identity.Addrs; !slices.Equal(got, now[:endpoint.MaxIdentityAddrs]) {
		t.Errorf("granted %v", got)
	}
	testutil.Eventually(t, "notices of the others", func() bool { return slices.Equal(notices.addrs(), want) })
}

// After events about addresses the mux looks for deleted ports. A port that is being made is not
// taken for a deleted one.
func TestOpeningWhileAddressesChange(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
				err = errors.Join(withDevice(l.A, "lo", addAddress("192.0.2.1/32")), withDevice(l.A, "lo", deleteAddress("192.0.2.1/32")))
			}
		}
		<-stop
		done <- err
	}()
	var apps []*app
	for range 100 {
		apps = append(apps, l.open())
	}
	close(stop)
	testutil.Must(t, <-done)
	for _, a := range apps {
		if err := a.lease.Err(); err != nil {
			t.Errorf("ended: %v", err)
		}
	}
}

// testTimeout is the timeout of waits. The kernel removes the namespaces of a machine one after
// another.
const testTimeout = 2 * time.Minute

// onDevice calls a function with a network device of a host.
func onDevice(t *testing.T, h *netlab.Host, name string, fn func(netlink.Link) error) {
	t.Helper()
	testutil.Must(t, withDevice(h, name, fn))
}

// withDevice is onDevice for goroutines.
func withDevice(h *netlab.Host, name string, fn func(netlink.Link) error) error {
	return h.Do(func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return fn(device)
	})
}

func mtu(n int) func(netlink.Link) error {
	return func(device netlink.Link) error { return netlink.LinkSetMTU(device, n) }
}

func linkAddress(addr string) func(netlink.Link) error {
	return func(device netlink.Link) error {
		mac, err := net.ParseMAC(addr)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(device, mac)
	}
}

// addAddress and deleteAddress change the addresses of a device, given with their
// prefix lengths.
func addAddress(prefix string) func(netlink.Link) error {
	return func(device netlink.Link) error { return changeAddress(device, prefix, netlink.AddrAdd) }
}

func deleteAddress(prefix string) func(netlink.Link) error {
	return func(device netlink.Link) error { return changeAddress(device, prefix, netlink.AddrDel) }
}

func changeAddress(device netlink.Link, prefix string, change func(netlink.Link, *netlink.Addr) error) error {
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	addr.Flags = unix.IFA_F_NODAD // usable at once
	return change(device, addr)
}

// neighbours is the neighbour table of a host for its interface.
func neighbours(t *testing.T, h *netlab.Host) (all []netlink.Neigh) {
	t.Helper()
	onDevice(t, h, h.Interface, func(device netlink.Link) (err error) {
		all, err = route.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(device.Attrs().Index, netlink.FAMILY_ALL) })
		return err
	})
	return all
}

// setNeighbour sets the MAC address of an address in a host's neighbour table.
func setNeighbour(t *testing.T, h *netlab.Host, addr string, at [6]byte) {
	t.Helper()
	onDevice(t, h, h.Interface, func(device netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(addr), HardwareAddr: at[:]})
	})
}

func setOffload(t *testing.T, h *netlab.Host, name string, on bool) {
	t.Helper()
	testutil.Must(t, h.Do(func() error { return netlab.SetOffload(h.Interface, name, on) }))
}

func offload(t *testing.T, h *netlab.Host, name string) (on bool) {
	t.Helper()
	testutil.Must(t, h.Do(func() (err error) { on, err = netlab.Offload(h.Interface, name); return err }))
	return on
}

func ping(t *testing.T, from *netlab.Host, to string) {
	t.Helper()
	testutil.Must(t, from.Ping(netip.MustParseAddr(to)))
}
