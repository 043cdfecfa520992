//go:build linux

package tables

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// Tables are the maps of a mux. Their zero value is filled by the loader of package bpf.
type Tables struct{ bpf.MuxMaps }

// ErrFull: the tag table or the table of addresses is full.
var ErrFull = fmt.Errorf("%w: the tag table is full", endpoint.ErrBusy)

// AbsentIsFine ignores that a map has no such entry: the kernel deletes the entries of sockets
// and devices when these are closed or deleted.
func AbsentIsFine(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// PutEndpoint puts an endpoint into the table, for the next process.
func (b *Tables) PutEndpoint(owner bpf.Owner, e bpf.Endpoint) error {
	if err := b.Endpoints.Put(owner, e); err != nil {
		return fmt.Errorf("endpoint into the table: %w", err)
	}
	return nil
}

// DeleteEndpoint deletes an endpoint, if it is there.
func (b *Tables) DeleteEndpoint(owner bpf.Owner) error {
	if err := AbsentIsFine(b.Endpoints.Delete(owner)); err != nil {
		return fmt.Errorf("endpoint out of the table: %w", err)
	}
	return nil
}

// AllEndpoints reads the whole table of endpoints, which must not change during the call.
func (b *Tables) AllEndpoints() (map[bpf.Owner]bpf.Endpoint, error) {
	list := map[bpf.Owner]bpf.Endpoint{}
	var owner bpf.Owner
	var e bpf.Endpoint
	entries := b.Endpoints.Iterate()
	for entries.Next(&owner, &e) {
		list[owner] = e
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("read the table of endpoints: %w", err)
	}
	return list, nil
}

// SocketThere reports whether a map of sockets has one at key. An XSKMAP cannot be read, but an
// update with BPF_NOEXIST fails if the key is in use. The kernel deletes an entry when the
// last descriptor and mapping of its socket are closed. other is any AF_XDP socket; it is in the
// map for a moment. No other code may use the key during the call.
func SocketThere(sockets *ebpf.Map, key uint32, other *os.File) (bool, error) {
	err := sockets.Update(key, uint32(other.Fd()), ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return true, nil
	}
	if err == nil {
		err = AbsentIsFine(sockets.Delete(key))
	}
	if err != nil {
		return false, fmt.Errorf("find out whether a socket exists: %w", err)
	}
	return false, nil
}

// Counter is the value of a counter, summed over processors.
func (b *Tables) Counter(c bpf.Counter) (sum uint64, err error) {
	var perCPU []uint64
	if err := b.Counters.Lookup(uint32(c), &perCPU); err != nil {
		return 0, fmt.Errorf("counters: %w", err)
	}
	for _, v := range perCPU {
		sum += v
	}
	return sum, nil
}

// AddToCounter adds n to a counter that only user space writes. Calls may not be at the same time.
func (b *Tables) AddToCounter(c bpf.Counter, n int) error {
	var perCPU []uint64
	err := b.Counters.Lookup(uint32(c), &perCPU)
	if err == nil {
		perCPU[0] += uint64(n)
		err = b.Counters.Put(uint32(c), perCPU)
	}
	return err
}
