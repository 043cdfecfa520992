package stack_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/stack"
)

// What is lent is sent between what is written, in order, and comes back when the peer
// has acknowledged it.
func TestTCPLend(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{SendBuffer: 4096})
	text := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{3}).Read(text)
	go func() {
		defer client.CloseWrite()
		for rest, n := text, 1; len(rest) > 0; n = min(n*3, len(rest)) { // some larger than the send buffer
			if err := client.Lend(rest[:n]); err != nil {
				t.Errorf("lend %d bytes: %v", n, err)
				return
			}
			rest = rest[n:]
			k := min(7, len(rest))
			writeAll(t, client, rest[:k])
			rest = rest[k:]
		}
		if err := client.Reclaim(); err != nil {
			t.Errorf("reclaim: %v", err)
		}
	}()
	var got []byte
	buf := make([]byte, 10_000)
	for {
		n, err := server.Read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, text) {
		t.Errorf("%d bytes became %d others", len(text), len(got))
	}
	client.Close()
	server.Close()
}

// Who does not get its memory back is told why.
func TestTCPReclaim(t *testing.T) {
	a, b, _, _ := newPair(t, stack.Config{})
	client, server := connect(t, a, b, stack.TCPOptions{ReceiveBuffer: 4096})
	if err := client.Reclaim(); err != nil {
		t.Errorf("nothing was lent: %v", err)
	}
	text := make([]byte, 50_000) // more than the peer takes
	if err := client.Lend(text); err != nil {
		t.Fatal(err)
	}
	client.SetWriteDeadline(time.Now().Add(-time.Second))
	if err := client.Reclaim(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reclaim after the deadline: %v", err)
	}
	if err := client.Lend(text); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("lend after the deadline: %v", err)
	}
	client.SetWriteDeadline(time.Time{})
	client.Close() // it is still sent
	if err := client.Lend(text); !errors.Is(err, net.ErrClosed) {
		t.Errorf("lend after Close: %v", err)
	}
	server.SetLinger(0)
	server.Close() // and nobody reads it
	if err := client.Reclaim(); err != nil {
		t.Errorf("reclaim after the end: %v", err)
	}
}
