//go:build linux

package datapath

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/wire"
)

// On a queue by which the device does not send, kicks succeed and move nothing. They are counted,
// and a goroutine that waits repeats them with pauses.
func TestKicksThatMoveNothingAreCountedAndPaused(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{Queues: 2})
	geo := endpoint.Geometry{FrameCount: 64, FillSize: 16, CompletionSize: 16, RxSize: 16, TxSize: 16}.WithDefaults()
	memory, err := xsk.NewSegment(geo.SegmentSize(), false)
	if err != nil {
		t.Fatal(err)
	}
	var sock *os.File
	if err := pair.A.Do(func() error {
		e, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer e.Close()
		if err := e.SetChannels(pair.A.Interface, ethtool.Channels{Rx: 2, Tx: 1}); err != nil {
			return err
		}
		i, err := net.InterfaceByName(pair.A.Interface)
		if err != nil {
			return err
		}
		sock, err = xsk.Create(xsk.Params{Ifindex: i.Index, Queue: 1, FrameSize: geo.FrameSize, FrameCount: geo.FrameCount, FillSize: geo.FillSize,
			CompletionSize: geo.CompletionSize, RxSize: geo.RxSize, TxSize: geo.TxSize, Prefill: geo.Prefilled(), NeedWakeup: true}, memory)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	ep, err := Attach(&endpoint.Grant{XSK: sock, Segment: memory, Geometry: geo}, Config{Wait: endpoint.WaitSpin})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	ch := ep.NewChannel(wire.LinkAddr(pair.B.LinkAddr), 2, 1, 1500)
	if err := errors.Join(ep.Write(&ch, []byte("x")), ep.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := ep.Wait(time.Now().Add(100 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	st, err := ep.Stats()
	if err != nil {
		t.Fatal(err)
	}
	// Two kicks at once, about ten until the pause has grown to a millisecond, then one each millisecond.
	if st.Sent != 1 || st.IdleKicks != st.Kicks || st.Kicks < 3 || st.Kicks > 150 {
		t.Errorf("%d sent, %d of %d kicks moved nothing", st.Sent, st.IdleKicks, st.Kicks)
	}
}
