//go:build linux

package attach

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/mux/internal/nic"
)

// unet_note_vlan runs for every frame of the machine and takes some 60 ns (ADR 7). So it is attached only while
// there are endpoints on queues in tcx mode, and the muxes of a machine share one: the first attaches it, the
// others open its link and use its map.

// noteVLAN returns the link of the machine's unet_note_vlan, and the map that it writes. If there is
// none it attaches one.
func noteVLAN(types *btf.Cache) (note link.Link, notes *ebpf.Map, err error) {
	if note, notes, err = sharedNote(); note != nil || err != nil {
		return note, notes, err
	}
	spec, err := bpf.LoadMux()
	if err != nil {
		return nil, nil, err
	}
	var own struct {
		Program *ebpf.Program `ebpf:"unet_note_vlan"`
		Notes   *ebpf.Map     `ebpf:"vlan_note"`
	}
	if err := spec.LoadAndAssign(&own, &ebpf.CollectionOptions{Cache: types}); err != nil {
		return nil, nil, err
	}
	defer own.Program.Close()
	attached, err := link.AttachTracing(link.TracingOptions{Program: own.Program})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("attach %s: %w", bpf.MuxProgUnetNoteVlan, err), own.Notes.Close())
	}
	// Another mux may have attached one meanwhile. Both use the one with the lower ID.
	if note, notes, err = sharedNote(); note == nil && err == nil {
		return attached, own.Notes, nil // the program of another user than root is not shared
	}
	return note, notes, errors.Join(err, attached.Close(), own.Notes.Close())
}

// sharedNote returns the link of the attached unet_note_vlan with the lowest ID, and the map that it
// writes; nil: there is none.
func sharedNote() (link.Link, *ebpf.Map, error) {
	it := new(link.Iterator)
	defer func() { it.Close() }()
	for {
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
		switch err := it.Err(); {
		case err == nil:
			return nil, nil, nil
		case !errors.Is(err, unix.EAGAIN):
			return nil, nil, fmt.Errorf("list links: %w", err)
		}
		time.Sleep(time.Millisecond) // the next link is being attached at this moment
		it = &link.Iterator{ID: it.ID}
	}
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

// The cutter of an uplink in tcx mode is a device by which the kernel segments super-frames
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
	a.MTU = nic.PortMTU
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
	if err := errors.Join(nic.DisableIPv6(a.Name), nic.Distrust(a.Name)); err != nil {
		return 0, err
	}
	// Without a queueing discipline packets are segmented at once. cut.h limits their number.
	none := &netlink.GenericQdisc{QdiscType: "noqueue", QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT}}
	if err := h.QdiscReplace(none); err != nil {
		return 0, fmt.Errorf("noqueue: %w", err)
	}
	return l.Attrs().Index, h.LinkSetUp(l)
}

// attachCutter attaches to the cutter unet_uplink and unet_cut, for the super-frames that unet_uplink_tcx
// and unet_lo put there. There are no links: the programs are removed with the device. The calling thread
// is in the uplink's namespace.
func (p *Programs) attachCutter(ifindex int) error {
	cutter := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	err := netlink.LinkSetXdpFdWithFlags(cutter, p.Loaded[bpf.MuxProgUnetUplink].FD(), unix.XDP_FLAGS_SKB_MODE)
	if err == nil {
		err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: ifindex, Program: p.Loaded[bpf.MuxProgUnetCut], Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		return fmt.Errorf("attach to %s: %w", cutterName(p.ifindex), err)
	}
	return nil
}

// A mux has a veth pair by which what endpoints send to their own host reaches its kernel
// (bpf/src/host.h). It is found by the name of the end to which ports send.

// LoIndex is the ifindex of lo, in every namespace.
const LoIndex = 1

// UpName is the name of the end of the pair to which ports send, by the ifindex of the uplink.
func UpName(uplink int) string { return fmt.Sprintf("unetup%d", uplink) }

// makeUp makes the pair of an uplink. Its ends are up. The calling thread is in the uplink's
// namespace, which is h's.
func makeUp(h *netlink.Handle, uplink int) (up, top netlink.Link, err error) {
	if err := deleteUp(h, uplink); err != nil { // a process that died may have left one
		return nil, nil, err
	}
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU, a.HardwareAddr = UpName(uplink), nic.PortMTU, bpf.KernelLink[:]
	a.NumTxQueues, a.NumRxQueues = 1, 1
	pair := netlink.NewVeth(a)
	pair.PeerName, pair.PeerMTU, pair.PeerHardwareAddr, pair.PeerNumTxQueues, pair.PeerNumRxQueues = fmt.Sprintf("unettop%d", uplink), nic.PortMTU, bpf.KernelLink[:], 1, 1
	err = h.LinkAdd(pair)
	ends := make([]netlink.Link, 2)
	for i, name := range []string{pair.Name, pair.PeerName} {
		if err == nil {
			err = errors.Join(nic.DisableIPv6(name), nic.Distrust(name))
		}
		if err == nil {
			ends[i], err = h.LinkByName(name)
		}
		if err == nil {
			err = errors.Join(h.LinkSetARPOff(ends[i]), h.LinkSetUp(ends[i]))
		}
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("devices %s and %s, by which endpoints reach the host: %w", pair.Name, pair.PeerName, err), deleteUp(h, uplink))
	}
	return ends[0], ends[1], nil
}

// attachUp attaches unet_up to the end of the pair where frames come out, and unet_group to the other. There are no links: the
// programs are removed with the device. In native mode a veth accepts redirected frames only if its
// other end has generic receive offload.
func (p *Programs) attachUp(up, top netlink.Link) error {
	if p.Mode == nic.ModeNative {
		err := nic.WithEthtool(func(e *ethtool.Socket) error { return e.SetFeatures(top.Attrs().Name, map[string]bool{"rx-gro": true}) })
		if err != nil {
			return fmt.Errorf("generic receive offload of %s: %w", top.Attrs().Name, err)
		}
	}
	err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: top.Attrs().Index, Program: p.Loaded[bpf.MuxProgUnetUp], Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return fmt.Errorf("attach to %s: %w", top.Attrs().Name, err)
	}
	if err := netlink.LinkSetXdpFdWithFlags(up, p.Loaded[bpf.MuxProgUnetGroup].FD(), unix.XDP_FLAGS_SKB_MODE); err != nil {
		return fmt.Errorf("attach to %s: %w", up.Attrs().Name, err)
	}
	index := uint32(up.Attrs().Index)
	if err := p.Maps.Devices.Put(index, index); err != nil {
		return fmt.Errorf("%s into the device map: %w", up.Attrs().Name, err)
	}
	return p.acceptLocal()
}

// deleteUp deletes the pair of an uplink, if there is one.
func deleteUp(h *netlink.Handle, uplink int) error {
	return nic.DeleteDevice(h, UpName(uplink), "veth")
}

const acceptLocal = "/proc/sys/net/ipv4/conf/lo/accept_local"

// acceptLocal makes the kernel accept on lo what unet_up puts there: packets from an address of the
// host. What local programs send there is accepted in any case. The last mux of a namespace
// restores the setting.
func (p *Programs) acceptLocal() error {
	was, err := os.ReadFile(acceptLocal)
	if err != nil {
		return err
	}
	n, err := onLo()
	if err != nil {
		return err
	}
	if n > 1 || was[0] == '0' {
		if err := p.ChangeState(func(s *bpf.State) { s.AcceptLocal = 1 }); err != nil {
			return err
		}
	}
	return os.WriteFile(acceptLocal, []byte("1"), 0)
}

// refuseLocal undoes acceptLocal, before unet_lo is detached. The calling thread is in the uplink's namespace.
func refuseLocal(state bpf.State) error {
	n, err := onLo()
	if state.AcceptLocal == 0 || n > 1 || err != nil {
		return err
	}
	return os.WriteFile(acceptLocal, []byte("0"), 0)
}

// onLo counts the muxes of the calling thread's namespace: each has a unet_lo.
func onLo() (n int, err error) {
	chain, err := link.QueryPrograms(link.QueryOptions{Target: LoIndex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return 0, fmt.Errorf("traffic control of lo: %w", err)
	}
	for _, p := range chain.Programs {
		if ProgramName(p.ID) == bpf.MuxProgUnetLo {
			n++
		}
	}
	return n, nil
}

// CutterLost is the number of super-frames that the cutter of an uplink has dropped: the kernel
// could not segment them, or the device was down.
func CutterLost(h *netlink.Handle, uplink int) (uint64, error) {
	l, err := h.LinkByName(cutterName(uplink))
	if nic.IsAbsent(err) {
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
	return nic.DeleteDevice(h, cutterName(uplink), cutterKind)
}

// XDP does not see a VLAN tag (802.1Q) that is in the skb and not in the frame, so an endpoint
// would receive a frame of a VLAN as an untagged one. With receive VLAN offload a driver moves
// the VLAN tag to the skb, so in native mode the mux turns that offload off, and again when another
// program has turned it on.

// ShowVLANTags turns receive VLAN offloads off, if they are on, and first records that they were
// on. shown: it has turned some off. Errors: ErrVLANOffload. The calling thread is in the
// uplink's namespace.
func (p *Programs) ShowVLANTags(name string) (shown bool, err error) {
	if p.Mode == nic.ModeTCX {
		return false, nil // its program sees the tag in the skb
	}
	on, err := p.noteOffloads(name, nic.HidesVLAN)
	if on == 0 || err != nil {
		return false, err
	}
	setErr := nic.SetOffloads(name, on, false)
	left, err := nic.OffloadsOn(name, nic.HidesVLAN)
	if err != nil {
		return false, err
	}
	if left != 0 {
		return false, errors.Join(fmt.Errorf("%w on %s (%v): frames of a VLAN would look untagged", ErrVLANOffload, name, left), setErr)
	}
	return true, nil
}

// stopMerging turns off the offloads that must be off for XDP. left: the driver does not turn these off.
func (p *Programs) stopMerging(name string) (left nic.Offloads, err error) {
	on, err := p.noteOffloads(name, nic.MergesFrames)
	if on == 0 || err != nil {
		return 0, err
	}
	setErr := nic.SetOffloads(name, on, false)
	left, err = nic.OffloadsOn(name, nic.MergesFrames)
	return left, errors.Join(err, setErr)
}

// noteOffloads returns which of the offloads are on, and records them, to be restored.
func (p *Programs) noteOffloads(name string, of nic.Offloads) (on nic.Offloads, err error) {
	if on, err = nic.OffloadsOn(name, of); on == 0 || err != nil {
		return 0, err
	}
	return on, p.ChangeState(func(s *bpf.State) { s.RestoreOffloads |= uint32(on) })
}

// restoreOffloads turns on again which of the offloads were on. The calling thread is in the
// uplink's namespace.
func (p *Programs) restoreOffloads(of nic.Offloads) error {
	p.stateMu.Lock()
	was := nic.Offloads(p.state.RestoreOffloads) & of
	p.stateMu.Unlock()
	if was == 0 {
		return nil
	}
	if err := nic.RestoreOffloads(p.ifindex, was); err != nil {
		return err
	}
	return p.ChangeState(func(s *bpf.State) { s.RestoreOffloads &^= uint32(was) })
}
