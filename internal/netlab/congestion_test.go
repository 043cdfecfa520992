package netlab_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/netlab"
)

// TestUseCongestion: connections of both families use what was asked for, and those of
// the other host do not.
func TestUseCongestion(t *testing.T) {
	p := netlab.RequirePair(t, netlab.Config{IPv6: true})
	algorithm := func(h, to *netlab.Host, at string) string {
		l, err := to.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := h.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var name string
		raw.Control(func(fd uintptr) { name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	at4, at6 := net.JoinHostPort(p.B.Addr.Addr().String(), "0"), net.JoinHostPort(p.B.Addr6.Addr().String(), "0")
	before := algorithm(p.A, p.B, at4)
	for _, name := range []string{"reno", "cubic"} {
		if err := p.A.UseCongestion(name); err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{at4, at6} {
			if got := algorithm(p.A, p.B, at); got != name {
				t.Errorf("to %s: %s, want %s", at, got, name)
			}
		}
	}
	if got := algorithm(p.B, p.A, net.JoinHostPort(p.A.Addr.Addr().String(), "0")); got != before {
		t.Errorf("the other host's: %s, want %s", got, before)
	}
	if err := p.A.UseCongestion("none such"); err == nil {
		t.Error("one that there is not is accepted")
	}
}
