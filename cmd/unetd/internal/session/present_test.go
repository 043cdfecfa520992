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
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// endpointOf makes an endpoint in p that has no lease, like one that has outlived
// its unetd, and returns the descriptor of its socket.
func endpointOf(t testing.TB, p *fakeProvider, uid uint32, tags ...endpoint.Tag) (fd int) {
	t.Helper()
	g, _, err := p.OpenEndpoint(context.Background(), mux.Owner{UID: uid}, endpoint.Request{Tags: tags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	p.abandon()
	return fdOf(t, g.XSK)
}

// want receives a record without descriptors and compares it.
func (a *application) want(answer string) {
	a.t.Helper()
	m, fds := a.receive()
	protocol.CloseAll(fds)
	if b, _ := json.Marshal(m); string(b) != answer || len(fds) != 0 {
		a.t.Errorf("received %s with %d descriptors, want %s", b, len(fds), answer)
	}
}

// present presents an endpoint, and takes the answer and the three events that follow.
func (a *application) present(fd int) {
	a.t.Helper()
	a.send(presentRecord, fd)
	a.receive()
	a.want(linkUpEvent)
	a.want(hereEvent)
	a.want(noOthersEvent)
}

const (
	linkUpEvent   = `{"event":"link","up":true,"v":1}`
	hereEvent     = `{"event":"address","prefixes":["10.0.0.1/24"],"up":true,"v":1}`
	noOthersEvent = `{"event":"address","up":false,"v":1}`
)

// The records are those of docs/control-protocol.md.
func TestPresentRecords(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	fd := endpointOf(t, p, 0, endpoint.MessageTag(7), endpoint.MessageTag(9))
	a := connect(t, socket)
	a.send(presentRecord, fd)
	a.want(`{"id":1,"lease":{"id":1,"tags":["msg:7","msg:9"]},"v":1}`)
	a.want(linkUpEvent)
	a.want(hereEvent)
	a.want(noOthersEvent)
	a.send(`{"v":1,"id":2,"op":"unclaim","tag":"msg:7"}`)
	a.want(`{"id":2,"v":1}`)
	a.conn.Close()
	p.awaitClosed()
	if p.tagsOf(1) != nil {
		t.Error("the endpoint was not reclaimed with the connection")
	}
}

// Presents in a wrong order, or with wrong descriptors, are violations.
func TestPresentViolations(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	fd := endpointOf(t, p, 0)
	const list = `{"v":1,"id":3,"op":"list"}`
	for _, c := range []struct {
		name   string
		before func(a *application)
		record string
		fds    int
		id     float64
	}{
		{name: "no descriptor", record: presentRecord, id: 1},
		{name: "a second descriptor that is no table", record: presentRecord, fds: 2, id: 1},
		{name: "three descriptors", record: presentRecord, fds: 3},
		{name: "many descriptors", record: presentRecord, fds: 253},
		{name: "with an argument", record: `{"v":1,"id":1,"op":"present","tag":"msg:1"}`, fds: 1, id: 1},
		{name: "with after", record: `{"v":1,"id":1,"op":"present","after":1}`, fds: 1, id: 1},
		{name: "after open", before: (*application).open, record: `{"v":1,"id":4,"op":"present"}`, id: 4},
		{name: "after open, with a descriptor", before: (*application).open, record: `{"v":1,"id":4,"op":"present"}`, fds: 1},
		{name: "list after open", before: (*application).open, record: list, id: 3},
		{name: "counters after open", before: (*application).open, record: `{"v":1,"id":3,"op":"counters"}`, id: 3},
		{name: "open after list", before: func(a *application) { a.send(list); a.receive() }, record: openRecord, id: 1},
		{name: "claim after list", before: func(a *application) { a.send(list); a.receive() }, record: `{"v":1,"id":5,"op":"claim","tag":"msg:1"}`, id: 5},
		{name: "present after list", before: func(a *application) { a.send(list); a.receive() }, record: presentRecord, fds: 1},
		{name: "list with a descriptor", record: list, fds: 1, id: 3},
		{name: "second list with a descriptor", before: func(a *application) { a.send(list); a.receive() }, record: list, fds: 1},
		{name: "list with a tag", record: `{"v":1,"id":3,"op":"list","tag":"msg:1"}`, id: 3},
		{name: "claim with after", before: (*application).open, record: `{"v":1,"id":3,"op":"claim","tag":"msg:1","after":1}`, id: 3},
		{name: "garbage with a descriptor", record: "?", fds: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := connect(t, socket)
			if c.before != nil {
				c.before(a)
			}
			a.send(c.record, slices.Repeat([]int{fd}, c.fds)...)
			a.wantError(c.id, "protocol")
			a.wantEOF()
		})
	}
	// A lease that was presented takes neither an open nor another socket.
	for _, c := range []struct {
		record string
		fds    []int
		id     float64
	}{{openRecord, nil, 1}, {`{"v":1,"id":2,"op":"present"}`, []int{fd}, 0}} {
		fd := endpointOf(t, p, 0)
		a := connect(t, socket)
		a.present(fd)
		a.send(c.record, c.fds...)
		a.wantError(c.id, "protocol")
		a.wantEOF()
	}
}

// Descriptors that are not the socket of an endpoint of the user are refused and closed. Other leases go on.
func TestPresentOfOtherDescriptorsIsRefused(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	leased, others := endpointOf(t, p, 0), endpointOf(t, p, 4711)
	holder := connect(t, socket)
	holder.present(leased)

	folder := t.TempDir()
	path, err := unix.Open(folder, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(path)
	dir, err := unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	unixSocket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unixSocket)
	memfd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	// A socket with itself in its queue.
	loop, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer protocol.CloseAll(loop[:])
	if err := unix.Sendmsg(loop[0], []byte("x"), unix.UnixRights(loop[1], loop[0]), nil, 0); err != nil {
		t.Fatal(err)
	}
	r, w := Pipe(t)
	for _, c := range []struct {
		name string
		fd   func(a *application) int
		code string
	}{
		{"O_PATH", func(*application) int { return path }, "not-presentable"},
		{"folder", func(*application) int { return dir }, "not-presentable"},
		{"pipe", func(*application) int { return fdOf(t, w) }, "not-presentable"},
		{"memfd", func(*application) int { return memfd }, "not-presentable"},
		{"another socket", func(*application) int { return unixSocket }, "not-presentable"},
		{"socket in flight", func(*application) int { return loop[1] }, "not-presentable"},
		{"the connection itself", func(a *application) (fd int) {
			raw, err := a.conn.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(of uintptr) { fd = int(of) })
			return fd
		}, "not-presentable"},
		{"of another user", func(*application) int { return others }, "permission"},
		{"leased", func(*application) int { return leased }, "leased"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := connect(t, socket)
			a.send(presentRecord, c.fd(a))
			a.wantError(1, c.code)
			a.wantEOF()
		})
	}
	w.Close()
	WantClosed(t, r)
	r.Close()
	holder.send(`{"v":1,"id":2,"op":"claim","tag":"msg:1"}`)
	holder.want(`{"id":2,"tag":"msg:1","v":1}`)
}

// An endpoint that is presented may have more tags than a record has room for: several answers have them.
func TestPresentManyTags(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	var tags []endpoint.Tag
	for i := range uint32(3 * maxPresented) {
		tags = append(tags, endpoint.MessageTag(4_000_000_000+i))
	}
	_, l := mustOpen(t, d.socket, endpoint.Request{Tags: tags[:protocol.MaxTags]})
	p.mu.Lock()
	for _, tag := range tags {
		p.endpoints[1].tags[tag] = true
	}
	p.mu.Unlock()
	d.kill()
	d.start()
	ctx := context.Background()
	// The call is answered only after the lease has been presented.
	if _, err := l.Resolve(ctx, netip.Addr{}, remoteAddr); err != nil {
		t.Fatal(err)
	}
	// The answers together have all tags.
	fd := endpointOf(t, p, 0, tags...)
	a := connect(t, d.socket)
	a.send(presentRecord, fd)
	var got, want []string
	for more := true; more; {
		m, _ := a.receive()
		lease := m["lease"].(map[string]any)
		for _, tag := range lease["tags"].([]any) {
			got = append(got, fmt.Sprint(tag))
		}
		more, _ = lease["more"].(bool)
	}
	for _, tag := range tags {
		want = append(want, tag.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d tags, or other ones than the %d of the endpoint", len(got), len(want))
	}
}

// With Keep the end of unetd closes no lease and sends no event. Without Keep it closes each
// lease, and then sends an event.
func TestStop(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep=%v", keep), func(t *testing.T) {
			DescriptorLeaks(t)
			p := newFakeProvider(t)
			socket, stop := start(t, &Server{Provider: p, Keep: keep})
			// The silent one is first, so it has been accepted when the others are answered.
			silent, granted, presented := connect(t, socket), connect(t, socket), connect(t, socket)
			fd := endpointOf(t, p, 0, endpoint.MessageTag(1))
			presented.present(fd)
			granted.open()
			stop()
			if keep {
				if len(p.closed) != 0 || p.tagsOf(1) == nil || p.tagsOf(2) == nil {
					t.Errorf("%d leases closed", len(p.closed))
				}
			} else {
				if len(p.closed) != 2 {
					t.Errorf("%d leases closed", len(p.closed))
				}
				granted.want(`{"event":"closed","message":"unetd was stopped","v":1}`)
				presented.want(`{"event":"closed","message":"unetd was stopped","v":1}`)
			}
			granted.wantEOF()
			presented.wantEOF()
			silent.wantEOF()
			p.mu.Lock()
			lease := p.newest
			p.mu.Unlock()
			until(t, "the session to leave the notices", func() bool { return lease.watched.Load() == 0 })
			granted.conn.Close()
			presented.conn.Close()
			silent.conn.Close()
		})
	}
}

// An endpoint whose grant was not sent is closed also with Keep, because no process can present it. An endpoint
// that was presented is kept, whether or not the present was answered.
func TestKeepOfUnansweredRequests(t *testing.T) {
	p := newFakeProvider(t)
	inside := make(chan struct{}, 2)
	block := func(ctx context.Context) error { // the operation succeeds after unetd was stopped
		inside <- struct{}{}
		<-ctx.Done()
		return nil
	}
	p.hook(hooks{
		open:    func(ctx context.Context, _ mux.Owner, _ endpoint.Request) error { return block(ctx) },
		present: func(ctx context.Context, _ mux.Owner, _ *os.File) error { return block(ctx) },
	})
	socket, stop := start(t, &Server{Provider: p, Keep: true})
	a, b := connect(t, socket), connect(t, socket)
	a.send(openRecord)
	Await(t, "open", inside)
	p.hook(hooks{present: p.current().present})
	fd := endpointOf(t, p, 0)
	b.send(presentRecord, fd)
	Await(t, "present", inside)
	stop()
	a.want(`{"event":"closed","message":"unetd was stopped","v":1}`)
	a.wantEOF()
	b.wantEOF()
	if l := p.awaitClosed(); l.e.id != 2 {
		t.Errorf("lease of endpoint %d was closed", l.e.id)
	}
	if p.tagsOf(1) == nil || len(p.closed) != 0 {
		t.Error("the presented endpoint was closed")
	}
}

// A presented file is not added to the runtime's poller, also if its owner has made it non-blocking: poll of some
// files blocks.
func TestPresentedIsNotPolled(t *testing.T) {
	p := newFakeProvider(t)
	fd := endpointOf(t, p, 0)
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	p.hook(hooks{present: func(_ context.Context, _ mux.Owner, sock *os.File) error {
		here := fdOf(t, sock)
		flags, err := unix.FcntlInt(uintptr(here), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("file flags %#x, %v", flags, err)
		}
		if flags, err := unix.FcntlInt(uintptr(here), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor flags %#x, %v", flags, err)
		}
		infos, err := filepath.Glob("/proc/self/fdinfo/*")
		if err != nil || len(infos) == 0 {
			t.Errorf("%v, %v", infos, err)
		}
		for _, info := range infos {
			text, _ := os.ReadFile(info) // fails if it has been closed meanwhile
			for line := range strings.Lines(string(text)) {
				var polled int
				if _, err := fmt.Sscanf(line, "tfd: %d", &polled); err == nil && polled == here {
					t.Errorf("%s has the presented descriptor: %s", info, line)
				}
			}
		}
		return nil
	}})
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.send(presentRecord, fd)
	if m, _ := a.receive(); m["lease"] == nil {
		t.Errorf("%v", m)
	}
}

// ReadRecord takes at most as many descriptors as there is room for, also if the padding of the control message has
// space for one more. More are an error.
func TestRoomForDescriptors(t *testing.T) {
	DescriptorLeaks(t)
	r, w := Pipe(t)
	for room := range 4 {
		for sent := range 6 {
			a, b := SocketPair(t)
			SendAll(t, a, "x", w, sent)
			record, fds, err := protocol.ReadRecord(b, room)
			if len(fds) != min(room, sent) || (err != nil) != (sent > room) || err == nil && string(record) != "x" {
				t.Errorf("room for %d, %d sent: %d, %v", room, sent, len(fds), err)
			}
			protocol.CloseAll(fds)
			a.Close()
			if _, _, err := protocol.ReadRecord(b, room); !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				t.Errorf("%v", err)
			}
			b.Close()
		}
	}
	w.Close()
	WantClosed(t, r)
	r.Close()
}
