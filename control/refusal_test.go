//go:build linux

package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// An error about the whole connection, or an event that the lease is closed, ends the lease;
// nothing is presented after that.
func TestErrorOfTheConnectionEndsTheLease(t *testing.T) {
	for _, c := range []struct {
		record string
		err    error
		text   string
	}{
		{`{"v":1,"id":0,"error":{"code":"protocol","message":"a violation"}}`, protocol.ErrProtocol, "a violation"},
		{`{"v":1,"id":0,"error":{"code":"busy","message":"a limit"}}`, endpoint.ErrBusy, "a limit"},
		{`{"v":1,"id":2,"error":{"code":"protocol","message":"a violation"}}`, protocol.ErrProtocol, "a violation"},
		{`{"v":1,"event":"closed","message":"revoked"}`, endpoint.ErrLeaseClosed, "lease closed: revoked"},
		{`{"v":1,"event":"closed"}`, endpoint.ErrLeaseClosed, "lease closed: unetd has ended it"},
		{`{"v":2,"event":"closed"}`, protocol.ErrProtocol, "version 2"},
	} {
		t.Run(c.record, func(t *testing.T) {
			DescriptorLeaks(t)
			socket, ln := Listen(t)
			app, unetd := SocketPair(t)
			r, w := Pipe(t)
			scriptDone := script(t, unetd,
				func() { SendAll(t, unetd, grantRecord, w, 2) },
				func() {
					SendAll(t, unetd, c.record, nil, 0)
					closeAfterReading(unetd)
				})
			g, l, err := open(context.Background(), app, socket, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			_, err = l.Resolve(context.Background(), netip.Addr{}, remoteAddr)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Resolve: %v", err)
			}
			Await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Err: %v", err)
			}
			Await(t, "script", scriptDone)
			w.Close()
			WantClosed(t, r)
			r.Close()
			if err := ln.SetDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if c, err := ln.Accept(); err == nil {
				t.Error("the lease has connected again")
				c.Close()
			}
			ln.Close()
		})
	}
}

// Valid and invalid answers to present, some of several records.
func TestUnusableAnswersToPresent(t *testing.T) {
	for _, c := range []struct {
		records []string
		err     error // nil: the answer is valid
	}{
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"]}}`}, nil},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, `{"v":1,"event":"link","up":true}`, `{"v":1,"id":1,"lease":{"id":5,"tags":["msg:8"]}}`}, nil},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1}`}, protocol.ErrProtocol},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1,"error":{"code":"leased","message":"m"}}`}, endpoint.ErrLeased},
		{[]string{`{"v":1,"id":2,"lease":{"id":5}}`}, protocol.ErrProtocol},
		{[]string{`{"v":1,"id":1,"tag":"msg:7"}`}, protocol.ErrProtocol},
		{[]string{`nonsense`}, protocol.ErrProtocol},
		{[]string{`{"v":1,"event":"closed","message":"it was reclaimed"}`}, endpoint.ErrLeaseClosed},
		{[]string{`{"v":1,"id":0,"error":{"code":"protocol","message":"m"}}`}, protocol.ErrProtocol},
	} {
		socket, ln := Listen(t)
		app, unetd := SocketPair(t)
		_, w := Pipe(t)
		scriptDone := script(t, unetd, func() { SendAll(t, unetd, grantRecord, w, 2) })
		g, l, err := open(context.Background(), app, socket, endpoint.Request{NoMemoryPaths: true})
		if err != nil {
			t.Fatal(err)
		}
		Await(t, "script", scriptDone)
		unetd.Close()
		conn, err := ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		record, fds, err := protocol.ReadRecord(conn, 2)
		var asked map[string]any
		if err != nil || json.Unmarshal(record, &asked) != nil || asked["op"] != "present" || len(asked) != 3 || len(fds) != 1 {
			t.Fatalf("%q with %d descriptors, %v", record, len(fds), err)
		}
		protocol.CloseAll(fds)
		for _, r := range c.records {
			SendAll(t, conn, r, nil, 0)
		}
		if c.err != nil {
			Await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, c.err) {
				t.Errorf("%q: %v, want %v", c.records, err, c.err)
			}
		} else {
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				if _, err := conn.Read(make([]byte, protocol.MaxRecord)); err != nil {
					t.Error(err)
				}
				SendAll(t, conn, `{"v":1,"id":2}`, nil, 0)
			}()
			if err := l.Unclaim(context.Background(), endpoint.MessageTag(7)); err != nil {
				t.Errorf("%q: %v", c.records, err)
			}
			if next, err := l.connection(context.Background()); err != nil || len(next.tags) != strings.Count(strings.Join(c.records, ""), "msg:") {
				t.Errorf("%q: %v, tags %v", c.records, err, next.tags)
			}
			Await(t, "unetd", answered)
		}
		closeAfterReading(conn)
		ln.Close()
		l.Close()
		g.Close()
	}
}
