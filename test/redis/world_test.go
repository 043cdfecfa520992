//go:build linux

package redis_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

func TestMain(m *testing.M) { unetd.Main(m) }

const port = "6379"

// server is the example, run by user nobody on host A.
type server struct {
	*unetd.Process
	*netlab.Pair
	at string
}

func startServer(t *testing.T, pair *netlab.Pair, flags ...string) *server {
	t.Helper()
	d := unetd.Serve(t, pair.A, unetd.Options{})
	at := net.JoinHostPort(pair.A.Addr.Addr().String(), port)
	flags = append([]string{"--unet-socket", d.Socket, "--listen", at}, flags...)
	p := unetd.Start(t, pair.A, netlab.Nobody(), unetd.Command(t, "resp"), flags...)
	p.Await(t, "serving on")
	return &server{p, pair, at}
}

// startOnLink is startServer on a link whose rules a test sets.
func startOnLink(t *testing.T, flags ...string) (*server, *impair.Link) {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{Cut: true})
	link := impair.RequireLink(t, pair, impair.Config{Seed: 1, Spare: impair.Resolution})
	// By default the kernel waits at least 200 ms before it sends again.
	testutil.Must(t, pair.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_rto_min_us", []byte("5000"), 0) }))
	return startServer(t, pair, flags...), link
}

// both sets the rule of both directions.
func both(link *impair.Link, r impair.Rule) {
	link.Set(impair.AtoB, r)
	link.Set(impair.BtoA, r)
}

// stop ends the server by SIGTERM, and returns what it has counted.
func (s *server) stop(t *testing.T) (commands, connections int) {
	t.Helper()
	return s.StopCounted(t, "commands")
}

// tool runs redis-cli or redis-benchmark on host B, whose sockets are the kernel's, and
// returns what it prints.
func (s *server) tool(t *testing.T, name string, stdin io.Reader, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), unetd.TestTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, unetd.Tool(t, name), append([]string{"-h", s.A.Addr.Addr().String(), "-p", port}, args...)...)
	cmd.SysProcAttr = netlab.Bound()
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &out
	testutil.Must(t, s.B.Start(cmd))
	err := cmd.Wait()
	return out.String(), err
}

// cli runs one command with redis-cli, which must succeed, and returns what it prints.
func (s *server) cli(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	out, err := s.tool(t, "redis-cli", stdin, args...)
	if err != nil {
		t.Fatalf("redis-cli %.100q: %v: %.1000s", args, err, out)
	}
	return strings.TrimSuffix(out, "\n")
}

// client is a connection of host B's kernel.
type client struct {
	net.Conn
	*bufio.Reader
}

func (c *client) Read(b []byte) (int, error) { return c.Reader.Read(b) }

func (s *server) dial(t *testing.T) *client {
	t.Helper()
	c, err := s.B.Dial("tcp", s.at)
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(unetd.TestTimeout))
	return &client{c, bufio.NewReader(c)}
}

// request is a request of RESP.
func request(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}

// ask sends a request and expects an answer of these bytes.
func (c *client) ask(send, want string) error {
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c.Conn, send)
		written <- err
	}()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if err == nil && string(got) != want {
		err = fmt.Errorf("%.200q, want %.200q", got, want)
	}
	if err != nil {
		c.Close()
		return fmt.Errorf("after %d bytes of %d: %w", n, len(want), errors.Join(err, <-written))
	}
	return <-written
}

// info is a number of the reply to INFO; 0 if it is not there.
func (c *client) info(name string) (int, error) {
	if _, err := io.WriteString(c.Conn, request("INFO")); err != nil {
		return 0, err
	}
	head, err := c.ReadString('\n')
	if err != nil {
		return 0, err
	}
	size, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(head, "$")))
	if err != nil {
		return 0, err
	}
	text := make([]byte, size+2)
	if _, err := io.ReadFull(c, text); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return strconv.Atoi(value)
		}
	}
	return 0, nil
}

// awaitInfo returns when ok accepts a number of the reply to INFO.
func (c *client) awaitInfo(t *testing.T, name string, ok func(n int) bool) {
	t.Helper()
	var n int
	if !testutil.Until(func() bool {
		var err error
		n, err = c.info(name)
		testutil.Must(t, err)
		return ok(n)
	}) {
		t.Fatalf("%s stays %d", name, n)
	}
}
