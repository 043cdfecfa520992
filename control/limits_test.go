package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
)

// as calls f as another user: a unix socket has the credentials of whoever
// connects it. Only this thread changes, and back again.
func as(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to act as others")
	}
	seteuid := func(uid int) {
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			panic(errno)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	seteuid(uid)
	defer seteuid(0)
	f()
}

// openAs connects as a user and opens an endpoint.
func openAs(t *testing.T, uid int, socket string) (a *application) {
	t.Helper()
	as(t, uid, func() { a = connect(t, socket) })
	a.open()
	return a
}

// forAll lets every user connect.
func forAll(t *testing.T, socket string) {
	t.Helper()
	folder := filepath.Dir(socket)
	if err := errors.Join(os.Chmod(socket, 0o666), os.Chmod(folder, 0o755), os.Chmod(filepath.Dir(folder), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// One user's connections do not take the place of another's, and root's are
// bounded only by the total.
func TestConnectionsOfAUser(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 6, ConnectionsPerUID: 2}})
	forAll(t, socket)
	first := openAs(t, 1001, socket)
	openAs(t, 1001, socket)
	as(t, 1001, func() {
		a := connect(t, socket)
		a.wantError(0, "busy")
		a.wantEOF()
		_, _, err := Open(context.Background(), socket, endpoint.Request{})
		if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "uid 1001 has 2 of at most 2 connections") {
			t.Errorf("Open: %v", err)
		}
	})
	openAs(t, 1002, socket)
	for range 3 {
		openAs(t, 0, socket)
	}
	as(t, 1002, func() {
		if _, _, err := Open(context.Background(), socket, endpoint.Request{}); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "all applications") {
			t.Errorf("one more than all: %v", err)
		}
	})
	first.conn.Close()
	p.awaitClosed()
	deadline := time.Now().Add(patience)
	as(t, 1001, func() {
		for {
			g, l, err := Open(context.Background(), socket, endpoint.Request{})
			if err == nil {
				l.Close()
				g.Close()
				return
			}
			if !errors.Is(err, ErrBusy) || time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	})
}

// The tags of the open and those claimed later count together; what is given
// back, refused or ended with its lease counts no more.
func TestTagsOfALease(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Tags: 6, TagsPerLease: 4}})
	ctx := context.Background()
	tags := func(from, n uint32) (list []endpoint.Tag) {
		for i := range n {
			list = append(list, endpoint.MessageTag(from+i))
		}
		return list
	}
	if _, _, err := Open(ctx, socket, endpoint.Request{Tags: tags(1, 5)}); !errors.Is(err, ErrBusy) {
		t.Errorf("open with 5 tags: %v", err)
	}
	_, l := mustOpen(t, socket, endpoint.Request{Tags: tags(1, 3)})
	for range 5 { // refused: counts only meanwhile
		if _, err := l.Claim(ctx, endpoint.MessageTag(1)); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Fatalf("Claim: %v", err)
		}
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(4)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(5)); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "4 of at most 4 tags") {
		t.Errorf("fifth tag: %v", err)
	}
	if err := l.Unclaim(ctx, endpoint.MessageTag(9)); err == nil {
		t.Error("a tag was given back that is not held")
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(5)); !errors.Is(err, ErrBusy) {
		t.Errorf("after that: %v", err)
	}
	if err := l.Unclaim(ctx, endpoint.MessageTag(4)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(5)); err != nil {
		t.Errorf("fifth tag in the fourth's place: %v", err)
	}
	// Six are for all.
	if _, _, err := Open(ctx, socket, endpoint.Request{Tags: tags(20, 3)}); !errors.Is(err, ErrBusy) {
		t.Errorf("open beyond the tags of all: %v", err)
	}
	mustOpen(t, socket, endpoint.Request{Tags: tags(20, 2)})
	p.hook(hooks{open: func(context.Context, Peer, endpoint.Request) error { return errors.New("no luck") }})
	l.Close()
	if _, _, err := Open(ctx, socket, endpoint.Request{Tags: tags(1, 4)}); err == nil || errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	p.hook(hooks{})
	mustOpen(t, socket, endpoint.Request{Tags: tags(1, 4)})
}

// A block of ports costs what its ports do.
func TestBlocksCountTheirPorts(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Tags: 200, TagsPerLease: 2*endpoint.BlockPorts + 1}})
	ctx := context.Background()
	block := func(port uint16) endpoint.Tag { return endpoint.UDPTag(netip.AddrPortFrom(localAddr, port)).AsBlock() }
	if _, _, err := Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{block(64), block(128), block(192)}}); !errors.Is(err, ErrBusy) {
		t.Errorf("open with three blocks: %v", err)
	}
	_, l := mustOpen(t, socket, endpoint.Request{Tags: []endpoint.Tag{block(64)}})
	any, err := l.Claim(ctx, block(0))
	if err != nil || !any.Block || any.Port == 0 {
		t.Fatalf("Claim: %v, %v", any, err)
	}
	if _, err := l.Claim(ctx, block(0)); !errors.Is(err, ErrBusy) {
		t.Errorf("third block: %v", err)
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(1)); err != nil {
		t.Errorf("one tag: %v", err)
	}
	if err := l.Unclaim(ctx, any); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(endpoint.BlockPorts) {
		if _, err := l.Claim(ctx, endpoint.MessageTag(10+i)); err != nil {
			t.Fatalf("tag %d in a block's place: %v", i, err)
		}
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(2)); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	// 129 of 200 are taken: no room for two blocks more.
	if _, _, err := Open(ctx, socket, endpoint.Request{Tags: []endpoint.Tag{block(64), block(128)}}); !errors.Is(err, ErrBusy) {
		t.Errorf("beyond those of all: %v", err)
	}
	mustOpen(t, socket, endpoint.Request{Tags: []endpoint.Tag{block(64)}})
}

// An endpoint that was there before unetd keeps its tags, whatever the quotas
// are now, and they count: until it has given enough back there are no others.
func TestAdoptedTagsCount(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	var tags []endpoint.Tag
	for i := range uint32(10) {
		tags = append(tags, endpoint.MessageTag(i+1))
	}
	_, l := mustOpen(t, d.socket, endpoint.Request{Tags: tags})
	d.kill()
	d.limits = Limits{Tags: 9, TagsPerLease: 9}
	d.start()
	ctx := context.Background()
	if _, err := l.Claim(ctx, endpoint.MessageTag(11)); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "10 of at most 9 tags") {
		t.Errorf("Claim: %v", err)
	}
	mustOpen(t, d.socket, endpoint.Request{}) // which needs none
	if _, _, err := Open(ctx, d.socket, endpoint.Request{Tags: tags[:1]}); !errors.Is(err, ErrBusy) {
		t.Errorf("another's tag: %v", err)
	}
	for _, tag := range tags[:2] {
		if err := l.Unclaim(ctx, tag); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(11)); err != nil {
		t.Errorf("Claim: %v", err)
	}
	if _, err := l.Claim(ctx, endpoint.MessageTag(12)); !errors.Is(err, ErrBusy) {
		t.Errorf("Claim: %v", err)
	}
	l.Close()
	mustOpen(t, d.socket, endpoint.Request{Tags: tags[:9]})
}

// Presenting takes a place as opening does.
func TestPresentsCountAsConnections(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 2}})
	mustOpen(t, socket, endpoint.Request{})
	fd := endpointOf(t, p, 0)
	a := connect(t, socket)
	a.send(presentRecord, fd)
	a.receive()
	b := connect(t, socket)
	b.wantError(0, "busy")
	b.wantEOF()
}

// The provider says how many tags a user may have.
func TestTagsThatTheProviderGives(t *testing.T) {
	p := newFakeProvider(t)
	p.tags = map[uint32]int{1001: 2}
	socket, _ := start(t, &Server{Provider: p})
	forAll(t, socket)
	openAs(t, 1001, socket) // one tag each
	openAs(t, 1001, socket)
	as(t, 1001, func() {
		_, _, err := Open(context.Background(), socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(1)}})
		if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "uid 1001 has 2 of at most 2 tags") {
			t.Errorf("third tag of a user: %v", err)
		}
	})
	for range 3 {
		openAs(t, 1002, socket)
	}
	// More than a thousand of one lease, if they may be.
	as(t, 1002, func() {
		_, l := mustOpen(t, socket, endpoint.Request{})
		for i := range 100 {
			if _, err := l.Claim(context.Background(), endpoint.UDPTag(netip.AddrPortFrom(localAddr, uint16(64+64*i))).AsBlock()); err != nil {
				t.Fatalf("block %d: %v", i, err)
			}
		}
	})
}

func TestTagsOfAUser(t *testing.T) {
	socket, _ := start(t, &Server{Provider: newFakeProvider(t), Limits: Limits{TagsPerUID: 2}})
	forAll(t, socket)
	openAs(t, 1001, socket) // one tag each
	openAs(t, 1001, socket)
	as(t, 1001, func() {
		if _, _, err := Open(context.Background(), socket, endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(1)}}); !errors.Is(err, ErrBusy) {
			t.Errorf("third tag of a user: %v", err)
		}
	})
	openAs(t, 1002, socket)
	for range 3 {
		openAs(t, 0, socket)
	}
}

// Discovery that nobody answers is bounded: for a user, so that another's
// finds a place, and for all.
func TestResolvesAtOnce(t *testing.T) {
	p := newFakeProvider(t)
	inside, release := make(chan struct{}, 100), make(chan struct{})
	p.hook(hooks{route: func(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-release
		return endpoint.Route{NextHop: dst}, nil
	}})
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Resolves: 4, ResolvesPerUID: 2}})
	defer func() { close(release) }()
	forAll(t, socket)
	resolve := func(a *application, id int) {
		a.send(fmt.Sprintf(`{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.2"}`, id))
	}
	mine, more, other := openAs(t, 1001, socket), openAs(t, 1001, socket), openAs(t, 1002, socket)
	resolve(mine, 2)
	resolve(mine, 3)
	await(t, "resolve", inside)
	await(t, "resolve", inside)
	resolve(more, 4)
	more.wantError(4, "busy")
	resolve(other, 5)
	await(t, "the other's resolve", inside)
	root := openAs(t, 0, socket)
	resolve(root, 6)
	await(t, "root's resolve", inside)
	resolve(other, 7)
	other.wantError(7, "busy")
	release <- struct{}{}
	release <- struct{}{}
	release <- struct{}{}
	release <- struct{}{}
	for _, a := range []*application{mine, mine, other, root} {
		if m, _ := a.receive(); m["route"] == nil {
			t.Errorf("%v", m)
		}
	}
	resolve(more, 8)
	await(t, "resolve", inside)
}

// A grant is one short line however many tags it has.
func TestLogIsShort(t *testing.T) {
	var log strings.Builder
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	var tags []endpoint.Tag
	for i := range uint32(MaxTags) {
		tags = append(tags, endpoint.MessageTag(1000000+i))
	}
	mustOpen(t, socket, endpoint.Request{Tags: tags})
	stop()
	if !strings.Contains(log.String(), " tags=1024\n") || log.Len() > 1000 {
		t.Errorf("log of %d bytes: %.300s", log.Len(), log.String())
	}
}
