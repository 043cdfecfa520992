//go:build linux

package unetd

import (
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/unet-go/unet/internal/netlab"
)

// Programs on the interface are found: at traffic control, as in tcx mode, and of XDP.
func TestLeft(t *testing.T) {
	h := netlab.RequirePair(t, netlab.Config{}).A
	for _, c := range []struct {
		name   string
		kind   ebpf.ProgramType
		attach func(p *ebpf.Program, ifindex int) (link.Link, error)
	}{
		{"tcx", ebpf.SchedCLS, func(p *ebpf.Program, ifindex int) (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: p, Attach: ebpf.AttachTCXIngress})
		}},
		{"xdp", ebpf.XDP, func(p *ebpf.Program, ifindex int) (link.Link, error) {
			return link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: p, Flags: link.XDPGenericMode})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: c.kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			var attached link.Link
			if err := h.Do(func() error {
				device, err := net.InterfaceByName(h.Interface)
				if err != nil {
					return err
				}
				attached, err = c.attach(p, device.Index)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if left := Left(t, h); len(left) != 1 {
				t.Errorf("found %v, want one program", left)
			}
			if err := attached.Close(); err != nil {
				t.Fatal(err)
			}
			if left := Left(t, h); len(left) != 0 {
				t.Errorf("found %v, want nothing", left)
			}
		})
	}
}
