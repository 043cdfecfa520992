package tcp

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/test/internal/unetd"
)

// text is a stream of bytes that two who know its seed can write and check, of
// whatever length.
type text struct {
	random *rand.ChaCha8
	left   int
}

func newText(seed byte, size int) *text { return &text{rand.NewChaCha8([32]byte{seed}), size} }

// next fills b with what follows, and returns how much that is.
func (x *text) next(b []byte) int {
	n := min(len(b), x.left)
	x.random.Read(b[:n])
	x.left -= n
	return n
}

// send writes a text in pieces.
func send(c io.Writer, x *text, piece int) error {
	buf := make([]byte, piece)
	for n := x.next(buf); n > 0; n = x.next(buf) {
		if m, err := c.Write(buf[:n]); m != n || err != nil {
			return fmt.Errorf("write with %d bytes to go: %d of %d, %w", x.left, m, n, err)
		}
	}
	return nil
}

// expect reads a text in pieces, and its end.
func expect(c io.Reader, x *text, piece int) error {
	if err := expectMore(c, x, piece); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("%d bytes and %w after the end", n, err)
	}
	return nil
}

// expectMore reads a text without its end.
func expectMore(c io.Reader, x *text, piece int) error {
	buf, want := make([]byte, piece), make([]byte, piece)
	for x.left > 0 {
		n, err := c.Read(buf[:min(piece, x.left)])
		if err != nil {
			return fmt.Errorf("read with %d bytes to go: %w", x.left, err)
		}
		x.next(want[:n])
		if string(buf[:n]) != string(want[:n]) {
			return fmt.Errorf("other bytes than were sent, with %d to go", x.left)
		}
	}
	return nil
}

// pieces are how much a Write gives and a Read takes.
type pieces struct{ write, read int }

// exchange sends as much both ways at once and closes both.
func exchange(ours, kernel net.Conn, size int, p pieces) error {
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for i, d := range []struct{ from, to net.Conn }{{ours, kernel}, {kernel, ours}} {
		name := [...]string{"from us", "from the kernel"}[i]
		wg.Go(func() {
			err := send(d.from, newText(byte(i), size), p.write)
			if err == nil {
				err = d.from.(interface{ CloseWrite() error }).CloseWrite()
			}
			if err != nil {
				errs <- fmt.Errorf("%s: %w", name, err)
			}
		})
		wg.Go(func() {
			if err := expect(d.to, newText(byte(i), size), p.read); err != nil {
				errs <- fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	wg.Wait()
	close(errs)
	var all error
	for err := range errs {
		all = errors.Join(all, err)
	}
	return errors.Join(all, ours.Close(), kernel.Close())
}

// mss is what fits a segment on a cable of 1,500 bytes, with timestamps.
const mss = 1500 - 20 - 20 - 12

// Text of all sizes, in pieces of all sizes, in both roles and both ways at once.
func TestTransfer(t *testing.T) {
	s := openScene(t, config{})
	for _, c := range []struct {
		size   int
		pieces []pieces
		slow   bool // too much for the race detector
	}{
		{1, []pieces{{1, 1}}, false},
		{mss - 1, []pieces{{mss, mss}, {1, 7}}, false},
		{mss, []pieces{{mss, mss}, {100, 1}}, false},
		{mss + 1, []pieces{{mss, mss}, {mss + 1, mss + 1}, {7, 100}}, false},
		{64 << 10, []pieces{{64 << 10, 64 << 10}, {100, 4096}, {mss, 1000}, {5000, 17}}, false},
		{1 << 20, []pieces{{1 << 20, 1 << 20}, {mss, mss}, {4096, 70_000}, {300_000, 1000}}, false},
		{20 << 20, []pieces{{1 << 20, 128 << 10}, {10_000, 100_000}}, true},
	} {
		for _, p := range c.pieces {
			t.Run(fmt.Sprintf("%d bytes/writes of %d, reads of %d", c.size, p.write, p.read), func(t *testing.T) {
				if c.slow && unetd.RaceEnabled {
					t.Skip("too slow with the race detector")
				}
				s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
					must(t, exchange(ours, kernel, c.size, p))
				})
			})
		}
	}
}

// A hundred megabytes each way.
func TestLargeTransfer(t *testing.T) {
	if unetd.RaceEnabled {
		t.Skip("too slow with the race detector")
	}
	s := openScene(t, config{})
	ours, kernel := s.connect(t, true)
	defer ours.Close()
	defer kernel.Close()
	must(t, exchange(ours, kernel, 100_000_000, pieces{64 << 10, 64 << 10}))
}
