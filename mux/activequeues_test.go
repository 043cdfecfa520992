//go:build linux

package mux_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// setQueues sets how many queues a veth uses.
func setQueues(h *netlab.Host, receive, send uint32) error {
	return h.Do(func() error {
		e, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.SetChannels(h.Interface, ethtool.Channels{Rx: receive, Tx: send})
	})
}

// A queue that the device does not use now, or does not send by, is refused. A queue with an endpoint cannot be
// turned off.
func TestInactiveQueueIsRefused(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{Queues: 2})}
	l.openMux(mux.ModeTCX)
	for _, c := range []struct {
		receive, send, queue uint32
		want                 string // "": it opens
	}{
		{1, 1, 1, "1 of the 2 queues of "}, {2, 1, 1, "1 of the 2 queues of "}, {2, 2, 1, ""}, {2, 2, 2, "which has 2"},
	} {
		testutil.Must(t, setQueues(l.A, c.receive, c.send))
		req := onQueue
		req.Queue, req.Geometry = c.queue, small
		g, lease, err := l.openAs(mux.Owner{PID: os.Getpid()}, mux.Terms{Trusted: true}, req)
		if c.want == "" {
			testutil.Must(t, err)
			if setQueues(l.A, 1, 1) == nil {
				t.Error("a queue with an endpoint was turned off")
			}
			testutil.Must(t, errors.Join(lease.Close(), g.Close()))
		} else if !errors.Is(err, mux.ErrNoQueue) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A mux logs that the number of active queues has changed.
func TestChangeOfActiveQueuesIsLogged(t *testing.T) {
	t.Parallel()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{Queues: 4})}
	var log logBuffer
	l.openConfig(mux.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	testutil.Must(t, setQueues(l.A, 2, 4))
	testutil.Eventually(t, "a line of the log", func() bool {
		return strings.Contains(log.String(), "interface="+l.A.Interface+" active=2\n")
	})
}

// A driver that refuses native mode: the error has its reason and a remedy. Automatically another
// mode is chosen, and the log says why.
func TestNativeModeRefused(t *testing.T) {
	t.Parallel()
	p := netlab.RequirePair(t, netlab.Config{Queues: 2}) // a veth accepts no XDP program with fewer queues than its peer sends by
	testutil.Must(t, setQueues(p.B, 1, 1))
	open := func(mode mux.Mode, log io.Writer) error {
		m, err := mux.Open(mux.Config{Interface: p.B.Interface, NetNS: p.B.NS, Mode: mode, Log: slog.New(slog.NewTextHandler(log, nil))})
		if err == nil {
			err = m.Close()
		}
		return err
	}
	err := open(mux.ModeNative, io.Discard)
	for _, want := range []string{"driver veth", "XDP expects number of rx queues not less than peer tx queues", "ethtool -L " + p.B.Interface, "tcx mode"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %q", err, want)
		}
	}
	if x := listObjects(t, p.B).programs; len(x) != 0 {
		t.Errorf("left: %v", x)
	}
	var log strings.Builder
	testutil.Must(t, open(mux.ModeAuto, &log))
	if want := `msg="tcx mode chosen" interface=uplink driver=veth because="a virtual link of kind veth: native mode is for hardware"`; !strings.Contains(log.String(), want) {
		t.Errorf("%s: no %s", log.String(), want)
	}
}

// The grant of an endpoint that copies frames has the reason why it has no zero copy.
func TestGrantHasReasonForCopyMode(t *testing.T) {
	t.Parallel()
	for mode, why := range map[mux.Mode]string{mux.ModeTCX: "tcx mode has no zero copy", mux.ModeNative: "driver veth has no zero copy"} {
		l := openLab(t, mode)
		q, p := l.openRequest(onQueue), l.open()
		for _, g := range []struct {
			grant *endpoint.Grant
			why   string
		}{{q.grant, why}, {p.grant, "ports have no zero copy"}} {
			if g.grant.ZeroCopy || g.grant.CopyReason != g.why || g.grant.Geometry.FrameSize != 2048 {
				t.Errorf("%v mode, %v: zero copy %v, %q, frames of %d", mode, g.grant.Attach, g.grant.ZeroCopy, g.grant.CopyReason, g.grant.Geometry.FrameSize)
			}
		}
		for _, e := range l.mux.Endpoints() {
			want := map[endpoint.Attachment]string{endpoint.AttachQueue: why, endpoint.AttachPort: "ports have no zero copy"}[e.Attach]
			if e.ZeroCopy || e.CopyReason != want || e.Mode != mode.String() {
				t.Errorf("%v mode: %+v", mode, e)
			}
		}
	}
}
