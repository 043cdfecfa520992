package xsk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNotSupported is what every [UnsupportedError] unwraps to.
var ErrNotSupported = errors.New("not supported by this kernel")

// ErrQueueBusy: another socket is bound to the queue. A UMEM of its own cannot
// share a queue with another, so nothing but closing that socket helps.
var ErrQueueBusy = errors.New("queue is bound to another AF_XDP socket")

// ErrHugePages: the system has too few huge pages set aside.
var ErrHugePages = errors.New("not enough huge pages of 2 MiB: set more aside (sysctl vm.nr_hugepages), or ask for none")

// UnsupportedError names a kernel feature that is missing and the version that
// has it.
type UnsupportedError struct {
	Feature   string
	MinKernel string // major.minor, as in 6.6
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s is not supported by this kernel: Linux %s or newer is needed", e.Feature, e.MinKernel)
}

func (e *UnsupportedError) Unwrap() error { return ErrNotSupported }

// Features that a socket may ask for.
var (
	errNoAFXDP = &UnsupportedError{"AF_XDP (CONFIG_XDP_SOCKETS)", "4.18"}
	errNoSG    = &UnsupportedError{"AF_XDP scatter-gather (XDP_USE_SG)", "6.6"}
	errNoRings = &UnsupportedError{"the AF_XDP need-wakeup flag", "5.4"}
)

// unlessErrno turns one errno into another error, and names the call otherwise.
func unlessErrno(call string, err error, errno unix.Errno, instead error) error {
	if errors.Is(err, errno) {
		return instead
	}
	return fmt.Errorf("%s: %w", call, err)
}
