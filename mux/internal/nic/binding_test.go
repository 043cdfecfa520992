//go:build linux

package nic

import (
	"strings"
	"testing"
)

// How a socket on a queue is bound, by the driver and what it can do.
func TestChooseBinding(t *testing.T) {
	const zc = XDPBasic | XDPRedirect | XDPZeroCopy
	one := XDPSupport{Known: true, Features: zc, ZCMaxSegs: 1}
	several := XDPSupport{Known: true, Features: zc, ZCMaxSegs: 8}
	for _, c := range []struct {
		mode       Mode
		driver     string
		can        XDPSupport
		mtu, frame uint32
		want       Binding // without the reason
		why        string  // a part of it
	}{
		{ModeTCX, "virtio_net", one, 1500, 2048, Binding{SG: true}, "tcx mode has no zero copy"},
		{ModeTCX, "igb", one, 1500, 4096, Binding{SG: true}, "tcx mode has no zero copy"},
		{ModeNative, "vmxnet3", XDPSupport{Known: true, Features: zc &^ XDPZeroCopy, ZCMaxSegs: 1}, 1500, 2048, Binding{SG: true}, "driver vmxnet3 has no zero copy"},
		{ModeNative, "e1000", XDPSupport{}, 1500, 2048, Binding{SG: true}, "driver e1000 has no zero copy"},
		{ModeNative, "virtio_net", one, 1500, 2048, Binding{ZeroCopy: true}, ""},
		{ModeNative, "virtio_net", one, 1642, 2048, Binding{ZeroCopy: true}, ""}, // 1664 bytes
		{ModeNative, "virtio_net", one, 1643, 2048, Binding{SG: true}, "driver virtio_net receives 1664 bytes into a frame of 2048, and a packet has up to 1665 (MTU 1643)"},
		{ModeNative, "virtio_net", one, 1643, 4096, Binding{ZeroCopy: true}, ""},
		{ModeNative, "virtio_net", one, 9000, 4096, Binding{SG: true}, "receives 3712 bytes"},
		{ModeNative, "igb", one, 1500, 2048, Binding{SG: true}, "driver igb receives 1024 bytes into a frame of 2048, and a packet has up to 1522 (MTU 1500)"},
		{ModeNative, "igb", one, 1500, 4096, Binding{ZeroCopy: true}, ""},
		{ModeNative, "igb", one, 3050, 4096, Binding{ZeroCopy: true}, ""}, // 3072 bytes
		{ModeNative, "igb", one, 3051, 4096, Binding{SG: true}, "receives 3072 bytes"},
		{ModeNative, "igc", one, 1500, 2048, Binding{SG: true}, "receives 1024 bytes"},
		{ModeNative, "ice", several, 1500, 2048, Binding{ZeroCopy: true}, ""},
		{ModeNative, "ice", several, 9000, 2048, Binding{ZeroCopy: true, SG: true}, ""},
	} {
		got := ChooseBinding(c.mode, c.driver, c.can, c.mtu, c.frame)
		why := got.Why
		got.Why = ""
		if got != c.want || !strings.Contains(why, c.why) || (why == "") != c.want.ZeroCopy {
			t.Errorf("%v mode, driver %s, %+v, MTU %d, frames of %d: %+v %q, want %+v %q", c.mode, c.driver, c.can, c.mtu, c.frame, got, why, c.want, c.why)
		}
	}
}
