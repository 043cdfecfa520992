//go:build linux

package mux

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/unet-go/unet/mux/internal/nic"
)

// After a change to a larger MTU the log names the endpoints that cannot receive the longest packets.
func TestMTUBeyondZeroCopy(t *testing.T) {
	var log strings.Builder
	m := &Mux{log: slog.New(slog.NewTextHandler(&log, nil)), up: nic.Uplink{Driver: "igb"}, leases: map[uint64]*Lease{
		1: {id: 1, frameSize: 4096, bound: nic.Binding{ZeroCopy: true}},
		2: {id: 2, frameSize: 4096, bound: nic.Binding{ZeroCopy: true, SG: true}},
		3: {id: 3, frameSize: 2048, bound: nic.PortBinding},
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
