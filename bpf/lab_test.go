//go:build linux

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
)

// Verdicts of an XDP program (enum xdp_action).
const (
	drop     = 1
	pass     = 2
	redirect = 4
)

// verdicts of the counters of frames that are not dropped.
var verdicts = map[Counter]uint32{
	MuxUnetCounterUNET_RX_PASS:             pass,
	MuxUnetCounterUNET_RX_PASS_TRUNCATED:   pass,
	MuxUnetCounterUNET_RX_PASS_VLAN:        pass,
	MuxUnetCounterUNET_RX_PASS_PORT_GONE:   pass,
	MuxUnetCounterUNET_RX_PASS_OTHER_QUEUE: pass,
	MuxUnetCounterUNET_RX_CUT:              pass,
	MuxUnetCounterUNET_RX_PORT:             redirect,
	MuxUnetCounterUNET_RX_QUEUE:            redirect,
	MuxUnetCounterUNET_TX_UPLINK:           redirect,
	MuxUnetCounterUNET_RX_HOST:             redirect,
	MuxUnetCounterUNET_TX_LOCAL:            redirect,
	MuxUnetCounterUNET_TX_HOST:             redirect,
	MuxUnetCounterUNET_DELIVER_SOCKET:      redirect,
}

func verdictOf(c Counter) uint32 {
	if v, ok := verdicts[c]; ok {
		return v
	}
	return drop
}

// lab is the loaded programs on a host with two ports, which are only ifindexes: BPF_PROG_TEST_RUN
// redirects nothing.
type lab struct {
	t            testing.TB
	objs         MuxObjects
	uplink, a, b int // ifindexes
	mac          net.HardwareAddr
}

const testMTU = 1500

const lo = 1 // its ifindex; in test runs ports send to the kernel by it

// partSecret identifies the parts of super-frames, in generic mode.
var partSecret = [5]byte{0x0e, 1, 2, 3, 4}

// partMAC replaces the uplink's MAC address in a part for an owner.
func partMAC(ifindex int, place byte) net.HardwareAddr {
	mac := net.HardwareAddr{partSecret[0], place, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(mac[2:], uint32(ifindex))
	for i := range 4 {
		mac[2+i] ^= partSecret[1+i]
	}
	return mac
}

// transmit sends a frame n times from another host.
func transmit(t testing.TB, from *netlab.Host, frame []byte, n int) {
	t.Helper()
	testutil.Must(t, from.Do(func() error {
		dev, err := netlink.LinkByName(from.Interface)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range n {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: dev.Attrs().Index}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// inLab runs f in a namespace of its own, with the programs loaded for a mode.
func inLab(t testing.TB, generic bool, f func(l *lab)) {
	t.Helper()
	inLabWith(t, func(mac [6]byte, ifindex int) MuxUnetConfig {
		c := Config(mac, ifindex, 0, testMTU, generic, false)
		c.Up = lo
		if generic {
			c.CutBy(1, partSecret) // unused: test runs have no super-frames
		}
		return c
	}, f)
}

func inLabWith(t testing.TB, config func(mac [6]byte, ifindex int) MuxUnetConfig, f func(l *lab)) {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{})
	testutil.Must(t, pair.A.Do(func() error { f(openLab(t, netlab.Interface, config)); return nil }))
}

// openLab loads the programs for an uplink in the caller's namespace.
func openLab(t testing.TB, device string, config func(mac [6]byte, ifindex int) MuxUnetConfig) *lab {
	t.Helper()
	testutil.Must(t, rlimit.RemoveMemlock())
	uplink, err := netlink.LinkByName(device)
	testutil.Must(t, err)
	l := &lab{t: t, uplink: uplink.Attrs().Index, mac: uplink.Attrs().HardwareAddr}
	testutil.Must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port0"}, PeerName: "port1"}))
	for i, ifindex := range []*int{&l.a, &l.b} {
		port, err := netlink.LinkByName(fmt.Sprintf("port%d", i))
		testutil.Must(t, err)
		*ifindex = port.Attrs().Index
	}
	spec, err := LoadMux()
	testutil.Must(t, err)
	testutil.Must(t, spec.Variables["config"].Set(config([6]byte(l.mac), l.uplink)))
	testutil.Must(t, spec.LoadAndAssign(&l.objs, nil))
	t.Cleanup(func() { l.objs.Close() })
	for a, kind := range map[netip.Addr]uint8{shared: OwnAddress, shared6: OwnAddress, subnetBroadcast: OwnBroadcast, elsewhere: OwnHost, elsewhere6: OwnHost} {
		l.own(a, kind)
	}
	return l
}

// reach sets the devices to which frames can be redirected. A frame to any other device counts as one whose port is
// gone. 0 is no device.
func (l *lab) reach(ifindexes ...int) {
	l.t.Helper()
	for _, i := range []int{l.uplink, l.a, l.b, lo} {
		if err := l.objs.Devices.Delete(uint32(i)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			l.t.Fatal(err)
		}
	}
	for _, i := range ifindexes {
		if i != 0 {
			testutil.Must(l.t, l.objs.Devices.Put(uint32(i), uint32(i)))
		}
	}
}

// own enters an address of the host.
func (l *lab) own(a netip.Addr, kind uint8) {
	l.t.Helper()
	var filter OwnFilter
	testutil.Must(l.t, l.objs.OwnFilters.Lookup(uint32(0), &filter))
	filter.Add(a.As16(), kind)
	testutil.Must(l.t, errors.Join(l.objs.OwnFilters.Put(uint32(0), filter), l.objs.Own.Put(a.As16(), kind)))
}

func (l *lab) claim(tag Tag, owner Owner) {
	l.t.Helper()
	_, port := tag.AddrPort()
	if tag.Kind != TagMessage {
		l.countTag(tag.Kind, port)
	}
	if addr, _ := tag.AddrPort(); tag.Kind == TagAddr {
		l.own(netip.AddrFrom4(addr), OwnEndpoint)
	}
	testutil.Must(l.t, l.objs.Tags.Put(tag, owner))
}

func (l *lab) claim6(tag Tag6, owner Owner) {
	l.t.Helper()
	addr, port := tag.AddrPort()
	l.countTag(tag.Kind, port)
	if tag.Kind == TagAddr {
		l.own(netip.AddrFrom16(addr), OwnEndpoint)
	}
	testutil.Must(l.t, l.objs.Tags6.Put(tag, owner))
}

func (l *lab) countTag(kind TagKind, port uint16) {
	l.t.Helper()
	testutil.Must(l.t, l.objs.TagCounts.Put(CountOf(kind, port), uint32(1)))
}

func (l *lab) port(ifindex int) Owner { return Owner{Port: uint32(ifindex)} }

// readCounters reads all counters, by one system call because it is called twice for each frame.
func readCounters(t testing.TB, m *ebpf.Map) (c [NumCounters]uint64) {
	t.Helper()
	cpus, err := ebpf.PossibleCPU()
	testutil.Must(t, err)
	keys, values := make([]uint32, NumCounters), make([]uint64, NumCounters*cpus)
	n, err := m.BatchLookup(new(ebpf.MapBatchCursor), keys, values, nil)
	if n != NumCounters || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatalf("read %d counters: %v", n, err)
	}
	for i, key := range keys {
		for _, v := range values[i*cpus : (i+1)*cpus] {
			c[key] += v
		}
	}
	return c
}

// xdpMD is struct xdp_md, linux/bpf.h.
type xdpMD struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// run runs p over frame, as if it came in at ifindex. linear, if not zero, is
// the number of bytes in the first buffer.
func run(p *ebpf.Program, frame []byte, ifindex, linear int) (verdict uint32, err error) {
	if linear == 0 {
		linear = len(frame)
	}
	return p.Run(&ebpf.RunOptions{
		Data:    frame,
		DataOut: make([]byte, len(frame)+256),
		Context: xdpMD{DataEnd: uint32(linear), IngressIfindex: uint32(ifindex)},
	})
}

// counted runs f and checks that exactly one counter increases, by one, and that the verdict is that of
// the counter.
func (l *lab) counted(f func() (verdict uint32, err error)) (Counter, error) {
	l.t.Helper()
	verdict, moved, err := l.runCounted(f)
	switch {
	case err != nil:
		return 0, err
	case len(moved) != 1:
		return 0, fmt.Errorf("counters moved: %v, want one", names(moved))
	case verdict != verdictOf(moved[0]):
		return moved[0], fmt.Errorf("verdict %d with counter %s", verdict, CounterName(moved[0]))
	}
	return moved[0], nil
}

// runCounted runs f and returns the counters that have increased, each as often as it has.
func (l *lab) runCounted(f func() (verdict uint32, err error)) (verdict uint32, moved []Counter, err error) {
	l.t.Helper()
	before := readCounters(l.t, l.objs.Counters)
	if verdict, err = f(); err != nil {
		return 0, nil, err
	}
	after := readCounters(l.t, l.objs.Counters)
	for i := range after {
		for range after[i] - before[i] {
			moved = append(moved, Counter(i))
		}
	}
	return verdict, moved, nil
}

// want checks the counter of a frame.
func (l *lab) want(name string, p *ebpf.Program, frame []byte, ifindex, linear int, counter Counter) {
	l.t.Helper()
	got, err := l.counted(func() (uint32, error) { return run(p, frame, ifindex, linear) })
	if err != nil {
		l.t.Errorf("%s: %v", name, err)
	} else if got != counter {
		l.t.Errorf("%s: %s, want %s", name, CounterName(got), CounterName(counter))
	}
}

// received is a row of the tables of frames from the wire.
type received struct {
	name    string
	frame   []byte
	reach   int // the expected device
	counter Counter
}

func (l *lab) wantReceived(table []received) {
	l.t.Helper()
	for _, c := range table {
		l.reach(c.reach)
		l.wantUplink(c.name, c.frame, c.counter)
	}
}

// wantUplink checks the counter of a frame from the wire, in each program of the uplink.
func (l *lab) wantUplink(name string, frame []byte, counter Counter) {
	l.t.Helper()
	l.want(name, l.objs.UnetUplink, frame, l.uplink, 0, counter)
	if counter == rxQueueGone {
		l.want(name+", unet_queue", l.objs.UnetQueue, frame, l.uplink, 0, counter)
	} else if verdict, moved, err := l.runCounted(func() (uint32, error) { return run(l.objs.UnetQueue, frame, l.uplink, 0) }); err != nil || verdict != pass || moved != nil {
		l.t.Errorf("%s, unet_queue: verdict %d, %v, %v; want the verdict to pass, and no counter", name, verdict, names(moved), err)
	}
	if len(frame) < 14 {
		return // no skb is shorter
	}
	if got, err := l.countedTCX(frame); errors.Is(err, unix.EINVAL) && len(frame) < 54 {
		return // no test run has a truncated IP header
	} else if err != nil {
		l.t.Errorf("%s, tcx: %v", name, err)
	} else if want := inTCX(frame, counter); got != want {
		l.t.Errorf("%s, tcx: %s, want %s", name, CounterName(got), CounterName(want))
	}
}

// inTCX is the counter in unet_uplink_tcx of a frame that unet_uplink counts as c. A part of a
// super-frame does not come there. The kernel moves a VLAN tag from the frame to the skb before it runs
// the program, but not in a test run. There the program takes the tag in the frame for a second one,
// behind a tag with VLAN 0.
func inTCX(frame []byte, c Counter) Counter {
	switch t := binary.BigEndian.Uint16(frame[12:]); {
	case t == 0x8100 || t == 0x88a8:
		switch {
		case len(frame) < 16:
			return rxTruncated
		case frame[14]&0xf|frame[15] != 0:
			return rxVLAN
		}
		return rxTaggedTwice
	case frame[0] == partSecret[0]:
		return rxPass
	}
	return c
}

// Verdicts of a program of traffic control, linux/pkt_cls.h, for those of XDP programs.
var tcxVerdicts = map[uint32]uint32{
	0xffffffff: pass, // TCX_NEXT
	2:          drop,
	7:          redirect,
}

// countedTCX runs unet_uplink_tcx over a frame.
func (l *lab) countedTCX(frame []byte) (Counter, error) {
	return l.countedControl(l.objs.UnetUplinkTcx, frame)
}

// countedControl runs a program of traffic control over a frame.
func (l *lab) countedControl(p *ebpf.Program, frame []byte) (Counter, error) {
	return l.counted(func() (uint32, error) {
		verdict, err := p.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)})
		if xdp, ok := tcxVerdicts[verdict]; ok {
			return xdp, err
		}
		return 0, errors.Join(fmt.Errorf("verdict %d", verdict), err)
	})
}

// sent is a row of the tables of frames from endpoints.
type sent struct {
	name    string
	frame   []byte
	from    int
	reach   int // the expected device
	counter Counter
}

func (l *lab) wantSent(table []sent) {
	l.t.Helper()
	for _, c := range table {
		l.reach(c.reach)
		l.want(c.name, l.objs.UnetPort, c.frame, c.from, 0, c.counter)
	}
}

// wantAll checks that the test has increased each counter of a group.
func (l *lab) wantAll(first, last Counter) {
	l.t.Helper()
	all := readCounters(l.t, l.objs.Counters)
	for c := first; c <= last; c++ {
		if all[c] == 0 {
			l.t.Errorf("no frame moved %s", CounterName(c))
		}
	}
}

// The geometry of the sockets.
const (
	socketFrame  = 2048 // bytes
	socketFrames = 64
	socketBytes  = socketFrames * socketFrame
	socketFill   = 2048 // entries of the fill ring

	socketRoom = socketFrame - 256 - 2 // bytes of a frame in one buffer: see internal/xsk for the 2
)

// openSocket binds an XSK to queue 0 of a device, with XDP_USE_SG as for a trusted owner.
func openSocket(t testing.TB, ifindex int) *os.File {
	t.Helper()
	return bindSocket(t, ifindex, true)
}

func bindSocket(t testing.TB, ifindex int, sg bool) *os.File {
	t.Helper()
	segment, err := xsk.NewSegment(socketBytes, false)
	testutil.Must(t, err)
	defer segment.Close()
	sock, err := xsk.Create(xsk.Params{Ifindex: ifindex, FrameSize: socketFrame, FrameCount: socketFrames, FillSize: socketFill, CompletionSize: 32,
		RxSize: 32, TxSize: 32, Prefill: socketFrames, SG: sg, NeedWakeup: true}, segment)
	testutil.Must(t, err)
	t.Cleanup(func() { sock.Close() })
	return sock
}
