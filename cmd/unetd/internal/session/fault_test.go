//go:build linux

package session

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	"github.com/unet-go/unet/mux"
)

// A panic in a request, in the end of a lease or in a notice ends the session of its application.
// Other sessions go on, also those of the same user, whose turn the panic has not kept.
func TestPanicEndsOneSession(t *testing.T) {
	for _, c := range []struct {
		name   string
		hooks  hooks
		record string // "": the connection ends
	}{
		{"open", hooks{open: func(context.Context, mux.Owner, endpoint.Request) error { panic("in open") }}, openRecord},
		{"claim", hooks{claim: func(context.Context, endpoint.Tag) (endpoint.Tag, error) { panic("in claim") }}, `{"v":1,"id":2,"op":"claim","tag":"msg:8"}`},
		{"resolve", hooks{route: func(context.Context, netip.Addr) (endpoint.Route, error) { panic("in resolve") }}, `{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`},
		{"close", hooks{close: func() { panic("in close") }}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newFakeProvider(t)
			var log lockedBuffer
			var faults atomic.Uint64
			socket, _ := start(t, &Server{Provider: p, Faults: &faults, Log: slog.New(slog.NewTextHandler(&log, nil))})
			permitAll(t, socket)
			bystander := connectAs(t, 1001, socket)
			bystander.open()
			a := connectAs(t, 1001, socket)
			if c.record != openRecord {
				a.open()
			}
			p.hook(c.hooks)
			if c.record == "" {
				if err := a.conn.CloseWrite(); err != nil {
					t.Fatal(err)
				}
			} else {
				a.send(c.record)
				if m, _ := a.receive(); m["event"] != "closed" || !strings.Contains(fmt.Sprint(m["message"]), "fault") {
					t.Errorf("received %v", m)
				}
			}
			a.wantEOF()
			until(t, "the fault to be counted", func() bool { return faults.Load() == 1 })
			p.hook(hooks{})
			bystander.send(`{"v":1,"id":2,"op":"claim","tag":"msg:9"}`)
			if m, _ := bystander.receive(); m["tag"] != "msg:9" {
				t.Errorf("the other session: %v", m)
			}
			checkServed(t, socket)
			if text := log.String(); !strings.Contains(text, "in "+c.name) || !strings.Contains(text, "fault_test.go") {
				t.Errorf("the log lacks the panic or its stack: %s", text)
			}
		})
	}
}

// A record that is too long is a fault: the application gets an error, and the session ends.
func TestAnswerThatDoesNotFit(t *testing.T) {
	p := newFakeProvider(t)
	var faults atomic.Uint64
	socket, _ := start(t, &Server{Provider: p, Faults: &faults})
	var long []endpoint.Uplink
	for range 800 {
		long = append(long, endpoint.Uplink{Interface: "eth0", Mode: "tcx", Unusable: strings.Repeat("x", 64)})
	}
	p.setUplinks(long)
	a := connect(t, socket)
	a.send(`{"v":1,"id":1,"op":"uplinks"}`)
	a.wantError(1, "internal")
	if m, _ := a.receive(); m["event"] != "closed" {
		t.Errorf("received %v", m)
	}
	a.wantEOF()
	if n := faults.Load(); n != 1 {
		t.Errorf("%d faults", n)
	}
	p.setUplinks(nil)
	b := connect(t, socket)
	b.send(`{"v":1,"id":1,"op":"uplinks"}`)
	if m, _ := b.receive(); m["uplinks"] == nil {
		t.Errorf("the next answer: %v", m)
	}
}

// A list fits its records whatever the tags and texts are: entries of the greatest length begin at
// every offset of a page.
func TestListOfGreatestEntries(t *testing.T) {
	p := newFakeProvider(t)
	const endpoints = 60
	for i := range endpoints {
		e := &fakeEndpoint{id: 1<<63 + uint64(i), peer: mux.Owner{UID: 1<<32 - 2, PID: 1<<31 - 1}, tags: map[endpoint.Tag]bool{}}
		n := maxListTags
		if i%2 == 1 {
			n = 1 + i // so that the entries do not begin at the same offsets of their pages
		}
		for j := range n {
			a := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0xff, 2: 0xff, 3: 0xff, 4: 0xff, 5: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff, 10: 0xff, 11: 0xff, 12: 0xff, 13: 0xff, 14: 0x80 | byte(j>>8), 15: byte(j)})
			e.tags[endpoint.TCPTag(netip.AddrPortFrom(a, 65472)).AsBlock()] = true
		}
		p.endpoints[e.id] = e
		p.status = append(p.status, endpoint.Status{Info: e.info()})
	}
	var faults atomic.Uint64
	socket, _ := start(t, &Server{Provider: p, Faults: &faults})
	for _, op := range []string{"list", "status"} {
		a := connect(t, socket)
		after, seen := "", 0
		for id := 1; ; id++ {
			a.send(fmt.Sprintf(`{"v":1,"id":%d,"op":%q%s}`, id, op, after))
			m, _ := a.receive()
			key := "endpoints"
			if op == "status" {
				key = "status"
			}
			page, _ := m[key].([]any)
			if len(page) == 0 {
				t.Fatalf("%s: %.300v", op, m)
			}
			seen += len(page)
			if m["more"] != true {
				break
			}
			after = fmt.Sprintf(`,"after":%d`, 1<<63+uint64(seen)-1)
		}
		if seen != endpoints {
			t.Errorf("%s: %d endpoints", op, seen)
		}
	}
	if n := faults.Load(); n != 0 {
		t.Errorf("%d faults", n)
	}
}

// The change of a policy with long names and lines fits a record.
func TestLongestPolicyChange(t *testing.T) {
	c := endpoint.PolicyChange{Policy: strings.Repeat("<", 4096), Warning: strings.Repeat("<", 8192)}
	for range 1000 {
		c.Changes = append(c.Changes, strings.Repeat("<", 4096))
	}
	b, err := encode(protocol.Answer{Version: protocol.Version, ID: 1, Reloaded: bounded(c)})
	if err != nil {
		t.Errorf("%d bytes: %v", len(b), err)
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
