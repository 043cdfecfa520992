package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/unet-go/unet"
)

const answerTimeout = time.Second

// ping sends n payloads, one after the other, and prints how long each took.
func ping(ctx context.Context, socket string, to netip.AddrPort, n int, message bool) error {
	open := openUDP
	if message {
		open = openMessage
	}
	exchange, closeAll, err := open(ctx, socket, to)
	if err != nil {
		return err
	}
	defer closeAll()
	answered := 0
	for seq := range n {
		payload := fmt.Appendf(nil, "echo %d", seq)
		start := time.Now()
		if err := exchange(payload); ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			fmt.Printf("%v: seq %d: %v\n", to, seq, err)
			continue
		}
		answered++
		fmt.Printf("%d bytes from %v: seq %d time %.1f us\n", len(payload), to, seq, float64(time.Since(start).Nanoseconds())/1e3)
	}
	fmt.Printf("%d sent, %d answered\n", n, answered)
	if answered < n {
		return errors.New("not every payload was answered")
	}
	return nil
}

// openUDP and openMessage return a function that sends a payload and waits
// for its answer. It ignores late answers to earlier payloads.
func openUDP(ctx context.Context, socket string, to netip.AddrPort) (exchange func([]byte) error, closeAll func(), err error) {
	host, err := unet.Open(ctx, unet.Config{Socket: socket})
	if err != nil {
		return nil, nil, err
	}
	conn, err := host.DialContext(ctx, "udp", to.String())
	if err != nil {
		host.Close()
		return nil, nil, err
	}
	buf := make([]byte, 2048)
	return func(payload []byte) error {
		conn.SetReadDeadline(time.Now().Add(answerTimeout))
		_, err := conn.Write(payload)
		for n := 0; err == nil && !bytes.Equal(buf[:n], payload); {
			n, err = conn.Read(buf)
		}
		return err
	}, func() { host.Close() }, nil
}
