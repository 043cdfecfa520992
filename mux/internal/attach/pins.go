//go:build linux

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/steer"
	"github.com/unet-go/unet/mux/internal/tables"
)

// Pins is the directory of a bpffs in which the maps, programs and links of a mux are pinned,
// each under its name. The process that serves the mux holds a lock on the directory. With a
// nil pins nothing is pinned.
type Pins struct {
	path string
	dir  *os.File // locked
}

// Names of pins. Maps and programs have their own names. A name has no dot: the kernel reserves
// such names.
const (
	pinUplink = "uplink" // the link of the uplink's program; pinned last, so then the pins are complete
	pinState  = "state"  // the map
	pinLink   = "link_"  // prefix; the name of the program follows
)

// pinFolder is the directory of a bpffs with the pins of all muxes.
const pinFolder = "unet"

// pinPath is the directory with the pins of a mux. Its name has the cookie of the network
// namespace and the ifindex, which do not change when the interface is renamed.
func pinPath(bpffs string, netns uint64, ifindex int) string {
	return filepath.Join(bpffs, pinFolder, fmt.Sprintf("%d-%d", netns, ifindex))
}

// Attempts to get the lock, and the time between two. The kernel releases the lock of a killed
// process some time after kill(2) has returned.
const (
	dyingTries = 50
	dyingPause = 20 * time.Millisecond
)

// OpenPins makes the directory of a mux, if it does not exist, and locks it. ErrInUse: after a
// second another process still held the lock.
func OpenPins(bpffs string, netns uint64, ifindex int) (*Pins, error) {
	if err := CheckBPFFS(bpffs); err != nil {
		return nil, err
	}
	path := pinPath(bpffs, netns, ifindex)
	for try := 0; ; {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("directory for pins: %w", err)
		}
		p, err := LockPins(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // it was removed since MkdirAll
		case errors.Is(err, ErrInUse) && try < dyingTries:
			try++
			time.Sleep(dyingPause)
			continue
		}
		return p, err
	}
}

// CheckBPFFS returns an error if path is not a bpffs.
func CheckBPFFS(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("pin to %s: %w", path, err)
	}
	if st.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("pin to %s: it is not a bpffs (mount -t bpf bpf %s)", path, path)
	}
	return nil
}

// LockPins locks a directory; os.ErrNotExist: there is none.
func LockPins(path string) (*Pins, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p := &Pins{path: path, dir: dir}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		p.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (the lock on %s is held)", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		p.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if st.Nlink == 0 { // removed between open and lock
		p.Close()
		return nil, os.ErrNotExist
	}
	return p, nil
}

// Close releases the lock. The pins stay.
func (p *Pins) Close() error {
	if p == nil {
		return nil
	}
	return p.dir.Close()
}

// at is the path of a pin.
func (p *Pins) at(name string) string { return filepath.Join(p.path, name) }

// Names lists the pins.
func (p *Pins) Names() ([]string, error) {
	entries, err := os.ReadDir(p.path)
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// clear unpins everything. The uplink's link comes first: pins without it are not taken over.
// The state comes last: it contains the setting that must be restored.
func (p *Pins) clear() error {
	if p == nil {
		return nil
	}
	names, err := p.Names()
	if err != nil {
		return err
	}
	rank := func(name string) int {
		switch name {
		case pinUplink:
			return 0
		case pinState:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	for _, name := range names {
		if err := os.Remove(p.at(name)); err != nil {
			return fmt.Errorf("unpin: %w", err)
		}
	}
	return nil
}

// Remove unpins everything and removes the directory.
func (p *Pins) Remove() error {
	if p == nil {
		return nil
	}
	if err := p.clear(); err != nil {
		return err
	}
	if err := os.Remove(p.path); err != nil {
		return fmt.Errorf("remove the directory for pins: %w", err)
	}
	return nil
}

// Cleanup removes the muxes pinned in a bpffs that no process serves (mux.Cleanup).
func Cleanup(bpffs string, force bool, report func(what string)) error {
	if err := CheckBPFFS(bpffs); err != nil {
		return err
	}
	ns, err := netns.Get()
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer ns.Close()
	return route.Within(ns, func() error {
		cookie, err := nic.NetnsCookie()
		if err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		defer h.Close()
		rt, err := nic.OpenRoute(ns)
		if err != nil {
			return err
		}
		defer rt.Close()
		r, err := nic.NewDeleter(h, rt)
		if err != nil {
			return err
		}
		c := cleaner{h: h, deleter: r, netns: cookie, force: force, report: report}
		list, err := Pinned(bpffs)
		for _, p := range list {
			err = errors.Join(err, c.clean(p))
		}
		return err
	})
}

// PinnedMux is a directory of pins.
type PinnedMux struct {
	Path  string
	Netns uint64
	Index int
}

// Pinned lists the directories of pins in a bpffs.
func Pinned(bpffs string) ([]PinnedMux, error) {
	entries, err := os.ReadDir(filepath.Join(bpffs, pinFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pins: %w", err)
	}
	var list []PinnedMux
	for _, e := range entries {
		var p PinnedMux
		if n, err := fmt.Sscanf(e.Name(), "%d-%d", &p.Netns, &p.Index); n != 2 || err != nil {
			continue
		}
		p.Path = pinPath(bpffs, p.Netns, p.Index)
		if filepath.Base(p.Path) == e.Name() {
			list = append(list, p)
		}
	}
	return list, nil
}

// UplinkGone reports whether the interface of a mux is gone. complete: the pins are complete.
func (p *PinnedMux) UplinkGone() (gone, complete bool, err error) {
	l, err := link.LoadPinnedLink(filepath.Join(p.Path, pinUplink), nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("pinned link: %w", err)
	}
	defer l.Close()
	at, err := attachedTo(l)
	if err != nil {
		return false, false, fmt.Errorf("pinned link: %w", err)
	}
	return at == 0, true, nil
}

// attachedTo is the ifindex of the device to which a link attaches a program; 0: it is gone.
func attachedTo(l link.Link) (ifindex int, err error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex), nil
	}
	if xdp := info.XDP(); xdp != nil {
		return int(xdp.Ifindex), nil
	}
	return 0, errors.New("it is attached to no device")
}

// Sweep removes the muxes whose uplinks are gone, of any network namespace.
func Sweep(h *netlink.Handle, r *nic.Deleter, bpffs string, netns uint64, log *slog.Logger) error {
	list, err := Pinned(bpffs)
	if err != nil {
		return err
	}
	c := cleaner{h: h, deleter: r, netns: netns, report: func(what string) { log.Info("cleanup", "what", what) }}
	for _, p := range list {
		// Without the lock, so that a process that is about to serve the mux can get it.
		if gone, _, err := p.UplinkGone(); err != nil || !gone {
			continue
		}
		if err := c.clean(p); err != nil {
			log.Warn("a mux whose interface is gone could not be removed", "pins", p.Path, "error", err)
		}
	}
	return nil
}

// cleaner removes muxes that no process serves, on a thread in the namespace netns.
type cleaner struct {
	h       *netlink.Handle
	deleter *nic.Deleter
	netns   uint64
	force   bool
	report  func(string)
}

// clean removes a mux, unless a process serves it or it must be kept. It reports which.
func (c *cleaner) clean(p PinnedMux) error {
	gone, complete, err := p.UplinkGone()
	if err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	if p.Netns != c.netns && !gone {
		c.report(fmt.Sprintf("%s: kept, it belongs to another network namespace", p.Path))
		return nil
	}
	keep, err := LockPins(p.Path)
	switch {
	case errors.Is(err, ErrInUse):
		c.report(fmt.Sprintf("%s: kept, a process serves it", p.Path))
		return nil
	case errors.Is(err, os.ErrNotExist): // another process has removed it
		return nil
	case err != nil:
		return err
	}
	defer keep.Close()
	if complete && !gone && !c.force {
		n, err := living(c.h, keep)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		if n > 0 {
			c.report(fmt.Sprintf("%s: kept, %d of its endpoints are in use", p.Path, n))
			return nil
		}
	}
	if p.Netns == c.netns {
		if err := Drop(c.h, c.deleter, p.Index, keep); err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
	}
	if err := keep.Remove(); err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	why := "no process serves it"
	if gone {
		why = "its interface is gone"
	}
	c.report(fmt.Sprintf("%s: removed, %s", p.Path, why))
	return nil
}

// living counts the endpoints of a pinned mux whose sockets are open.
func living(h *netlink.Handle, keep *Pins) (int, error) {
	ports, err := pinnedPorts(h, keep)
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
		there, err := tables.SocketThere(sockets, queue, unbound)
		if err != nil {
			return 0, err
		}
		if there {
			n++
		}
	}
	return n, nil
}

// Drop removes a mux that no process serves: it detaches the uplink's programs and that of lo, deletes devices
// and ports, removes classification rules, restores the uplink's setting and unpins. Pins are removed last, so that another
// process can repeat the removal if this one dies. The directory stays. The calling thread is
// in the mux's namespace.
//
// The pins may be incomplete or made by another version, so any of them may be missing. Versions with generic mode
// (ADR 58) had unet_cut on the uplink. After
// an error of the classification rules the uplink's setting is restored and the pins are removed
// all the same.
func Drop(h *netlink.Handle, r *nic.Deleter, ifindex int, keep *Pins) error {
	state, stateErr := readState(keep)
	if stateErr == nil {
		if err := refuseLocal(state); err != nil {
			return err
		}
	}
	for _, name := range []string{pinUplink, pinLink + bpf.MuxProgUnetQueue, pinLink + bpf.MuxProgUnetLo, pinLink + bpf.MuxProgUnetEgress,
		pinLink + bpf.MuxProgUnetGroupIn, pinLink + bpf.MuxProgUnetCut} {
		l, err := link.LoadPinnedLink(keep.at(name), nil)
		if err == nil {
			err = errors.Join(detachLink(l), l.Close())
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("pinned link: %w", err)
		}
	}
	if err := errors.Join(deleteUp(h, ifindex), deleteCutter(h, ifindex)); err != nil {
		return err
	}
	ports, err := pinnedPorts(h, keep)
	if err == nil {
		err = r.DeleteAll(ports)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	rulesErr := unsteerPinned(h, ifindex, keep)
	if rulesErr != nil {
		rulesErr = fmt.Errorf("classification rules may be left (ethtool -n): %w", rulesErr)
	}
	if err = stateErr; err == nil {
		err = nic.RestoreOffloads(int(state.Ifindex), nic.Offloads(state.RestoreOffloads))
	}
	if err != nil && !errors.Is(err, ErrUnusable) {
		return errors.Join(rulesErr, err)
	}
	return errors.Join(rulesErr, keep.clear())
}

// OnQueuesOf are the tags of endpoints on queues, with their queues.
func OnQueuesOf(tags map[endpoint.Tag]bpf.Owner) map[endpoint.Tag]uint32 {
	list := map[endpoint.Tag]uint32{}
	for t, owner := range tags {
		if owner.Port == 0 {
			list[t] = uint32(owner.Queue)
		}
	}
	return list
}

// unsteerPinned removes the rules of the tags in pinned tables. The calling thread is in the
// uplink's namespace, which is h's.
func unsteerPinned(h *netlink.Handle, ifindex int, keep *Pins) error {
	spec, err := bpf.LoadMux()
	if err != nil {
		return err
	}
	var b tables.Tables
	for name, table := range map[string]**ebpf.Map{bpf.MuxMapTags: &b.Tags, bpf.MuxMapTags6: &b.Tags6} {
		m, err := ebpf.LoadPinnedMap(keep.at(name), nil)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("pinned map: %w", err)
		}
		defer m.Close()
		if m.KeySize() != spec.Maps[name].KeySize || m.ValueSize() != spec.Maps[name].ValueSize {
			return nil // made by another version
		}
		*table = m
	}
	tags, err := b.AllTags()
	if err != nil {
		return err
	}
	rules, err := steer.OpenDriverRules(nic.NameOf(h, ifindex))
	if err != nil {
		return err
	}
	defer rules.Close()
	return steer.New("", false, rules, nil).Drop(OnQueuesOf(tags), nil)
}
