package mux_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// Tests that kill the process which serves a mux have it in a child: this program
// again, which does what the test asks for over a socket.

const childVariable = "UNET_MUX_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := serveChild(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// order is what a child is told to do, and answer what came of it.
type order struct {
	Do        string
	Interface string           `json:",omitempty"`
	Mode      mux.Mode         `json:",omitempty"`
	Pin       string           `json:",omitempty"`
	Grace     time.Duration    `json:",omitempty"`
	Request   endpoint.Request `json:",omitzero"`
	ID        uint64           `json:",omitempty"`
	Tag       *endpoint.Tag    `json:",omitempty"`
}

type answer struct {
	Error     string          `json:",omitempty"`
	Grant     *endpoint.Grant `json:",omitempty"`
	Endpoints []endpoint.Info `json:",omitempty"`
	Tag       *endpoint.Tag   `json:",omitempty"`
}

// serveChild is the life of a child.
func serveChild() error {
	f := os.NewFile(3, "orders")
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	c := conn.(*net.UnixConn)
	s := childServer{leases: map[uint64]*mux.Lease{}}
	b := make([]byte, 1<<16)
	oob := make([]byte, 1024)
	for {
		n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil || n == 0 {
			return err
		}
		var o order
		if err := json.Unmarshal(b[:n], &o); err != nil {
			return err
		}
		fds, err := receivedFiles(oob[:oobn])
		if err != nil {
			return err
		}
		var a answer
		if err := s.do(o, fds, &a); err != nil {
			a.Error = err.Error()
		}
		for _, f := range fds {
			f.Close()
		}
		var rights []byte
		if a.Grant != nil {
			rights = unix.UnixRights(int(a.Grant.XSK.Fd()), int(a.Grant.Segment.Fd()))
		}
		text, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, _, err := c.WriteMsgUnix(text, rights, nil); err != nil {
			return err
		}
		if a.Grant != nil {
			if err := a.Grant.Close(); err != nil {
				return err
			}
		}
	}
}

func receivedFiles(oob []byte) (files []*os.File, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

type childServer struct {
	mux    *mux.Mux
	leases map[uint64]*mux.Lease
}

func (s *childServer) do(o order, files []*os.File, a *answer) (err error) {
	ctx := context.Background()
	switch o.Do {
	case "open":
		s.mux, err = mux.Open(mux.Config{Interface: o.Interface, Mode: o.Mode, Pin: o.Pin, Grace: o.Grace,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		return err
	case "endpoint":
		var l *mux.Lease
		if a.Grant, l, err = s.mux.OpenEndpoint(ctx, o.Request); err == nil {
			s.leases[a.Grant.ID] = l
		}
		return err
	case "claim":
		t, err := s.leases[o.ID].Claim(ctx, *o.Tag)
		a.Tag = &t
		return err
	case "unclaim":
		return s.leases[o.ID].Unclaim(ctx, *o.Tag)
	case "present":
		info, l, err := s.mux.Present(ctx, mux.Owner{PID: os.Getppid()}, files[0], nil)
		if err == nil {
			s.leases[info.ID] = l
			a.Endpoints = []endpoint.Info{info}
		}
		return err
	case "list":
		a.Endpoints = s.mux.Endpoints()
		return nil
	case "end":
		return s.leases[o.ID].Close()
	case "close":
		return s.mux.Close()
	case "abandon":
		return s.mux.Abandon()
	}
	return errors.New("unknown order")
}

// child is a process that serves a mux on a host.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	conn *net.UnixConn
	out  *bytes.Buffer
}

func startChild(t *testing.T, h *netlab.Host) *child {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "orders"), os.NewFile(uintptr(fds[1]), "orders")
	conn, err := net.FileConn(ours)
	must(t, err)
	ours.Close()
	c := &child{t: t, conn: conn.(*net.UnixConn), out: &bytes.Buffer{}}
	c.cmd = exec.Command(os.Args[0])
	c.cmd.Env = append(os.Environ(), childVariable+"=1")
	c.cmd.ExtraFiles = []*os.File{theirs}
	c.cmd.Stdout, c.cmd.Stderr = c.out, c.out
	c.cmd.SysProcAttr = netlab.Bound()
	must(t, h.Start(c.cmd))
	theirs.Close()
	t.Cleanup(c.kill)
	return c
}

// try gives an order. died says that the child ended instead of answering.
func (c *child) try(o order, files ...*os.File) (a answer, died bool) {
	c.t.Helper()
	text, err := json.Marshal(o)
	must(c.t, err)
	var rights []byte
	for _, f := range files {
		rights = append(rights, unix.UnixRights(int(f.Fd()))...)
	}
	if _, _, err := c.conn.WriteMsgUnix(text, rights, nil); err != nil {
		return a, true
	}
	b := make([]byte, 1<<20)
	oob := make([]byte, 1024)
	n, oobn, _, _, err := c.conn.ReadMsgUnix(b, oob)
	if err != nil || n == 0 {
		return a, true
	}
	must(c.t, json.Unmarshal(b[:n], &a))
	received, err := receivedFiles(oob[:oobn])
	must(c.t, err)
	if a.Grant != nil {
		a.Grant.XSK, a.Grant.Segment = received[0], received[1]
	}
	return a, false
}

// do gives an order that has to succeed.
func (c *child) do(o order, files ...*os.File) answer {
	c.t.Helper()
	a, died := c.try(o, files...)
	if died || a.Error != "" {
		c.kill()
		c.t.Fatalf("%s: died %v, %s\n%s", o.Do, died, a.Error, c.out)
	}
	return a
}

// kill is kill -9, and returns when the process has ended.
func (c *child) kill() {
	if c.cmd.ProcessState != nil {
		return
	}
	c.cmd.Process.Kill() // an error means that it has ended already
	_ = c.cmd.Wait()     // its error is the signal
	c.conn.Close()
}
