//go:build linux

package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
)

var fuzzSocket atomic.Uint64

// FuzzClientRecord answers an open, a resolve or a present with any record. No descriptor
// may be leaked, and no call may block for ever.
func FuzzClientRecord(f *testing.F) {
	for _, s := range []string{
		grantRecord, `{"v":1,"id":1,"error":{"code":"tag-held","message":"m"}}`, `{"v":1,"id":0,"error":{"code":"busy","message":"m"}}`,
		`{"v":1,"event":"x"}`, `{"v":1,"id":2,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
		`{"v":1,"id":2,"tag":"msg:1"}`, `{"v":1,"id":1}`, `{"v":2,"id":1}`, `{}`, `null`, `[`,
		strings.Replace(grantRecord, `"id":1`, `"id":0`, 1), `{"v":1,"tag":"msg:1"}`,
		`{"v":1,"event":"routes"}`, `{"v":1,"event":"routes","addrs":["10.0.0.2","fe80::1%eth0"]}`, `{"v":1,"event":"routes","addrs":["x"]}`,
		`{"v":1,"event":"link","up":false}`, `{"v":1,"event":"link"}`,
		`{"v":1,"event":"address","addrs":["10.0.0.1"],"up":false}`, `{"v":1,"event":"address","prefixes":["10.0.0.1/25","fd00::1/64"],"up":true}`, `{"v":1,"event":"address","up":false}`, `{"v":1,"event":"closed","message":"why"}`, `{"v":1,"event":"closed"}`,
		`{"v":1,"id":1,"lease":{"id":7,"tags":["msg:7"]}}`, `{"v":1,"id":1,"lease":{"id":7,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1,"lease":{}}`,
		strings.Replace(grantRecord, `"grant"`, `"table":true,"grant"`, 1), `{"v":1,"event":"path","path":{"peer":8,"epoch":3,"peer_epoch":1}}`,
		`{"v":1,"event":"path"}`, `{"v":1,"id":2,"path":{"peer":8}}`, `{"v":1,"event":"path","path":{"peer":-1}}`,
		`{"v":1,"id":1,"lease":{"tags":[null]}}`, `{"v":1,"id":1,"error":{"code":"busy"}}`, `{"v":1,"id":1,"error":{"code":"leased","message":"m"}}`,
	} {
		for n := range uint8(protocol.PathDescriptors + 1) {
			for stage := range uint8(answersAll) {
				f.Add([]byte(s), n, stage)
			}
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, descriptors, stage uint8) {
		if len(record) == 0 || len(record) > protocol.MaxRecord+100 || descriptors > 100 || stage >= answersAll {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), TestTimeout)
		defer cancel()
		app, unetd := SocketPair(t)
		r, w := Pipe(t)
		answer := func(c *net.UnixConn) {
			SendAll(t, c, string(record), w, int(descriptors))
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		}
		grant := func() { SendAll(t, unetd, grantRecord, w, protocol.GrantDescriptors) }
		answers := []func(){grant, func() { answer(unetd) }}
		socket := fmt.Sprintf("@unet-fuzz-%d-%d", os.Getpid(), fuzzSocket.Add(1))
		switch stage {
		case answersOpen:
			answers = answers[1:]
		case answersPresent:
			answers = []func(){grant, func() { unetd.Close() }}
		}
		// The first present is answered with the record, if that is the stage, and every
		// later one with an error that ends the lease.
		ln := ListenAt(t, socket)
		listened := make(chan struct{})
		go func() {
			defer close(listened)
			for again := stage != answersPresent; ; again = true {
				c, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				if _, err := c.Read(make([]byte, protocol.MaxRecord)); err == nil && !again {
					answer(c)
				} else if err == nil {
					SendAll(t, c, `{"v":1,"id":1,"error":{"code":"not-presentable","message":"m"}}`, nil, 0)
				}
				closeAfterReading(c)
			}
		}()
		scriptDone := script(t, unetd, answers...)
		g, l, err := open(ctx, app, socket, endpoint.Request{})
		if err == nil {
			if err := g.Geometry.Validate(); err != nil || g.XSK == nil || g.Segment == nil {
				t.Fatalf("grant %+v, %v", g, err)
			}
			g.Close()
			changes := l.Notices(ctx)
			go func() {
				for range changes {
				}
			}()
			if _, err := l.Resolve(ctx, netip.Addr{}, netip.MustParseAddr("10.0.0.2")); errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			l.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		Await(t, "script", scriptDone)
		ln.Close()
		Await(t, "listener", listened)
		unetd.Close()
		w.Close()
		if err := r.SetReadDeadline(time.Now().Add(TestTimeout)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a descriptor was leaked")
		}
	})
}

// The request that FuzzClientRecord answers with the record.
const (
	answersOpen = iota
	answersResolve
	answersPresent
	answersAll
)
