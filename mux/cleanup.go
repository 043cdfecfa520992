package mux

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/xsk"
)

// Cleanup removes what muxes have left behind in a bpffs that no process serves
// any more: those of the calling thread's network namespace, and of any namespace
// those whose uplink is gone. A mux with endpoints whose processes live is kept,
// unless force is set: it works on, and the next Open of its interface takes it
// over. report is told of each mux what was done, or why it was kept.
func Cleanup(bpffs string, force bool, report func(what string)) error {
	if err := checkBPFFS(bpffs); err != nil {
		return err
	}
	ns, err := netns.Get()
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	return within(ns, func() error {
		cookie, err := netnsCookie()
		if err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		defer h.Close()
		rt, err := openRoute(ns)
		if err != nil {
			return err
		}
		defer rt.Close()
		r, err := newReaper(h, rt)
		if err != nil {
			return err
		}
		c := cleaner{h: h, reaper: r, netns: cookie, force: force, report: report}
		list, err := pinned(bpffs)
		for _, p := range list {
			err = errors.Join(err, c.clean(p))
		}
		return err
	})
}

// pinnedMux is a directory of pins.
type pinnedMux struct {
	path    string
	netns   uint64
	ifindex int
}

// pinned lists the directories of a bpffs that are muxes'.
func pinned(bpffs string) ([]pinnedMux, error) {
	entries, err := os.ReadDir(filepath.Join(bpffs, pinFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var list []pinnedMux
	for _, e := range entries {
		var p pinnedMux
		if n, err := fmt.Sscanf(e.Name(), "%d-%d", &p.netns, &p.ifindex); n != 2 || err != nil {
			continue
		}
		p.path = pinPath(bpffs, p.netns, p.ifindex)
		if filepath.Base(p.path) == e.Name() {
			list = append(list, p)
		}
	}
	return list, nil
}

// uplinkGone reports whether the interface that a pinned link was attached to is
// gone. Pins that have no such link are not whole.
func (p *pinnedMux) uplinkGone() (gone, whole bool, err error) {
	l, err := link.LoadPinnedLink(filepath.Join(p.path, pinUplink), nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("pinned link: %w", err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return false, false, fmt.Errorf("pinned link: %w", err)
	}
	xdp := info.XDP()
	return xdp != nil && xdp.Ifindex == 0, true, nil
}

// sweep removes the muxes whose uplinks are gone. Nobody can serve those.
func sweep(h *netlink.Handle, r *reaper, bpffs string, netns uint64, log *slog.Logger) error {
	list, err := pinned(bpffs)
	if err != nil {
		return err
	}
	c := cleaner{h: h, reaper: r, netns: netns, report: func(what string) { log.Info("cleanup", "what", what) }}
	for _, p := range list {
		// Asked without the lock: whoever is about to serve a mux shall get it.
		if gone, _, err := p.uplinkGone(); err != nil || !gone {
			continue
		}
		if err := c.clean(p); err != nil {
			log.Warn("a mux whose interface is gone could not be removed", "pins", p.path, "error", err)
		}
	}
	return nil
}

// cleaner removes muxes that nobody serves, on a thread in the namespace netns.
type cleaner struct {
	h      *netlink.Handle
	reaper *reaper
	netns  uint64
	force  bool
	report func(string)
}

func (c *cleaner) clean(p pinnedMux) error {
	gone, whole, err := p.uplinkGone()
	if err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	if p.netns != c.netns && !gone {
		c.report(fmt.Sprintf("%s: kept, it belongs to another network namespace", p.path))
		return nil
	}
	keep, err := lockPins(p.path)
	switch {
	case errors.Is(err, ErrInUse):
		c.report(fmt.Sprintf("%s: kept, a process serves it", p.path))
		return nil
	case errors.Is(err, os.ErrNotExist): // somebody else was faster
		return nil
	case err != nil:
		return err
	}
	defer keep.close()
	if whole && !gone && !c.force {
		n, err := living(c.h, keep)
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		if n > 0 {
			c.report(fmt.Sprintf("%s: kept, %d of its endpoints are in use", p.path, n))
			return nil
		}
	}
	if p.netns == c.netns {
		if err := takeDown(c.h, c.reaper, p.ifindex, keep); err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
	}
	if err := keep.remove(); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	why := "nobody serves it"
	if gone {
		why = "its interface is gone"
	}
	c.report(fmt.Sprintf("%s: removed, %s", p.path, why))
	return nil
}

// living counts the endpoints of a pinned mux whose sockets are held.
func living(h *netlink.Handle, keep *pins) (int, error) {
	prog, err := ebpf.LoadPinnedProgram(keep.at(bpf.MuxProgUnetPort), nil)
	if err != nil {
		return 0, fmt.Errorf("pinned program: %w", err)
	}
	defer prog.Close()
	ports, err := portsOf(h, prog)
	if err != nil {
		return 0, err
	}
	sockets, err := ebpf.LoadPinnedMap(keep.at(bpf.MuxMapSockets), nil)
	if err != nil {
		return 0, fmt.Errorf("pinned map: %w", err)
	}
	defer sockets.Close()
	unbound, err := xsk.NewUnbound()
	if err != nil {
		return 0, err
	}
	defer unbound.Close()
	n := len(ports)
	for queue := range sockets.MaxEntries() {
		there, err := socketThere(sockets, queue, unbound)
		if err != nil {
			return 0, err
		}
		if there {
			n++
		}
	}
	return n, nil
}

// takeDown takes a mux that nobody serves off the kernel: its program off the
// uplink, its cutter, its ports, the uplink's setting. The pins go last, for the next to try
// if this one dies on the way; the directory stays. The calling thread is in the
// mux's namespace.
//
// The pins may be another version's, or not whole, so this relies on no more of
// them than it must.
func takeDown(h *netlink.Handle, r *reaper, ifindex int, keep *pins) error {
	uplink, err := link.LoadPinnedLink(keep.at(pinUplink), nil)
	if err == nil {
		err = errors.Join(uplink.Detach(), uplink.Close())
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pinned link: %w", err)
	}
	if err := deleteCutter(h, ifindex); err != nil {
		return err
	}
	prog, err := ebpf.LoadPinnedProgram(keep.at(bpf.MuxProgUnetPort), nil)
	if err == nil {
		defer prog.Close()
		var ports map[uint32]string
		if ports, err = portsOf(h, prog); err == nil {
			err = r.deleteAll(ports)
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	state, err := readState(keep)
	if err == nil && state.RestoreVlan != 0 {
		err = restoreRxVLAN(int(state.Ifindex))
	}
	if err != nil && !errors.Is(err, errUnusable) {
		return err
	}
	return keep.clear()
}
