//go:build linux

package memory

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

// BenchmarkPath is the time from the first packet to another endpoint until the first one that goes by memory, in ms, the median, and
// the memory of a path in KiB. Both endpoints are in this process.
func BenchmarkPath(b *testing.B) {
	at := netlab.RequirePair(b, netlab.Config{}).A
	daemon := unetd.Serve(b, at, unetd.Options{})
	open := func() *unet.Host {
		h, err := unet.Open(context.Background(), unet.Config{Socket: daemon.Socket})
		testutil.Must(b, err)
		return h
	}
	server := open()
	defer server.Close()
	l, err := server.ListenPacket(context.Background(), "udp", "10.0.0.1:7000")
	testutil.Must(b, err)
	defer l.Close()
	var took []float64
	kib := 0
	for b.Loop() {
		client := open()
		c, err := client.Dial("udp", "10.0.0.1:7000")
		testutil.Must(b, err)
		begin := time.Now()
		for counted(client, "path_frames_sent") == 0 {
			if _, err := c.Write([]byte("text")); err != nil || time.Since(begin) > testutil.Limit {
				b.Fatal("no packet by memory", err)
			}
		}
		took = append(took, time.Since(begin).Seconds()*1e3)
		if kib == 0 {
			kib = pathMemory(b)
		}
		testutil.Must(b, client.Close())
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "ms/path")
	b.ReportMetric(float64(kib), "KiB/path")
	b.ReportMetric(0, "ns/op")
}

// pathMemory is how much memory of paths this process has touched, in KiB. What it maps twice counts once.
func pathMemory(b *testing.B) (kib int) {
	b.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	testutil.Must(b, err)
	path := false
	for line := range strings.Lines(string(maps)) {
		switch f := strings.Fields(line); {
		case !strings.HasSuffix(f[0], ":"): // the first line of a mapping
			path = strings.Contains(line, "memfd:unet-path")
		case path && f[0] == "Pss:":
			n, err := strconv.Atoi(f[1])
			testutil.Must(b, err)
			kib += n
		}
	}
	return kib
}
