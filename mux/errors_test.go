package mux

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/xsk"
)

// Errors keep what they are, and become what an application can tell apart.
func TestKnownErrors(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{ErrClosed, endpoint.ErrBusy},
		{ErrTooManyPorts, endpoint.ErrBusy},
		{ErrQueueBusy, endpoint.ErrBusy},
		{ErrNoQueue, errors.ErrUnsupported},
		{ErrFillRings, errors.ErrUnsupported},
		{&xsk.UnsupportedError{Feature: "x", MinKernel: "9.9"}, errors.ErrUnsupported},
		{ErrTableFull, endpoint.ErrBusy},
		{xsk.ErrMemoryLimit, endpoint.ErrBusy},
		{unix.EMFILE, endpoint.ErrBusy},
		{unix.ENFILE, endpoint.ErrBusy},
		{xsk.ErrHugePages, endpoint.ErrHugePages},
		{endpoint.ErrTagHeld, endpoint.ErrTagHeld},
		{unix.ENOMEM, unix.ENOMEM},
	} {
		err := known(fmt.Errorf("open: %w", c.err))
		if !errors.Is(err, c.err) || !errors.Is(err, c.want) {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if known(nil) != nil {
		t.Error("an error of nothing")
	}
}
