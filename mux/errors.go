//go:build linux

package mux

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux/internal/attach"
	"github.com/unet-go/unet/mux/internal/nic"
	"github.com/unet-go/unet/mux/internal/tables"
)

// Errors of [Open] and [Mux.OpenEndpoint], wrapped. Missing privileges are
// os.ErrPermission, missing kernel features errors.ErrUnsupported, and claims
// fail with endpoint.ErrTagHeld or endpoint.ErrTagDenied. Requests that may succeed later
// fail with endpoint.ErrBusy.
var (
	// ErrNoInterface: there is no interface of that name in the namespace.
	ErrNoInterface = nic.ErrNoInterface
	// ErrNotEthernet: the interface is of another type, such as lo or a tunnel.
	ErrNotEthernet = nic.ErrNotEthernet
	// ErrForeignProgram: an XDP program of somebody else is attached.
	ErrForeignProgram = attach.ErrForeignProgram
	// ErrVLANOffload: the driver removes VLAN tags from frames, and this cannot be turned off.
	ErrVLANOffload = attach.ErrVLANOffload
	// ErrInUse: another process serves the interface.
	ErrInUse = attach.ErrInUse
	// ErrQueueBusy: the queue of the uplink has another endpoint.
	ErrQueueBusy = busy("queue already has an endpoint")
	// ErrNoQueue: the uplink has no queue of that number, or does not receive and send by it now.
	ErrNoQueue = fmt.Errorf("%w: no such queue", errors.ErrUnsupported)
	// ErrTooManyPorts: the mux has the largest number of ports (bpf.MaxPorts).
	ErrTooManyPorts = busy("the mux has all the ports it can have")
	// ErrTableFull: the tag table or the table of addresses is full, or all descriptors for reserved ports are in use.
	ErrTableFull = tables.ErrFull
	// ErrRevoked: the mux has ended the lease because its owner harms others.
	ErrRevoked = errors.New("endpoint revoked")
	// ErrRevokedByOperator: the lease has ended by [Mux.Revoke].
	ErrRevokedByOperator = errors.New("an operator has revoked the endpoint")
	// ErrAddrTaken: the lease has ended because the host now has an address that the lease
	// owned.
	ErrAddrTaken = errors.New("address taken by the host")
	// ErrPortDeleted: the lease has ended because another program than the mux has deleted
	// its port.
	ErrPortDeleted = errors.New("the port of the endpoint was deleted by an operator")
	// ErrFillRings: an untrusted owner gets no endpoint, because the programs cannot check
	// fill rings on this kernel (Config.UncheckedFillRings).
	ErrFillRings = fmt.Errorf("%w: fill rings cannot be checked, and only trusted users get endpoints", xsk.ErrNotSupported)
	// ErrUplinkChanged: the uplink was deleted or has another MAC address; see [Mux.Failed].
	ErrUplinkChanged = errors.New("the uplink has changed")
	// ErrClosed: the mux was closed.
	ErrClosed = errors.New("mux is closed")
)

func busy(why string) error { return fmt.Errorf("%w: %s", endpoint.ErrBusy, why) }

// known adds to an error the general error of package endpoint or errors, with which callers
// compare it.
func known(err error) error {
	for _, e := range []struct{ is, as error }{
		{ErrClosed, endpoint.ErrBusy}, // another mux may follow
		{xsk.ErrMemoryLimit, endpoint.ErrBusy},
		{unix.EMFILE, endpoint.ErrBusy}, // this process has no descriptor left
		{unix.ENFILE, endpoint.ErrBusy}, // the system has no descriptor left
		{xsk.ErrHugePages, endpoint.ErrHugePages},
		{xsk.ErrNotSupported, errors.ErrUnsupported},
	} {
		if errors.Is(err, e.is) && !errors.Is(err, e.as) {
			return fmt.Errorf("%w: %w", e.as, err)
		}
	}
	return err
}
