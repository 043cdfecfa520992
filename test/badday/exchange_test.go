package badday

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"sync"
)

// ends are the two ends of a connection: on host A, where we are, and on host B.
type ends struct{ ours, peers net.Conn }

// compare reports how many bits of a text are wrong, and where: one is undetected damage, many
// are data in the wrong place.
func compare(got, sent []byte) error {
	flipped, first, last := 0, -1, -1
	for i := range min(len(got), len(sent)) {
		if x := got[i] ^ sent[i]; x != 0 {
			if flipped == 0 {
				first = i
			}
			flipped, last = flipped+bits.OnesCount8(x), i
		}
	}
	if flipped > 0 || len(got) != len(sent) {
		return fmt.Errorf("other bytes than were sent: %d bits differ, from byte %d to %d", flipped, first, last)
	}
	return nil
}

// transfer sends a text one way, and its end, and expects both.
func transfer(from, to net.Conn, seed byte, size int) error {
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
	if err == nil {
		err = compare(got, text)
	}
	if err != nil {
		from.Close()
		return fmt.Errorf("%v > %v: %d bytes of %d: %w (write: %v)", from.LocalAddr(), to.LocalAddr(), len(got), size, err, <-sent)
	}
	return <-sent
}

// exchange sends a text of its own each way at once on each connection, and closes them.
func exchange(size int, connections ...ends) error {
	var wg sync.WaitGroup
	errs := make([]error, 2*len(connections))
	for i, c := range connections {
		wg.Go(func() { errs[2*i] = transfer(c.ours, c.peers, byte(2*i), size) })
		wg.Go(func() { errs[2*i+1] = transfer(c.peers, c.ours, byte(2*i+1), size) })
	}
	wg.Wait()
	for _, c := range connections {
		errs = append(errs, c.ours.Close(), c.peers.Close())
	}
	return errors.Join(errs...)
}
