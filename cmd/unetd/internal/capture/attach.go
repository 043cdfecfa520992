//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/perf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/mux"
)

// MaxSnap is the most bytes of a frame that are captured: a record of a perf buffer is shorter than 64 KiB.
const MaxSnap = 65400

// ringBytes is the size of the perf buffer of each processor.
const ringBytes = 4 << 20

// noCounter in a record: the frame was not dropped.
const noCounter = 0xffff

// tracing is the programs of a running capture, and what they write.
type tracing struct {
	reader *perf.Reader
	objs   bpf.CaptureObjects
	links  []link.Link
}

// attach starts a capture. wire: also of all frames that the uplink receives.
func attach(t *target, snaplen int, wire bool) (_ *tracing, err error) {
	if mux.Mode(t.state.Mode) == mux.ModeNative {
		return nil, fmt.Errorf("unetd serves %s in native mode, in which frames cannot be captured: start it with --mode tcx", t.name)
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("memory lock limit: %w", err)
	}
	tr := &tracing{}
	defer func() {
		if err != nil {
			err = errors.Join(explain(err), tr.close())
		}
	}()
	spec, err := bpf.LoadCapture()
	if err != nil {
		return nil, err
	}
	config, err := t.config(snaplen, wire)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables["capture"].Set(config); err != nil {
		return nil, err
	}
	if err := spec.LoadAndAssign(&tr.objs, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{bpf.CaptureMapCounters: t.maps.Counters}}); err != nil {
		return nil, err
	}
	if tr.reader, err = perf.NewReader(tr.objs.Records, ringBytes); err != nil {
		return nil, fmt.Errorf("perf buffer: %w", err)
	}
	for counter := range uint32(bpf.NumCounters) {
		var values []uint64 // of each processor
		if err := t.maps.Counters.Lookup(counter, &values); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
		if err := tr.objs.Seen.Put(counter, values); err != nil {
			return nil, fmt.Errorf("counters: %w", err)
		}
	}
	for _, p := range []*ebpf.Program{tr.objs.UnetCaptureDrop, tr.objs.UnetCaptureDeliver, tr.objs.UnetCaptureReceive} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return nil, fmt.Errorf("attach %v: %w", p, err)
		}
		tr.links = append(tr.links, l)
	}
	return tr, nil
}

// explain adds what to do about an error of the kernel.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, unix.EPERM):
		return fmt.Errorf("capture needs CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_SYS_ADMIN: run it as root: %w", err)
	case errors.Is(err, unix.ENOENT), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel lacks something that a capture needs (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	return err
}

// config are the constants of the programs.
func (t *target) config(snaplen int, wire bool) (bpf.CaptureUnetCapture, error) {
	c := bpf.CaptureUnetCapture{Netns: t.state.Netns, Uplink: t.state.Ifindex, Snaplen: uint32(snaplen), Wire: number(wire)}
	if i, err := net.InterfaceByName(fmt.Sprintf("unetcut%d", t.state.Ifindex)); err == nil {
		c.Cutter = uint32(i.Index)
	}
	for i := range bpf.Counter(bpf.NumCounters) {
		if bpf.Dropped(i) {
			c.Drops[i/64] |= 1 << (i % 64)
		}
	}
	if t.all || t.onQueue() {
		c.Queues, c.OneQueue, c.Queue = 1, number(t.onQueue()), uint32(t.owner.Queue)
	}
	if t.onQueue() { // no port
		c.UnetPort, c.Deliver = [2]uint32{^uint32(0), ^uint32(0)}, [2]uint32{^uint32(0), ^uint32(0)}
		return c, nil
	}
	if !t.all {
		c.Port, c.Inner = t.owner.Port, t.slot+bpf.FirstIfindex
	}
	for name, id := range map[string]*uint32{
		bpf.MuxProgUnetPort: &c.UnetPort[0], bpf.MuxProgUnetPortLimited: &c.UnetPort[1],
		bpf.MuxProgUnetDeliver: &c.Deliver[0], bpf.MuxProgUnetDeliverLinear: &c.Deliver[1],
	} {
		n, err := programID(filepath.Join(t.dir, name))
		if err != nil {
			return c, fmt.Errorf("pins of unetd: %w", err)
		}
		*id = n
	}
	return c, nil
}

// programID is the identifier of a pinned program.
func programID(path string) (uint32, error) {
	p, err := ebpf.LoadPinnedProgram(path, &ebpf.LoadPinOptions{ReadOnly: false})
	if err != nil {
		return 0, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("program id: %w", ebpf.ErrNotSupported)
	}
	return uint32(id), nil
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// detach ends the capture. What was captured can still be read.
func (tr *tracing) detach() error {
	var err error
	for _, l := range tr.links {
		err = errors.Join(err, l.Close())
	}
	tr.links = nil
	return err
}

func (tr *tracing) close() error {
	err := errors.Join(tr.detach(), tr.objs.Close())
	if tr.reader != nil {
		err = errors.Join(err, tr.reader.Close())
	}
	return err
}
