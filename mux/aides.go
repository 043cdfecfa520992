package mux

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/route"
)

// unet_note_vlan runs for every frame of the machine and takes some 60 ns (ADR 7). So the
// muxes of a machine share one: the first mux attaches it, the others open its link and use
// its map.

// sharedNote returns the link of an attached unet_note_vlan, and the map that it writes; nil:
// there is none.
func sharedNote() (link.Link, *ebpf.Map, error) {
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.Type != link.RawTracepointType { // an error: a kind of link unknown to the library
			continue
		}
		notes, err := notesOf(info.Program)
		if err != nil {
			return nil, nil, fmt.Errorf("program %d: %w", info.Program, err)
		}
		if notes != nil {
			return it.Take(), notes, nil
		}
	}
	// EAGAIN: a link is being attached at this moment. A second unet_note_vlan is harmless.
	if err := it.Err(); err != nil && !errors.Is(err, unix.EAGAIN) {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	return nil, nil, nil
}

// notesOf returns the map of a program, if that is unet_note_vlan with this layout, else nil.
func notesOf(id ebpf.ProgramID) (*ebpf.Map, error) {
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the program is gone
	}
	if err != nil {
		return nil, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	maps, _ := info.MapIDs()
	if uid, known := info.CreatedByUID(); info.Name != bpf.MuxProgUnetNoteVlan || len(maps) != 1 || !known || uid != 0 {
		return nil, nil
	}
	m, err := ebpf.NewMapFromID(maps[0])
	if err != nil {
		return nil, err
	}
	if m.Type() != ebpf.PerCPUArray || m.KeySize() != 4 || m.ValueSize() != 4 || m.MaxEntries() != 1 {
		return nil, m.Close()
	}
	return m, nil
}

// The cutter of an uplink in generic mode is a device by which the kernel segments super-frames
// (bpf/src/cut.h). It is found by its name.

const cutterKind = "ifb"

// cutterRoom is the queue length of the device, in parts, the frames into which super-frames
// are segmented. It is the largest that all kernels accept: 6.12.117 refuses more with ERANGE.
// A port has at most 512 parts there (CUT_LINE in cut.h). If more than 63 ports have as many at
// once, the device drops and counts what exceeds the length.
const cutterRoom = math.MaxInt16

func cutterName(uplink int) string { return fmt.Sprintf("unetcut%d", uplink) }

// makeCutter makes the cutter of an uplink. The calling thread is in the uplink's namespace,
// which is h's.
func makeCutter(h *netlink.Handle, uplink int) (ifindex int, err error) {
	if err := deleteCutter(h, uplink); err != nil { // a process that died may have left one
		return 0, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("device %s, which segments super-frames: %w", cutterName(uplink), err)
		}
	}()
	a := netlink.NewLinkAttrs()
	a.Name = cutterName(uplink)
	a.MTU = portMTU
	a.NumTxQueues, a.NumRxQueues = 1, 1
	a.GSOMaxSegs, a.GSOMaxSize, a.GSOIPv4MaxSize = 1, 1024, 1024 // so the kernel segments all packets sent there
	a.TxQLen = cutterRoom
	if err := h.LinkAdd(&netlink.Ifb{LinkAttrs: a}); err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, deleteCutter(h, uplink))
		}
	}()
	l, err := h.LinkByName(a.Name)
	if err != nil {
		return 0, err
	}
	if err := errors.Join(disableIPv6(a.Name), distrust(a.Name)); err != nil {
		return 0, err
	}
	// Without a queueing discipline packets are segmented at once. cut.h limits their number.
	none := &netlink.GenericQdisc{QdiscType: "noqueue", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT}}
	if err := h.QdiscReplace(none); err != nil {
		return 0, fmt.Errorf("noqueue: %w", err)
	}
	return l.Attrs().Index, h.LinkSetUp(l)
}

// attachCutter attaches to the cutter, in tcx mode, what the uplink has in generic mode. There are
// no links: the programs are removed with the device. The calling thread is in the uplink's
// namespace.
func (p *programs) attachCutter(ifindex int) error {
	cutter := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	err := netlink.LinkSetXdpFdWithFlags(cutter, p.objs.UnetUplink.FD(), unix.XDP_FLAGS_SKB_MODE)
	if err == nil {
		err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: ifindex, Program: p.objs.UnetCut, Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		return fmt.Errorf("attach to %s: %w", cutterName(p.ifindex), err)
	}
	return nil
}

// cutterLost is the number of super-frames that the cutter of an uplink has dropped: the kernel
// could not segment them, or the device was down.
func cutterLost(h *netlink.Handle, uplink int) (uint64, error) {
	l, err := h.LinkByName(cutterName(uplink))
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("counters of %s: %w", cutterName(uplink), err)
	}
	s := l.Attrs().Statistics
	return s.RxDropped + s.TxDropped, nil
}

// deleteCutter deletes the cutter of an uplink, if there is one.
func deleteCutter(h *netlink.Handle, uplink int) error {
	l, err := h.LinkByName(cutterName(uplink))
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return nil
	}
	if err == nil && l.Type() != cutterKind {
		return nil // another program's device
	}
	if err == nil {
		err = h.LinkDel(l)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", cutterName(uplink), err)
	}
	return nil
}

// XDP does not see a VLAN tag (802.1Q) that is in the skb and not in the frame, so an endpoint
// would receive a frame of a VLAN as an untagged one. With receive VLAN offload a driver moves
// the VLAN tag to the skb, so the mux turns that offload off. On a virtual link the sender's
// kernel writes the VLAN tag to the skb only; in generic mode unet_note_vlan notes it for XDP.

// notesVLAN reports whether unet_note_vlan is needed. A VLAN interface does not need it: the
// kernel has removed the VLAN tag of its frames.
func notesVLAN(u *uplink, m Mode) bool {
	return u.virtual && m == ModeGeneric && u.kind != "vlan"
}

// hidesVLANTags reports whether receive VLAN offload is on. The calling thread is in the
// uplink's namespace, also in showVLANTags.
func (u *uplink) hidesVLANTags() (bool, error) {
	flags, err := ethtoolFlags(u.name, ethtoolGetFlags, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil // no such offload
	}
	if err != nil {
		return false, fmt.Errorf("offloads of %s: %w", u.name, err)
	}
	return flags&flagRxVLAN != 0, nil
}

// showVLANTags turns receive VLAN offload off if it is on, and first records that it was on.
func (m *Mux) showVLANTags() error {
	if m.progs.mode == ModeTCX {
		return nil // its program sees the tag in the skb
	}
	hidden, err := m.up.hidesVLANTags()
	if err != nil {
		return err
	}
	if m.up.virtual && m.progs.mode == ModeNative {
		m.log.Info("in native mode on a virtual link XDP sees no VLAN tags if the other end has txvlan offload: if VLANs are used there, turn it off", "interface", m.up.name)
	}
	if !hidden {
		return nil
	}
	state := m.progs.state
	state.RestoreVlan = 1
	if err := m.progs.putState(state); err != nil {
		return err
	}
	flags, err := ethtoolFlags(m.up.name, ethtoolGetFlags, 0)
	if err != nil {
		return fmt.Errorf("offloads of %s: %w", m.up.name, err)
	}
	_, setErr := ethtoolFlags(m.up.name, ethtoolSetFlags, flags&^flagRxVLAN)
	if hidden, err = m.up.hidesVLANTags(); err != nil {
		return err
	}
	if hidden {
		return errors.Join(fmt.Errorf("%w on %s: frames of a VLAN would look untagged", ErrVLANOffload, m.up.name), setErr)
	}
	m.log.Info("receive VLAN offload turned off, so that XDP sees VLAN tags", "interface", m.up.name)
	return nil
}

// restoreVLANTags undoes showVLANTags.
func (m *Mux) restoreVLANTags() error {
	if m.progs.state.RestoreVlan == 0 {
		return nil
	}
	return route.Within(m.ns, func() error { return restoreRxVLAN(m.up.ifindex) })
}

// restoreRxVLAN turns receive VLAN offload on again, if the interface exists in the calling
// thread's namespace.
func restoreRxVLAN(ifindex int) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil // the interface is gone
	}
	now, err := ethtoolFlags(l.Attrs().Name, ethtoolGetFlags, 0)
	if err != nil {
		return fmt.Errorf("restore receive VLAN offload: %w", err)
	}
	if _, err = ethtoolFlags(l.Attrs().Name, ethtoolSetFlags, now|flagRxVLAN); err != nil {
		return fmt.Errorf("restore receive VLAN offload: %w", err)
	}
	return nil
}
