//go:build linux

package mux_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// noteLink is the ID of the link of unet_note_vlan that the mux has pinned.
func (l *pinLab) noteLink() link.ID {
	l.t.Helper()
	note, err := link.LoadPinnedLink(filepath.Join(l.onlyPins(), "link_unet_note_vlan"), nil)
	testutil.Must(l.t, err)
	defer note.Close()
	info, err := note.Info()
	testutil.Must(l.t, err)
	return info.ID
}

// The muxes of a machine share one program unet_note_vlan, which stays when the mux that has attached it
// is closed.
func TestMuxesShareVLANNoteProgram(t *testing.T) {
	t.Parallel()
	first, second := newPinLab(t), newPinLab(t)
	onQueue := endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}}
	first.openConfig(mux.Config{Mode: mux.ModeTCX, Pin: first.pin})
	first.openRequest(onQueue)
	shared := first.noteLink()
	second.openConfig(mux.Config{Mode: mux.ModeTCX, Pin: second.pin})
	a := second.openRequest(onQueue)
	if now := second.noteLink(); now != shared {
		t.Errorf("links %d and %d", shared, now)
	}
	testutil.Must(t, first.mux.Close())
	testutil.Must(t, second.mux.Abandon()) // the mux that is opened next shares it, too
	second.openConfig(mux.Config{Mode: mux.ModeTCX, Pin: second.pin})
	if now := second.noteLink(); now != shared {
		t.Errorf("link %d, and %d after another mux was closed", shared, now)
	}
	b := kernelUDP(t, second.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.1:7000", "of no VLAN")
	a.recv()
	testutil.Must(t, second.B.Do(func() error { // ARP would be of the VLAN too
		device, err := netlink.LinkByName(second.B.Interface)
		testutil.Must(t, err)
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: second.A.Addr.Addr().AsSlice(), HardwareAddr: second.A.LinkAddr[:]})
	}))
	tagEgress(t, second.B)
	passed := second.count()["rx_pass_vlan"]
	sendTo(t, b, "10.0.0.1:7000", "of a VLAN")
	second.await("rx_pass_vlan", passed+1)
	a.wantNothing("from a VLAN")
}

// Muxes that need it at the same time share one unet_note_vlan, too.
func TestMuxesOpenedTogetherShareVLANNoteProgram(t *testing.T) {
	var labs [4]*pinLab
	for i := range labs {
		labs[i] = newPinLab(t)
	}
	var open sync.WaitGroup
	var errs [len(labs)]error
	for i, l := range labs {
		open.Go(func() {
			m, err := mux.Open(mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Policy: &l.policy, Mode: mux.ModeTCX, Pin: l.pin})
			if errs[i] = err; err != nil {
				return
			}
			t.Cleanup(func() { m.Close() })
			g, _, err := m.OpenEndpoint(t.Context(), endpoint.Request{Attach: endpoint.AttachQueue, Geometry: small})
			if errs[i] = err; err == nil {
				t.Cleanup(func() { g.Close() })
			}
		})
	}
	open.Wait()
	testutil.Must(t, errors.Join(errs[:]...))
	for _, l := range labs[1:] {
		if a, b := labs[0].noteLink(), l.noteLink(); a != b {
			t.Errorf("links %d and %d", a, b)
		}
	}
}

// A cutter (the device that segments super-frames) that a process has left behind is replaced. Another
// device of that name is not touched.
func TestLeftoverCutterIsReplaced(t *testing.T) {
	t.Parallel()
	for _, ours := range []bool{true, false} {
		t.Run(fmt.Sprint("ours ", ours), func(t *testing.T) {
			l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
			testutil.Must(t, l.A.Do(func() error {
				up, err := netlink.LinkByName(l.A.Interface)
				testutil.Must(t, err)
				a := netlink.NewLinkAttrs()
				a.Name = fmt.Sprintf("unetcut%d", up.Attrs().Index)
				if ours {
					return netlink.LinkAdd(&netlink.Ifb{LinkAttrs: a})
				}
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: a})
			}))
			before := listObjects(t, l.A)
			if ours {
				l.openMux(mux.ModeAuto)
				if now := listObjects(t, l.A); !slices.Equal(now.cutters, before.cutters) {
					t.Errorf("cutters %v, were %v", now.cutters, before.cutters)
				}
				onDevice(t, l.A, before.cutters[0], func(device netlink.Link) error {
					q, err := netlink.QdiscList(device)
					if len(q) != 1 || q[0].Type() != "noqueue" {
						t.Errorf("queues in front of the cutter: %v", q)
					}
					return err
				})
				testutil.Must(t, l.mux.Close())
				if now := listObjects(t, l.A); len(now.cutters) != 0 {
					t.Errorf("left behind: %v", now.cutters)
				}
				return
			}
			m, err := mux.Open(mux.Config{Interface: l.A.Interface, NetNS: l.A.NS, Mode: mux.ModeTCX})
			if err == nil {
				testutil.Must(t, m.Close())
				t.Fatal("opened beside somebody else's device")
			}
			if !strings.Contains(err.Error(), "device unetcut") || !errors.Is(err, unix.EEXIST) {
				t.Errorf("opened: %v", err)
			}
			if now := listObjects(t, l.A); !slices.Equal(now.links, before.links) || len(now.programs) != 0 {
				t.Errorf("devices %v with programs on %v, were %v", now.links, now.programs, before.links)
			}
		})
	}
}

func openSuper(t *testing.T, h *netlab.Host) *netlab.SuperSocket {
	t.Helper()
	s, err := h.OpenSuper()
	testutil.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// segment is a TCP frame.
func segment(dst, src [6]byte, from, to string, payload string) []byte {
	f, d := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return frametest.Build(&layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: layers.EthernetTypeIPv4},
		&layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: f.Addr().AsSlice(), DstIP: d.Addr().AsSlice()},
		&layers.TCP{SrcPort: layers.TCPPort(f.Port()), DstPort: layers.TCPPort(d.Port()), ACK: true, Seq: 1, Ack: 1}, gopacket.Payload(payload))
}

// The peer decides the number of parts of a super-frame. A super-frame with too many parts is dropped
// and counted. One with segments of 512 bytes, as a peer sends that has received no MSS, is segmented.
func TestSuperFrameWithTooManyPartsIsDropped(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}})
	peer := openSuper(t, l.B)
	frame := func(from string) []byte {
		return segment(l.A.LinkAddr, l.B.LinkAddr, from, "10.0.0.1:7000", strings.Repeat("x", 60000))
	}
	const dropped = 100 // super-frames
	for range dropped {
		testutil.Must(t, peer.Send(frame("10.0.0.2:9000"), 1))
	}
	// This source address is where the EtherType of IPv4 would be (put_link_header in cut.h).
	testutil.Must(t, peer.Send(frame("8.0.0.2:9000"), 512))
	const parts = (60000 + 511) / 512
	testutil.Eventually(t, "each frame is counted, and each part", func() bool {
		c := l.count()
		return c["rx_many_parts"] == dropped && c["rx_cut"] == 1 && c["rx_port"] == parts && c["deliver_socket"] == parts
	})
	if c := l.count(); c["lost_deliver_redirect"] != 0 {
		t.Errorf("counters: %v", c)
	}
}

// A super-frame that comes from the wire with the mark of a port is neither delivered nor segmented: it goes to the
// kernel, as one to another host does.
func TestForgedMarkOfPartsIsNotDelivered(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	a := l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.0.1:7000")}})
	mark, err := l.mux.PartMark(a.lease)
	testutil.Must(t, err)
	other := mark
	other[5] ^= 0x80 // no port has this ifindex
	peer := openSuper(t, l.B)
	send := func(to [6]byte, addr string) {
		t.Helper()
		testutil.Must(t, peer.Send(segment(to, l.B.LinkAddr, "10.0.0.2:9000", addr, strings.Repeat("x", 5000)), 1000))
	}
	send(mark, "10.0.0.1:7000")
	send(mark, "10.0.0.1:7001") // no endpoint claims this port
	send(other, "10.0.0.1:7001")
	send(l.A.LinkAddr, "10.0.0.1:7000")
	testutil.Eventually(t, "the last one is delivered in parts", func() bool { return l.count()["deliver_socket"] == 5 })
	if c := l.count(); c["rx_pass"] < 3 || c["rx_cut"] != 1 || c["rx_port"] != 5 || c["lost_cut"] != 0 {
		t.Errorf("counters: %v", c)
	}
}

// A super-frame from a virtual machine has the length of its parts, and not their number (gso_segs is 0).
// It is segmented by that length.
func TestSuperFrameWithoutNumberOfParts(t *testing.T) {
	t.Parallel()
	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		t.Skipf("this machine makes no TAP devices: %v", err)
	} else {
		f.Close()
	}
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "guest"
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, Queues: 1, NonPersist: true}
	testutil.Must(t, l.A.Do(func() error { return netlink.LinkAdd(tap) }))
	t.Cleanup(func() { tap.Fds[0].Close() })
	var to [6]byte
	onDevice(t, l.A, tap.Name, func(device netlink.Link) error {
		to = [6]byte(device.Attrs().HardwareAddr)
		return errors.Join(netlink.LinkSetUp(device), addAddress("10.0.1.1/24")(device))
	})
	l.A.Interface = tap.Name
	l.openMux(mux.ModeTCX)
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{tcpTag("10.0.1.1:7000")}})
	frame := segment(to, [6]byte{2, 0, 0, 0, 0, 9}, "10.0.1.2:9000", "10.0.1.1:7000", strings.Repeat("x", 10000))
	_, err := tap.Fds[0].Write(netlab.SuperFrame(frame, 1000))
	testutil.Must(t, err)
	testutil.Eventually(t, "each part is delivered", func() bool {
		c := l.count()
		return c["rx_cut"] == 1 && c["rx_port"] == 10 && c["deliver_socket"] == 10
	})
}

// The number of parts on the way to one owner is limited, and each owner has a limit of its own. Parts
// that the cutter loses stop counting after a time.
func TestPartsOnTheWayAreLimitedByOwner(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	a := l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7001")}})
	const size, parts = 100, 100
	frame := func(to string) []byte {
		return datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9000", to, strings.Repeat("x", parts*size))
	}
	peer := openSuper(t, l.B)
	cutter := listObjects(t, l.A).cutters[0]
	queue := func(kind string) {
		onDevice(t, l.A, cutter, func(device netlink.Link) error {
			return netlink.QdiscReplace(&netlink.GenericQdisc{QdiscType: kind, QdiscAttrs: netlink.QdiscAttrs{LinkIndex: device.Attrs().Index, Parent: netlink.HANDLE_ROOT}})
		})
	}
	queue("blackhole") // drops what is to be segmented
	sent := uint64(0)
	testutil.Eventually(t, "the limit of the owner is reached", func() bool {
		testutil.Must(t, peer.Send(frame("10.0.0.1:7000"), size))
		sent++
		return l.count()["rx_cutter_busy"] > 0
	})
	l.await("rx_cut", sent-l.count()["rx_cutter_busy"])
	testutil.Must(t, peer.Send(frame("10.0.0.1:7001"), size))
	l.await("rx_cut", sent-l.count()["rx_cutter_busy"]+1) // the other owner has no parts on the way
	if c := l.count(); c["rx_port"] != 0 {
		t.Errorf("%d sent, counters: %v", sent+1, c)
	}
	queue("noqueue")
	testutil.Eventually(t, "lost parts have stopped counting", func() bool {
		testutil.Must(t, peer.Send(frame("10.0.0.1:7000"), size))
		return l.count()["rx_port"] > 0
	})
	for range parts {
		p := packet(t, a.recv().frame)
		eth := p.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		if n := len(p.Layer(layers.LayerTypeUDP).LayerPayload()); n != size || !bytes.Equal(eth.DstMAC, l.A.LinkAddr[:]) {
			t.Fatalf("received %d bytes to %v", n, eth.DstMAC)
		}
	}
}

// In native mode Open turns receive VLAN offload off, and Close turns it on again.
func TestOpenTurnsVLANOffloadOff(t *testing.T) {
	t.Parallel()
	p := netlab.RequirePair(t, netlab.Config{})
	for _, before := range []bool{true, false} {
		setOffload(t, p.A, "rxvlan", before)
		l := &lab{t: t, Pair: p}
		l.openMux(mux.ModeNative)
		if offload(t, p.A, "rxvlan") {
			t.Error("receive VLAN offload is on with a mux")
		}
		testutil.Must(t, l.mux.Close())
		if now := offload(t, p.A, "rxvlan"); now != before {
			t.Errorf("receive VLAN offload is on %v afterwards, and was on %v before", now, before)
		}
	}
}

// A super-frame that the cutter drops is counted.
func TestSuperFrameToCutterThatIsDownIsCounted(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeTCX)
	l.openFor(mux.Terms{}, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	onDevice(t, l.A, listObjects(t, l.A).cutters[0], netlink.LinkSetDown)
	testutil.Must(t, openSuper(t, l.B).Send(datagram(l.A.LinkAddr, l.B.LinkAddr, "10.0.0.2:9000", "10.0.0.1:7000", strings.Repeat("x", 10000)), 100))
	l.await("lost_cut", 1)
	if c := l.count(); c["rx_cut"] != 0 || c["rx_port"] != 0 {
		t.Errorf("counters: %v", c)
	}
}

// While a mux is attached that needs VLAN tags in the frame, receive VLAN offload that another program
// turns on is turned off again. Close restores it.
func TestVLANOffloadTurnedOnLater(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeNative, mux.ModeTCX} {
		t.Run(mode.String(), func(t *testing.T) {
			p := netlab.RequirePair(t, netlab.Config{})
			setOffload(t, p.A, "rxvlan", false)
			var log logBuffer
			l := &lab{t: t, Pair: p}
			l.openConfig(mux.Config{Mode: mode, Log: slog.New(slog.NewTextHandler(&log, nil))})
			setOffload(t, p.A, "rxvlan", true)
			if mode != mux.ModeTCX {
				testutil.Eventually(t, "off again", func() bool { return !offload(t, p.A, "rxvlan") })
				testutil.Eventually(t, "a warning", func() bool {
					return strings.Contains(log.String(), `level=WARN msg="receive VLAN offload had been turned on`)
				})
			}
			l.onUplink(mtu(1400)) // a later event
			testutil.Eventually(t, "the event is handled", func() bool { return strings.Contains(log.String(), "mtu=1400") })
			testutil.Must(t, l.mux.Close())
			if !offload(t, p.A, "rxvlan") {
				t.Error("receive VLAN offload is off after Close")
			}
			if s := log.String(); mode == mux.ModeTCX && strings.Contains(s, "VLAN") {
				t.Errorf("log: %s", s)
			}
			if n := len(l.mux.Failed()); n != 0 {
				t.Error("the mux has failed")
			}
		})
	}
}

// tagEgress puts each frame that leaves a host into VLAN 100. With txvlan the tag is in the skb, else
// in the frame.
func tagEgress(t *testing.T, h *netlab.Host) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		tag, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 0x0081), asm.Mov.Imm(asm.R3, 100), asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		testutil.Must(t, err)
		defer tag.Close()
		device, err := netlink.LinkByName(h.Interface)
		testutil.Must(t, err)
		egress, err := link.AttachTCX(link.TCXOptions{Interface: device.Attrs().Index, Program: tag, Attach: ebpf.AttachTCXEgress})
		testutil.Must(t, err)
		t.Cleanup(func() { egress.Close() })
		return nil
	}))
}

// capture is a packet socket that receives the frames that reach a host's kernel, with the VLAN tag of the skb.
type capture struct {
	t  *testing.T
	fd int
}

func openCapture(t *testing.T, h *netlab.Host) *capture {
	t.Helper()
	s := &capture{t: t, fd: -1}
	testutil.Must(t, h.Do(func() (err error) {
		device, err := netlink.LinkByName(h.Interface)
		testutil.Must(t, err)
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(testTimeout / time.Second)}),
			unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Attrs().Index}))
	}))
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// vlanOf waits for a frame with a payload, and returns its VLAN, in the skb or in the frame; 0: none.
func (s *capture) vlanOf(payload string) uint16 {
	s.t.Helper()
	frame, aux := make([]byte, 2048), make([]byte, 256)
	for {
		n, oobn, _, _, err := unix.Recvmsg(s.fd, frame, aux, 0)
		if err != nil {
			s.t.Fatalf("the kernel did not get %q: %v", payload, err)
		}
		if !strings.Contains(string(frame[:n]), payload) { // it may be padded
			continue
		}
		if frame[12] == 0x81 && frame[13] == 0 {
			return binary.BigEndian.Uint16(frame[14:]) & 0xfff
		}
		msgs, err := unix.ParseSocketControlMessage(aux[:oobn])
		testutil.Must(s.t, err)
		for _, m := range msgs {
			// struct tpacket_auxdata, linux/if_packet.h: status, ..., tp_vlan_tci
			if m.Header.Type == unix.PACKET_AUXDATA && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				return binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff
			}
		}
		return 0
	}
}

// A frame of a VLAN goes to the kernel with its tag, and not to an endpoint, whether the tag is in the
// frame or in the skb.
func TestVLANFramesGoToKernel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode   mux.Mode
		attach endpoint.Attachment
		txvlan bool // of the sender: on, the tag is in the skb
	}{
		{mux.ModeTCX, endpoint.AttachPort, true},
		{mux.ModeTCX, endpoint.AttachPort, false},
		{mux.ModeTCX, endpoint.AttachQueue, true},
		{mux.ModeTCX, endpoint.AttachQueue, false},
		{mux.ModeNative, endpoint.AttachPort, false},
	} {
		t.Run(fmt.Sprint(c.mode, " ", c.attach, " txvlan ", c.txvlan), func(t *testing.T) {
			l := openLab(t, c.mode)
			setOffload(t, l.B, "txvlan", c.txvlan)
			a := l.openRequest(endpoint.Request{Attach: c.attach, Tags: []endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.MessageTag(7)}})
			b := kernelUDP(t, l.B, "10.0.0.2:9000")
			testutil.Must(t, l.B.Do(func() error { // ARP would be of the VLAN too
				device, err := netlink.LinkByName(l.B.Interface)
				testutil.Must(t, err)
				return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: l.A.Addr.Addr().AsSlice(), HardwareAddr: l.A.LinkAddr[:]})
			}))
			sendTo(t, b, "10.0.0.1:7000", "of no VLAN")
			a.recv()
			frames := openCapture(t, l.A)
			tagEgress(t, l.B)
			passed := l.count()["rx_pass_vlan"]
			sendTo(t, b, "10.0.0.1:7000", "of VLAN 100")
			if v := frames.vlanOf("of VLAN 100"); v != 100 {
				t.Errorf("the kernel got it with VLAN %d", v)
			}
			message := messageFrame(l.A.LinkAddr, l.B.LinkAddr, 7, 9, "message of VLAN 100")
			sendRaw(t, l.B, message)
			if v := frames.vlanOf("message of VLAN 100"); v != 100 {
				t.Errorf("the kernel got the message with VLAN %d", v)
			}
			l.await("rx_pass_vlan", passed+2)
			a.wantNothing("from a VLAN")
		})
	}
}

// sendRaw sends a frame as it is.
func sendRaw(t *testing.T, h *netlab.Host, frame []byte) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		device, err := netlink.LinkByName(h.Interface)
		testutil.Must(t, err)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		testutil.Must(t, err)
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index})
	}))
}

// multiply attaches a program that sends each frame received on a host's interface n times out of a
// device of the host, or with flag BPF_F_INGRESS into it, all before the first of them is received.
func multiply(t *testing.T, h *netlab.Host, device string, flags, n int) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		in, err := netlink.LinkByName(h.Interface)
		testutil.Must(t, err)
		out, err := netlink.LinkByName(device)
		testutil.Must(t, err)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.Mov.Imm(asm.R7, int32(n)),
			asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("again"),
			asm.Mov.Imm(asm.R2, int32(out.Attrs().Index)),
			asm.Mov.Imm(asm.R3, int32(flags)),
			asm.FnCloneRedirect.Call(),
			asm.Sub.Imm(asm.R7, 1),
			asm.JNE.Imm(asm.R7, 0, "again"),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		}})
		testutil.Must(t, err)
		defer prog.Close()
		ingress, err := link.AttachTCX(link.TCXOptions{Interface: in.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		testutil.Must(t, err)
		t.Cleanup(func() { ingress.Close() })
		return nil
	}))
}

// droppedBy is the number of frames that a device could not pass to its other end.
func droppedBy(t *testing.T, h *netlab.Host, device string) (n uint64) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		l, err := netlink.LinkByName(device)
		testutil.Must(t, err)
		n = l.Attrs().Statistics.TxDropped
		return nil
	}))
	return n
}

// Frames dropped by a full backlog of the kernel are counted, in total and by endpoint.
func TestFramesDroppedByFullBacklogAreCounted(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/netdev_max_backlog")
	testutil.Must(t, err)
	backlog, err := strconv.Atoi(strings.TrimSpace(string(text)))
	testutil.Must(t, err)
	const overflow = 300                            // frames
	unknown := func(to, from *netlab.Host) []byte { // a frame that no program answers
		return frametest.Build(&layers.Ethernet{DstMAC: to.LinkAddr[:], SrcMAC: from.LinkAddr[:], EthernetType: 0x9999}, gopacket.Payload(make([]byte, 46)))
	}
	t.Run("of a port", func(t *testing.T) {
		l := openLab(t, mux.ModeAuto)
		l.open(udpTag("10.0.0.1:7001"))
		a := l.open(udpTag("10.0.0.1:7000"))
		device := fmt.Sprint("unet", a.grant.ID)
		multiply(t, l.A, device, 0, backlog+overflow)
		sendRaw(t, l.B, unknown(l.A, l.B))
		name := fmt.Sprint("lost_deliver_backlog.", a.grant.ID)
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["lost_deliver_backlog"] >= overflow-1 })
		c := l.count()
		if n := droppedBy(t, l.A, device); c["lost_deliver_backlog"] != n || c[name] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
		onlyLost(t, c, "lost_deliver_backlog", name)
	})
	t.Run("of a port, sent by the kernel itself", func(t *testing.T) { // dropped in any case
		l := openLab(t, mux.ModeAuto)
		l.open(udpTag("10.0.0.1:7001"))
		a := l.open(udpTag("10.0.0.1:7000"))
		device := fmt.Sprint("unet", a.grant.ID)
		multiply(t, l.A, device, 0, backlog+overflow)
		sendRaw(t, l.B, unknown(l.A, &netlab.Host{LinkAddr: bpf.KernelLink}))
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["deliver_kernel"] >= overflow-1 })
		if n, c := droppedBy(t, l.A, device), l.count(); c["deliver_kernel"] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
		onlyLost(t, l.count(), fmt.Sprint("lost_deliver_backlog.", a.grant.ID)) // the statistics of the device
	})
	t.Run("of an endpoint", func(t *testing.T) {
		l := openLab(t, mux.ModeAuto)
		l.open(udpTag("10.0.0.1:7001"))
		a := l.open(udpTag("10.0.0.1:7000"))
		// Frames from an XSK go through the backlog one by one, and cannot fill it. So the kernel
		// of the port's namespace sends.
		inside, device := a.inside()
		multiply(t, inside, device, 0, backlog+overflow)
		sendRaw(t, inside, unknown(l.A, l.A))
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["lost_port_backlog"] >= overflow-1 })
		c := l.count()
		if n := droppedBy(t, inside, device); c["lost_port_backlog"] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
		onlyLost(t, c, "lost_port_backlog")
	})
	t.Run("of the cutter", func(t *testing.T) {
		l := openLab(t, mux.ModeTCX)
		device := listObjects(t, l.A).cutters[0]
		multiply(t, l.A, device, unix.BPF_F_INGRESS, backlog+overflow)
		sendRaw(t, l.B, unknown(l.A, l.B))
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["lost_cut"] >= overflow-1 })
		onlyLost(t, l.count(), "lost_cut")
	})
	t.Run("of lo", func(t *testing.T) { // by which the kernel of the host sends to endpoints
		l := openLab(t, mux.ModeTCX)
		l.open(udpTag("10.0.0.1:7001"))
		multiply(t, l.A, "lo", unix.BPF_F_INGRESS, backlog+overflow)
		sendRaw(t, l.B, unknown(l.A, l.B))
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["lost_host"] >= overflow-1 })
		onlyLost(t, l.count(), "lost_host")
	})
	t.Run("of the uplink", func(t *testing.T) {
		l := openLab(t, mux.ModeTCX)
		multiply(t, l.B, l.B.Interface, 0, backlog+overflow)
		sendRaw(t, l.A, unknown(l.B, l.A))
		testutil.Eventually(t, "the dropped frames are counted", func() bool { return l.count()["lost_uplink_backlog"] >= overflow-1 })
		if n, c := droppedBy(t, l.B, l.B.Interface), l.count(); c["lost_uplink_backlog"] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
	})
}

// inside is the namespace of an endpoint's socket and of the inner end of its port.
func (a *app) inside() (h *netlab.Host, device string) {
	a.t.Helper()
	ns, err := unix.IoctlRetInt(int(a.grant.XSK.Fd()), unix.SIOCGSKNS)
	testutil.Must(a.t, err)
	h = &netlab.Host{NS: netns.NsHandle(ns), Interface: "lo"}
	a.t.Cleanup(func() { h.NS.Close() })
	testutil.Must(a.t, h.Do(func() error {
		links, err := netlink.LinkList()
		testutil.Must(a.t, err)
		for _, l := range links {
			if l.Attrs().Name == h.Interface {
				testutil.Must(a.t, netlink.LinkSetUp(l))
			} else {
				device = l.Attrs().Name
			}
		}
		return nil
	}))
	return h, device
}

// onlyLost fails if other losses than these are counted.
func onlyLost(t *testing.T, counters map[string]uint64, names ...string) {
	t.Helper()
	for name := range counters {
		if strings.HasPrefix(name, "lost") && !slices.Contains(names, name) {
			t.Errorf("counters: %v", counters)
		}
	}
}
