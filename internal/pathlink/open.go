//go:build linux

package pathlink

import (
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/tagtable"
)

// Open makes the link of an endpoint over its socket. It returns nil if the grant has no tag table, or one that cannot be used, which it
// logs: then all frames go by the socket. The grant keeps its table.
func Open(grant *endpoint.Grant, socket Socket) *Link {
	if grant.Table == nil {
		return nil
	}
	table, err := openTable(grant.Table)
	if err != nil {
		slog.Warn("unet: no memory paths to endpoints of this host: all frames go by the port", "error", err)
		return nil
	}
	return New(socket, grant.ID, grant.Identity.LinkAddr, table)
}

func openTable(granted *os.File) (*tagtable.View, error) {
	fd, err := unix.FcntlInt(granted.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of the tag table: %w", err)
	}
	f := os.NewFile(uintptr(fd), granted.Name())
	table, err := tagtable.Open(f)
	if err != nil {
		f.Close()
	}
	return table, err
}

// AddrOf returns the ID that the socket has given to a frame, which is less than 1<<63.
func AddrOf(id uint64) uint64 { return id &^ ownFrame }
