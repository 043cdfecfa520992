package mux

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
)

// Errors of [Open] and [Mux.OpenEndpoint], wrapped. Missing privileges are
// os.ErrPermission, missing kernel features errors.ErrUnsupported, and claims
// fail with endpoint.ErrTagHeld or endpoint.ErrTagDenied. What may succeed later is
// endpoint.ErrBusy.
var (
	// ErrNoInterface: there is no interface of that name in the namespace.
	ErrNoInterface = errors.New("no such interface")
	// ErrNotEthernet: the interface carries something else, as lo does.
	ErrNotEthernet = errors.New("not an Ethernet interface")
	// ErrForeignProgram: an XDP program that is not this mux's is attached.
	ErrForeignProgram = errors.New("interface already carries an XDP program")
	// ErrVLANOffload: the driver hides VLAN tags from XDP and cannot be told not to.
	ErrVLANOffload = errors.New("receive VLAN offload cannot be turned off")
	// ErrQueueBusy: the queue of the uplink has another endpoint.
	ErrQueueBusy = busy("queue already has an endpoint")
	// ErrNoQueue: the uplink has no queue of that number.
	ErrNoQueue = fmt.Errorf("%w: no such queue", errors.ErrUnsupported)
	// ErrTooManyPorts: there are as many ports as a mux can have.
	ErrTooManyPorts = busy("the mux has all the ports it can have")
	// ErrTableFull: no more tags can be claimed until some are given back.
	ErrTableFull = busy("the tag table is full")
	// ErrInUse: another process serves the interface.
	ErrInUse = errors.New("another process serves this interface")
	// ErrRevoked is why a lease was taken back from an owner who harms others.
	ErrRevoked = errors.New("endpoint revoked")
	// ErrAddrTaken is why a lease has ended whose whole address the host has taken.
	ErrAddrTaken = errors.New("address taken by the host")
	// ErrPortDeleted is why a lease has ended whose port somebody else has deleted.
	ErrPortDeleted = errors.New("the port of the endpoint was deleted by an operator")
	// ErrFillRings: an owner who is not trusted gets no port, since the programs
	// cannot check fill rings on this kernel (Config.UncheckedFillRings).
	ErrFillRings = fmt.Errorf("%w: fill rings cannot be checked, and only trusted users get endpoints", xsk.ErrNotSupported)
	// ErrUplinkChanged: the uplink is no longer what endpoints were told; see
	// [Mux.Failed].
	ErrUplinkChanged = errors.New("the uplink has changed")
	// ErrClosed: the mux was closed.
	ErrClosed = errors.New("mux is closed")
)

func busy(why string) error { return fmt.Errorf("%w: %s", endpoint.ErrBusy, why) }

// known gives an error the word that package endpoint has for it, or package errors.
func known(err error) error {
	for _, e := range []struct{ is, as error }{
		{ErrClosed, endpoint.ErrBusy}, // another may follow
		{xsk.ErrMemoryLimit, endpoint.ErrBusy},
		{unix.EMFILE, endpoint.ErrBusy}, // descriptors of this process, or those of
		{unix.ENFILE, endpoint.ErrBusy}, // the whole system, are used up
		{xsk.ErrHugePages, endpoint.ErrHugePages},
		{xsk.ErrNotSupported, errors.ErrUnsupported},
	} {
		if errors.Is(err, e.is) && !errors.Is(err, e.as) {
			return fmt.Errorf("%w: %w", e.as, err)
		}
	}
	return err
}

// unsupported turns what the eBPF library says about a missing feature into
// the project's own error. 6.6 is the version that has everything.
func unsupported(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", &xsk.UnsupportedError{Feature: "what the XDP programs of the mux need", MinKernel: "6.6"}, err)
	}
	return err
}

// foreign turns the kernel's refusal to attach beside another program into
// ErrForeignProgram.
func foreign(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", ErrForeignProgram, err)
	}
	return err
}
