package mux

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// XDPLinks are the ids of the BPF links that attach a program to an interface. There is
// none if the program was attached by netlink (ip link), which can then detach it; by
// whatever holds a link, only that can, or BPF_LINK_DETACH.
func XDPLinks(program uint32, ifindex int) (ids []uint32, err error) {
	all := new(link.Iterator)
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil || info.Program != ebpf.ProgramID(program) { // of a kind that the library does not know, or another's
			continue
		}
		if xdp := info.XDP(); xdp != nil && int(xdp.Ifindex) == ifindex {
			ids = append(ids, uint32(all.ID))
		}
	}
	if err := all.Err(); !errors.Is(err, unix.EAGAIN) { // somebody is attaching something
		return ids, err
	}
	return ids, nil
}
