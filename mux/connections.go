//go:build linux

package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// published is the table in which the owner of an endpoint publishes its sockets (ADR 26). Its
// content may be anything.
type published struct {
	file    *os.File
	version uint32
}

// acceptPublished returns a table that a process has sent. f may be any file, and stays open.
// The error is an xsk.ErrTable, also that of another version.
func acceptPublished(f *os.File) (*published, error) {
	own, err := xsk.AcceptTable(f)
	if err != nil {
		return nil, err
	}
	var head [wire.ConnectionLen]byte
	n, err := own.ReadAt(head[:], 0)
	if err == nil || err == io.EOF {
		var version uint32
		if version, err = wire.ParseConnectionsVersion(head[:n]); err == nil {
			return &published{own, version}, nil
		}
		err = fmt.Errorf("%w: %w", xsk.ErrTable, err)
	}
	return nil, errors.Join(err, own.Close())
}

// share returns the table with a descriptor of its own.
func (p *published) share() (*published, error) {
	fd, err := unix.FcntlInt(p.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	return &published{os.NewFile(uintptr(fd), p.file.Name()), p.version}, nil
}

// Close closes the descriptor. p may be nil.
func (p *published) Close() error {
	if p == nil {
		return nil
	}
	return p.file.Close()
}

// endpoint is what the process publishes about the endpoint; nil: nothing.
func (p *published) endpoint() *wire.EndpointRecord {
	var head [wire.ConnectionLen]byte
	if p == nil || p.version == 1 {
		return nil
	}
	if n, _ := p.file.ReadAt(head[:], 0); n < len(head) {
		return nil
	}
	e := wire.ParseEndpointRecord(head[:])
	return &e
}

// each calls f with the records from the one numbered from on that are not empty, until f
// returns an error.
func (p *published) each(from uint32, f func(n uint32, c wire.Connection) error) error {
	parse, size, first := wire.ParseConnection, int64(wire.ConnectionLen), uint32(1)
	if p.version == 1 {
		parse, size, first = parseConnection1, connectionLen1, 0
	}
	part := make([]byte, 1<<16)
	for at := int64(max(from, first)) * size; at < xsk.MaxTable; {
		// Most of a table is a hole. ReadAt, since a process that shares the file can move its offset.
		data, err := p.file.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		at = max(at, data-data%size)
		n, err := p.file.ReadAt(part, at)
		for b := part[:n]; int64(len(b)) >= size; b = b[size:] {
			if c := parse(b); c.Protocol != 0 {
				if err := f(uint32(at/size), c); err != nil {
					return err
				}
			}
			at += size
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// connectionLen1 is the length of a record of version 1, in bytes.
const connectionLen1 = 16

// parseConnection1 reads a record of version 1.
func parseConnection1(b []byte) (c wire.Connection) {
	order := binary.NativeEndian
	c.Local, c.Remote = wire.AddrFrom4([4]byte(b)), wire.AddrFrom4([4]byte(b[4:]))
	c.LocalPort, c.RemotePort, c.Next = order.Uint16(b[8:]), order.Uint16(b[10:]), order.Uint32(b[12:])
	if c.LocalPort != 0 && c.RemotePort != 0 {
		c.Protocol = wire.ProtocolTCP
	}
	return c
}
