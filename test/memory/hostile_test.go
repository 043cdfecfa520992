//go:build linux

package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/wire"
)

const hostileArg = "be-hostile"

// attack opens paths to the endpoint that holds a TCP port, and writes random words all over its memory of each, rings
// the bells, and begins again when the other end has given up.
func attack(socket, victim string) error {
	ctx := context.Background()
	at, err := netip.ParseAddrPort(victim)
	if err != nil {
		return err
	}
	grant, lease, err := control.Open(ctx, socket, endpoint.Request{})
	if err != nil {
		return err
	}
	defer lease.Close()
	table, err := tagtable.Open(grant.Table)
	if err != nil {
		return err
	}
	id := table.Holder(wire.AddrFrom(at.Addr()), wire.ProtocolTCP, at.Port())
	paths := make(chan *endpoint.Path, 16)
	granted := lease.Paths(ctx)
	go func() {
		for p := range granted {
			paths <- p
		}
	}()
	for n := 0; ; {
		if err := lease.OpenPath(ctx, id); errors.Is(err, endpoint.ErrNoPath) { // the client has just ended one, or it was too often
			time.Sleep(10 * time.Millisecond)
			continue
		} else if err != nil {
			return err
		}
		p := <-paths
		mem, err := unix.Mmap(int(p.Own.Fd()), 0, 128<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		const word = uint64('U')<<56 | uint64('N')<<48 | uint64('E')<<40 | uint64('T')<<32 // of a frame, without its length
		for range 20_000 {
			at, value := rand.IntN(len(mem)/8)*8, rand.Uint64()
			switch rand.IntN(4) {
			case 0: // a control word
				at = rand.IntN(8) * 64
			case 1: // a frame of any length
				at, value = 4096+rand.IntN((len(mem)-4096)/64)*64, word|rand.Uint64N(1<<18)
			case 2:
				value = rand.Uint64N(4)
			}
			binary.NativeEndian.PutUint64(mem[at:], value)
			if rand.IntN(100) == 0 {
				p.Ring.Write([]byte{1})
			}
		}
		unix.Munmap(mem)
		p.Close()
		if err := lease.ClosePath(ctx, p.ID); err != nil {
			return err
		}
		if n++; n == 4 {
			fmt.Println("attacked")
		}
	}
}

// A hostile process writes what it likes into its paths to the client. The client's connection to another endpoint loses
// nothing meanwhile, and goes on by memory.
func TestHostileProcess(t *testing.T) {
	w := openWorld(t)
	c := w.dial(t)
	w.byMemory(t, c)
	p := unetd.Start(t, w.A, netlab.Nobody(), "/proc/self/exe", hostileArg, w.daemon.Socket, c.LocalAddr().(*net.TCPAddr).AddrPort().String())
	p.Await(t, "attacked")
	stream(t, c, 32<<20, 0, nil)
	w.byMemory(t, c)
	testutil.Eventually(t, "the client has ended a path for a lie", func() bool { return w.counted("path_lies") > 0 })
	select {
	case <-p.Done:
		t.Errorf("the hostile process has ended: %v", p.Err)
	default:
	}
}
