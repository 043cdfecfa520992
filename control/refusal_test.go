package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// What the next unetd can say to an endpoint that is presented to it, and which of
// it is the last word.
func TestPresentIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
	}{
		{"unknown", ErrNotPresentable}, {"another's", os.ErrPermission}, {"leased", ErrLeased}, {"over", endpoint.ErrLeaseClosed},
		{"unsupported", errors.ErrUnsupported}, {"protocol", ErrProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			descriptorLeaks(t)
			p := newFakeProvider(t)
			d := newDaemon(t, p)
			g, l := mustOpen(t, d.socket, endpoint.Request{})
			d.kill()
			p.hook(hooks{present: func(context.Context, Peer, *os.File) error { return fmt.Errorf("no: %w", c.err) }})
			d.start()
			_, err := l.Claim(context.Background(), endpoint.MessageTag(1))
			if !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), "does not take the endpoint back: no: ") {
				t.Errorf("Claim: %v", err)
			}
			await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.err) {
				t.Errorf("Err: %v", err)
			}
			g.Close()
			d.stop()
			p.noCopies() // without Close: the lease keeps nothing
		})
	}
	for _, c := range []struct {
		name string
		err  error
	}{{"busy", busy("full house")}, {"internal", errors.New("out of luck")}} {
		t.Run(c.name, func(t *testing.T) {
			p := newFakeProvider(t)
			d := newDaemon(t, p)
			_, l := mustOpen(t, d.socket, endpoint.Request{})
			d.kill()
			var mu sync.Mutex
			tries := 0
			p.hook(hooks{present: func(context.Context, Peer, *os.File) error {
				mu.Lock()
				defer mu.Unlock()
				if tries++; tries < 3 {
					return c.err
				}
				return nil
			}})
			d.start()
			if _, err := l.Resolve(context.Background(), remoteAddr); err != nil {
				t.Error(err)
			}
		})
	}
}

// The connection may be refused as a whole, which is a matter of time.
func TestNoPlaceToPresent(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	d.kill()
	d.limits = Limits{Connections: 1}
	d.socket += "2"
	d.start()
	holder := connect(t, d.socket)
	holder.open()
	if err := os.Symlink(d.socket, strings.TrimSuffix(d.socket, "2")); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Resolve(ctx, remoteAddr); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Resolve without a place: %v", err)
		}
	}()
	await(t, "the caller's patience", refused)
	holder.conn.Close()
	if _, err := l.Resolve(context.Background(), remoteAddr); err != nil {
		t.Error(err)
	}
}

// What unetd says about the connection as a whole, or when it says that the lease
// is over, ends it; nothing is presented after that.
func TestLastWords(t *testing.T) {
	for _, c := range []struct {
		record string
		is     error
		says   string
	}{
		{`{"v":1,"id":0,"error":{"code":"protocol","message":"a violation"}}`, ErrProtocol, "a violation"},
		{`{"v":1,"id":0,"error":{"code":"busy","message":"a limit"}}`, ErrBusy, "a limit"},
		{`{"v":1,"id":2,"error":{"code":"protocol","message":"a violation"}}`, ErrProtocol, "a violation"},
		{`{"v":1,"event":"closed","message":"revoked"}`, endpoint.ErrLeaseClosed, "lease closed: revoked"},
		{`{"v":1,"event":"closed"}`, endpoint.ErrLeaseClosed, "lease closed: unetd has ended it"},
		{`{"v":2,"event":"closed"}`, ErrProtocol, "version 2"},
	} {
		t.Run(c.record, func(t *testing.T) {
			descriptorLeaks(t)
			socket, ln := listen(t)
			app, unetd := socketPair(t)
			r, w := pipe(t)
			said := script(t, unetd,
				func() { sendAll(t, unetd, grantRecord, w, 2) },
				func() {
					sendAll(t, unetd, c.record, nil, 0)
					hangUp(unetd)
				})
			g, l, err := open(context.Background(), app, socket, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			_, err = l.Resolve(context.Background(), remoteAddr)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Resolve: %v", err)
			}
			await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Err: %v", err)
			}
			await(t, "script", said)
			w.Close()
			wantClosed(t, r)
			r.Close()
			if err := ln.SetDeadline(time.Now()); err != nil {
				t.Fatal(err)
			}
			if c, err := ln.Accept(); err == nil {
				t.Error("it connected again")
				c.Close()
			}
			ln.Close()
		})
	}
}

// What is said after the answers to present were begun, or in place of one.
func TestUnusableAnswersToPresent(t *testing.T) {
	for _, c := range []struct {
		records []string
		is      error // nil: taken
	}{
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"]}}`}, nil},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, linkUpEvent, `{"v":1,"id":1,"lease":{"id":5,"tags":["msg:8"]}}`}, nil},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1}`}, ErrProtocol},
		{[]string{`{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1,"error":{"code":"leased","message":"m"}}`}, ErrLeased},
		{[]string{`{"v":1,"id":2,"lease":{"id":5}}`}, ErrProtocol},
		{[]string{`{"v":1,"id":1,"tag":"msg:7"}`}, ErrProtocol},
		{[]string{`nonsense`}, ErrProtocol},
		{[]string{`{"v":1,"event":"closed","message":"it was reclaimed"}`}, endpoint.ErrLeaseClosed},
		{[]string{`{"v":1,"id":0,"error":{"code":"protocol","message":"m"}}`}, ErrProtocol},
	} {
		socket, ln := listen(t)
		app, unetd := socketPair(t)
		_, w := pipe(t)
		said := script(t, unetd, func() { sendAll(t, unetd, grantRecord, w, 2) })
		g, l, err := open(context.Background(), app, socket, endpoint.Request{})
		if err != nil {
			t.Fatal(err)
		}
		await(t, "script", said)
		unetd.Close()
		conn, err := ln.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		record, fds, err := readRecord(conn, 2)
		var asked map[string]any
		if err != nil || json.Unmarshal(record, &asked) != nil || asked["op"] != "present" || len(asked) != 3 || len(fds) != 1 {
			t.Fatalf("%q with %d descriptors, %v", record, len(fds), err)
		}
		closeAll(fds)
		for _, r := range c.records {
			sendAll(t, conn, r, nil, 0)
		}
		if c.is != nil {
			await(t, "Done", l.Done())
			if err := l.Err(); !errors.Is(err, c.is) {
				t.Errorf("%q: %v, want %v", c.records, err, c.is)
			}
		} else {
			told := make(chan struct{})
			go func() {
				defer close(told)
				if _, err := conn.Read(make([]byte, MaxRecord)); err != nil {
					t.Error(err)
				}
				sendAll(t, conn, `{"v":1,"id":2}`, nil, 0)
			}()
			if err := l.Unclaim(context.Background(), endpoint.MessageTag(7)); err != nil {
				t.Errorf("%q: %v", c.records, err)
			}
			await(t, "unetd", told)
		}
		hangUp(conn)
		ln.Close()
		l.Close()
		g.Close()
	}
}
