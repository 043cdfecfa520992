package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// What FuzzServerRecord does before it sends the record.
const (
	stageFresh = iota
	stageOpened
	stagePresented
	stageOperator
	stages
)

// FuzzServerRecord sends a record that was not made by this package, with some
// descriptors, on a fresh connection, or on one with an open or presented
// lease, or on an operator's. Whatever it is, every answer is a record of the
// protocol, and in the end nothing is left.
func FuzzServerRecord(f *testing.F) {
	for stage := range uint8(stages) {
		for _, s := range []string{
			openRecord, `{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`, `{"v":1,"id":2,"op":"unclaim","tag":"msg:7"}`,
			`{"v":1,"id":2,"op":"claim","tag":"tcp:[fd00::1]:32768-32831"}`,
			`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`, `{"v":1,"id":2,"op":"resolve","addr":"fe80::1%eth0"}`, `{"v":2}`, `{"v":1,"id":1}`,
			`{"v":1,"id":1,"op":"open","open":null}`, `{"v":1,"id":1,"op":"open","open":{"geometry":{"frame_count":4294967295}}}`,
			`{"v":1,"id":1,"op":"open","open":{"tags":[null]}}`, `{"v":1,"id":1,"op":"open","open":{"tags":["msg:1"],"Tags":[]}}`,
			`{"v":1,"id":0,"op":"open"}`, `{}`, `[]`, `null`, ``, `{"v":1,"id":1,"op":"open","open":{}}{}`,
			presentRecord, `{"v":1,"id":1,"op":"list"}`, `{"v":1,"id":9,"op":"list","after":18446744073709551615}`,
			`{"v":1,"id":1,"op":"counters","after":1}`, `{"v":1,"id":1,"op":"list","after":null}`, `{"v":1,"id":1,"op":"present","after":1}`,
			`{"v":1,"id":1,"id":2,"op":"list"}`, strings.Repeat("[", 9), `{"v":1e400,"id":1}`, "{\"v\":1,\"id\":1,\"op\":\"\xff\"}",
		} {
			for descriptors := range uint8(3) {
				f.Add([]byte(s), stage, descriptors)
			}
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, stage, descriptors uint8) {
		if len(record) > MaxRecord+100 || stage >= stages || descriptors > 100 {
			return
		}
		p := newFakeProvider(t)
		p.counters = []endpoint.Counter{{Name: "rx_frames", Help: "Frames received.", Value: 1}, {Name: "tx_frames", Help: "Frames sent.", Value: 2}}
		grant, _, err := p.OpenEndpoint(context.Background(), Peer{}, endpoint.Request{})
		if err != nil {
			t.Fatal(err)
		}
		p.abandon()
		sock := fdOf(t, grant.XSK)

		app, unetd := socketPair(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			limits := Limits{}.withDefaults()
			s := newSession(ctx, unetd, Peer{}, &Server{Provider: p}, limits, newQuotas(limits, nil), slog.New(slog.DiscardHandler))
			s.run()
			s.disposal.Wait()
		}()
		a := &application{t, app}
		switch stage {
		case stageOpened:
			a.open()
		case stagePresented:
			a.send(presentRecord, sock)
			a.receive()
		case stageOperator:
			a.send(`{"v":1,"id":1,"op":"counters"}`)
			a.receive()
		}
		if len(record) > 0 {
			a.send(string(record), slices.Repeat([]int{sock}, int(descriptors))...)
		}
		if err := app.CloseWrite(); err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
		for {
			b, fds, err := readRecord(app, grantDescriptors)
			closeAll(fds)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatalf("read: %v", err)
				}
				break
			}
			answer, err := parseIncoming(b, len(fds))
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			if answer.Error == nil && answer.ID == 0 && answer.Event == "" {
				t.Fatalf("%q answers nothing", b)
			}
			if answer.Error != nil && answer.Error.Message == "" {
				t.Fatalf("%q explains nothing", b)
			}
		}
		<-ended
		p.mu.Lock()
		left := len(p.endpoints)
		_, kept := p.endpoints[1]
		if kept && p.endpoints[1].lease != nil {
			t.Fatal("the presented endpoint is still leased")
		}
		p.mu.Unlock()
		if left > 1 || left == 1 && !kept {
			t.Fatalf("%d endpoints left", left)
		}
		grant.Close()
		p.noCopies()
	})
}

// What FuzzClientRecord's unetd answers with the record.
const (
	answersOpen = iota
	answersResolve
	answersPresent
	answersAll
)

var fuzzSocket atomic.Uint64

// FuzzClientRecord answers an open, a resolve or a present with records that
// unetd would not send. No descriptor is lost, and nobody waits for ever.
func FuzzClientRecord(f *testing.F) {
	for _, s := range []string{
		grantRecord, `{"v":1,"id":1,"error":{"code":"tag-held","message":"m"}}`, `{"v":1,"id":0,"error":{"code":"busy","message":"m"}}`,
		`{"v":1,"event":"x"}`, `{"v":1,"id":2,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
		`{"v":1,"id":2,"tag":"msg:1"}`, `{"v":1,"id":1}`, `{"v":2,"id":1}`, `{}`, `null`, `[`,
		strings.Replace(grantRecord, `"id":1`, `"id":0`, 1), `{"v":1,"tag":"msg:1"}`,
		`{"v":1,"event":"routes"}`, `{"v":1,"event":"routes","addrs":["10.0.0.2","fe80::1%eth0"]}`, `{"v":1,"event":"routes","addrs":["x"]}`,
		`{"v":1,"event":"link","up":false}`, `{"v":1,"event":"link"}`,
		`{"v":1,"event":"address","addrs":["10.0.0.1"],"up":false}`, `{"v":1,"event":"address","up":true}`, `{"v":1,"event":"closed","message":"why"}`, `{"v":1,"event":"closed"}`,
		`{"v":1,"id":1,"lease":{"id":7,"tags":["msg:7"]}}`, `{"v":1,"id":1,"lease":{"id":7,"tags":["msg:7"],"more":true}}`, `{"v":1,"id":1,"lease":{}}`,
		`{"v":1,"id":1,"lease":{"tags":[null]}}`, `{"v":1,"id":1,"error":{"code":"busy"}}`, `{"v":1,"id":1,"error":{"code":"leased","message":"m"}}`,
	} {
		for n := range uint8(4) {
			for stage := range uint8(answersAll) {
				f.Add([]byte(s), n, stage)
			}
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, descriptors, stage uint8) {
		if len(record) == 0 || len(record) > MaxRecord+100 || descriptors > 100 || stage >= answersAll {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		app, unetd := socketPair(t)
		r, w := pipe(t)
		say := func(c *net.UnixConn) {
			sendAll(t, c, string(record), w, int(descriptors))
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		}
		grant := func() { sendAll(t, unetd, grantRecord, w, grantDescriptors) }
		says := []func(){grant, func() { say(unetd) }}
		socket := fmt.Sprintf("@unet-fuzz-%d-%d", os.Getpid(), fuzzSocket.Add(1))
		switch stage {
		case answersOpen:
			says = says[1:]
		case answersPresent:
			says = []func(){grant, func() { unetd.Close() }}
		}
		// To whoever presents its endpoint there the record is said, if that is
		// the stage, and then the last word.
		ln := listenAt(t, socket)
		listened := make(chan struct{})
		go func() {
			defer close(listened)
			for again := stage != answersPresent; ; again = true {
				c, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				if _, err := c.Read(make([]byte, MaxRecord)); err == nil && !again {
					say(c)
				} else if err == nil {
					sendAll(t, c, `{"v":1,"id":1,"error":{"code":"not-presentable","message":"m"}}`, nil, 0)
				}
				hangUp(c)
			}
		}()
		said := script(t, unetd, says...)
		g, l, err := open(ctx, app, socket, endpoint.Request{})
		if err == nil {
			if err := g.Geometry.Validate(); err != nil || g.XSK == nil || g.Segment == nil {
				t.Fatalf("grant %+v, %v", g, err)
			}
			g.Close()
			l.Watch(func([]endpoint.Notice) {})
			if _, err := l.Resolve(ctx, netip.MustParseAddr("10.0.0.2")); errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			l.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		await(t, "script", said)
		ln.Close()
		await(t, "listener", listened)
		unetd.Close()
		w.Close()
		if err := r.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a descriptor was leaked")
		}
	})
}

// FuzzRequest holds what parses against what it is written as.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(openRecord))
	f.Add([]byte(presentRecord))
	f.Add([]byte(`{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"::ffff:10.0.0.2"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"list","after":7}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"counters"}`))
	f.Add([]byte(`{"v":1,"id":1,"op":"open","open":{"tags":[null]}}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		r, err := parseRequest(record)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		o, err := r.operation()
		if err != nil {
			return
		}
		written, err := o.record(r.ID)
		if err != nil {
			if len(record) < MaxRecord/2 {
				t.Fatalf("%q: %v", record, err)
			}
			return
		}
		again, err := parseRequest(written)
		if err != nil || again.ID != r.ID || again.Op != r.Op {
			t.Fatalf("%q: %+v, %v", written, again, err)
		}
		back, err := again.operation()
		if err != nil {
			t.Fatalf("%q: %v", written, err)
		}
		x, _ := json.Marshal(o.open)
		y, _ := json.Marshal(back.open)
		if back.tag != o.tag || back.addr != o.addr || string(x) != string(y) || (back.after == nil) != (o.after == nil) ||
			o.after != nil && *back.after != *o.after {
			t.Fatalf("%q became %q", record, written)
		}
	})
}

// FuzzIncoming holds what unetd may say against what it is taken for.
func FuzzIncoming(f *testing.F) {
	for _, s := range []string{grantRecord, `{"v":1,"event":"routes","addrs":["10.0.0.2","fd00::1"]}`, `{"v":1,"event":"link","up":true}`,
		`{"v":1,"event":"address","addrs":["10.0.0.1","fd00::1"],"up":false}`, `{"v":1,"event":"address","addrs":[""],"up":true}`, `{"v":1,"event":"address","addrs":[""],"up":false}`,
		`{"v":1,"id":1,"endpoints":[],"more":true}`, `{"v":1,"id":1,"counters":[{"name":"n","help":"h","value":18446744073709551615}]}`,
		`{"v":1,"id":1,"lease":{"id":1,"tags":["msg:1"]}}`} {
		f.Add([]byte(s), uint8(0))
		f.Add([]byte(s), uint8(2))
	}
	f.Fuzz(func(t *testing.T, record []byte, descriptors uint8) {
		a, err := parseIncoming(record, int(descriptors))
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		list := a.notices()
		var back []endpoint.Notice
		for _, e := range eventsOf(list) {
			b, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			again, err := parseIncoming(b, 0)
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			back = append(back, again.notices()...)
		}
		if len(list) > 0 && !slices.Contains(list, endpoint.Notice{Kind: endpoint.NoticeRoute}) && !slices.Equal(back, list) {
			t.Fatalf("%q: %v became %v", record, list, back)
		}
		for op, has := range map[string]bool{opOpen: a.Grant != nil, opPresent: a.Lease != nil, opClaim: a.Tag != nil,
			opResolve: a.Route != nil, opList: a.Endpoints != nil, opCounters: a.Counters != nil} {
			if a.answers(op) != (has || a.Error != nil) {
				t.Fatalf("%q answers %s: %v", record, op, a.answers(op))
			}
		}
	})
}
