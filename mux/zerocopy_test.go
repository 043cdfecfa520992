//go:build linux

package mux

import (
	"log/slog"
	"strings"
	"testing"
)

// How a socket on a queue is bound, by the driver and what it can do.
func TestChooseBinding(t *testing.T) {
	const zc = xdpBasic | xdpRedirect | xdpZeroCopy
	one := xdpSupport{known: true, features: zc, zcMaxSegs: 1}
	several := xdpSupport{known: true, features: zc, zcMaxSegs: 8}
	for _, c := range []struct {
		mode       Mode
		driver     string
		can        xdpSupport
		mtu, frame uint32
		want       binding // without the reason
		why        string  // a part of it
	}{
		{ModeTCX, "virtio_net", one, 1500, 2048, binding{sg: true}, "tcx mode has no zero copy"},
		{ModeTCX, "igb", one, 1500, 4096, binding{sg: true}, "tcx mode has no zero copy"},
		{ModeNative, "vmxnet3", xdpSupport{known: true, features: zc &^ xdpZeroCopy, zcMaxSegs: 1}, 1500, 2048, binding{sg: true}, "driver vmxnet3 has no zero copy"},
		{ModeNative, "e1000", xdpSupport{}, 1500, 2048, binding{sg: true}, "driver e1000 has no zero copy"},
		{ModeNative, "virtio_net", one, 1500, 2048, binding{zeroCopy: true}, ""},
		{ModeNative, "virtio_net", one, 1642, 2048, binding{zeroCopy: true}, ""}, // 1664 bytes
		{ModeNative, "virtio_net", one, 1643, 2048, binding{sg: true}, "driver virtio_net receives 1664 bytes into a frame of 2048, and a packet has up to 1665 (MTU 1643)"},
		{ModeNative, "virtio_net", one, 1643, 4096, binding{zeroCopy: true}, ""},
		{ModeNative, "virtio_net", one, 9000, 4096, binding{sg: true}, "receives 3712 bytes"},
		{ModeNative, "igb", one, 1500, 2048, binding{sg: true}, "driver igb receives 1024 bytes into a frame of 2048, and a packet has up to 1522 (MTU 1500)"},
		{ModeNative, "igb", one, 1500, 4096, binding{zeroCopy: true}, ""},
		{ModeNative, "igb", one, 3050, 4096, binding{zeroCopy: true}, ""}, // 3072 bytes
		{ModeNative, "igb", one, 3051, 4096, binding{sg: true}, "receives 3072 bytes"},
		{ModeNative, "igc", one, 1500, 2048, binding{sg: true}, "receives 1024 bytes"},
		{ModeNative, "ice", several, 1500, 2048, binding{zeroCopy: true}, ""},
		{ModeNative, "ice", several, 9000, 2048, binding{zeroCopy: true, sg: true}, ""},
	} {
		got := chooseBinding(c.mode, c.driver, c.can, c.mtu, c.frame)
		why := got.why
		got.why = ""
		if got != c.want || !strings.Contains(why, c.why) || (why == "") != c.want.zeroCopy {
			t.Errorf("%v mode, driver %s, %+v, MTU %d, frames of %d: %+v %q, want %+v %q", c.mode, c.driver, c.can, c.mtu, c.frame, got, why, c.want, c.why)
		}
	}
}

// After a change to a larger MTU the log names the endpoints that cannot receive the longest packets.
func TestMTUBeyondZeroCopy(t *testing.T) {
	var log strings.Builder
	m := &Mux{log: slog.New(slog.NewTextHandler(&log, nil)), up: uplink{driver: "igb"}, leases: map[uint64]*Lease{
		1: {id: 1, frameSize: 4096, bound: binding{zeroCopy: true}},
		2: {id: 2, frameSize: 4096, bound: binding{zeroCopy: true, sg: true}},
		3: {id: 3, frameSize: 2048, bound: portBinding},
	}}
	m.warnOfLongPackets(3050)
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
	m.warnOfLongPackets(3051)
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "level=WARN") || !strings.Contains(s, " endpoint=1 ") || !strings.Contains(s, "mtu=3051 frame_bytes=3072") {
		t.Errorf("logged: %s", s)
	}
}
