//go:build linux

package control

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

// unetd answers a request with the error that the lease is closed. If an event with the
// reason follows, the caller gets the reason. If the connection ends without it, only unetd
// has ended, and the request is made again to the next one.
func TestRequestWhileTheLeaseEnds(t *testing.T) {
	const over = `{"v":1,"id":2,"error":{"code":"closed","message":"lease closed"}}`
	requests := map[string]func(ctx context.Context, l *Lease) error{
		"claim":   func(ctx context.Context, l *Lease) error { _, err := l.Claim(ctx, endpoint.MessageTag(9)); return err },
		"unclaim": func(ctx context.Context, l *Lease) error { return l.Unclaim(ctx, endpoint.MessageTag(7)) },
		"resolve": func(ctx context.Context, l *Lease) error {
			_, err := l.Resolve(ctx, netip.Addr{}, remoteAddr)
			return err
		},
	}
	again := map[string]string{
		"claim":   `{"v":1,"id":2,"tag":"msg:9"}`,
		"unclaim": `{"v":1,"id":2}`,
		"resolve": `{"v":1,"id":2,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
	}
	for name, ask := range requests {
		t.Run(name+", revoked", func(t *testing.T) {
			app, unetd := SocketPair(t)
			_, w := Pipe(t)
			scriptDone := script(t, unetd,
				func() { SendAll(t, unetd, grantRecord, w, 2) },
				func() {
					SendAll(t, unetd, over, nil, 0)
					SendAll(t, unetd, `{"v":1,"event":"closed","message":"revoked"}`, nil, 0)
					closeAfterReading(unetd)
				})
			g, l, err := open(t.Context(), app, noSocket, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if err := ask(t.Context(), l); !errors.Is(err, endpoint.ErrLeaseClosed) || err.Error() != "lease closed: revoked" {
				t.Errorf("got %v, want the reason", err)
			}
			Await(t, "script", scriptDone)
			l.Close()
		})
		t.Run(name+", another unetd", func(t *testing.T) {
			socket, ln := Listen(t)
			app, unetd := SocketPair(t)
			_, w := Pipe(t)
			scriptDone := script(t, unetd,
				func() { SendAll(t, unetd, grantRecord, w, 2) },
				func() {
					SendAll(t, unetd, over, nil, 0)
					closeAfterReading(unetd)
				})
			g, l, err := open(t.Context(), app, socket, endpoint.Request{})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			ln.SetDeadline(time.Now().Add(TestTimeout))
			answer := make(chan error, 1)
			go func() { answer <- ask(t.Context(), l) }()
			Await(t, "script", scriptDone)
			conn, err := ln.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			conn.SetDeadline(time.Now().Add(TestTimeout))
			_, fds, err := protocol.ReadRecord(conn, 2)
			if err != nil {
				t.Fatal(err)
			}
			protocol.CloseAll(fds)
			SendAll(t, conn, `{"v":1,"id":1,"lease":{"id":5,"tags":["msg:7"]}}`, nil, 0)
			if _, err := conn.Read(make([]byte, protocol.MaxRecord)); err != nil {
				t.Fatal(err)
			}
			SendAll(t, conn, again[name], nil, 0)
			if err := <-answer; err != nil {
				t.Errorf("got %v, want the next unetd's answer", err)
			}
			closeAfterReading(conn)
			ln.Close()
			l.Close()
		})
	}
}
