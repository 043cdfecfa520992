package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
)

// FuzzServerRecord sends a record that was not made by this package on a fresh
// connection, or on one with an open lease. Whatever it is, every answer
// is a record of the protocol, and in the end nothing is left.
func FuzzServerRecord(f *testing.F) {
	for _, opened := range []bool{false, true} {
		for _, s := range []string{
			openRecord, `{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`, `{"v":1,"id":2,"op":"unclaim","tag":"msg:7"}`,
			`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`, `{"v":1,"id":2,"op":"resolve","addr":"fe80::1%eth0"}`, `{"v":2}`, `{"v":1,"id":1}`,
			`{"v":1,"id":1,"op":"open","open":null}`, `{"v":1,"id":1,"op":"open","open":{"geometry":{"frame_count":4294967295}}}`,
			`{"v":1,"id":0,"op":"open"}`, `{}`, `[]`, `null`, ``, `{"v":1,"id":1,"op":"open","open":{}}{}`,
		} {
			f.Add([]byte(s), opened)
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, opened bool) {
		if len(record) > MaxRecord+100 {
			return
		}
		p := newFakeProvider(t)
		app, unetd := socketPair(t)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			limits := Limits{}.withDefaults()
			newSession(ctx, unetd, Peer{}, p, limits, newQuotas(limits), slog.New(slog.DiscardHandler)).run()
		}()
		a := &application{t, app}
		if opened {
			a.open()
		}
		if len(record) > 0 {
			a.send(string(record))
		}
		if err := app.CloseWrite(); err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
		for {
			b, fds, err := readRecord(app, grantDescriptors)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatalf("read: %v", err)
				}
				break
			}
			closeAll(fds)
			answer, err := parseAnswer(b, len(fds))
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			if answer.Error == nil && answer.ID == 0 {
				t.Fatalf("%q answers nothing", b)
			}
			if answer.Error != nil && answer.Error.Message == "" {
				t.Fatalf("%q explains nothing", b)
			}
		}
		<-ended
		p.mu.Lock()
		granted := p.last
		p.mu.Unlock()
		if uint64(len(p.closed)) != granted {
			t.Fatalf("%d leases granted, %d closed", granted, len(p.closed))
		}
		p.noCopies()
	})
}

// FuzzClientRecord answers an open, and then a resolve, with records that unetd
// would not send. No descriptor is lost, and nobody waits for ever.
func FuzzClientRecord(f *testing.F) {
	for _, s := range []string{
		grantRecord, `{"v":1,"id":1,"error":{"code":"tag-held","message":"m"}}`, `{"v":1,"id":0,"error":{"code":"busy","message":"m"}}`,
		`{"v":1,"event":"x"}`, `{"v":1,"id":2,"route":{"source":"10.0.0.1","next_hop":"10.0.0.2","link_addr":"02:00:00:00:00:02","mtu":1500}}`,
		`{"v":1,"id":2,"tag":"msg:1"}`, `{"v":1,"id":1}`, `{"v":2,"id":1}`, `{}`, `null`, `[`,
		strings.Replace(grantRecord, `"id":1`, `"id":0`, 1), `{"v":1,"tag":"msg:1"}`,
	} {
		for n := range uint8(4) {
			f.Add([]byte(s), n, false)
			f.Add([]byte(s), n, true)
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, descriptors uint8, opened bool) {
		if len(record) == 0 || len(record) > MaxRecord+100 || descriptors > 100 {
			return
		}
		app, unetd := socketPair(t)
		r, w := pipe(t)
		says := []func(){
			func() { sendAll(t, unetd, grantRecord, w, grantDescriptors) },
			func() {
				sendAll(t, unetd, string(record), w, int(descriptors))
				if err := unetd.CloseWrite(); err != nil {
					t.Error(err)
				}
			},
		}
		if !opened {
			says = says[1:]
		}
		said := script(t, unetd, says...)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		g, l, err := open(ctx, app, endpoint.Request{})
		if err == nil {
			if err := g.Geometry.Validate(); err != nil || g.XSK == nil || g.Segment == nil {
				t.Fatalf("grant %+v, %v", g, err)
			}
			g.Close()
			if _, err := l.Resolve(ctx, netip.MustParseAddr("10.0.0.2")); errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			l.Close()
		} else if errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		await(t, "script", said)
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
	f.Add([]byte(`{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`))
	f.Add([]byte(`{"v":1,"id":2,"op":"resolve","addr":"::ffff:10.0.0.2"}`))
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
		if back.tag != o.tag || back.addr != o.addr || string(x) != string(y) {
			t.Fatalf("%q became %q", record, written)
		}
	})
}
