//go:build linux

package tables

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
)

// PutLimit makes or changes an entry of a table of limits. Buckets keep what they have, up to the new
// size; what the programs do to a changed entry during the call is lost.
func PutLimit(table *ebpf.Map, key uint32, r endpoint.Rate, uid uint32) error {
	l, there, err := ReadLimit(table, key)
	if err != nil || there && l.Uid == uid && RateOf(&l) == r {
		return err
	}
	l.Uid = uid
	l.Packets = l.Packets.Change(bpf.NewBucket(r.Packets, r.PacketBurst))
	l.Bytes = l.Bytes.Change(bpf.NewBucket(r.Bytes, r.ByteBurst))
	if err := WriteLimit(table, key, &l); err != nil {
		return fmt.Errorf("limit into the table: %w", err)
	}
	return nil
}

// ReadLimit reads an entry of a table of limits.
func ReadLimit(table *ebpf.Map, key uint32) (l bpf.Limit, there bool, err error) {
	err = table.LookupWithFlags(key, &l, ebpf.LookupLock)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return l, false, nil
	}
	if err != nil {
		return l, false, fmt.Errorf("read the table of limits: %w", err)
	}
	return l, true, nil
}

// RateOf is the rate of an entry.
func RateOf(l *bpf.Limit) endpoint.Rate {
	return endpoint.Rate{
		Packets: int64(l.Packets.Rate), PacketBurst: int64(l.Packets.Full / bpf.BucketUnit),
		Bytes: int64(l.Bytes.Rate), ByteBurst: int64(l.Bytes.Full / bpf.BucketUnit),
	}
}

// WriteLimit writes an entry of a table of limits. What the programs have done to it since it was read is lost.
func WriteLimit(table *ebpf.Map, key uint32, l *bpf.Limit) error {
	return table.Update(key, l, ebpf.UpdateLock)
}

// DeleteLimit deletes an entry of a table of limits, if it is there.
func DeleteLimit(table *ebpf.Map, key uint32) error { return AbsentIsFine(table.Delete(key)) }

// LimitKeys are the keys of a table of limits.
func LimitKeys(table *ebpf.Map) (keys []uint32, err error) {
	var key uint32
	var l bpf.Limit
	entries := table.Iterate()
	for entries.Next(&key, &l) {
		keys = append(keys, key)
	}
	return keys, entries.Err()
}
