//go:build linux

package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

const pathRecord = `{"v":1,"event":"path","path":{"id":12,"peer":8,"epoch":3,"peer_epoch":1}}`

// Another endpoint can ask for a path at any time. A process without room for its descriptors gives the path
// back, and keeps its lease.
func TestPathWithoutFreeDescriptors(t *testing.T) {
	for free := range protocol.PathDescriptors {
		DescriptorLeaks(t)
		app, unetd := SocketPair(t)
		r, w := Pipe(t)
		var asked []byte
		full := make(chan struct{})
		scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, protocol.GrantDescriptors) }, func() {
			SendAll(t, unetd, `{"v":1,"id":2,"tag":"msg:9"}`, nil, 0)
			<-full
			SendAll(t, unetd, pathRecord, w, protocol.PathDescriptors)
			asked, _, _ = protocol.ReadRecord(unetd, 0)
		})
		g, l, err := open(t.Context(), app, noSocket, endpoint.Request{})
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
		paths := l.Paths(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range paths {
				t.Error("got a path")
			}
		}()
		if _, err := l.Claim(t.Context(), endpoint.MessageTag(9)); err != nil {
			t.Error(err)
		}
		t.Run("full", func(t *testing.T) {
			leaveDescriptors(t, free)
			close(full)
			Await(t, "script", scriptDone)
		})
		if !strings.Contains(string(asked), `"op":"unpath"`) || !strings.Contains(string(asked), `"path":12`) {
			t.Errorf("%d free: unetd was asked %q", free, asked)
		}
		if err := l.Err(); err != nil {
			t.Errorf("%d free: %v", free, err)
		}
		unetd.Close()
		l.Close()
		<-ended
		w.Close()
		WantClosed(t, r)
		r.Close()
	}
}

// The records of a memory path that break the protocol end the lease, and leave no descriptor.
func TestUnusablePaths(t *testing.T) {
	for _, c := range []struct {
		record      string
		descriptors int
	}{
		{pathRecord, 0}, {pathRecord, protocol.PathDescriptors - 1}, {pathRecord, protocol.PathDescriptors + 1},
		{`{"v":1,"event":"path"}`, protocol.PathDescriptors},
		{strings.Replace(pathRecord, `"event":"path"`, `"event":"other"`, 1), protocol.PathDescriptors},
		{strings.Replace(pathRecord, `"event":"path"`, `"id":2`, 1), protocol.PathDescriptors},
		{`{"v":1,"event":"link","up":true}`, 1},
	} {
		DescriptorLeaks(t)
		app, unetd := SocketPair(t)
		r, w := Pipe(t)
		scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, protocol.GrantDescriptors) },
			func() { SendAll(t, unetd, c.record, w, c.descriptors) })
		g, l, err := open(t.Context(), app, noSocket, endpoint.Request{})
		if err != nil {
			t.Fatal(err)
		}
		g.Close()
		if err := l.OpenPath(t.Context(), 8); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s with %d descriptors: %v", c.record, c.descriptors, err)
		}
		Await(t, "Done", l.Done())
		Await(t, "script", scriptDone)
		unetd.Close()
		w.Close()
		WantClosed(t, r)
		r.Close()
	}
}

// A lease whose request has not asked for paths sends no request about them, which an older unetd would refuse.
func TestNoPathsWereAskedFor(t *testing.T) {
	app, unetd := SocketPair(t)
	_, w := Pipe(t)
	scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, protocol.GrantDescriptors) })
	g, l, err := open(t.Context(), app, noSocket, endpoint.Request{NoMemoryPaths: true})
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := l.OpenPath(context.Background(), 8); !errors.Is(err, endpoint.ErrNoPath) {
		t.Error(err)
	}
	if err := l.ClosePath(context.Background(), 8); err != nil {
		t.Error(err)
	}
	Await(t, "script", scriptDone)
	unetd.Close()
	l.Close()
}
