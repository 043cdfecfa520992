//go:build linux

package pathlink

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
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

// A frame that is longer than the socket's ends its batch. What waits behind it is taken by later ones, of any length.
func TestFramesBehindALongOne(t *testing.T) {
	const frames = 11
	l := newLab(t, stack.Config{})
	ring := hostile(t, l, 1)
	own, to := l.at(1, 53, false), l.at(0, 54, false)
	send(t, ring, own, to, "settles the path")
	testutil.Eventually(t, "it is taken", func() bool { return l.ends[0].count("path_frames_received") == 1 })
	l.ends[0].stack.Do(func() { // the stack itself takes nothing meanwhile
		for i := range frames {
			put(t, ring, datagram(own, to, string(make([]byte, 30_000*(1-min(i, 1))+i))))
		}
		link := l.ends[0].link
		batch := make([]stack.Frame, mempath.MaxScan)
		for got, looks := 0, 0; got < frames; looks++ {
			if looks == 100 {
				t.Fatalf("%d frames", got)
			}
			n := link.Borrow(batch)
			for _, f := range batch[:n] {
				want := len(datagram(own, to, "")) + got
				if got == 0 {
					want += 30_000
				}
				if len(f.Data) != want || f.Volatile != (got == 0) {
					t.Errorf("frame %d has %d bytes, want %d", got, len(f.Data), want)
				}
				link.Return(f)
				got++
			}
			batch = batch[:3]
		}
	})
}

// Datagrams that are longer than the socket's frames wait as they were sent. Those that are longer than the MTU are dropped.
func TestLongDatagramsStayApart(t *testing.T) {
	const size = 8000
	l := newLab(t, stack.Config{MTU: 9000})
	ring := hostile(t, l, 1)
	u, err := l.ends[0].stack.ListenUDP(l.at(0, 54, false), stack.UDPOptions{})
	testutil.Must(t, err)
	defer u.Close()
	for _, fill := range []string{"a", "b", "c"} {
		send(t, ring, l.at(1, 53, false), l.at(0, 54, false), strings.Repeat(fill, size))
		send(t, ring, l.at(1, 53, false), l.at(0, 54, false), strings.Repeat(fill, 30_000))
	}
	testutil.Eventually(t, "all have arrived", func() bool { return l.ends[0].count("path_frames_received") == 6 })
	for _, fill := range []string{"a", "b", "c"} {
		b := make([]byte, 40_000)
		testutil.Renew(u)
		n, err := u.Read(b)
		if err != nil || string(b[:n]) != strings.Repeat(fill, size) {
			t.Errorf("%d bytes, beginning with %q, want %q: %v", n, b[:1], fill, err)
		}
	}
}
