package test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

const patience = unetd.Patience

func TestMain(m *testing.M) {
	code := m.Run()
	unetd.Clean()
	os.Exit(code)
}

// daemon starts unetd on a host, for everybody, and returns it and its socket.
func daemon(t *testing.T, h *netlab.Host, flags ...string) (*unetd.Daemon, string) {
	t.Helper()
	d := unetd.Serve(t, h, unetd.Options{Flags: flags})
	return d, d.Socket
}

// kernelDial and kernelListen are sockets of a host's kernel.
func kernelDial(t *testing.T, h *netlab.Host, to string) *net.UDPConn {
	t.Helper()
	conn, err := h.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.UDPConn)
}

func kernelListen(t *testing.T, h *netlab.Host, at string) *net.UDPConn {
	t.Helper()
	conn, err := h.ListenUDP(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}
