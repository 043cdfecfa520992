//go:build linux

package session

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux"
)

// The states of the connection on which FuzzServerRecord sends the record.
const (
	stageFresh = iota
	stageOpened
	stagePresented
	stageOperator
	stages
)

// FuzzServerRecord sends any record, with some descriptors, on a new connection, on one
// with an open or presented lease, or on an operator's. Every answer must be a valid record,
// and in the end no lease and no descriptor may be left.
func FuzzServerRecord(f *testing.F) {
	for stage := range uint8(stages) {
		for _, s := range []string{
			openRecord, `{"v":1,"id":2,"op":"claim","tag":"udp:10.0.0.1:0"}`, `{"v":1,"id":2,"op":"unclaim","tag":"msg:7"}`,
			`{"v":1,"id":2,"op":"claim","tag":"tcp:[fd00::1]:32768-32831"}`,
			`{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`, `{"v":1,"id":2,"op":"resolve","addr":"fe80::1%eth0"}`, `{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2","source":"10.0.0.1"}`, `{"v":2}`, `{"v":1,"id":1}`,
			`{"v":1,"id":1,"op":"open","open":null}`, `{"v":1,"id":1,"op":"open","open":{"geometry":{"frame_count":4294967295}}}`,
			`{"v":1,"id":1,"op":"open","open":{"tags":[null]}}`, `{"v":1,"id":1,"op":"open","open":{"tags":["msg:1"],"Tags":[]}}`,
			`{"v":1,"id":0,"op":"open"}`, `{}`, `[]`, `null`, ``, `{"v":1,"id":1,"op":"open","open":{}}{}`,
			presentRecord, `{"v":1,"id":1,"op":"list"}`, `{"v":1,"id":9,"op":"list","after":18446744073709551615}`,
			`{"v":1,"id":1,"op":"counters","after":1}`, `{"v":1,"id":1,"op":"list","after":null}`, `{"v":1,"id":1,"op":"present","after":1}`,
			`{"v":1,"id":1,"op":"uplinks"}`, `{"v":1,"id":1,"op":"reload"}`, `{"v":1,"id":1,"op":"drain"}`, `{"v":1,"id":1,"op":"drain","undo":true}`,
			`{"v":1,"id":1,"op":"revoke","endpoint":1}`, `{"v":1,"id":1,"op":"revoke","endpoint":2,"reason":"r"}`, `{"v":1,"id":1,"op":"revoke","reason":"r"}`,
			`{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{},"memory_paths":true}}`, `{"v":1,"id":1,"op":"present","memory_paths":true}`,
			`{"v":1,"id":2,"op":"path","endpoint":2}`, `{"v":1,"id":2,"op":"path"}`, `{"v":1,"id":2,"op":"unpath","path":18446744073709551615}`, `{"v":1,"id":2,"op":"unpath","endpoint":2}`,
			`{"v":1,"id":2,"op":"claim","tag":"msg:1","memory_paths":true}`, `{"v":1,"id":2,"op":"capture"}`, `{"v":1,"id":2,"op":"capture","endpoint":9}`,
			`{"v":1,"id":1,"id":2,"op":"list"}`, strings.Repeat("[", 9), `{"v":1e400,"id":1}`, "{\"v\":1,\"id\":1,\"op\":\"\xff\"}",
		} {
			for descriptors := range uint8(3) {
				f.Add([]byte(s), stage, descriptors)
			}
		}
	}
	f.Fuzz(func(t *testing.T, record []byte, stage, descriptors uint8) {
		if len(record) > protocol.MaxRecord+100 || stage >= stages || descriptors > 100 {
			return
		}
		p := newFakeProvider(t)
		p.counters = []endpoint.Counter{{Name: "rx_frames", Help: "Frames received.", Value: 1}, {Name: "tx_frames", Help: "Frames sent.", Value: 2}}
		grant, _, err := p.OpenEndpoint(context.Background(), mux.Owner{}, endpoint.Request{})
		if err != nil {
			t.Fatal(err)
		}
		p.abandon()
		sock := fdOf(t, grant.XSK)

		app, unetd := SocketPair(t)
		ctx, cancel := context.WithTimeout(context.Background(), TestTimeout)
		defer cancel()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			limits := Limits{}.withDefaults()
			s := newSession(ctx, unetd, mux.Owner{}, share.ByUID(0), &Server{Provider: p, records: newRecords(nil)}, limits, newQuotas(limits, nil), slog.New(slog.DiscardHandler))
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
			b, fds, err := protocol.ReadRecord(app, protocol.PathDescriptors)
			protocol.CloseAll(fds)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Fatalf("read: %v", err)
				}
				break
			}
			answer, err := protocol.ParseIncoming(b, len(fds))
			if err != nil {
				t.Fatalf("%q: %v", b, err)
			}
			if answer.Error == nil && answer.ID == 0 && answer.Event == "" {
				t.Fatalf("%q is neither an answer nor an event", b)
			}
			if answer.Error != nil && answer.Error.Message == "" {
				t.Fatalf("%q is an error without a message", b)
			}
		}
		<-ended
		p.mu.Lock()
		if p.captures != 0 {
			t.Fatal("a capture has not ended")
		}
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
		p.awaitGrantsClosed()
	})
}
