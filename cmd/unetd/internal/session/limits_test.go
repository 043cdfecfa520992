//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// as calls f as another user.
func as(t *testing.T, uid uint32, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to act as others")
	}
	netlab.AsUser(uid, f)
}

// connectAs connects as a user.
func connectAs(t *testing.T, uid uint32, socket string) (a *application) {
	t.Helper()
	as(t, uid, func() { a = connect(t, socket) })
	return a
}

// openAs connects as a user and opens an endpoint.
func openAs(t *testing.T, uid uint32, socket string) (a *application) {
	t.Helper()
	a = connectAs(t, uid, socket)
	a.open()
	return a
}

// permitAll lets every user connect.
func permitAll(t *testing.T, socket string) {
	t.Helper()
	folder := filepath.Dir(socket)
	if err := errors.Join(os.Chmod(socket, 0o666), os.Chmod(folder, 0o755), os.Chmod(filepath.Dir(folder), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// The connections of one user do not count for another, and those of root are bounded only
// by the total. A connection that was closed does not count.
func TestConnectionsOfAUser(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 8, ConnectionsPerUID: 2}}) // two users have a guarantee of one
	permitAll(t, socket)
	first := openAs(t, 1001, socket)
	openAs(t, 1001, socket)
	as(t, 1001, func() {
		a := connect(t, socket)
		a.wantError(0, "busy")
		a.wantEOF()
		_, _, err := control.Open(context.Background(), socket, endpoint.Request{})
		if !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), "uid 1001 has 2 of at most 2 connections") {
			t.Errorf("Open: %v", err)
		}
	})
	for range 5 {
		openAs(t, 0, socket)
	}
	if _, _, err := control.Open(context.Background(), socket, endpoint.Request{}); !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), "all users have 7 of at most 8 connections") {
		t.Errorf("one connection more than the pool has: %v", err)
	}
	openAs(t, 1002, socket)
	as(t, 1003, func() {
		if _, _, err := control.Open(context.Background(), socket, endpoint.Request{}); !errors.Is(err, endpoint.ErrBusy) || !strings.Contains(err.Error(), "all users") {
			t.Errorf("one connection more than Connections: %v", err)
		}
	})
	first.conn.Close()
	p.awaitClosed()
	as(t, 1001, func() { untilServed(t, socket) })
}

// However many connections some users hold, a user who has none can open endpoints and resolve, and root can ask for
// the list.
func TestConnectionsAreLeftForOthers(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 64, ConnectionsPerUID: 16}})
	permitAll(t, socket)
	for uid := range uint32(6) {
		as(t, 1101+uid, func() {
			for range 17 {
				connect(t, socket)
			}
		})
	}
	for range 10 {
		if _, err := (control.Operator{Socket: socket}).List(context.Background()); err != nil {
			t.Errorf("list: %v", err)
		}
	}
	for uid := range uint32(3) {
		as(t, 1201+uid, func() { checkServed(t, socket) })
	}
}

// Users for whom there is no rule share one user's connections, so many such users take nothing from others.
func TestStrangersShareConnections(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Connections: 64, ConnectionsPerUID: 1}})
	permitAll(t, socket)
	first := connectAs(t, strangerID, socket)
	first.send(openRecord)
	first.receive()
	second := connectAs(t, strangerID+1, socket)
	second.wantError(0, "busy")
	openAs(t, 1001, socket)
}

// untilServed opens endpoints until the calling user is not refused because of a limit, and closes that one.
func untilServed(t *testing.T, socket string) {
	t.Helper()
	until(t, "the user to be served", func() bool {
		g, l, err := control.Open(context.Background(), socket, endpoint.Request{})
		if err == nil {
			l.Close()
			g.Close()
		} else if !errors.Is(err, endpoint.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// A connection on which an endpoint was presented counts as one on which one was opened.
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

// The number of resolves in progress is limited for each user, so that other users can resolve, and for all users.
func TestResolvesAtOnce(t *testing.T) {
	p := newFakeProvider(t)
	inside, release := make(chan struct{}, 100), make(chan struct{})
	p.hook(hooks{route: func(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
		inside <- struct{}{}
		<-release
		return endpoint.Route{NextHop: dst}, nil
	}})
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{Resolves: 5, ResolvesPerUID: 2}})
	defer func() { close(release) }()
	permitAll(t, socket)
	resolve := func(a *application, id int) {
		a.send(fmt.Sprintf(`{"v":1,"id":%d,"op":"resolve","addr":"10.0.0.2"}`, id))
	}
	first, second, other := openAs(t, 1001, socket), openAs(t, 1001, socket), openAs(t, 1002, socket)
	resolve(first, 2)
	resolve(first, 3)
	Await(t, "resolve", inside)
	Await(t, "resolve", inside)
	resolve(second, 4)
	second.wantError(4, "busy")
	resolve(other, 5)
	Await(t, "the other's resolve", inside)
	root := openAs(t, 0, socket)
	resolve(root, 6)
	Await(t, "root's resolve", inside)
	resolve(other, 7)
	other.wantError(7, "busy")
	release <- struct{}{}
	release <- struct{}{}
	release <- struct{}{}
	release <- struct{}{}
	for _, a := range []*application{first, first, other, root} {
		if m, _ := a.receive(); m["route"] == nil {
			t.Errorf("%v", m)
		}
	}
	resolve(second, 8)
	Await(t, "resolve", inside)
}

// The log has one short line for a grant, however many tags it has.
func TestLogOfGrantIsShort(t *testing.T) {
	var log strings.Builder
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	var tags []endpoint.Tag
	for i := range uint32(protocol.MaxTags) {
		tags = append(tags, endpoint.MessageTag(1000000+i))
	}
	mustOpen(t, socket, endpoint.Request{Tags: tags})
	stop()
	if !strings.Contains(log.String(), " tags=1024\n") || log.Len() > 1000 {
		t.Errorf("log of %d bytes: %.300s", log.Len(), log.String())
	}
}
