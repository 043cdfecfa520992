//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
)

// waits closes a connection so that the server's end is in TIME-WAIT.
func waits(t *testing.T, server, client net.Conn) {
	t.Helper()
	testutil.Must(t, server.Close())
	_, err := io.ReadAll(client) // the FIN has come
	testutil.Must(t, err)
	testutil.Must(t, client.Close())
}

// A port on which a server's connections are in TIME-WAIT can be claimed at once, and is then as reserved as any. One
// on which connections of the server go on cannot, nor a block with such a port.
func TestClaimOfPortInTimeWait(t *testing.T) {
	t.Parallel()
	l := openLab6(t)
	a := l.open()
	program{network: "tcp", at: "[::]:9999"}.keep(t, l.A) // another port that is bound
	for i, c := range []struct{ host, network string }{{"10.0.0.1", "tcp4"}, {"fd00::1", "tcp6"}} {
		for _, wild := range []bool{false, true} {
			for _, block := range []bool{false, true} {
				port := 6400 + 640*i // the first of a block
				if wild {
					port += 64
				}
				if block {
					port += 128
				}
				at := net.JoinHostPort(c.host, fmt.Sprint(port))
				tag := tcpTag(at)
				if block {
					tag = tag.AsBlock()
				}
				listenAt := at
				if wild { // a socket of both families
					listenAt = fmt.Sprintf(":%d", port)
				}
				listener, err := l.A.Listen("tcp", listenAt)
				testutil.Must(t, err)
				client, err := l.B.Dial("tcp", at)
				testutil.Must(t, err)
				server, err := listener.Accept()
				testutil.Must(t, err)
				testutil.Must(t, listener.Close())
				if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
					t.Errorf("%v while a connection of the server goes on: %v", tag, err)
				}
				waits(t, server, client)
				if block {
					if _, err := a.lease.Claim(t.Context(), tag); !errors.Is(err, endpoint.ErrTagHeld) {
						t.Errorf("%v with a connection in TIME-WAIT: %v", tag, err)
					}
					continue
				}
				testutil.Eventually(t, "the connection is in TIME-WAIT", func() bool {
					_, err = a.lease.Claim(t.Context(), tag)
					return err == nil || !errors.Is(err, endpoint.ErrTagHeld)
				})
				testutil.Must(t, err)
				testutil.Must(t, l.mux.ForgetClaims())
				testutil.Must(t, a.lease.Readmit(tag)) // as the next process of the mux
				for _, p := range []program{
					{network: c.network, at: at}, {network: c.network, at: at, reuseAddr: true}, {network: c.network, at: at, reuseAddr: true, listen: true},
					{network: c.network, at: at, reusePort: true}, {network: "tcp", at: fmt.Sprintf("[::]:%d", port), reuseAddr: true, listen: true},
				} {
					if fd, err := p.start(l.A); !errors.Is(err, unix.EADDRINUSE) {
						t.Errorf("%v, which is claimed: %v", p, err)
						unix.Close(fd)
					}
				}
				if c, err := l.B.Dial("tcp", net.JoinHostPort(c.host, "9")); err == nil { // the host answers as ever
					c.Close()
				}
				testutil.Must(t, a.lease.Unclaim(t.Context(), tag))
			}
		}
	}
}

// A TIME-WAIT that SO_REUSEADDR does not share is refused with an error that says that waiting helps; and a socket that is bound
// and not connected has its port.
func TestClaimOfPortThatIsNotShared(t *testing.T) {
	t.Parallel()
	l := openLab(t, mux.ModeAuto)
	a := l.open()
	fd, err := program{network: "tcp4", at: "10.0.0.1:7000", listen: true}.start(l.A) // without SO_REUSEADDR, which its connections inherit
	testutil.Must(t, err)
	client, err := l.B.Dial("tcp", "10.0.0.1:7000")
	testutil.Must(t, err)
	defer client.Close()
	var conn int
	testutil.Eventually(t, "a connection", func() bool { conn, _, err = unix.Accept(fd); return err == nil })
	testutil.Must(t, unix.Close(conn))
	testutil.Must(t, unix.Close(fd))
	_, err = io.ReadAll(client)
	testutil.Must(t, err)
	testutil.Must(t, client.Close())
	testutil.Eventually(t, "an error that says what to wait for", func() bool {
		_, err = a.lease.Claim(t.Context(), tcpTag("10.0.0.1:7000"))
		return err == nil || strings.Contains(err.Error(), "TIME-WAIT")
	})
	if !errors.Is(err, endpoint.ErrTagHeld) || !strings.Contains(err.Error(), "try again in a minute") {
		t.Errorf("%v", err)
	}
	program{network: "tcp4", at: "10.0.0.1:7001", reuseAddr: true}.keep(t, l.A)
	if _, err := a.lease.Claim(t.Context(), tcpTag("10.0.0.1:7001")); !errors.Is(err, endpoint.ErrTagHeld) {
		t.Errorf("a port that is bound: %v", err)
	}
}
