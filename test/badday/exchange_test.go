package badday

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/unet-go/unet"
)

// transfer sends a text one way, and its end, and expects both.
func transfer(from, to net.Conn, seed byte, size int) error {
	who := "from the kernel"
	if _, ok := from.(*unet.TCPConn); ok {
		who = "from us"
	}
	text := make([]byte, size)
	rand.NewChaCha8([32]byte{seed}).Read(text)
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(text)
		if err == nil {
			err = from.(interface{ CloseWrite() error }).CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(to)
	if err == nil && string(got) != string(text) {
		err = errors.New("other bytes than were sent")
	}
	if err != nil {
		from.Close()
		return fmt.Errorf("%s: %d bytes of %d: %w (write: %v)", who, len(got), size, err, <-sent)
	}
	return <-sent
}

// exchange sends a text of its own each way at once, and closes both.
func exchange(ours, kernel net.Conn, size int) error {
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() { errs[0] = transfer(ours, kernel, 1, size) })
	wg.Go(func() { errs[1] = transfer(kernel, ours, 2, size) })
	wg.Wait()
	return errors.Join(errs[0], errs[1], ours.Close(), kernel.Close())
}
