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
