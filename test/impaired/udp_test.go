//go:build linux

package impaired

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
)

// Owned addresses of our host, whose datagrams may be fragmented.
var (
	own4 = netip.MustParseAddr("10.0.0.50")
	own6 = netip.MustParseAddr("fd00::50")
)

// TestUDPOverImpairedLink sends datagrams of many sizes each way to the kernel and from it, over both versions of
// IP, at an owned address with fragments. A datagram arrives as it was sent or not at all, as
// often as the frames that the link has lost, damaged and doubled allow.
func TestUDPOverImpairedLink(t *testing.T) {
	for _, c := range []struct {
		name string
		rule impair.Rule
	}{
		{"lost, doubled, reordered", impair.Rule{Loss: 0.05, Duplicate: 0.05, Reorder: 0.1, HoldBack: ms}},
		{"damaged", impair.Rule{Corrupt: 0.01}},
	} {
		for _, ipv6 := range []bool{false, true} {
			for _, owned := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, IPv6 %t, owned address %t", c.name, ipv6, owned), func(t *testing.T) {
					cfg, longest := unet.HostConfig{}, 1500-28
					if owned {
						cfg.Addrs, longest = []netip.Addr{own4}, 5000
					}
					if ipv6 && owned {
						cfg.Addrs = []netip.Addr{own4, own6}
					} else if ipv6 {
						longest = 1500 - 48
					}
					testDatagrams(t, openScene(t, kernelPeer, netlab.Config{IPv6: ipv6}, cfg), c.rule, longest)
				})
			}
		}
	}
}

// datagramsEachWay is so small that the queues of either side hold all of them.
const datagramsEachWay = 300

func testDatagrams(t *testing.T, s *scene, rule impair.Rule, longest int) {
	ours, err := s.host.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(s.ours, 0).String())
	testutil.Must(t, err)
	testutil.Must(t, ours.(*unet.UDPConn).SetReadBuffer(64*mb))
	peers, err := s.B.ListenUDP(netip.AddrPortFrom(s.peers, 0).String())
	testutil.Must(t, err)
	raw, err := peers.SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64*mb) }))
	testutil.Must(t, err)
	// By default the kernel drops fragments that many others of their source have overtaken.
	testutil.Must(t, s.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ipfrag_max_dist", []byte("0"), 0) }))

	for _, d := range []struct{ from, to net.PacketConn }{{ours, peers}, {peers, ours}} { // resolves routes and MAC addresses
		_, err = d.from.WriteTo(nil, d.to.LocalAddr())
		testutil.Must(t, err)
		testutil.Must(t, d.to.SetDeadline(time.Now().Add(testTimeout)))
		_, _, err = d.to.ReadFrom(nil)
		testutil.Must(t, err)
	}

	s.impair(rule, rule)
	receivers := [2]*receiver{{from: s.ours, longest: longest}, {from: s.peers, longest: longest}}
	var reading sync.WaitGroup
	reading.Go(func() { receivers[0].read(peers) })
	reading.Go(func() { receivers[1].read(ours) })
	for i := range uint32(datagramsEachWay) {
		for _, d := range []struct{ from, to net.PacketConn }{{ours, peers}, {peers, ours}} {
			_, err := d.from.WriteTo(datagramContent(i, longest), d.to.LocalAddr())
			testutil.Must(t, err)
		}
	}
	for d, b := range receivers {
		var c impair.Counters
		if !testutil.Until(func() bool {
			c = s.link.Counters(impair.Direction(d))
			return c.InFlight == 0 && b.count() >= datagramsEachWay-int(c.Lost()+c.Corrupted)
		}) {
			t.Errorf("direction %d: %d datagrams of %d arrived: %+v", d, b.count(), datagramsEachWay, c)
		}
		s.checkLink(t, impair.Direction(d), rule)
	}
	testutil.Must(t, errors.Join(ours.Close(), peers.Close()))
	reading.Wait()
	for d, b := range receivers {
		if b.wrong != nil {
			t.Errorf("direction %d: %v", d, b.wrong)
		}
		if c := s.link.Counters(impair.Direction(d)); b.got > datagramsEachWay+int(c.Duplicated) {
			t.Errorf("direction %d: %d datagrams arrived, of %d: %+v", d, b.got, datagramsEachWay, c)
		}
	}
	if n := counters(s.host)["udp_checksum"]; rule.Corrupt > 0 && n == 0 {
		t.Error("we have found no damage")
	}
	if n := counters(s.host)["frag_complete"]; longest > 1500 && n == 0 {
		t.Error("nothing was reassembled")
	}
}

// datagramContent is the payload of datagram i: its number, and up to longest-4 bytes more.
func datagramContent(i uint32, longest int) []byte {
	b := make([]byte, 4+int(i)*7919%(longest-3))
	for k := range b {
		b[k] = byte(uint32(k)*7 + i)
	}
	binary.BigEndian.PutUint32(b, i)
	return b
}

// receiver is what one side has received.
type receiver struct {
	from    netip.Addr
	longest int

	mu    sync.Mutex
	got   int
	wrong error
}

func (b *receiver) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got
}

// read receives datagrams until the socket is closed.
func (b *receiver) read(c net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		b.mu.Lock()
		switch {
		case err != nil:
			b.wrong = err
		case n < 4 || !bytes.Equal(buf[:n], datagramContent(binary.BigEndian.Uint32(buf), b.longest)) || from.(*net.UDPAddr).AddrPort().Addr() != b.from:
			b.wrong = fmt.Errorf("%d bytes from %v were never sent", n, from)
		default:
			b.got++
		}
		b.mu.Unlock()
	}
}
