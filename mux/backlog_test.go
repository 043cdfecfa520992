package mux_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// multiply has each frame that comes in at a host's interface sent out of a device of
// the host n times, all before the first of them is received.
func multiply(t *testing.T, h *netlab.Host, device string, n int) {
	t.Helper()
	must(t, h.Do(func() error {
		in, err := netlink.LinkByName(h.Interface)
		must(t, err)
		out, err := netlink.LinkByName(device)
		must(t, err)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.Mov.Imm(asm.R7, int32(n)),
			asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("again"),
			asm.Mov.Imm(asm.R2, int32(out.Attrs().Index)),
			asm.Mov.Imm(asm.R3, 0),
			asm.FnCloneRedirect.Call(),
			asm.Sub.Imm(asm.R7, 1),
			asm.JNE.Imm(asm.R7, 0, "again"),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		}})
		must(t, err)
		defer prog.Close()
		ingress, err := link.AttachTCX(link.TCXOptions{Interface: in.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		must(t, err)
		t.Cleanup(func() { ingress.Close() })
		return nil
	}))
}

// droppedBy is how many frames a device could not hand to its other end.
func droppedBy(t *testing.T, h *netlab.Host, device string) (n uint64) {
	t.Helper()
	must(t, h.Do(func() error {
		l, err := netlink.LinkByName(device)
		must(t, err)
		n = l.Attrs().Statistics.TxDropped
		return nil
	}))
	return n
}

// What the kernel's backlog has no room for is counted, in all and by endpoint.
func TestFullBacklogIsCounted(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/core/netdev_max_backlog")
	must(t, err)
	backlog, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	const more = 300
	unknown := func(to, from *netlab.Host) []byte { // which nobody answers
		return build(&layers.Ethernet{DstMAC: to.LinkAddr[:], SrcMAC: from.LinkAddr[:], EthernetType: 0x9999}, gopacket.Payload(make([]byte, 46)))
	}
	t.Run("of a port", func(t *testing.T) {
		l := openLab(t, mux.ModeGeneric)
		l.open(udpTag("10.0.0.1:7001"))
		a := l.open(udpTag("10.0.0.1:7000"))
		device := fmt.Sprint("unet", a.grant.ID)
		multiply(t, l.A, device, backlog+more)
		sendRaw(t, l.B, unknown(l.A, l.B))
		name := fmt.Sprint("lost_deliver_backlog.", a.grant.ID)
		eventually(t, "they are counted", func() bool { return l.count()["lost_deliver_backlog"] >= more-1 })
		c := l.count()
		if n := droppedBy(t, l.A, device); c["lost_deliver_backlog"] != n || c[name] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
		for other := range c {
			if strings.HasPrefix(other, "lost") && other != name && other != "lost_deliver_backlog" {
				t.Errorf("counters: %v", c)
			}
		}
	})
	t.Run("of the uplink", func(t *testing.T) {
		l := openLab(t, mux.ModeGeneric)
		multiply(t, l.B, l.B.Interface, backlog+more)
		sendRaw(t, l.A, unknown(l.B, l.A))
		eventually(t, "they are counted", func() bool { return l.count()["lost_uplink_backlog"] >= more-1 })
		if n, c := droppedBy(t, l.B, l.B.Interface), l.count(); c["lost_uplink_backlog"] != n {
			t.Errorf("the device dropped %d, counters: %v", n, c)
		}
	})
}
