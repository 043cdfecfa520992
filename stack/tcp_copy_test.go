package stack_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/stack"
)

// chunkReader returns at most size bytes a call.
type chunkReader struct {
	io.Reader
	size int
}

func (r chunkReader) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(len(p), r.size)]) }

// Copied data arrives whole, whatever the size of the reads, and no memory stays in use.
func TestTCPCopyDeliversAllBytes(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{FrameQuota: 100})
	data := make([]byte, 3_000_001)
	rand.NewChaCha8([32]byte{3}).Read(data)
	for name, size := range map[string]int{"few bytes at a time": 700, "half a space": len(tcp.Space{}) / 2, "as many as fit": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			kernel, far := kernelPair(t)
			first, out := connect(t, a, b, stack.TCPOptions{})
			last, out2 := connect(t, a, b, stack.TCPOptions{})
			failed := make(chan error, 4)
			copies := func(w interface {
				io.Writer
				CloseWrite() error
			}, r io.Reader) {
				n, err := io.Copy(w, r)
				if err == nil && n != int64(len(data)) {
					err = io.ErrShortWrite
				}
				failed <- errors.Join(err, w.CloseWrite())
			}
			go copies(first, chunkReader{bytes.NewReader(data), size})
			go copies(out2, out)    // between connections
			go copies(kernel, last) // to a kernel's socket
			got, err := io.ReadAll(far)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes arrived as %d bytes, or the data differs: %v", len(data), len(got), err)
			}
			for range 3 {
				if err := <-failed; err != nil {
					t.Error(err)
				}
			}
		})
	}
	testutil.Eventually(t, "all memory is free", func() bool {
		return a.Lent()+b.Lent()+a.TCPUsage().Memory+b.TCPUsage().Memory == 0
	})
}

// kernelPair is a TCP connection of package net.
func kernelPair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l := testutil.Value(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	near = testutil.Value(net.Dial("tcp", l.Addr().String())).(*net.TCPConn)
	far = testutil.Value(l.Accept()).(*net.TCPConn)
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

// Large pieces that a reader returns are put into the send queue without a copy: a piece takes the
// memory of one Space, into which it was read.
func TestTCPReadFromQueuesLargeReadsWithoutCopy(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{ReceiveBuffer: 4096})
	const size = 40_000
	if n, err := client.ReadFrom(chunkReader{bytes.NewReader(make([]byte, 3*size)), size}); n != 3*size || err != nil {
		t.Fatal(n, err)
	}
	if used := b.TCPUsage().Memory; used != 3*len(tcp.Space{}) {
		t.Errorf("%d bytes in use, want those of the three reads: %d", used, 3*len(tcp.Space{}))
	}
	client.CloseWrite()
	if n, err := io.Copy(io.Discard, server); n != 3*size || err != nil {
		t.Error(n, err)
	}
	testutil.Eventually(t, "the memory is free", func() bool { return b.TCPUsage().Memory == 0 })

	if n, err := client.ReadFrom(chunkReader{bytes.NewReader(make([]byte, size)), size}); n != 0 || err == nil {
		t.Errorf("after CloseWrite: %d, %v", n, err)
	}
}

// While the send buffer of the destination is full, the data stays in the frames in which it was
// received.
func TestTCPWriteToLendsFrames(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{FrameQuota: 100})
	first, in := connect(t, a, b, stack.TCPOptions{})
	last, out := connect(t, a, b, stack.TCPOptions{SendBuffer: 4096, ReceiveBuffer: 4096})
	data := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{4}).Read(data)
	writeAll(t, first, data)
	first.CloseWrite()
	// What arrives later is not in the piece that io.Copy has in its hands while it waits.
	testutil.Eventually(t, "all has arrived", func() bool { return in.Info().Buffered == len(data) })
	done := make(chan error, 1)
	go func() {
		n, err := io.Copy(out, in)
		if err == nil && n != int64(len(data)) {
			err = io.ErrShortWrite
		}
		done <- errors.Join(err, out.CloseWrite())
	}()
	testutil.Eventually(t, "frames are lent", func() bool { return a.Lent() > 1 && in.Info().Buffered < 60_000 })
	if got, err := io.ReadAll(last); !bytes.Equal(got, data) || err != nil {
		t.Errorf("%d bytes arrived as %d bytes, or the data differs: %v", len(data), len(got), err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	testutil.Eventually(t, "no frame is lent", func() bool { return a.Lent() == 0 })
}

// BenchmarkTCPCopy copies data from one connection to another, as a proxy does.
func BenchmarkTCPCopy(b *testing.B) {
	sa, sb, _, _ := newPair(b, stack.Config{FrameQuota: 128})
	first, in := connect(b, sa, sb, stack.TCPOptions{})
	last, out := connect(b, sa, sb, stack.TCPOptions{})
	for _, c := range []*stack.TCPConn{first, in, out, last} {
		c.SetDeadline(time.Time{})
	}
	go func() { io.Copy(out, in); out.Close() }()
	go func() { io.Copy(first, io.LimitReader(zeros{}, int64(b.N)<<16)); first.CloseWrite() }()
	b.SetBytes(1 << 16)
	b.ReportAllocs()
	if n, err := io.Copy(io.Discard, last); n != int64(b.N)<<16 || err != nil {
		b.Error(n, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
