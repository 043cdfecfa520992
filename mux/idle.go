package mux

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The kernel calls XDP programs by a jump that it makes anew when the first device gets
// a program and when the last one loses it, and then waits until no processor can be
// in the old one (bpf_dispatcher_change_prog): 10 to 15 ms for each program of a port,
// which the first endpoint and the last would pay for, and so would all that come and go one
// by one. So there are devices that have the programs as long as the mux is open: the lo of
// namespaces of their own, where nobody sends anything.

// holdPrograms makes those.
func (m *Mux) holdPrograms() error {
	for _, prog := range []*ebpf.Program{m.progs.objs.UnetPort, m.progs.deliver(Terms{Trusted: true}), m.progs.deliver(Terms{})} {
		idle, err := idleWith(prog)
		if err != nil {
			return fmt.Errorf("idle device: %w", err)
		}
		m.handles.push(func() error { return idle.Close() })
	}
	return nil
}

// idleWith makes a namespace whose lo has a program. The handle is all that holds it.
func idleWith(prog *ebpf.Program) (idle netns.NsHandle, err error) {
	err = withinNew(func(inner netns.NsHandle) error {
		sock, err := openRoute(inner)
		if err != nil {
			return err
		}
		defer sock.Close()
		const lo = 1
		if err := setXDP(sock, lo, prog.FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
		fd, err := unix.FcntlInt(uintptr(inner), unix.F_DUPFD_CLOEXEC, 0)
		idle = netns.NsHandle(fd)
		return err
	})
	return idle, err
}
