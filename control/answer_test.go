package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

const grantRecord = `{"v":1,"id":1,"grant":{"id":5,"attach":"port",` +
	`"geometry":{"frame_size":2048,"frame_count":64,"fill_size":64,"completion_size":64,"rx_size":64,"tx_size":64},` +
	`"identity":{"interface":"eth0","link_addr":"02:00:00:00:00:01","addr":"10.0.0.1/24","mtu":1500,"partial_checksums":true,"mode":"generic"},` +
	`"tags":["msg:7"]}}`

// nowhere is no socket: who has lost its connection tries in vain.
const nowhere = "/nonexistent/unetd.sock"

// socketPair connects an application's end with one the test speaks for.
func socketPair(t testing.TB) (application, unetd *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// pipe gives the read end, which meets the end of file when the last copy of
// the write end is closed, and the write end.
func pipe(t testing.TB) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func wantClosed(t testing.TB, r *os.File) {
	t.Helper()
	if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("a descriptor was leaked")
	}
}

// script is a unetd that reads one request, then sends what says says, then
// reads the next.
func script(t testing.TB, c *net.UnixConn, says ...func()) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, MaxRecord)
		for _, say := range says {
			if _, err := c.Read(b); err != nil {
				return
			}
			say()
		}
	}()
	return done
}

func sendAll(t testing.TB, c *net.UnixConn, record string, w *os.File, descriptors int) {
	t.Helper()
	files := make([]*os.File, descriptors)
	for i := range files {
		files[i] = w
	}
	if err := writeRecord(c, []byte(record), patience, files...); err != nil {
		t.Error(err)
	}
}

// What unetd may not answer to open, with how many descriptors.
func TestUnusableGrants(t *testing.T) {
	for _, c := range []struct {
		name        string
		record      string
		descriptors int
		is          error
		says        string
	}{
		{name: "no descriptors", record: grantRecord, is: ErrProtocol},
		{name: "one descriptor", record: grantRecord, descriptors: 1, is: ErrProtocol},
		{name: "three descriptors", record: grantRecord, descriptors: 3, is: ErrProtocol},
		{name: "two hundred descriptors", record: grantRecord, descriptors: 200, is: ErrProtocol},
		{name: "not JSON", record: "hello", descriptors: 2, is: ErrProtocol},
		{name: "version", record: `{"v":3,"id":1}`, is: ErrProtocol, says: "version 3"},
		{name: "geometry", record: strings.Replace(grantRecord, `"rx_size":64`, `"rx_size":63`, 1), descriptors: 2, is: ErrProtocol, says: "rx ring"},
		{name: "another id", record: strings.Replace(grantRecord, `"id":1`, `"id":2`, 1), descriptors: 2, is: ErrProtocol},
		{name: "grant of no request", record: strings.Replace(grantRecord, `"id":1`, `"id":0`, 1), descriptors: 2, is: ErrProtocol},
		{name: "no grant", record: `{"v":1,"id":1}`, is: ErrProtocol},
		{name: "a tag", record: `{"v":1,"id":1,"tag":"msg:1"}`, is: ErrProtocol},
		{name: "grant and error", record: strings.Replace(grantRecord, `"id":1`, `"id":1,"error":{"code":"x","message":"y"}`, 1), descriptors: 2, is: ErrProtocol},
		{name: "grant and event", record: strings.Replace(grantRecord, `"id":1`, `"id":1,"event":"x"`, 1), descriptors: 2, is: ErrProtocol},
		{name: "error with descriptors", record: `{"v":1,"id":1,"error":{"code":"tag-held","message":"m"}}`, descriptors: 2, is: ErrProtocol},
		{name: "event with descriptors", record: `{"v":1,"event":"x"}`, descriptors: 1, is: ErrProtocol},
		{name: "neither answer nor event", record: `{"v":1}`, is: ErrProtocol},
		{name: "too long", record: grantRecord + strings.Repeat(" ", MaxRecord), descriptors: 2, is: ErrProtocol},
		{name: "error of the connection", record: `{"v":1,"id":0,"error":{"code":"busy","message":"full house"}}`, is: ErrBusy, says: "full house"},
		{name: "unknown code", record: `{"v":1,"id":1,"error":{"code":"from-the-future","message":"soon"}}`, says: "soon"},
	} {
		t.Run(c.name, func(t *testing.T) {
			descriptorLeaks(t)
			app, unetd := socketPair(t)
			r, w := pipe(t)
			said := script(t, unetd, func() { sendAll(t, unetd, c.record, w, c.descriptors) })
			g, l, err := open(context.Background(), app, nowhere, endpoint.Request{})
			if err == nil || g != nil || l != nil {
				t.Fatalf("open: %v, %v, %v", g, l, err)
			}
			if c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("open: %v, want %v, %q", err, c.is, c.says)
			}
			await(t, "script", said)
			unetd.Close()
			w.Close()
			wantClosed(t, r)
			r.Close()
		})
	}
}

// Later versions may add fields, and events before and after the grant.
func TestTolerance(t *testing.T) {
	descriptorLeaks(t)
	app, unetd := socketPair(t)
	r, w := pipe(t)
	said := script(t, unetd, func() {
		sendAll(t, unetd, `{"v":1,"event":"weather","is":"fine"}`, nil, 0)
		sendAll(t, unetd, strings.Replace(grantRecord, `"id":5`, `"id":5,"colour":"red"`, 1), w, 2)
		sendAll(t, unetd, `{"v":1,"id":0,"event":"weather"}`, nil, 0)
	}, func() {
		sendAll(t, unetd, `{"v":1,"id":2,"tag":"msg:9","colour":"red"}`, nil, 0)
	})
	ctx := context.Background()
	g, l, err := open(ctx, app, nowhere, endpoint.Request{})
	if err != nil || g.ID != 5 || len(g.Tags) != 1 {
		t.Fatalf("open: %+v, %v", g, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if tag, err := l.Claim(ctx, endpoint.MessageTag(9)); err != nil || tag != endpoint.MessageTag(9) {
		t.Errorf("Claim: %v, %v", tag, err)
	}
	await(t, "script", said)
	unetd.Close()
	l.Close()
	await(t, "Done", l.Done())
	w.Close()
	wantClosed(t, r)
	r.Close()
}

// An answer nobody asked for ends an open lease, and all who wait for it.
func TestUnusableAnswers(t *testing.T) {
	for _, record := range []string{
		`{"v":1,"id":9}`, `{"v":1,"id":1}`, `{"v":1,"id":2}`, `{"v":1,"id":2,"tag":"msg:1"}`, `{"v":1,"id":2,"route":null}`,
		`{"v":1,"id":2,"route":{"source":"nowhere"}}`, `{"v":1}`, `[]`, `{"v":1,"id":2,"grant":{}}`,
		`{"v":1,"tag":"msg:1"}`, `{"v":1,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
	} {
		t.Run(record, func(t *testing.T) {
			descriptorLeaks(t)
			app, unetd := socketPair(t)
			r, w := pipe(t)
			said := script(t, unetd,
				func() { sendAll(t, unetd, grantRecord, w, 2) },
				func() { sendAll(t, unetd, record, nil, 0) })
			g, l, err := open(context.Background(), app, nowhere, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			_, err = l.Resolve(context.Background(), remoteAddr)
			if !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, ErrProtocol) {
				t.Errorf("Resolve: %v", err)
			}
			await(t, "Done", l.Done())
			await(t, "script", said)
			unetd.Close()
			w.Close()
			wantClosed(t, r)
			r.Close()
		})
	}
}

func TestOperationRoundTrip(t *testing.T) {
	for _, o := range []operation{
		{op: opOpen, open: endpoint.Request{Attach: endpoint.AttachQueue, Queue: 1, Tags: []endpoint.Tag{endpoint.MessageTag(1)}}},
		{op: opClaim, tag: endpoint.AddrTag(localAddr)},
		{op: opUnclaim, tag: endpoint.UDPTag(netip.AddrPortFrom(localAddr, 7))},
		{op: opResolve, addr: netip.MustParseAddr("2001:db8::1")},
	} {
		record, err := o.record(1 << 63)
		if err != nil {
			t.Fatal(err)
		}
		r, err := parseRequest(record)
		if err != nil || r.ID != 1<<63 {
			t.Fatalf("%s: %+v, %v", record, r, err)
		}
		back, err := r.operation()
		if err != nil || back.op != o.op || back.tag != o.tag || back.addr != o.addr || back.open.Queue != o.open.Queue ||
			back.open.Attach != o.open.Attach || len(back.open.Tags) != len(o.open.Tags) {
			t.Errorf("%s: %+v, %v", record, back, err)
		}
	}
}
