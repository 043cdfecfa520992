//go:build linux

package control

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/unet-go/unet/internal/protocol"
)

const grantRecord = `{"v":1,"id":1,"grant":{"id":5,"attach":"port",` +
	`"geometry":{"frame_size":2048,"frame_count":64,"fill_size":64,"completion_size":64,"rx_size":64,"tx_size":64},` +
	`"identity":{"interface":"eth0","link_addr":"02:00:00:00:00:01","addrs":["10.0.0.1/24"],"mtu":1500,"partial_checksums":true,"mode":"tcx"},` +
	`"tags":["msg:7"]}}`

// noSocket is a path without a socket: a lease that connects again fails.
const noSocket = "/nonexistent/unetd.sock"

// script is a unetd that reads a request and calls the next function of answers, which sends the
// answer. It ends after the last of them.
func script(t testing.TB, c *net.UnixConn, answers ...func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, protocol.MaxRecord)
		for _, answer := range answers {
			if _, err := c.Read(b); err != nil {
				return
			}
			answer()
		}
	}()
	return done
}

var remoteAddr = netip.MustParseAddr("10.0.0.2")

// closeAfterReading closes a connection such that the other end reads all that was sent to it, and
// then the end of the stream.
func closeAfterReading(c *net.UnixConn) {
	_ = c.CloseRead()
	_, _ = io.Copy(io.Discard, c) // a close with records unread would be ECONNRESET
	c.Close()
}
