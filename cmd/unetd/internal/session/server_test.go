//go:build linux

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// application is an application's end of a connection, which sends any record.
type application struct {
	t    testing.TB
	conn *net.UnixConn
}

// connect connects until the test ends.
func connect(t testing.TB, socket string) *application {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(TestTimeout)); err != nil {
		t.Fatal(err)
	}
	return &application{t, conn}
}

// send sends a record with descriptors.
func (a *application) send(record string, fds ...int) {
	a.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := a.conn.WriteMsgUnix([]byte(record), oob, nil); err != nil {
		a.t.Fatalf("send: %v", err)
	}
}

// receive reads one answer with encoding/json's generic types, so that the names in the
// record are checked.
func (a *application) receive() (map[string]any, []int) {
	a.t.Helper()
	b, oob := make([]byte, protocol.MaxRecord), make([]byte, 1024)
	n, oobn, _, _, err := a.conn.ReadMsgUnix(b, oob)
	if err != nil {
		a.t.Fatalf("receive: %v", err)
	}
	var m map[string]any
	if err := json.Unmarshal(b[:n], &m); err != nil || m["v"] != 1.0 {
		a.t.Fatalf("received %q: %v", b[:n], err)
	}
	var fds []int
	if oobn > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			a.t.Fatal(err)
		}
		for _, m := range messages {
			more, err := unix.ParseUnixRights(&m)
			if err != nil {
				a.t.Fatal(err)
			}
			fds = append(fds, more...)
		}
	}
	return m, fds
}

// wantError receives an error.
func (a *application) wantError(id float64, code string) {
	a.t.Helper()
	m, fds := a.receive()
	e, _ := m["error"].(map[string]any)
	if m["id"] != id || e["code"] != code || e["message"] == "" || len(fds) != 0 {
		a.t.Errorf("answer %v with %d descriptors, want code %q to id %v", m, len(fds), code, id)
	}
}

// wantEOF expects that the connection was closed.
func (a *application) wantEOF() {
	a.t.Helper()
	if n, err := a.conn.Read(make([]byte, protocol.MaxRecord)); err != io.EOF {
		a.t.Errorf("read %d bytes, %v: want the end of the stream", n, err)
	}
}

const presentRecord = `{"v":1,"id":1,"op":"present"}`

const openRecord = `{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{},"tags":["msg:7"]}}`

// open opens an endpoint.
func (a *application) open() {
	a.t.Helper()
	a.send(openRecord)
	m, fds := a.receive()
	protocol.CloseAll(fds)
	if m["id"] != 1.0 || m["grant"] == nil || len(fds) != 2 {
		a.t.Fatalf("open: %v with %d descriptors", m, len(fds))
	}
}

// The records are those of docs/control-protocol.md.
func TestRecords(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.send(openRecord)
	m, fds := a.receive()
	protocol.CloseAll(fds)
	grant, _ := m["grant"].(map[string]any)
	geometry, _ := grant["geometry"].(map[string]any)
	identity, _ := grant["identity"].(map[string]any)
	if len(fds) != 2 || grant["attach"] != "port" || geometry["frame_size"] != 2048.0 || geometry["tx_size"] != 2048.0 ||
		identity["link_addr"] != "02:00:00:00:00:01" || fmt.Sprint(identity["addrs"]) != "[10.0.0.1/24]" || fmt.Sprint(grant["tags"]) != "[msg:7]" {
		t.Errorf("%v with %d descriptors", m, len(fds))
	}
	for _, c := range []struct{ request, answer string }{
		{`{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`, `{"id":2,"tag":"udp:10.0.0.1:40001","v":1}`},
		{`{"v":1,"id":3,"op":"unclaim","tag":"udp:10.0.0.1:40001"}`, `{"id":3,"v":1}`},
		{`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`, `{"id":2,"route":{"link_addr":"02:00:00:00:00:02","mtu":1500,"next_hop":"10.0.0.2","source":"10.0.0.1"},"v":1}`},
		{`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2","source":"10.0.0.5"}`, `{"id":2,"route":{"link_addr":"02:00:00:00:00:02","mtu":1500,"next_hop":"10.0.0.2","source":"10.0.0.5"},"v":1}`},
		{`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2","source":"fd00::1"}`, `{"error":{"code":"unreachable","message":"network unreachable: source fd00::1, destination 10.0.0.2: addresses of different families","no_route":true},"id":2,"v":1}`},
		{`{"v":1,"id":4,"op":"claim","tag":"msg:7"}`, `{"error":{"code":"tag-held","message":"tag already claimed"},"id":4,"v":1}`},
		{`{"v":1,"id":4,"op":"claim","tag":"tcp:1"}`, `{"error":{"code":"tag","message":"not a tag: \"tcp:1\": want udp:ADDR:PORT, tcp:ADDR:PORT (or 64 ports from a multiple of that on, as PORT-PORT), addr:ADDR or msg:NUMBER"},"id":4,"v":1}`},
		{" {\n\"op\":\"unclaim\",\"tag\":\"msg:7\",\"id\":18446744073709551615,\"v\":1}\n", `{"id":18446744073709552000,"v":1}`},
	} {
		a.send(c.request)
		m, fds := a.receive()
		if b, _ := json.Marshal(m); string(b) != c.answer || len(fds) != 0 {
			t.Errorf("%s:\ngot  %s\nwant %s", c.request, b, c.answer)
		}
	}
	a.conn.Close()
	p.awaitClosed()
}

// Each violation is answered, ends the connection and its lease. Other connections go on.
func TestViolations(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	g, neighbour := mustOpen(t, socket, endpoint.Request{})
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var manyDescriptors []int
	for range 253 { // SCM_MAX_FD
		manyDescriptors = append(manyDescriptors, int(null.Fd()))
	}
	for _, c := range []struct {
		name   string
		opened bool
		record string
		fds    []int
		id     float64
	}{
		{name: "not JSON", record: "open"},
		{name: "half a request", record: openRecord[:len(openRecord)/2]},
		{name: "half a request of an open lease", opened: true, record: `{"v":1,"id":2,"op":"cla`},
		{name: "two values", record: openRecord + "{}"},
		{name: "no object", record: `[1]`},
		{name: "null", record: `null`},
		{name: "NUL", record: "\x00"},
		{name: "deep", record: strings.Repeat("[", protocol.MaxRecord)},
		{name: "too long", record: openRecord + strings.Repeat(" ", protocol.MaxRecord)},
		{name: "too long of an open lease", opened: true, record: strings.Repeat(" ", protocol.MaxRecord+1)},
		{name: "older version", record: `{"v":0,"id":7,"op":"open","open":{}}`, id: 7},
		{name: "newer version, with a new field", record: `{"v":2,"id":7,"op":"open","flags":[],"open":{}}`, id: 7},
		{name: "no version", record: `{"id":7,"op":"open","open":{}}`, id: 7},
		{name: "no id", record: `{"v":1,"op":"open","open":{}}`},
		{name: "negative id", record: `{"v":1,"id":-1,"op":"open","open":{}}`},
		{name: "unknown op", record: `{"v":1,"id":7,"op":"reboot"}`, id: 7},
		{name: "no op", record: `{"v":1,"id":7}`, id: 7},
		{name: "unknown field", record: `{"v":1,"id":7,"op":"open","open":{},"sudo":true}`, id: 7},
		{name: "unknown field in the argument", record: `{"v":1,"id":7,"op":"open","open":{"geometry":{"frames":1}}}`, id: 7},
		{name: "unknown attachment", record: `{"v":1,"id":7,"op":"open","open":{"attach":"nic"}}`, id: 7},
		{name: "wrong type", record: `{"v":1,"id":7,"op":"open","open":[]}`, id: 7},
		{name: "no argument", record: `{"v":1,"id":7,"op":"open"}`, id: 7},
		{name: "argument of another op", opened: true, record: `{"v":1,"id":7,"op":"resolve","tag":"msg:1"}`, id: 7},
		{name: "two arguments", opened: true, record: `{"v":1,"id":7,"op":"resolve","addr":"10.0.0.2","tag":"msg:1"}`, id: 7},
		{name: "not an address", opened: true, record: `{"v":1,"id":7,"op":"resolve","addr":"localhost"}`, id: 7},
		{name: "source that is no address", opened: true, record: `{"v":1,"id":7,"op":"resolve","addr":"10.0.0.2","source":"localhost"}`, id: 7},
		{name: "source of no destination", opened: true, record: `{"v":1,"id":7,"op":"claim","tag":"msg:1","source":"10.0.0.1"}`, id: 7},
		{name: "claim before open", record: `{"v":1,"id":7,"op":"claim","tag":"msg:1"}`, id: 7},
		{name: "resolve before open", record: `{"v":1,"id":7,"op":"resolve","addr":"10.0.0.2"}`, id: 7},
		{name: "second open", opened: true, record: `{"v":1,"id":7,"op":"open","open":{}}`, id: 7},
		{name: "descriptor with open that is no table", record: openRecord, fds: manyDescriptors[:1], id: 1},
		{name: "two descriptors with open", record: openRecord, fds: manyDescriptors[:2], id: 1},
		{name: "three descriptors with open", record: openRecord, fds: manyDescriptors[:3]},
		{name: "descriptors with claim", opened: true, record: `{"v":1,"id":7,"op":"claim","tag":"msg:1"}`, fds: manyDescriptors[:2]},
		{name: "many descriptors", record: openRecord, fds: manyDescriptors},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := connect(t, socket)
			if c.opened {
				a.open()
			}
			a.send(c.record, c.fds...)
			a.wantError(c.id, "protocol")
			a.wantEOF()
			if c.opened {
				if l := p.awaitClosed(); l.e.id == 1 {
					t.Error("the neighbour's lease was closed")
				}
			}
			if _, err := neighbour.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
				t.Errorf("neighbour: %v", err)
			}
		})
	}
	if len(p.closed) != 0 {
		t.Errorf("%d more leases were closed", len(p.closed))
	}
	neighbour.Close()
	g.Close()
	p.awaitGrantsClosed()
}

// An application that has sent more records after a violation still gets the answer. (If unetd closed the connection
// with unread records, the application would get ECONNRESET.)
func TestViolationIsAnsweredBeforeClose(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	for range 100 {
		a := connect(t, socket)
		a.send("?")
		for {
			if _, err := a.conn.Write([]byte("more")); err != nil {
				break
			}
		}
		a.wantError(0, "protocol")
		a.wantEOF()
	}
}

// A record of length zero is the end of the stream.
func TestEmptyRecord(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.open()
	raw, err := a.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { err = unix.Send(int(fd), nil, 0) })
	if err != nil {
		t.Fatal(err)
	}
	a.wantEOF()
	p.awaitClosed()
}

// A connection on which nothing is opened is closed after OpenTimeout. It does not apply to open leases.
func TestOpenTimeout(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{OpenTimeout: 20 * time.Millisecond}})
	a := connect(t, socket)
	a.wantError(0, "protocol")
	a.wantEOF()
	// An open lease may be silent for longer.
	b := connect(t, socket)
	b.open()
	a = connect(t, socket)
	a.wantError(0, "protocol")
	b.send(`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`)
	if m, _ := b.receive(); m["route"] == nil {
		t.Errorf("%v", m)
	}
}

// Connections beyond the limit are refused. A connection that was closed does not count.
func TestConnectionLimit(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 2}})
	_, first := mustOpen(t, socket, endpoint.Request{})
	mustOpen(t, socket, endpoint.Request{})
	a := connect(t, socket)
	a.wantError(0, "busy")
	a.wantEOF()
	for range 50 { // the request, the answer and the end of the connection can be in any order
		if _, _, err := control.Open(context.Background(), socket, endpoint.Request{}); !errors.Is(err, endpoint.ErrBusy) {
			t.Fatalf("Open: %v", err)
		}
	}
	// The connection does not count any more soon after the application has read its end.
	first.Close()
	untilServed(t, socket)
}

// The requests in progress of a connection are limited, by their number and by their bytes.
func TestTooManyRequests(t *testing.T) {
	p := newFakeProvider(t)
	inside, release := make(chan struct{}, 1000), make(chan struct{})
	p.hook(hooks{route: func(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-release
		return endpoint.Route{NextHop: dst}, nil
	}})
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{ResolvesPerUID: 64}})
	defer close(release)
	a := connect(t, socket)
	a.open()
	for id := range protocol.MaxRequests {
		a.send(fmt.Sprintf(`{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.2"}`, id+10))
		Await(t, "requests", inside)
	}
	a.send(`{"v":1,"id":99,"op":"resolve","addr":"10.0.0.2"}`)
	a.wantError(99, "busy")
	release <- struct{}{}
	if m, _ := a.receive(); m["route"] == nil {
		t.Fatalf("%v", m)
	}
	// The bytes of the requests are limited too, and an identifier of a request in progress is a violation.
	long := `{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.2"}` + strings.Repeat(" ", protocol.MaxRecord-100)
	b := connect(t, socket)
	b.open()
	for id := range 2 {
		b.send(fmt.Sprintf(long, id+10))
		Await(t, "long requests", inside)
	}
	b.send(fmt.Sprintf(long, 99))
	b.wantError(99, "busy")
	b.send(`{"v":1,"id":10,"op":"resolve","addr":"10.0.0.2"}`)
	b.wantError(0, "protocol")
}

// When an application ends during a request, the request is cancelled and its endpoint is reclaimed.
func TestApplicationEndsDuringRequest(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	entered, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	block := func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return context.Cause(ctx)
	}
	socket, stop := start(t, &Server{Provider: p})
	defer stop()

	a := connect(t, socket)
	p.hook(hooks{open: func(ctx context.Context, _ mux.Owner, _ endpoint.Request) error { return block(ctx) }})
	a.send(openRecord)
	Await(t, "open", entered)
	a.conn.Close()
	Await(t, "cancellation of open", ended)

	p.hook(hooks{
		claim: func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, block(ctx) },
		route: func(ctx context.Context, _ netip.Addr) (endpoint.Route, error) { return endpoint.Route{}, block(ctx) },
	})
	for _, record := range []string{
		`{"v":1,"id":2,"op":"claim","tag":"msg:8"}`,
		`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`,
	} {
		a = connect(t, socket)
		a.open()
		a.send(record)
		Await(t, "request", entered)
		a.conn.Close()
		Await(t, "cancellation", ended)
		p.awaitClosed()
	}

	// The grant is not read: the kernel closes the descriptors in flight.
	a = connect(t, socket)
	a.send(openRecord)
	a.conn.Close()
	stop()
	p.awaitGrantsClosed()
}

// The connection of an application that does not read answers is closed WriteTimeout after its socket buffer is
// full.
func TestApplicationDoesNotRead(t *testing.T) {
	p := newFakeProvider(t)
	p.hook(hooks{route: func(context.Context, netip.Addr) (endpoint.Route, error) {
		return endpoint.Route{}, errors.New(strings.Repeat("no ", 300))
	}})
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{WriteTimeout: 20 * time.Millisecond}})
	_, neighbour := mustOpen(t, socket, endpoint.Request{})
	a := connect(t, socket)
	a.open()
	for id := 2; ; id++ {
		record := fmt.Appendf(nil, `{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.2"}`, id)
		if _, err := a.conn.Write(record); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection was not ended")
		} else if err != nil {
			break
		}
	}
	if l := p.awaitClosed(); l.e.id != 2 {
		t.Errorf("lease %d was closed", l.e.id)
	}
	if _, err := neighbour.Claim(context.Background(), endpoint.MessageTag(1)); err != nil {
		t.Errorf("neighbour: %v", err)
	}
}

// Many applications at a time open endpoints and end, with and without closing their leases: all are reclaimed.
func TestManyLeasesAtOnce(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	const workers, rounds = 8, 20
	done := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := range rounds {
				open := openAndExit
				if (i+w)%2 == 0 {
					open = openAndClose
				}
				if err := open(socket, endpoint.MessageTag(uint32(i))); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for range workers * rounds {
		p.awaitClosed()
	}
	stop()
	p.awaitGrantsClosed()
}

// openAndClose opens an endpoint, claims a tag and closes the lease.
func openAndClose(socket string, t endpoint.Tag) error {
	g, l, err := control.Open(context.Background(), socket, endpoint.Request{})
	if err != nil {
		return err
	}
	_, err = l.Claim(context.Background(), t)
	return errors.Join(err, l.Close(), g.Close())
}

// openAndExit closes the connection as the kernel does when the process is killed.
func openAndExit(socket string, t endpoint.Tag) error {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, record := range []string{openRecord, fmt.Sprintf(`{"v":1,"id":2,"op":"claim","tag":"%v"}`, t)} {
		if _, err := conn.Write([]byte(record)); err != nil {
			return err
		}
		_, fds, err := protocol.ReadRecord(conn, protocol.GrantDescriptors)
		protocol.CloseAll(fds)
		if err != nil {
			return err
		}
	}
	return nil
}

// Serve returns the error of its listener, and still closes every lease.
func TestListenerFails(t *testing.T) {
	p := newFakeProvider(t)
	socket, ln := Listen(t)
	served := make(chan error, 1)
	go func() { served <- (&Server{Provider: p}).Serve(context.Background(), ln) }()
	_, l := mustOpen(t, socket, endpoint.Request{})
	ln.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve: %v", err)
	}
	if len(p.closed) != 1 {
		t.Errorf("%d leases closed", len(p.closed))
	}
	Await(t, "Done", l.Done())
}
