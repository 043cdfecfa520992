package mux_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// Open turns receive VLAN offload off, and Close on again.
func TestVLANOffload(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{})
	for _, before := range []bool{true, false} {
		setOffload(t, p.A, "rxvlan", before)
		m := openMux(t, p.A)
		if offload(t, p.A, "rxvlan") {
			t.Error("receive VLAN offload is on with a mux")
		}
		must(t, m.Close())
		if now := offload(t, p.A, "rxvlan"); now != before {
			t.Errorf("receive VLAN offload is on %v afterwards, and was on %v before", now, before)
		}
	}
}

// tagEgress puts every frame that leaves a host into VLAN 100. Where the tag stands is
// the device's affair (txvlan).
func tagEgress(t *testing.T, h *netlab.Host) {
	t.Helper()
	must(t, h.Do(func() error {
		tag, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 0x0081), asm.Mov.Imm(asm.R3, 100), asm.FnSkbVlanPush.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		must(t, err)
		defer tag.Close()
		device, err := netlink.LinkByName(h.Interface)
		must(t, err)
		egress, err := link.AttachTCX(link.TCXOptions{Interface: device.Attrs().Index, Program: tag, Attach: ebpf.AttachTCXEgress})
		must(t, err)
		t.Cleanup(func() { egress.Close() })
		return nil
	}))
}

// sniff hears what reaches a host's kernel, with the VLAN that stands beside a frame.
type sniff struct {
	t  *testing.T
	fd int
}

func openSniff(t *testing.T, h *netlab.Host) *sniff {
	t.Helper()
	s := &sniff{t: t, fd: -1}
	must(t, h.Do(func() (err error) {
		device, err := netlink.LinkByName(h.Interface)
		must(t, err)
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
			unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Attrs().Index}))
	}))
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// vlanOf waits for a frame with a payload, and returns its VLAN, beside it or inside; 0: none.
func (s *sniff) vlanOf(payload string) uint16 {
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
		must(s.t, err)
		for _, m := range msgs {
			// struct tpacket_auxdata, linux/if_packet.h: status, ..., tp_vlan_tci
			if m.Header.Type == unix.PACKET_AUXDATA && binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
				return binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff
			}
		}
		return 0
	}
}

// A frame of a VLAN is never an endpoint's, wherever its tag stands: it is the
// kernel's, with its tag.
func TestFramesOfAVLAN(t *testing.T) {
	for _, c := range []struct {
		mode   mux.Mode
		txvlan bool // of the sender: on, the tag stands beside the frame
	}{
		{mux.ModeGeneric, true},
		{mux.ModeGeneric, false},
		{mux.ModeNative, false},
	} {
		t.Run(fmt.Sprint(c.mode, " txvlan ", c.txvlan), func(t *testing.T) {
			l := openLab(t, c.mode)
			setOffload(t, l.B, "txvlan", c.txvlan)
			a := l.open(udpTag("10.0.0.1:7000"), endpoint.MessageTag(7))
			b := kernelUDP(t, l.B, "10.0.0.2:9000")
			must(t, l.B.Do(func() error { // ARP would be of the VLAN too
				device, err := netlink.LinkByName(l.B.Interface)
				must(t, err)
				return netlink.NeighSet(&netlink.Neigh{LinkIndex: device.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: l.A.Addr.Addr().AsSlice(), HardwareAddr: l.A.LinkAddr[:]})
			}))
			sendTo(t, b, "10.0.0.1:7000", "of no VLAN")
			a.recv()
			heard := openSniff(t, l.A)
			tagEgress(t, l.B)
			passed := l.count()["rx_pass_vlan"]
			sendTo(t, b, "10.0.0.1:7000", "of VLAN 100")
			if v := heard.vlanOf("of VLAN 100"); v != 100 {
				t.Errorf("the kernel got it with VLAN %d", v)
			}
			message := messageFrame(l.A.LinkAddr, l.B.LinkAddr, 7, 9, "message of VLAN 100")
			sendRaw(t, l.B, message)
			if v := heard.vlanOf("message of VLAN 100"); v != 100 {
				t.Errorf("the kernel got the message with VLAN %d", v)
			}
			l.await("rx_pass_vlan", passed+2)
			a.nothing("from a VLAN")
		})
	}
}

// sendRaw sends a frame as it is.
func sendRaw(t *testing.T, h *netlab.Host, frame []byte) {
	t.Helper()
	must(t, h.Do(func() error {
		device, err := netlink.LinkByName(h.Interface)
		must(t, err)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Attrs().Index})
	}))
}
