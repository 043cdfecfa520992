package mux

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
)

// unet_note_vlan meets every frame of the machine, whichever mux it is for, and each
// such program costs each of them some 60 ns (ADR 7). So the muxes of a machine share
// one: the first attaches it, the others hold its link and read its map.

// sharedNote is the link of a unet_note_vlan that is attached, and the map that it
// writes; nil if there is none.
func sharedNote() (link.Link, *ebpf.Map, error) {
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.Type != link.RawTracepointType { // of a kind that the library does not know: not ours
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
	// EAGAIN: somebody is attaching something at this moment. That is not worth a wait:
	// two notes do no harm.
	if err := it.Err(); err != nil && !errors.Is(err, unix.EAGAIN) {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	return nil, nil, nil
}

// notesOf is the map of a program, if that is unet_note_vlan of this layout; else nil.
func notesOf(id ebpf.ProgramID) (*ebpf.Map, error) {
	prog, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // it has gone
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
