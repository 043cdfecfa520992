//go:build linux

package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
)

const (
	serverArg = "be-a-server"
	at        = "10.0.0.1:7000"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == serverArg {
		fmt.Println(serve(os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == endArg {
		if err := beEnd(os.Args[2], os.Args[3]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == hostileArg {
		fmt.Println(attack(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	unetd.Main(m)
}

// serve echoes.
func serve(socket string) error {
	host, err := unet.Open(context.Background(), unet.Config{Socket: socket})
	if err != nil {
		return err
	}
	l, err := host.Listen(context.Background(), "tcp", at)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

// world is a unetd, a server of user nobody, and a client in this process, which is root.
type world struct {
	*netlab.Pair
	daemon *unetd.Daemon
	server *unetd.Process
	client *unet.Host
}

func openWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Pair: netlab.RequirePair(t, netlab.Config{})}
	w.daemon = unetd.Serve(t, w.A, unetd.Options{})
	w.serve(t)
	var err error
	w.client, err = unet.Open(t.Context(), unet.Config{Socket: w.daemon.Socket})
	testutil.Must(t, err)
	t.Cleanup(func() { w.client.Close() })
	return w
}

func (w *world) serve(t *testing.T) {
	t.Helper()
	w.server = unetd.Start(t, w.A, netlab.Nobody(), "/proc/self/exe", serverArg, w.daemon.Socket)
	w.server.Await(t, "listening")
}

func (w *world) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := w.client.Dial("tcp", at)
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func (w *world) counted(name string) uint64 { return counted(w.client, name) }

// counted is a counter of a host.
func counted(h *unet.Host, name string) uint64 {
	for _, c := range h.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// byMemory echoes until frames come and go by memory.
func (w *world) byMemory(t *testing.T, c net.Conn) {
	t.Helper()
	sent, received := w.counted("path_frames_sent"), w.counted("path_frames_received")
	testutil.Eventually(t, "frames by memory", func() bool {
		b := []byte("text")
		_, err := c.Write(b)
		testutil.Must(t, err)
		testutil.Renew(c)
		_, err = io.ReadFull(c, b)
		testutil.Must(t, err)
		return w.counted("path_frames_sent") > sent && w.counted("path_frames_received") > received
	})
}

// stream sends size bytes and compares the echo. Now and then it calls meanwhile, with the number of the call.
func stream(t *testing.T, c net.Conn, size, calls int, meanwhile func(int)) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		b := make([]byte, 32<<10)
		for at := 0; at < size; {
			n := min(len(b), size-at)
			for i := range b[:n] {
				b[i] = pattern(at + i)
			}
			if _, err := c.Write(b[:n]); err != nil {
				sent <- err
				return
			}
			at += n
		}
		sent <- nil
	}()
	b := make([]byte, 32<<10)
	for at, called := 0, 0; at < size; {
		testutil.Renew(c)
		n, err := c.Read(b)
		testutil.Must(t, err)
		for i, got := range b[:n] {
			if got != pattern(at+i) {
				t.Fatalf("byte %d is %#x, want %#x", at+i, got, pattern(at+i))
			}
		}
		if at += n; called < calls && at >= (called+1)*size/(calls+1) {
			meanwhile(called)
			called++
		}
	}
	testutil.Must(t, <-sent)
}

func pattern(at int) byte { return byte(at ^ at>>8 ^ at>>16) }

// A process is stopped and goes on. The other end of its path loses nothing.
func TestStoppedProcesses(t *testing.T) {
	w := openWorld(t)
	c := w.dial(t)
	w.byMemory(t, c)
	stream(t, c, 32<<20, 6, func(call int) {
		p := w.server.Cmd.Process
		if call%2 == 1 {
			p = w.daemon.Cmd.Process
		}
		testutil.Must(t, p.Signal(syscall.SIGSTOP))
		// As long as a stopped end holds up its writer, and some timeouts more.
		time.AfterFunc(50*time.Millisecond, func() { p.Signal(syscall.SIGCONT) })
	})
	w.byMemory(t, c)
}

// unetd is killed and started again. The connections lose nothing, and go by memory again.
func TestUnetdIsKilled(t *testing.T) {
	w := openWorld(t)
	c := w.dial(t)
	w.byMemory(t, c)
	stream(t, c, 32<<20, 3, func(int) {
		w.daemon.Kill(t)
		w.daemon.Start(t)
	})
	w.byMemory(t, c)
}

// The server is killed: the client learns it at once, and reaches the next server by memory.
func TestServerIsKilled(t *testing.T) {
	w := openWorld(t)
	for range 3 {
		c := w.dial(t)
		w.byMemory(t, c)
		w.server.Kill(t)
		testutil.Renew(c)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read after the server was killed: %v", err)
		}
		w.serve(t)
	}
	if lies := w.counted("path_lies"); lies != 0 {
		t.Errorf("%d lies", lies)
	}
}
