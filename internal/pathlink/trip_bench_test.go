//go:build linux

package pathlink

import (
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
)

// BenchmarkTrip is a round trip of 64 bytes over a path between two stacks, all in one goroutine: what is measured is
// the work of both ends, and no wait.
func BenchmarkTrip(b *testing.B) {
	b.Run("tcp", func(b *testing.B) {
		l := newLab(b, stack.Config{Wait: endpoint.WaitSpin})
		client, server := l.connect(b, false)
		l.awaitPath(b, client, server)
		p, buf := make([]byte, 64), make([]byte, 2048)
		client.SetDeadline(time.Time{})
		server.SetDeadline(time.Time{})
		b.ReportAllocs()
		for b.Loop() {
			client.Write(p)
			server.Read(buf)
			server.Write(p)
			client.Read(buf)
		}
	})
	b.Run("udp", func(b *testing.B) {
		l := newLab(b, stack.Config{Wait: endpoint.WaitSpin})
		server := testutil.Value(l.ends[1].stack.ListenUDP(l.at(1, 7, false), stack.UDPOptions{}))
		client := testutil.Value(l.ends[0].stack.DialUDP(l.at(0, 8, false), l.at(1, 7, false), stack.UDPOptions{}))
		p, buf := make([]byte, 64), make([]byte, 2048)
		trip := func() {
			testutil.Value(client.Write(p))
			n, from, err := server.ReadFromUDPAddrPort(buf)
			testutil.Must(b, err)
			testutil.Value(server.WriteToUDPAddrPort(buf[:n], from))
			testutil.Value(client.Read(buf))
		}
		testutil.Eventually(b, "a datagram by the path in both directions", func() bool {
			trip()
			return l.ends[0].count("path_frames_sent") > 0 && l.ends[1].count("path_frames_sent") > 0
		})
		b.ReportAllocs()
		for b.Loop() {
			trip()
		}
	})
}
