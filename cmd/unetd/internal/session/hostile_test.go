//go:build linux

package session

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// checkServed checks that the calling user is served.
func checkServed(t *testing.T, socket string) {
	t.Helper()
	g, l := mustOpen(t, socket, endpoint.Request{})
	if _, err := l.Resolve(context.Background(), netip.Addr{}, netip.MustParseAddr("10.0.0.3")); err != nil {
		t.Error(err)
	}
	l.Close()
	g.Close()
}

// Files on which poll and close block delay neither the goroutine that accepts, nor other
// sessions, nor the end of Serve. They count as connections of their own user only.
func TestFilesThatBlock(t *testing.T) {
	f := newFuse(t)
	p := newFakeProvider(t)
	const places = 5
	socket, stop := start(t, &Server{Provider: p, Limits: Limits{ConnectionsPerUID: places, WriteTimeout: 50 * time.Millisecond}})
	permitAll(t, socket)
	for i, c := range []struct {
		flags  int
		record string
		fds    int
		id     float64
		code   string
	}{
		{0, presentRecord, 1, 1, "not-presentable"},
		{unix.O_NONBLOCK, presentRecord, 1, 1, "not-presentable"},
		{unix.O_NONBLOCK, openRecord, 1, 1, "protocol"},
		{0, presentRecord, 3, 0, "protocol"},
		{0, "?", 1, 0, "protocol"},
	} {
		fd := f.open(t, string(rune('a'+i)), c.flags)
		a := connectAs(t, 1001, socket)
		a.send(c.record, slices.Repeat([]int{fd}, c.fds)...)
		a.wantError(c.id, c.code)
		a.wantEOF()
		checkServed(t, socket)
	}
	// The close of each of these connections still waits, so this user may have no further connection.
	fd := f.open(t, "z", 0)
	a := connectAs(t, 1001, socket)
	if _, _, err := a.conn.WriteMsgUnix([]byte(presentRecord), unix.UnixRights(fd), nil); err != nil && !errors.Is(err, unix.EPIPE) {
		t.Fatal(err) // EPIPE: the connection has been refused already
	}
	a.wantError(0, "busy")
	a.wantEOF()
	checkServed(t, socket)
	operations := make([]byte, places)
	if err := f.pending.SetReadDeadline(time.Now().Add(TestTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(f.pending, operations); err != nil {
		t.Errorf("not all files were closed: %v", err)
	}
	if slices.ContainsFunc(operations, func(op byte) bool { return op != fuseFlush }) {
		t.Errorf("operations %v, want only %d", operations, fuseFlush)
	}
	stop()
	f.release()
}

// A user who connects 10,000 times reaches the limit of this user and does not delay another one.
func TestTenThousandConnections(t *testing.T) {
	const connections = 10000
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < connections+2000 {
		t.Skipf("needs %d descriptors, has %d, %v", connections+2000, limit.Cur, err)
	}
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p, Limits: Limits{OpenTimeout: time.Hour, ClosePause: time.Microsecond}})
	defer stop()
	permitAll(t, socket)
	var conns []*net.UnixConn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range 10 {
		as(t, 1001, func() {
			for range connections / 10 {
				c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
				for errors.Is(err, unix.EAGAIN) { // the backlog is full
					time.Sleep(time.Millisecond)
					c, err = net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
				}
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, c)
			}
		})
		as(t, 1002, func() { checkServed(t, socket) })
	}
	// All connections beyond the user's limit are refused.
	until(t, "refusals", func() bool {
		conns = slices.DeleteFunc(conns, func(c *net.UnixConn) bool {
			if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			record, _, err := protocol.ReadRecord(c, 0)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if a, err := protocol.ParseIncoming(record, 0); err != nil || a.Error == nil || a.Error.Code != "busy" {
				t.Fatalf("%q", record)
			}
			c.Close()
			return true
		})
		return len(conns) <= (Limits{}).withDefaults().ConnectionsPerUID
	})
	if want := (Limits{}).withDefaults().ConnectionsPerUID; len(conns) != want {
		t.Errorf("%d served, want %d", len(conns), want)
	}
}

// Connections that send nothing are closed, and then do not count any more.
func TestSilentConnections(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{OpenTimeout: 50 * time.Millisecond, ConnectionsPerUID: 8}})
	permitAll(t, socket)
	for range 3 {
		var apps []*application
		for range 8 {
			apps = append(apps, connectAs(t, 1001, socket))
		}
		for _, a := range apps {
			m, _ := a.receive()
			if e, _ := m["error"].(map[string]any); e["code"] != "protocol" && e["code"] != "busy" {
				t.Errorf("%v", m)
			}
			a.wantEOF()
		}
	}
	until(t, "the user to be served", func() bool {
		var err error
		as(t, 1001, func() {
			var g *endpoint.Grant
			var l *control.Lease
			if g, l, err = control.Open(context.Background(), socket, endpoint.Request{}); err == nil {
				l.Close()
				g.Close()
			}
		})
		return err == nil
	})
}

// All descriptors of records of zero bytes, and of records that are not read, are closed.
func TestDescriptorsInFlight(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	r, w := Pipe(t)
	fd := fdOf(t, w)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			a := connect(t, socket)
			defer a.conn.Close()
			if i%2 == 0 {
				a.open()
			}
			for range 20 {
				if _, _, err := a.conn.WriteMsgUnix(nil, unix.UnixRights(fd, fd), nil); err != nil {
					break
				}
				if _, _, err := a.conn.WriteMsgUnix([]byte(presentRecord), unix.UnixRights(fd), nil); err != nil {
					break
				}
			}
			if _, err := io.Copy(io.Discard, a.conn); err != nil && !errors.Is(err, unix.ECONNRESET) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.Close()
	WantClosed(t, r)
	r.Close()
}
