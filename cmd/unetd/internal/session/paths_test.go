//go:build linux

package session

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// fakePath makes a path, with any epochs.
func fakePath(t testing.TB, one, two uint64) (a, b *endpoint.Path) {
	t.Helper()
	a, b, err := mempath.Make()
	if err != nil {
		t.Fatal(err)
	}
	a.ID, a.Peer, a.Epoch, a.PeerEpoch = 5, two, 1, 2
	b.ID, b.Peer, b.Epoch, b.PeerEpoch = 5, one, 2, 1
	return a, b
}

// inodeOf identifies a file.
func inodeOf(t testing.TB, fd int) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// givePath makes a path between two endpoints and hands an end to each, as a mux does.
func (p *fakeProvider) givePath(l *fakeLease, peer uint64) error {
	p.mu.Lock()
	e := p.endpoints[peer]
	p.mu.Unlock()
	if e == nil || e.lease == nil {
		return endpoint.ErrNoPath
	}
	a, b := fakePath(p.t, l.e.id, peer)
	for _, end := range []struct {
		l *fakeLease
		p *endpoint.Path
	}{{l, a}, {e.lease, b}} {
		if !end.l.paths.Give(end.p) {
			_ = end.p.Close()
		}
	}
	return nil
}

const openPathsRecord = `{"v":1,"id":1,"op":"open","memory_paths":true,"open":{"attach":"port","geometry":{}}}`

// The records are those of docs/control-protocol.md. The descriptors come in their order, and only to an
// application that asks for them.
func TestPathRecords(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	asked := make(chan uint64, 2)
	p.hook(hooks{openPath: func(_ *fakeLease, peer uint64) error { asked <- peer; return nil },
		closePath: func(_ *fakeLease, id uint64) { asked <- id }})
	a := connect(t, socket)
	a.send(openPathsRecord)
	m, fds := a.receive()
	protocol.CloseAll(fds)
	if m["table"] != true || len(fds) != protocol.GrantDescriptors+1 {
		t.Errorf("%v with %d descriptors", m, len(fds))
	}
	own, other := fakePath(t, 1, 8)
	var want []uint64
	for _, f := range []*os.File{own.Own, own.Other, own.Ring, own.Bell} {
		want = append(want, inodeOf(t, fdOf(t, f)))
	}
	other.Close()
	if !p.newestLease().paths.Give(own) {
		t.Fatal("the session does not range over the paths")
	}
	m, fds = a.receive()
	if b, _ := json.Marshal(m); string(b) != `{"event":"path","path":{"epoch":1,"id":5,"peer":8,"peer_epoch":2},"v":1}` || len(fds) != protocol.PathDescriptors {
		t.Fatalf("%s with %d descriptors", b, len(fds))
	}
	for i, fd := range fds {
		if inodeOf(t, fd) != want[i] {
			t.Errorf("descriptor %d is another file", i)
		}
	}
	protocol.CloseAll(fds)
	a.send(`{"v":1,"id":2,"op":"path","endpoint":8}`)
	a.want(`{"id":2,"v":1}`)
	a.send(`{"v":1,"id":3,"op":"unpath","path":9}`)
	a.want(`{"id":3,"v":1}`)
	if one, two := <-asked, <-asked; one != 8 || two != 9 {
		t.Errorf("asked for %d and %d", one, two)
	}
	p.hook(hooks{})
	a.send(`{"v":1,"id":4,"op":"path","endpoint":8}`)
	a.wantError(4, "no-path")

	// An application of before memory paths gets a grant as before, and no paths.
	b := connect(t, socket)
	b.open()
	if p.newestLease().paths.Taken() {
		t.Error("the session ranges over the paths of an application that has not asked for them")
	}
	c := connect(t, socket)
	fd := endpointOf(t, p, 0)
	c.send(strings.Replace(presentRecord, `"id"`, `"memory_paths":true,"id"`, 1), fd)
	c.receive()
	if !p.newestLease().paths.Taken() {
		t.Error("the session does not range over the paths of an application that has presented its endpoint")
	}
}

// Two applications each get an end of the path for which one has asked, through package control.
func TestPathBetweenApplications(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	p.hook(hooks{openPath: p.givePath})
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	ga, a := mustOpen(t, socket, endpoint.Request{})
	gb, b := mustOpen(t, socket, endpoint.Request{})
	defer errors.Join(ga.Close(), gb.Close())
	if ga.Table == nil || gb.Table == nil {
		t.Error("a grant without a table")
	}
	ends := make(chan *endpoint.Path, 2)
	for _, l := range []endpoint.Lease{a, b} {
		paths := l.Paths(t.Context())
		go func() {
			for path := range paths {
				ends <- path
			}
			ends <- nil
		}()
	}
	if err := a.OpenPath(t.Context(), gb.ID); err != nil {
		t.Fatal(err)
	}
	one, two := <-ends, <-ends
	if one.Peer == ga.ID {
		one, two = two, one
	}
	if one.Peer != gb.ID || two.Peer != ga.ID || one.Epoch != two.PeerEpoch || one.PeerEpoch != two.Epoch {
		t.Errorf("%+v and %+v", one, two)
	}
	from, to := openPath(t, one), openPath(t, two)
	for _, text := range []string{"there", "and back"} {
		copy(from.Reserve(len(text)), text)
		from.Publish(len(text))
		from.Flush()
		buf := make([]byte, mempath.MaxFrame)
		waiting, err := to.Scan(2)
		if got := string(buf[:to.Take(buf)]); err != nil || waiting != 1 || got != text {
			t.Errorf("%d frames, %q, %v, want %q", waiting, got, err, text)
		}
		from, to = to, from
	}
	if err := errors.Join(from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
	if err := a.OpenPath(t.Context(), 99); !errors.Is(err, endpoint.ErrNoPath) {
		t.Errorf("no such endpoint: %v", err)
	}
	a.Close()
	b.Close()
	if one, two := <-ends, <-ends; one != nil || two != nil {
		t.Error("a loop got another path")
	}
}

func openPath(t *testing.T, p *endpoint.Path) *mempath.Path {
	t.Helper()
	opened, err := mempath.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// A path that comes to an application which does not range over its paths is closed and given back.
func TestPathForNobody(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	back := make(chan uint64, 1)
	p.hook(hooks{openPath: p.givePath, closePath: func(l *fakeLease, id uint64) {
		if l.e.id == 2 {
			back <- id
		}
	}})
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	ga, a := mustOpen(t, socket, endpoint.Request{})
	gb, b := mustOpen(t, socket, endpoint.Request{})
	ga.Close()
	gb.Close()
	got := make(chan *endpoint.Path, 1)
	paths := a.Paths(t.Context())
	go func() {
		for path := range paths {
			got <- path
		}
	}()
	if err := a.OpenPath(t.Context(), gb.ID); err != nil {
		t.Fatal(err)
	}
	one := <-got
	if id := <-back; id != one.ID {
		t.Errorf("path %d was given back, want %d", id, one.ID)
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
}

// An application that does not read gets only so many paths that their descriptors do not fill unetd, and
// then no more are made for it. Others are served.
func TestPathsNotRead(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	a := connect(t, socket)
	a.send(openPathsRecord)
	a.receiveAndClose()
	l := p.newestLease()
	given := 0
	for l.paths.Taken() {
		own, other := fakePath(t, 1, uint64(given+2))
		other.Close()
		if !l.paths.Give(own) {
			t.Fatal("there was room")
		}
		given++
	}
	if most := 2*maxUnread/512 + 17; given > most {
		t.Errorf("%d paths were sent or wait", given)
	}
	checkServed(t, socket)
	// What it has not read comes when it reads.
	for range given {
		if _, fds := a.receive(); len(fds) != protocol.PathDescriptors {
			t.Fatalf("%d descriptors", len(fds))
		} else {
			protocol.CloseAll(fds)
		}
	}
	if l.Err() != nil {
		t.Error(l.Err())
	}
}

// receiveAndClose receives a record and closes its descriptors.
func (a *application) receiveAndClose() {
	_, fds := a.receive()
	protocol.CloseAll(fds)
}

// A lease ends with paths on their way: no descriptor is left.
func TestPathsOnTheirWayAtTheEnd(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	a := connect(t, socket)
	a.send(openPathsRecord)
	a.receiveAndClose()
	l := p.newestLease()
	for peer := uint64(2); l.paths.Taken(); peer++ {
		own, other := fakePath(t, 1, peer)
		other.Close()
		l.paths.Give(own)
	}
	l.end(context.Canceled)
	p.awaitClosed()
}

// A capture lasts as long as the operator's connection, also beyond the limit of idle ones. A connection has one.
func TestCaptureEndsWithConnection(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p, Limits: Limits{IdleTimeout: time.Millisecond}})
	defer stop()
	captures := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.captures
	}
	ctx, cancel := context.WithCancel(t.Context())
	op, none := control.Operator{Socket: socket}, uint64(7)
	if _, err := op.Capture(ctx, &none); !errors.Is(err, endpoint.ErrNoEndpoint) || captures() != 0 {
		t.Errorf("no such endpoint: %v", err)
	}
	ended, err := op.Capture(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := connect(t, socket)
	a.send(`{"v":1,"id":1,"op":"capture"}`)
	a.want(`{"id":1,"v":1}`)
	a.send(`{"v":1,"id":2,"op":"capture"}`)
	a.wantError(2, "busy")
	if n := captures(); n != 2 {
		t.Errorf("%d captures", n)
	}
	a.conn.Close()
	until(t, "the end of a capture", func() bool { return captures() == 1 })
	select {
	case <-ended:
		t.Error("the other capture has ended")
	default:
	}
	cancel()
	<-ended
	until(t, "the end of both", func() bool { return captures() == 0 })

	permitAll(t, socket)
	b := connectAs(t, 4242, socket)
	b.send(`{"v":1,"id":1,"op":"capture"}`)
	b.wantError(1, "permission")
}
