//go:build linux

package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/xsk"
)

// unsupported turns the eBPF library's error for a missing feature into that of package xsk.
// Linux 6.6 has all features.
func unsupported(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", &xsk.UnsupportedError{Feature: "what the XDP programs of the mux need", MinKernel: "6.6"}, err)
	}
	return err
}

// foreign turns the kernel's error for a second XDP program into ErrForeignProgram.
func foreign(err error) error {
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", ErrForeignProgram, err)
	}
	return err
}
