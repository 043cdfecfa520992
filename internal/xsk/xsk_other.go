//go:build !linux

// Package xsk needs Linux. On other systems every function returns an error that wraps
// [errors.ErrUnsupported], so that the packages above compile.
package xsk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/unet-go/unet/queues"
)

var errSystem = fmt.Errorf("AF_XDP needs Linux, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

type Params struct {
	FrameSize, FrameCount, FillSize, CompletionSize, RxSize, TxSize uint32

	NeedWakeup bool
}

type Socket struct {
	Fill       *queues.Producer[uint64]
	Completion *queues.Consumer[uint64]
	RX         *queues.Consumer[queues.Desc]
	TX         *queues.Producer[queues.Desc]
}

type Statistics struct {
	RxDropped, RxInvalidDescs, TxInvalidDescs, RxRingFull, FillRingEmpty, TxRingEmpty uint64
}

type Poller struct{}

func Attach(*os.File, Params) (*Socket, error) { return nil, errSystem }
func NewPoller(*Socket) (*Poller, error)       { return nil, errSystem }
func MapSegment(*os.File, int) ([]byte, error) { return nil, errSystem }
func UnmapSegment([]byte) error                { return errSystem }
func NewTable() (*os.File, []byte, error)      { return nil, nil, errSystem }
func CloseTable(*os.File, []byte) error        { return errSystem }

func (*Socket) Detach() error                   { return errSystem }
func (*Socket) Close() error                    { return errSystem }
func (*Socket) Kicks() uint64                   { return 0 }
func (*Socket) IdleKicks() uint64               { return 0 }
func (*Socket) Kick() error                     { return errSystem }
func (*Socket) KickReceive() error              { return errSystem }
func (*Socket) Statistics() (Statistics, error) { return Statistics{}, errSystem }

func (*Poller) Sleep(time.Time, bool) error  { return errSystem }
func (*Poller) Watch(int, func() bool) error { return errSystem }
func (*Poller) Unwatch(int) error            { return errSystem }
func (*Poller) With(*Socket) *Poller         { return nil }
func (*Poller) Leave()                       {}
func (*Poller) Wake()                        {}
func (*Poller) Close() error                 { return errSystem }
