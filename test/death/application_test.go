//go:build linux

package death

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

const applicationArg = "be-an-application"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == applicationArg {
		if err := application(os.Args[2], os.Args[3]); err != nil {
			fmt.Println("application:", err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	unetd.Clean()
	os.Exit(code)
}

const port = "7000"

// application is a host on an address of its own, or on that of the interface if owned is
// empty. It executes the lines of its input, and prints a line for each.
func application(socket, owned string) error {
	var cfg unet.Config
	cfg.Socket = socket
	if owned != "" {
		cfg.Addrs = []netip.Addr{netip.MustParseAddr(owned)}
	}
	host, err := unet.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	l, err := host.Listen(context.Background(), "tcp", ":"+port)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	conns := map[string]*unet.TCPConn{}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		name := words[len(words)-1]
		switch words[0] {
		case "accept", "dial": // accept NAME, dial ADDR NAME
			var c net.Conn
			if words[0] == "accept" {
				c, err = l.Accept()
			} else {
				c, err = host.Dial("tcp", words[1])
			}
			if err != nil {
				return err
			}
			conns[name] = c.(*unet.TCPConn)
			if err := conns[name].SetKeepAlive(false); err != nil {
				return err
			}
		case "stream": // stream NAME: writes without end
			c := conns[name]
			go io.Copy(c, zeros{})
		case "write": // write BYTES NAME
			n, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			if _, err := conns[name].Write(make([]byte, n)); err != nil {
				return err
			}
		case "read": // read NAME: to its end
			c := conns[name]
			go func() {
				_, err := io.CopyN(io.Discard, c, 1<<20)
				if err == nil {
					fmt.Println("megabyte", name)
					_, err = io.Copy(io.Discard, c)
				}
				fmt.Println("ended", name, errors.Is(err, syscall.ECONNRESET), err)
			}()
		case "close": // the host
			if err := host.Close(); err != nil {
				return err
			}
		case "exit":
			os.Exit(3)
		case "panic":
			panic("an application's own")
		}
		fmt.Println("done", lines.Text())
	}
	return nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// app is a running application.
type app struct {
	*unetd.Process
	stdin io.Writer
	at    string // where it listens
	ipv6  bool   // that is an IPv6 address
}

// address is what an application listens on: addr, which it owns as an owned, or that of the
// interface if addr is empty.
type address struct {
	addr string
	ipv6 bool
}

// start starts an application on host A.
func start(t *testing.T, pair *netlab.Pair, socket string, where address) *app {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", applicationArg, socket, where.addr)
	cmd.SysProcAttr = netlab.Nobody()
	stdin, err := cmd.StdinPipe()
	testutil.Must(t, err)
	at := pair.A.Addr.Addr().String()
	switch {
	case where.addr != "":
		at = where.addr
	case where.ipv6:
		at = pair.A.Addr6.Addr().String()
	}
	a := &app{unetd.StartCommand(t, pair.A, cmd), stdin, net.JoinHostPort(at, port), where.ipv6}
	a.Await(t, "listening")
	return a
}

// send sends the application a line, and does not wait until it is executed.
func (a *app) send(t *testing.T, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	_, err := fmt.Fprintln(a.stdin, line)
	testutil.Must(t, err)
	return line
}

// do returns when the application has done a line, which must be unlike all before.
func (a *app) do(t *testing.T, format string, args ...any) {
	t.Helper()
	a.Await(t, "done "+a.send(t, format, args...))
}
