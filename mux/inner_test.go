//go:build linux

package mux

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/wire"
)

// FuzzReservedPorts parses lists of the form of net.ipv4.ip_local_reserved_ports. A list that is accepted reserves
// the blocks of its ports and no others.
func FuzzReservedPorts(f *testing.F) {
	for _, s := range []string{"", "8080", "80,8080-8090,65535", "0-65535", "1-", "-", "70000", "9-8", ",,", "1-2-3", " 1"} {
		f.Add(s)
	}
	valid := regexp.MustCompile(`^,*([0-9]+(-[0-9]+)?(,+|$))*$`)
	numbers := regexp.MustCompile(`[0-9]+`)
	f.Fuzz(func(t *testing.T, s string) {
		accepted := valid.MatchString(s)
		var want excludedBlocks
		for _, item := range strings.Split(s, ",") {
			var ports []int
			for _, n := range numbers.FindAllString(item, -1) {
				port, err := strconv.Atoi(n)
				accepted = accepted && err == nil && port < 1<<16
				ports = append(ports, port)
			}
			if accepted && len(ports) > 0 {
				for port := ports[0]; port <= ports[len(ports)-1]; port++ {
					want[port/endpoint.BlockPorts] = true
				}
			}
		}
		var got excludedBlocks
		if err := got.addList(s); (err == nil) != accepted {
			t.Errorf("%q: %v, want an error: %v", s, err, !accepted)
		}
		if accepted && got != want {
			t.Errorf("%q excludes other blocks than those of its ports", s)
		}
	})
}

func TestBlocksOfReservedPorts(t *testing.T) {
	var k excludedBlocks
	if err := k.addList("63,128-129,65535"); err != nil {
		t.Fatal(err)
	}
	for b, excluded := range k {
		if want := b == 0 || b == 2 || b == 1023; excluded != want {
			t.Errorf("block %d: excluded %v", b, excluded)
		}
	}
}

// fillFields are the fields that the program uses, and missing fields of a kernel are found.
func TestFillFieldsMatchBPFProgram(t *testing.T) {
	source, err := os.ReadFile("../bpf/src/fill.h")
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, m := range regexp.MustCompile(`bpf_core_field_exists\(struct (\w+), (\w+)\)`).FindAllSubmatch(source, -1) {
		asked = append(asked, string(m[1])+"."+string(m[2]))
	}
	ours := slices.Sorted(slices.Values(fillFields))
	if slices.Sort(asked); !slices.Equal(asked, ours) {
		t.Errorf("the program asks for %v\nthe mux for %v", asked, ours)
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	// The second is in a union without a name.
	if missing := missingFields(kernel, []string{"xdp_buff.rxq", "sk_buff.dev", "xdp_buff.none", "unet_none.rxq"}); !slices.Equal(missing, []string{"xdp_buff.none", "unet_none.rxq"}) {
		t.Errorf("missing %v", missing)
	}
}

// known keeps an error and joins the one that an application can test for.
func TestKnownErrors(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{ErrClosed, endpoint.ErrBusy},
		{ErrTooManyPorts, endpoint.ErrBusy},
		{ErrQueueBusy, endpoint.ErrBusy},
		{ErrNoQueue, errors.ErrUnsupported},
		{ErrFillRings, errors.ErrUnsupported},
		{&xsk.UnsupportedError{Feature: "x", MinKernel: "9.9"}, errors.ErrUnsupported},
		{ErrTableFull, endpoint.ErrBusy},
		{xsk.ErrMemoryLimit, endpoint.ErrBusy},
		{unix.EMFILE, endpoint.ErrBusy},
		{unix.ENFILE, endpoint.ErrBusy},
		{xsk.ErrHugePages, endpoint.ErrHugePages},
		{endpoint.ErrTagHeld, endpoint.ErrTagHeld},
		{unix.ENOMEM, unix.ENOMEM},
	} {
		err := known(fmt.Errorf("open: %w", c.err))
		if !errors.Is(err, c.err) || !errors.Is(err, c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if known(nil) != nil {
		t.Error("an error for nil")
	}
}

// Connections are read from any table, complete or not, of both versions, from any record on.
func FuzzConnections(f *testing.F) {
	var one [wire.ConnectionLen]byte
	copy(one[:], netip.MustParseAddr("fd00::1").AsSlice())
	copy(one[16:], netip.MustParseAddr("::ffff:10.0.0.2").AsSlice())
	copy(one[32:], []byte{1, 2, 3, 4, 5, 6, 7, 8, 4, wire.ProtocolTCP})
	copy(one[64:], bytes.Repeat([]byte{0xff}, 8)) // an impossible round trip
	f.Add([]byte{}, uint16(0), uint32(0), true)
	f.Add(one[:], uint16(1), uint32(0), true)
	f.Add(one[:], uint16(0), uint32(0), true) // where the header is
	f.Add(append(make([]byte, 128), one[:]...), uint16(2), uint32(3), true)
	f.Add(append(bytes.Repeat(one[:], 600), 1, 2, 3), uint16(5000), uint32(5100), true)
	f.Add(bytes.Repeat([]byte{10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8}, 300), uint16(0), uint32(0), false)
	f.Fuzz(func(t *testing.T, content []byte, hole uint16, from uint32, second bool) {
		file, err := os.Create(filepath.Join(t.TempDir(), "table"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p := &published{file, 2}
		size, first, parse := wire.ConnectionLen, uint32(1), wire.ParseConnection
		if !second {
			p.version, size, first, parse = 1, connectionLen1, 0, parseConnection1
		}
		if _, err := file.WriteAt(content, int64(hole)*int64(size)); err != nil {
			t.Fatal(err)
		}
		type numbered struct {
			n uint32
			c wire.Connection
		}
		var got, want []numbered
		if err := p.each(from, func(n uint32, c wire.Connection) error { got = append(got, numbered{n, c}); return nil }); err != nil {
			t.Fatal(err)
		}
		n := uint32(hole)
		for b := range slices.Chunk(content, size) {
			if n >= max(from, first) && len(b) == size {
				if c := parse(b); c.Protocol != 0 {
					want = append(want, numbered{n, c})
				}
			}
			n++
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		for _, r := range got {
			if c := r.c; c.LocalPort == 0 || c.Protocol != wire.ProtocolTCP && c.Protocol != wire.ProtocolUDP || time.Duration(c.RTT) > time.Hour || time.Duration(c.RTO) < 0 {
				t.Errorf("impossible values: %+v", c)
			}
		}
		p.endpoint()
	})
}

// The answer to any segment goes to its sender, and a RST has none (RFC 9293, section 3.10.7.1). An
// independent decoder agrees.
func FuzzAnswerToSegment(f *testing.F) {
	segment := func(s layers.TCP, payload string) []byte {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: []byte{10, 0, 0, 2}, DstIP: []byte{10, 0, 0, 77}}
		s.SrcPort, s.DstPort = 1, 2
		s.SetNetworkLayerForChecksum(ip)
		buf := gopacket.NewSerializeBuffer()
		err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 2}, DstMAC: []byte{2, 0, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv4}, ip, &s, gopacket.Payload(payload))
		if err != nil {
			f.Fatal(err)
		}
		return bytes.Clone(buf.Bytes())
	}
	f.Add(segment(layers.TCP{ACK: true, Seq: 5, Ack: 7}, "text"))
	f.Add(segment(layers.TCP{FIN: true, Seq: 0xffffffff}, "text"))
	f.Add(segment(layers.TCP{SYN: true, Seq: 1}, ""))
	f.Add(segment(layers.TCP{RST: true, Seq: 1}, ""))
	six := segment(layers.TCP{ACK: true, Seq: 5, Ack: 7}, "text")
	copy(six[12:], []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 6, 64, 0xfd})
	six = slices.Insert(six, 34, make([]byte, 20)...)
	six[37], six[53] = 2, 1
	f.Add(six)
	f.Fuzz(func(t *testing.T, frame []byte) {
		to, fl, h, ok := answerTo(frame)
		if !ok {
			return
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		ip := p.NetworkLayer()
		s, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		if ip == nil || s == nil {
			return // it checks options, which answerTo does not read
		}
		addr := func(e gopacket.Endpoint) netip.Addr { a, _ := netip.AddrFromSlice(e.Raw()); return a }
		src, dst := ip.NetworkFlow().Endpoints()
		want := flow{netip.AddrPortFrom(addr(dst), uint16(s.DstPort)), netip.AddrPortFrom(addr(src), uint16(s.SrcPort))}
		if fl != want || !bytes.Equal(to[:], frame[6:12]) || s.RST || h.Flags&wire.TCPRst == 0 {
			t.Errorf("%v to %v, %+v: want %v", fl, to, h, want)
		}
		length := uint32(len(s.Payload))
		if s.SYN {
			length++
		}
		if s.FIN {
			length++
		}
		if s.ACK && (h.Seq != s.Ack || h.Flags != wire.TCPRst) ||
			!s.ACK && (h.Seq != 0 || h.Ack != s.Seq+length || h.Flags != wire.TCPRst|wire.TCPAck) {
			t.Errorf("%+v is answered by %+v", s, h)
		}
	})
}

// The kernel's XDP features of a driver: a veth supports XDP and redirects, and accepts redirected
// frames only if its other end receives in NAPI.
func TestXDPFeatures(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	err := p.A.Do(func() error {
		l, err := netlink.LinkByName(p.A.Interface)
		if err != nil {
			return err
		}
		if s := nic.XDPFeatures(l.Attrs().Index); !s.Known || !s.All(nic.XDPBasic|nic.XDPRedirect) || s.Features&(nic.XDPNdoXmit|nic.XDPZeroCopy) != 0 {
			t.Errorf("%+v", s)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if s := nic.XDPFeatures(lo.Attrs().Index); !s.Known || s.All(nic.XDPBasic) {
			t.Errorf("lo: %+v", s)
		}
		if nic.XDPFeatures(9999).Known {
			t.Error("features of no interface are known")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If the mux's own process may not bind a port, the error names the capability that it needs.
func TestErrorOfForbiddenBindNamesCapability(t *testing.T) {
	bind := os.NewSyscallError("bind", unix.EACCES)
	if err := notReserved(endpoint.MessageTag(1), 80, bind); !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_BIND_SERVICE") {
		t.Errorf("%v", err)
	}
	if err := notReserved(endpoint.MessageTag(1), 80, unix.ENOMEM); !errors.Is(err, unix.ENOMEM) || strings.Contains(err.Error(), "CAP_") {
		t.Errorf("%v", err)
	}
}

// A poll whether an object of an endpoint still exists is repeated if it failed for want of memory.
func TestPollIsRepeatedWhenMemoryIsShort(t *testing.T) {
	s := lingers{m: &Mux{log: slog.New(slog.DiscardHandler)}}
	for err, want := range map[error]bool{unix.ENOBUFS: true, unix.ENOMEM: true, unix.EMFILE: true, unix.EBADF: false, nil: false} {
		if err != nil {
			err = fmt.Errorf("poll: %w", err)
		}
		if again := s.doubt(&lingering{}, err); again != want {
			t.Errorf("%v: polled again %v, want %v", err, again, want)
		}
	}
}
