//go:build linux

package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// leaveDescriptors lets this process open n more descriptors, until the test ends.
func leaveDescriptors(t *testing.T, n int) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	var free []int
	for range n + 1 {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		free = append(free, fd)
	}
	protocol.CloseAll(free)
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free[n]), Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
}

// A process that has as many descriptors as it may have cannot receive those of a grant. It is told so, and
// not that unetd has broken the protocol. More descriptors than a record has are still a violation.
func TestNoDescriptorIsFree(t *testing.T) {
	for free := range 2 {
		t.Run(fmt.Sprint(free), func(t *testing.T) { noDescriptor(t, free) })
	}
	for room := range 3 {
		app, unetd := SocketPair(t)
		_, w := Pipe(t)
		SendAll(t, unetd, grantRecord, w, room+1)
		_, fds, err := protocol.ReadRecord(app, room)
		protocol.CloseAll(fds)
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%d descriptors, and room for %d: %v", room+1, room, err)
		}
	}
}

func noDescriptor(t *testing.T, free int) {
	DescriptorLeaks(t)
	app, unetd := SocketPair(t)
	_, w := Pipe(t)
	scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, 2) })
	leaveDescriptors(t, free)
	_, _, err := open(t.Context(), app, noSocket, endpoint.Request{})
	if !errors.Is(err, endpoint.ErrBusy) || !errors.Is(err, unix.EMFILE) || errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "RLIMIT_NOFILE") {
		t.Errorf("%d descriptors are free: %v", free, err)
	}
	Await(t, "script", scriptDone)
}
