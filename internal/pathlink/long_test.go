//go:build linux

package pathlink

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
)

// TCP sends much data in few frames, longer than those of the socket. It arrives whole with readers that copy it, that are late, and
// that borrow it, though the memory in which it arrives is soon overwritten.
func TestLongSegments(t *testing.T) {
	const (
		size       = 4 << 20
		oneSegment = 1448 // bytes of a segment of 1,500 bytes
	)
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	for _, ipv6 := range []bool{false, true} {
		for _, reader := range []string{"reads", "is late", "borrows"} {
			l := newLab(t, stack.Config{Wait: endpoint.WaitAdaptive})
			client, server := l.connect(t, ipv6)
			l.awaitPath(t, client, server)
			frames := l.ends[0].count("path_frames_sent")
			written := make(chan error, 1)
			go func() {
				testutil.Renew(client)
				_, err := client.Write(data)
				written <- err
			}()
			got := make([]byte, 0, size)
			if reader == "is late" {
				testutil.Eventually(t, "more is sent than the socket has frames for", func() bool {
					return l.ends[0].count("path_frames_sent") > frames+3
				})
			}
			testutil.Renew(server)
			if reader == "borrows" {
				for len(got) < size {
					piece, err := server.Borrow()
					testutil.Must(t, err)
					got = append(got, piece.Data...)
					server.Return(&piece)
				}
			} else {
				got = got[:size]
				if _, err := io.ReadFull(server, got); err != nil {
					t.Fatal(err)
				}
			}
			testutil.Must(t, <-written)
			if !bytes.Equal(got, data) {
				t.Errorf("the reader that %s has other bytes, IPv6 %v", reader, ipv6)
			}
			if n := l.ends[0].count("path_frames_sent") - frames; n > size/oneSegment/2 {
				t.Errorf("%d frames for %d bytes, for a reader that %s, IPv6 %v", n, size, reader, ipv6)
			}
			if n := l.ends[1].count("path_denied") + l.ends[1].count("path_no_frame"); n != 0 {
				t.Errorf("%d frames dropped", n)
			}
			testutil.Must(t, client.Close())
			testutil.Must(t, server.Close())
		}
	}
}
