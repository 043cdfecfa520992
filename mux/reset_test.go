//go:build linux

package mux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/wire"
)

// record is the record of a connection between two ends.
func record(local, remote string, next uint32) wire.Connection {
	l, r := netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)
	return wire.Connection{
		Local: wire.AddrFrom(l.Addr()), Remote: wire.AddrFrom(r.Addr()), LocalPort: l.Port(), RemotePort: r.Port(), Next: next,
		Protocol: wire.ProtocolTCP, State: 4,
	}
}

// rst describes a RST, by an independent decoder. ok: the frame is TCP.
func rst(t *testing.T, frame []byte) (text string, ok bool) {
	t.Helper()
	p := packet(t, frame)
	s, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if s == nil {
		return "", false
	}
	sum := s.Checksum
	if err := s.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
		t.Fatal(err)
	}
	var ip gopacket.SerializableLayer
	var of layers.EthernetType
	var src, dst net.IP
	switch h := p.NetworkLayer().(type) {
	case *layers.IPv4:
		ip, of, src, dst = h, layers.EthernetTypeIPv4, h.SrcIP, h.DstIP
	case *layers.IPv6:
		ip, of, src, dst = h, layers.EthernetTypeIPv6, h.SrcIP, h.DstIP
	}
	want := frametest.Build(&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: of}, ip, s)
	if again := packet(t, want).Layer(layers.LayerTypeTCP).(*layers.TCP); again.Checksum != sum {
		t.Errorf("checksum %#x, want %#x: %v", sum, again.Checksum, p)
	}
	if !s.RST || s.SYN || s.FIN || len(s.Payload) > 0 {
		t.Errorf("not a bare RST: %v", p)
	}
	return fmt.Sprintf("%v:%d %v:%d %#x", src, s.SrcPort, dst, s.DstPort, s.Seq), true
}

// If a process writes wrong records to its table of connections, the mux sends only RSTs that the owner of the
// endpoint could have sent.
func TestResetsOfWrongTable(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := openLab(t, mode)
			addrOn(t, l.A, l.A.Interface, "10.0.0.4/24")
			table, err := datapath.NewConnections()
			testutil.Must(t, err)
			defer table.Close()
			ended := l.openRequest(endpoint.Request{
				Tags:        []endpoint.Tag{tcpTag("10.0.0.1:7000"), tcpTag("10.0.0.1:49984").AsBlock(), udpTag("10.0.0.1:7001"), endpoint.AddrTag(netip.MustParseAddr("10.0.0.50")), tcpTag("10.0.0.4:7000")},
				Connections: table.File(),
			})
			neighbour := l.open(tcpTag("10.0.0.1:8000"))
			addrOff(t, l.A, l.A.Interface, "10.0.0.4/24") // another host can have the address now
			testutil.Eventually(t, "the tag is suspended", func() bool { held, _, err := l.mux.Suspended(); testutil.Must(t, err); return len(held) == 1 })
			frames := openCapture(t, l.B)

			records := table.Records()
			random := rand.New(rand.NewPCG(1, 2))
			for i := range records {
				a, b := random.Uint64(), random.Uint64()
				records[i] = wire.Connection{
					Local: wire.AddrFrom4([4]byte{byte(a), byte(a >> 8), byte(a >> 16), byte(a >> 24)}), Remote: wire.AddrFrom4([4]byte{10, 0, 0, 2}),
					LocalPort: uint16(b), RemotePort: uint16(b >> 16), Next: uint32(b >> 32), Protocol: wire.ProtocolTCP,
				}
			}
			const b = "10.0.0.2:5000"
			right1, right2 := record("10.0.0.1:7000", b, 1), record("10.0.0.1:50000", b, 0xffffffff)
			local, last := record("10.0.0.1:7000", "10.0.0.1:8000", 2), record("10.0.0.50:1", "10.0.0.2:1", 3)
			empty := right1
			empty.Protocol = 0
			datagrams, listener := right1, right1
			datagrams.Protocol = wire.ProtocolUDP
			listener.RemotePort, listener.Remote = 0, wire.Addr{}
			copy(records, []wire.Connection{
				record("10.0.0.1:8000", b, 0), record("10.0.0.1:22", b, 0), record("10.0.0.1:7001", b, 0), // held by the other endpoint, by the kernel, and a UDP tag
				record("10.0.0.1:49983", b, 0), record("10.0.0.1:50048", b, 0), // next to the block
				record("10.0.0.2:7000", b, 0), record("10.0.0.51:7000", b, 0), record("10.0.0.4:7000", b, 0), record("127.0.0.1:7000", b, 0),
				record("10.0.0.1:0", b, 0), record("10.0.0.50:0", b, 0), empty, datagrams, listener,
				record("10.0.0.1:7000", "[fd00::2]:5000", 0), record("[::]:7000", "[fd00::2]:5000", 0),
				record("10.0.0.1:7000", "0.0.0.0:1", 0), record("10.0.0.1:7000", "127.0.0.1:1", 0), record("10.0.0.1:7000", "224.0.0.1:1", 0),
				record("10.0.0.1:7000", "255.255.255.255:1", 0), record("10.0.0.1:7000", "10.0.0.255:1", 0), record("10.0.0.1:7000", "10.0.0.1:1", 0),
				right1, right2, local,
			})
			records[len(records)-1] = last
			testutil.Must(t, ended.lease.Close())

			want := []string{
				"10.0.0.1:7000 10.0.0.2:5000 0x1", "10.0.0.1:50000 10.0.0.2:5000 0xffffffff", "10.0.0.50:1 10.0.0.2:1 0x3",
			}
			if got := frames.resets(l.A.LinkAddr, want[2]); !slices.Equal(got, want) {
				t.Errorf("on the wire:\n%q\nwant\n%q", got, want)
			}
			if got, _ := rst(t, neighbour.recv().frame); got != "10.0.0.1:7000 10.0.0.1:8000 0x2" {
				t.Errorf("to the endpoint on the same host: %s", got)
			}
			if r, more := neighbour.poll(); more {
				t.Errorf("one more to the endpoint on the same host: %x", r.frame)
			}
		})
	}
}

// The same over IPv6: the mux sends only RSTs that the owner of the endpoint could have sent.
func TestResetsOverIPv6(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	for host, addr := range map[*netlab.Host]string{l.A: "fe80::1/64", l.B: "fe80::2/64"} {
		addAddr(t, host, addr, func(*netlink.Addr) {})
	}
	testutil.Eventually(t, "the address can be claimed", func() bool { return slices.Contains(l.mux.Identity().Addrs, netip.MustParsePrefix("fe80::1/64")) })
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	owned := netip.MustParseAddr("fd00::50")
	a := l.openRequest(endpoint.Request{
		Tags:        []endpoint.Tag{tcpTag("[fd00::1]:7000"), tcpTag("[fe80::1]:7000"), tcpTag("10.0.0.1:7000"), endpoint.AddrTag(owned)},
		Connections: table.File(),
	})
	neighbour := l.open(tcpTag("[fd00::1]:8000"))
	frames := openCapture(t, l.B)
	const b = "[fd00::2]:5000"
	copy(table.Records(), []wire.Connection{
		record("[fd00::1]:8000", b, 0), record("[fd00::1]:22", b, 0), record("[fd00::2]:7000", b, 0), record("[fd00::51]:1", b, 0),
		record("[::1]:7000", b, 0), record("[ff02::1]:7000", b, 0), record("[fd00::1]:7000", "[ff02::1]:1", 0), record("[fd00::1]:7000", "[::]:1", 0),
		record("[fd00::1]:7000", "10.0.0.2:1", 0), record("10.0.0.1:7000", b, 0),
		record("[fd00::1]:7000", b, 1), record("[fe80::1]:7000", "[fe80::2]:5000", 2), record("[fd00::1]:7000", "[fd00::1]:8000", 3),
		record("10.0.0.1:7000", "10.0.0.2:5000", 4), record("[fd00::50]:9", b, 5),
	})
	testutil.Must(t, a.lease.Close())
	want := []string{
		"fd00::1:7000 fd00::2:5000 0x1", "fe80::1:7000 fe80::2:5000 0x2", "10.0.0.1:7000 10.0.0.2:5000 0x4", "fd00::50:9 fd00::2:5000 0x5",
	}
	if got := frames.resets(l.A.LinkAddr, want[3]); !slices.Equal(got, want) {
		t.Errorf("on the wire:\n%q\nwant\n%q", got, want)
	}
	if got, _ := rst(t, neighbour.recv().frame); got != "fd00::1:7000 fd00::1:8000 0x3" {
		t.Errorf("to the endpoint on the same host: %s", got)
	}
}

// A table in the layout before version 2 is read, and one of a later version is refused.
func TestVersionsOfTables(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	open := func(content []byte) (*mux.Lease, error) {
		f, mem, err := xsk.NewTable()
		testutil.Must(t, err)
		defer xsk.CloseTable(f, mem)
		copy(mem, content)
		g, lease, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}, Connections: f})
		if err == nil {
			testutil.Must(t, g.Close())
		}
		return lease, err
	}
	setNeighbour(t, l.A, "10.0.0.2", l.B.LinkAddr)
	frames := openCapture(t, l.B)
	old := []byte{10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0, 7, 0, 0, 0}
	binary.NativeEndian.PutUint16(old[8:], 7000)
	binary.NativeEndian.PutUint16(old[10:], 5000)
	binary.NativeEndian.PutUint32(old[12:], 7)
	lease, err := open(append(make([]byte, 32), old...))
	testutil.Must(t, err)
	testutil.Must(t, lease.Close())
	want := "10.0.0.1:7000 10.0.0.2:5000 0x7"
	if got := frames.resets(l.A.LinkAddr, want); !slices.Equal(got, []string{want}) {
		t.Errorf("%q, want %q", got, want)
	}
	later := append(wire.ConnectionsMagic[:], 0, 0, 0, 0, 0, 0, 0, 0)
	binary.NativeEndian.PutUint32(later[8:], wire.ConnectionsVersion+1)
	if _, err := open(later); !errors.Is(err, wire.ErrConnectionsVersion) {
		t.Errorf("a later version: %v", err)
	}
}

// resets are the RSTs that come from a MAC address, up to the last.
func (s *capture) resets(from wire.LinkAddr, last string) (all []string) {
	s.t.Helper()
	s.each(func(frame []byte) (done bool) {
		if [6]byte(frame[6:]) != from {
			return false
		}
		text, ok := rst(s.t, frame)
		if ok {
			all = append(all, text)
		}
		return text == last
	})
	return all
}

// each calls f with received frames until it is done.
func (s *capture) each(f func(frame []byte) (done bool)) {
	s.t.Helper()
	for frame := make([]byte, 2048); ; {
		n, _, err := unix.Recvfrom(s.fd, frame, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			s.t.Errorf("receive: %v", err)
			return
		}
		if f(frame[:n]) {
			return
		}
	}
}

// The port of a revoked endpoint is deleted before its RSTs are sent. All RSTs are sent nevertheless, because
// Close closes the table of connections after that.
func TestResetsAreSentAfterPortIsDeleted(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	a := l.openRequest(endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}, Connections: table.File()})
	var want []string
	for i, at := range []int{0, 1, 10_000} { // the last one is in another part of the table than the others
		table.Records()[at] = record("10.0.0.1:7000", fmt.Sprint("10.0.0.2:", 5000+i), uint32(i))
		want = append(want, fmt.Sprintf("10.0.0.1:7000 10.0.0.2:%d %#x", 5000+i, i))
	}
	setNeighbour(t, l.A, "10.0.0.2", l.B.LinkAddr)
	frames := openCapture(t, l.B)
	refused, goOn := refuseToSend(t, l.A, l.A.Interface)
	a.advanceProducer(1_000_000)
	testutil.Eventually(t, "a RST is refused, and the port is gone", func() bool {
		return refused() > 0 && l.mux.FillRings() == 0 && !slices.Contains(listObjects(t, l.A).links, fmt.Sprint("unet", a.grant.ID))
	})
	goOn()
	testutil.Must(t, a.lease.Close())
	if err := a.lease.Err(); !errors.Is(err, mux.ErrRevoked) {
		t.Errorf("ended by %v", err)
	}
	if got := frames.resets(l.A.LinkAddr, want[len(want)-1]); !slices.Equal(got, want) {
		t.Errorf("on the wire:\n%q\nwant\n%q", got, want)
	}
}

// refuseToSend makes a device of a host accept no frame (ENOBUFS) until goOn. refused is the number of
// refused IPv4 frames.
func refuseToSend(t *testing.T, h *netlab.Host, device string) (refused func() uint64, goOn func()) {
	t.Helper()
	const (
		shot     = 2  // TC_ACT_SHOT
		protocol = 16 // in struct __sk_buff
	)
	ipv4 := binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	testutil.Must(t, err)
	t.Cleanup(func() { count.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, protocol, asm.Word),
		asm.JNE.Imm(asm.R2, int32(ipv4), "out"),
		asm.LoadMapValue(asm.R1, count.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, shot).WithSymbol("out"),
		asm.Return(),
	}})
	testutil.Must(t, err)
	defer prog.Close()
	var egress link.Link
	onDevice(t, h, device, func(device netlink.Link) (err error) {
		egress, err = link.AttachTCX(link.TCXOptions{Interface: device.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXEgress})
		return err
	})
	t.Cleanup(func() { egress.Close() })
	return func() (n uint64) { testutil.Must(t, count.Lookup(uint32(0), &n)); return n }, func() { testutil.Must(t, egress.Close()) }
}

// The number of neighbour discoveries for RSTs is limited: after some neighbours without an answer only
// those in the kernel's table get their RST.
func TestResetsLimitNeighbourDiscoveries(t *testing.T) {
	t.Parallel()
	const most = 32
	l := openLab(t, mux.ModeAuto)
	table, err := datapath.NewConnections()
	testutil.Must(t, err)
	defer table.Close()
	a := l.openRequest(endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}, Connections: table.File()})
	echo, err := l.B.ServeEcho("10.0.0.2:9")
	testutil.Must(t, err)
	defer echo.Close()
	c, err := l.A.Dial("tcp", "10.0.0.2:9") // host A's kernel has B's MAC address now
	testutil.Must(t, err)
	defer c.Close()
	for i := range 200 {
		table.Records()[i] = record("10.0.0.1:7000", fmt.Sprintf("10.0.0.%d:1", 3+i), 0)
	}
	table.Records()[200] = record("10.0.0.1:7000", "10.0.0.2:1", 4)
	frames := openCapture(t, l.B)
	testutil.Must(t, a.lease.Close())
	solicited := map[string]bool{}
	frames.each(func(frame []byte) bool {
		p := packet(t, frame)
		if arp, ok := p.Layer(layers.LayerTypeARP).(*layers.ARP); ok {
			solicited[fmt.Sprint(arp.DstProtAddress)] = true
		}
		s, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		return ok && s.RST && s.Seq == 4
	})
	if len(solicited) == 0 || len(solicited) > most+2 { // and the two hosts may ask for each other
		t.Errorf("ARP requests for %d addresses, want at most %d", len(solicited), most)
	}
}

// A file that could block its reader, or that could grow or shrink, is refused as a table.
func TestRefusedTables(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	memfd := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("table", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		testutil.Must(t, err)
		f := os.NewFile(uintptr(fd), "table")
		t.Cleanup(func() { f.Close() })
		testutil.Must(t, f.Truncate(size))
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		testutil.Must(t, err)
		return f
	}
	disk, err := os.CreateTemp(t.TempDir(), "")
	testutil.Must(t, err)
	defer disk.Close()
	r, w, err := os.Pipe()
	testutil.Must(t, err)
	defer r.Close()
	defer w.Close()
	const fixed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	for name, f := range map[string]*os.File{
		"a file on a disk": disk, "a pipe": r, "not sealed": memfd(1<<20, 0),
		"may shrink": memfd(1<<20, unix.F_SEAL_GROW), "may grow": memfd(1<<20, unix.F_SEAL_SHRINK),
		"too long": memfd(xsk.MaxTable+1, fixed),
	} {
		_, _, err := l.mux.OpenEndpoint(t.Context(), endpoint.Request{Geometry: small, Connections: f})
		if !errors.Is(err, xsk.ErrTable) {
			t.Errorf("%s: %v, want %v", name, err, xsk.ErrTable)
		}
	}
	// A truncated record, or no record, is no error.
	for _, size := range []int64{0, 1, wire.ConnectionLen + 3} {
		f := memfd(size, fixed)
		if size > 0 {
			_, err := f.WriteAt(make([]byte, size), 0)
			testutil.Must(t, err)
		}
		testutil.Must(t, l.openRequest(endpoint.Request{Connections: f}).lease.Close())
	}
}
