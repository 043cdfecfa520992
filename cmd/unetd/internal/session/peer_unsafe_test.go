//go:build linux

package session

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/mux"
)

// The owner of an endpoint has all groups of the process that connected, sorted, however many they are.
func TestPeerGroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to be of other groups")
	}
	p := newFakeProvider(t)
	peers := make(chan mux.Owner, 1)
	p.hook(hooks{open: func(_ context.Context, peer mux.Owner, _ endpoint.Request) error {
		peers <- peer
		return nil
	}})
	socket, _ := start(t, &Server{Provider: p})
	many := make([]uint32, 5000)
	for i := range many {
		many[i] = uint32(100000 + i)
	}
	gid := uint32(os.Getgid())
	for _, groups := range [][]uint32{nil, {7}, {9, 7, 7, 4_000_000_000}, {gid, 5}, many} {
		want := []uint32{gid}
		for _, g := range slices.Compact(slices.Sorted(slices.Values(groups))) {
			if g != gid {
				want = append(want, g)
			}
		}
		connected := make(chan error, 1)
		go func() {
			// Only this thread's groups change, and it ends with the goroutine.
			runtime.LockOSThread()
			connected <- func() error {
				if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
					return errno
				}
				g, l, err := control.Open(context.Background(), socket, endpoint.Request{})
				if err != nil {
					return err
				}
				g.Close()
				return l.Close()
			}()
		}()
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
		if peer := <-peers; !slices.Equal(peer.Groups, want) || peer.GID != gid {
			t.Errorf("%d groups: got %d, %v", len(groups), len(peer.Groups), peer.Groups[:min(10, len(peer.Groups))])
		}
	}
}
