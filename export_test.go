package unet

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"
)

// CheckNetConn checks that connections from b to an address of a behave as net.Conn requires.
func CheckNetConn(t *testing.T, a, b *Host, at string) {
	l, err := a.Listen(t.Context(), "tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		accepted := make(chan error, 1)
		go func() {
			var err error
			c2, err = l.Accept()
			accepted <- err
		}()
		if c1, err = b.Dial("tcp", l.Addr().String()); err != nil {
			return nil, nil, nil, err
		}
		if err = <-accepted; err != nil {
			return nil, nil, nil, err
		}
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
}
