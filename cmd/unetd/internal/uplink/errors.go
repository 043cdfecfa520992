package uplink

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// forApplications gives errors of the mux the sentinels that package control
// has codes for. nil stays nil.
func forApplications(err error) error {
	if errors.Is(err, mux.ErrFillRings) {
		return fmt.Errorf("%w: %w: ask an operator for trusted: true, or to start unetd with --unchecked-fill-rings", errors.ErrUnsupported, err)
	}
	for _, e := range []struct{ is, as error }{
		{mux.ErrNotPresentable, control.ErrNotPresentable},
		{mux.ErrLeased, control.ErrLeased},
		{mux.ErrClosed, control.ErrBusy}, // another unetd may follow
		{mux.ErrQueueBusy, control.ErrBusy},
		{xsk.ErrQueueBusy, control.ErrBusy},
		{mux.ErrTooManyPorts, control.ErrBusy},
		{xsk.ErrMemoryLimit, control.ErrBusy},
		{mux.ErrTableFull, control.ErrBusy},
		{unix.EMFILE, control.ErrBusy}, // unetd's descriptors, or those of
		{unix.ENFILE, control.ErrBusy}, // the whole system, are used up
		{xsk.ErrHugePages, control.ErrHugePages},
		{xsk.ErrTable, control.ErrProtocol},
		{mux.ErrNoQueue, errors.ErrUnsupported},
		{xsk.ErrNotSupported, errors.ErrUnsupported},
	} {
		if errors.Is(err, e.is) && !errors.Is(err, e.as) {
			return fmt.Errorf("%w: %w", e.as, err)
		}
	}
	var call *os.SyscallError
	if errors.As(err, &call) && call.Syscall == "bind" && errors.Is(call, unix.EACCES) {
		return fmt.Errorf("%w: unetd itself lacks CAP_NET_BIND_SERVICE for this port: ask an operator", err)
	}
	return err
}

// explainOpen says what an operator can do about an error of mux.Open.
func explainOpen(interfaceName string, err error) error {
	for _, e := range []struct {
		is error
		do string
	}{
		{mux.ErrInUse, "stop the other unetd, or use another --interface"},
		{os.ErrPermission, "run unetd as root of the initial user namespace"}, // Check found the capabilities
		{mux.ErrForeignProgram, detachAdvice(interfaceName) + ", or use another --interface"},
		{mux.ErrNotEthernet, "use another --interface"},
		{mux.ErrVLANOffload, "turn it off (ethtool -K " + interfaceName + " rxvlan off), or use another --interface"},
	} {
		if errors.Is(err, e.is) {
			return fmt.Errorf("%w: %s", err, e.do)
		}
	}
	return err
}
