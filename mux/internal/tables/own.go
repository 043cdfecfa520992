//go:build linux

package tables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/bpf"
)

// PutOwn makes the map own equal to want, which it changes. others is how many addresses found no room: if they
// are too many, those of other interfaces are left out.
func (b *Tables) PutOwn(want map[[16]byte]uint8) (others int, err error) {
	var gone [][16]byte
	var both, filter bpf.OwnFilter // of the former and the new addresses, and of the new ones
	for a, kind := range want {
		both.Add(a, kind)
		filter.Add(a, kind)
	}
	var key [16]byte
	var kind uint8
	entries := b.Own.Iterate()
	for entries.Next(&key, &kind) {
		both.Add(key, kind)
		if want[key] == 0 {
			gone = append(gone, key)
		}
		if want[key] == kind {
			delete(want, key)
		}
	}
	err = errors.Join(entries.Err(), b.OwnFilters.Put(uint32(0), both))
	for _, a := range gone {
		err = errors.Join(err, b.Own.Delete(a))
	}
	for _, last := range []bool{false, true} { // those of other interfaces last
		for a, kind := range want {
			if last != (kind == bpf.OwnHost) {
				continue
			}
			if perr := b.Own.Put(a, kind); errors.Is(perr, unix.E2BIG) {
				others++
			} else {
				err = errors.Join(err, perr)
			}
		}
	}
	if err = errors.Join(err, b.OwnFilters.Put(uint32(0), filter)); err != nil {
		return others, fmt.Errorf("addresses of the host: %w", err)
	}
	return others, nil
}

// putOwned puts an owned address into the map own, before its tag is in effect. The filter permits look-ups of a
// deleted address until the next PutOwn.
func (b *Tables) putOwned(a netip.Addr) error {
	var filter bpf.OwnFilter
	if err := b.OwnFilters.Lookup(uint32(0), &filter); err != nil {
		return fmt.Errorf("addresses of the host: %w", err)
	}
	filter.Add(a.As16(), bpf.OwnEndpoint)
	err := b.OwnFilters.Put(uint32(0), filter)
	if err == nil {
		err = b.Own.Update(a.As16(), bpf.OwnEndpoint, ebpf.UpdateNoExist)
	}
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("%w: the addresses of the host leave no room for owned ones, of %d: ask an operator to delete some", ErrFull, b.Own.MaxEntries())
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) { // ErrKeyExist: the host has just taken it
		return fmt.Errorf("addresses of the host: %w", err)
	}
	return nil
}

// deleteOwned deletes an owned address from the map own, unless the host has taken it.
func (b *Tables) deleteOwned(a netip.Addr) error {
	var kind uint8
	if err := b.Own.Lookup(a.As16(), &kind); err != nil || kind != bpf.OwnEndpoint {
		return AbsentIsFine(err)
	}
	return b.Own.Delete(a.As16())
}
