package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/test/internal/wiretap"
)

// Where nobody listens.
func TestRefused(t *testing.T) {
	s := openScene(t, config{check: func(t *testing.T, j *wiretap.Judge) {
		if j.Resets != 2 || j.KernelResets != 1 {
			t.Errorf("%v", j)
		}
	}})
	listener := s.listen(t, true)
	at := listener.Addr().String()
	must(t, listener.Close())
	if _, err := s.B.Dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the kernel dials where nobody listens any more: %v", err)
	}
	if _, err := s.host.Dial("tcp", fmt.Sprintf("%v:9", s.B.Addr.Addr())); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("we dial where nobody listens: %v", err)
	}
	// Who has not been accepted yet is reset when the listener closes.
	listener = s.listen(t, true)
	kernel, err := s.B.Dial("tcp", listener.Addr().String())
	must(t, err)
	defer kernel.Close()
	kernel.SetDeadline(time.Now().Add(patience))
	must(t, listener.Close())
	if _, err := kernel.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read of a connection that was never accepted: %v", err)
	}
	eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// A RST in the middle of a transfer: what the writer gets, who blocks, and what
// the reader.
func TestResetInTransfer(t *testing.T) {
	s := openScene(t, config{})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		t.Run("of ours", func(t *testing.T) { resetInTransfer(t, kernel, ours) })
	})
	s.roles(t, func(t *testing.T, ours *unet.TCPConn, kernel *net.TCPConn) {
		t.Run("of the kernel's", func(t *testing.T) { resetInTransfer(t, ours, kernel) })
	})
	eventually(t, "nothing is left", func() bool { return s.idle(t) })
}

// resetInTransfer has one side write and read without an end, and the other
// reset the connection after a while.
func resetInTransfer(t *testing.T, lasting, resetting net.Conn) {
	var wg sync.WaitGroup
	var writeErr, readErr error
	wg.Go(func() { writeErr = send(lasting, newText(1, 1<<30), 50_000) })
	wg.Go(func() { _, readErr = lasting.Read(make([]byte, 1)) })
	if err := expectMore(resetting, newText(1, 3_000_000), 10_000); err != nil {
		t.Error(err)
	}
	must(t, resetting.(interface{ SetLinger(int) error }).SetLinger(0))
	must(t, resetting.Close())
	wg.Wait()
	// One of them is told of the RST, as in the kernel; the other finds the end.
	var told int
	for what, err := range map[string]error{"write": writeErr, "read": readErr} {
		switch {
		case errors.Is(err, syscall.ECONNRESET):
			told++
		case what == "write" && errors.Is(err, syscall.EPIPE), what == "read" && err == io.EOF:
		default:
			t.Errorf("%s by %s: %v", what, who(lasting), err)
		}
	}
	if told == 0 {
		t.Errorf("nobody was told: %v, %v", writeErr, readErr)
	}
	if _, err := lasting.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write by %s after that: %v", who(lasting), err)
	}
}
