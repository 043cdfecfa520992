//go:build linux

package test

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/ipcheck"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
)

// TestIPRequirements sends the crafted frames of package ipcheck to an owned address, through a real port, and the same
// to the kernel's address beside it. The kernel's answers are those of the table, too, unless it says otherwise.
func TestIPRequirements(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true, LinkLocal: true})
	_, socket := daemon(t, pair.A)
	peer := ipcheck.Node{Link: ipcheck.PeerLink, V4: netip.MustParseAddr("10.0.0.200"), V6: netip.MustParseAddr("fd00::200")} // no addresses of B's kernel, which would answer
	testutil.Must(t, pair.A.Do(func() error {
		for path, value := range map[string]string{"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0"} {
			if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0); err != nil {
				return err
			}
		}
		link, err := netlink.LinkByName(pair.A.Interface)
		if err != nil {
			return err
		}
		for _, a := range []netip.Addr{peer.V4, peer.V6} {
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: peer.Link[:]}); err != nil {
				return err
			}
		}
		return netlab.SetOffloads(pair.A.Interface, false) // packet sockets see partial checksums
	}))

	own := ipcheck.Node{Link: pair.A.LinkAddr, V4: netip.MustParseAddr("10.0.0.50"), V6: netip.MustParseAddr("fd00::50")}
	h := open(t, socket, unet.Config{HostConfig: unet.HostConfig{Addrs: []netip.Addr{own.V4, own.V6}}})
	kernel := ipcheck.Node{Link: pair.A.LinkAddr, V4: pair.A.Addr.Addr(), V6: pair.A.Addr6.Addr()}
	for _, a := range []netip.Addr{own.V4, own.V6} {
		u, err := h.ListenUDP(t.Context(), netip.AddrPortFrom(a, ipcheck.EchoPort))
		testutil.Must(t, err)
		go echoDatagrams(u)
		_, err = h.Listen(t.Context(), "tcp", netip.AddrPortFrom(a, ipcheck.EchoPort).String())
		testutil.Must(t, err)
	}
	for _, a := range []netip.Addr{kernel.V4, kernel.V6} {
		e, err := pair.A.ServeEcho(netip.AddrPortFrom(a, ipcheck.EchoPort).String())
		testutil.Must(t, err)
		t.Cleanup(func() { e.Close() })
	}

	frames, err := pair.B.OpenFrames()
	testutil.Must(t, err)
	defer frames.Close()
	for _, c := range ipcheck.Checks {
		if c.Late {
			continue // its time is 30 s; package stack tests it
		}
		t.Run(c.Name, func(t *testing.T) {
			want := c.Want
			if c.Linux != "" {
				want = c.Linux
			}
			if got := answersTo(t, frames, c, ipcheck.Peers{Host: kernel, Peer: peer}); got != want {
				t.Errorf("RFC %s: the kernel answers %s, want %s", c.RFC, got, want)
			}
			if c.Group {
				return // the kernel's
			}
			if got := answersTo(t, frames, c, ipcheck.Peers{Host: own, Peer: peer}); got != c.Want {
				t.Errorf("RFC %s: %s, want %s", c.RFC, got, c.Want)
			}
		})
	}
}

// echoDatagrams sends back what a socket receives, until it is closed.
func echoDatagrams(c *unet.UDPConn) {
	for buf := make([]byte, 65536); ; {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		c.WriteToUDPAddrPort(buf[:n], from)
	}
}

// answersTo sends the frames of a check, and after them a datagram. It returns what came before the answer to that.
func answersTo(t *testing.T, frames *os.File, c ipcheck.Check, p ipcheck.Peers) string {
	t.Helper()
	send := append(c.Frames(p), p.Sentinel(strings.Contains(c.Name, "v6")))
	for _, f := range send {
		if _, err := frames.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	answers := ipcheck.Answers{Peers: p}
	testutil.Must(t, frames.SetReadDeadline(time.Now().Add(testTimeout)))
	buf := make([]byte, 2048)
	for !answers.Ended() {
		n, err := frames.Read(buf)
		if err != nil {
			t.Fatalf("no answer to the last datagram after %s: %v", answers.Result(c.Want), err)
		}
		answers.Add(buf[:n])
	}
	return answers.Result(c.Want)
}
