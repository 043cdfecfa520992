//go:build linux

package session

import (
	"context"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

// If a user opens many endpoints at once, unetd opens one at a time, and serves other users meanwhile.
func TestOpensTakeTurns(t *testing.T) {
	p := newFakeProvider(t)
	socket, stop := start(t, &Server{Provider: p})
	permitAll(t, socket)
	const opens = 20
	inside, release := make(chan struct{}, opens), make(chan struct{})
	p.hook(hooks{open: func(_ context.Context, peer mux.Owner, _ endpoint.Request) error {
		if peer.UID == 1001 {
			inside <- struct{}{}
			<-release
		}
		return nil
	}})
	var apps []*application
	for range opens {
		a := connectAs(t, 1001, socket)
		a.send(openRecord)
		apps = append(apps, a)
	}
	Await(t, "the first", inside)
	openAs(t, 1002, socket)
	openAs(t, 0, socket)
	if n := len(inside); n != 0 {
		t.Errorf("%d more opens of one user are being worked on", n)
	}
	// A connection that is closed while it waits does not delay the others.
	apps[opens-1].conn.Close()
	apps = apps[:opens-1]
	close(release)
	for _, a := range apps {
		m, fds := a.receive()
		protocol.CloseAll(fds)
		if m["grant"] == nil {
			t.Errorf("%v", m)
		}
	}
	stop()
}

// A cancelled wait for a turn takes no turn, and a user without turns has no entry in lines.
func TestTurns(t *testing.T) {
	turns := newTurns(2)
	ctx, cancel := context.WithCancel(context.Background())
	for _, uid := range []uint32{1, 1, 2} {
		if !turns.take(ctx, uid) {
			t.Errorf("no turn for user %d", uid)
		}
	}
	waited := make(chan bool)
	go func() { waited <- turns.take(ctx, 1) }()
	cancel()
	if <-waited {
		t.Error("a third turn")
	}
	if turns.take(ctx, 0) {
		t.Error("a wait that was cancelled got a turn")
	}
	turns.give(1)
	if !turns.take(context.Background(), 1) {
		t.Error("no turn after one was given back")
	}
	for _, uid := range []uint32{1, 1, 2} {
		turns.give(uid)
	}
	if len(turns.lines) != 0 {
		t.Errorf("lines %v", turns.lines)
	}
}
