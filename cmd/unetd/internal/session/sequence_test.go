//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/internal/share"
	"github.com/unet-go/unet/mux"
)

// A script is a sequence of lines for two connections of one user. A line is a record, with the
// number of its descriptors before it, or:
//
//	>            the following lines are for the other connection
//	!hop ADDR    the neighbour ADDR has another MAC address
//	!hops        any route may have changed
//	!gone ADDR   the host has lost an address
//	!here ADDR   it has the address
//	!down, !up   the link
//	!end         the mux ends the lease
//
// Notices are for the lease of the present connection.

// script makes a script of its lines.
func script(lines ...string) []byte { return []byte(strings.Join(lines, "\n")) }

// request is a line with a record without descriptors.
func request(id int, op, argument string) string {
	if argument != "" {
		argument = "," + argument
	}
	return fmt.Sprintf(`0{"v":1,"id":%d,"op":%q%s}`, id, op, argument)
}

func resolveLine(id int, addr string) string {
	return request(id, "resolve", fmt.Sprintf(`"addr":%q`, addr))
}

// maxSteps bounds the lines of a script that are executed.
const maxSteps = 1500

var openLine = request(1, "open", `"open":{"attach":"port","geometry":{},"tags":["msg:7","udp:10.0.0.1:7"]}`)

func sequenceSeeds() map[string][]byte {
	hostile := "fe80::1%" + strings.Repeat("<", 12000)
	var many, blocks, noHosts []string
	for i := range 1100 {
		many = append(many, resolveLine(10+i, fmt.Sprintf("10.1.%d.%d", i/256, i%256)))
	}
	for i := range protocol.MaxTags {
		blocks = append(blocks, fmt.Sprintf(`"udp:[2001:db8:aaaa:bbbb:cccc:dddd:%x:ffff]:65472-65535"`, 0x8000+i))
	}
	for i := range 600 {
		noHosts = append(noHosts, resolveLine(10+i, fmt.Sprintf("fe80::%x%%%015d", i, i)))
	}
	return map[string][]byte{
		"hostile destination": script(openLine, resolveLine(2, hostile), "!hop 10.0.0.9", "!hops", resolveLine(3, "10.0.0.2"), "!hop 10.0.0.2"),
		"hostile zones":       script(append(append([]string{openLine}, noHosts...), "!hop 10.0.0.9", "!hops")...),
		"hostile tag": script(openLine, request(2, "claim", `"tag":"udp:[`+hostile+`]:7"`), request(3, "unclaim", `"tag":"`+strings.Repeat("<", 60000)+`"`),
			"!gone 10.0.0.1", request(4, "unclaim", `"tag":"udp:10.0.0.1:7"`)),
		"hostile interface": script(request(1, "open", `"open":{"attach":"port","geometry":{},"interface":"`+strings.Repeat("<", 60000)+`"}`)),
		"hostile op":        script(openLine, request(2, strings.Repeat("<", 60000), "")),
		"hostile reason":    script(request(1, "revoke", `"endpoint":1,"reason":"`+strings.Repeat("<", 256)+`"`), request(2, "revoke", `"endpoint":1,"reason":"`+strings.Repeat("<", 257)+`"`)),
		"many destinations": script(append(append([]string{openLine}, many...), "!hop 10.1.0.1", "!hops")...),
		"300 destinations":  script(append(append([]string{openLine}, many[:300]...), "!hop 10.1.0.1", "!hops", "!down", "!up")...),
		"longest grant": script(request(1, "open", `"open":{"attach":"port","geometry":{},"tags":[`+strings.Join(blocks, ",")+`]}`), "!gone 2001:db8:aaaa:bbbb:cccc:dddd:8000:ffff",
			">", request(1, "list", ""), request(2, "status", "")),
		"notices": script(openLine, "!down", "!down", "!up", "!gone 10.0.0.1", "!here fd00::1", "!gone fd00::1", "!here 10.0.0.1", "!here fd00::2", resolveLine(2, "10.0.0.2"), "!hop 10.0.0.2",
			request(3, "claim", `"tag":"udp:10.0.0.1:0"`), "!end", resolveLine(4, "10.0.0.2")),
		"present": script(`1{"v":1,"id":1,"op":"present"}`, resolveLine(2, "10.0.0.2"), "!hop 10.0.0.2", "!gone 10.0.0.1", "!end", ">", `1{"v":1,"id":1,"op":"present"}`),
		"operator": script(openLine, ">", request(1, "list", ""), request(2, "counters", ""), request(3, "status", `"after":1`), request(4, "uplinks", ""), request(5, "reload", ""),
			request(6, "drain", ""), request(7, "revoke", `"endpoint":2`), ">", resolveLine(2, "10.0.0.2"), "!hop 10.0.0.2"),
		"unexpected descriptors": script(`2{"v":1,"id":1,"op":"open","open":{"attach":"port","geometry":{}}}`, ">", openLine, `1{"v":1,"id":2,"op":"resolve","addr":"10.0.0.2"}`),
		"not a sequence":         script(resolveLine(1, "10.0.0.2"), ">", openLine, openLine),
	}
}

// FuzzServerSequence sends any sequence of records on two connections, with notices of a fake
// kernel in between. Each record must be answered, or the session end; a session must not panic;
// what is kept is bounded; and in the end nothing is left.
func FuzzServerSequence(f *testing.F) {
	for _, seed := range sequenceSeeds() {
		if len(seed) < 16<<10 { // TestSequences runs the long ones, which make a fuzzer slow
			f.Add(seed, false)
			f.Add(seed, true)
		}
	}
	f.Fuzz(func(t *testing.T, script []byte, operator bool) {
		if len(script) > 256<<10 {
			return
		}
		runSequence(t, script, operator)
	})
}

// sequence is a daemon, and one of two applications.
type sequence struct {
	t      *testing.T
	p      *fakeProvider
	ctx    context.Context
	server *Server
	quotas *quotas
	faults atomic.Uint64
	sock   int // that of the endpoint of an earlier unetd
}

// client is an application's end of a session.
type client struct {
	*sequence
	application
	session *session
	ended   chan struct{}          // closed when the session has ended
	answers chan protocol.Incoming // closed at the end of the stream
	over    bool                   // that was seen

	lease *fakeLease  // nil: none yet
	told  chan string // the destinations of the notices of lease that the session has got
}

func runSequence(t *testing.T, script []byte, operator bool) {
	p := newFakeProvider(t)
	p.counters = []endpoint.Counter{{Name: "rx_frames", Help: "Frames received.", Value: 1}}
	uid := uint32(1001)
	if operator {
		uid = 0
	}
	grant, _, err := p.OpenEndpoint(context.Background(), mux.Owner{UID: uid}, endpoint.Request{})
	if err != nil {
		t.Fatal(err)
	}
	p.abandon()
	s := &sequence{t: t, p: p, sock: fdOf(t, grant.XSK)}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(context.Background(), TestTimeout)
	defer cancel()
	limits := Limits{}.withDefaults()
	limits.ClosePause = 1
	s.server = &Server{Provider: p, records: newRecords(nil), Faults: &s.faults}
	s.quotas = newQuotas(limits, s.ctx.Done())
	clients := []*client{s.connect(limits, uid), s.connect(limits, uid)}
	c := clients[0]
	lines := strings.Split(string(script), "\n")
	for _, line := range lines[:min(len(lines), maxSteps)] {
		switch {
		case line == ">":
			clients[0], clients[1] = clients[1], clients[0]
			c = clients[0]
		case strings.HasPrefix(line, "!"):
			c.notice(strings.Fields(line[1:]))
		case line != "":
			c.record(line[1:], int(line[0]-'0'))
		}
	}
	for _, c := range clients {
		c.close()
	}
	if n := s.faults.Load(); n != 0 {
		t.Errorf("%d faults", n)
	}
	p.mu.Lock()
	for id, e := range p.endpoints {
		if id != grant.ID || e.lease != nil {
			t.Errorf("endpoint %d is left", id)
		}
	}
	p.mu.Unlock()
	if n := s.quotas.resolves.All(); n != 0 {
		t.Errorf("%d resolves are left", n)
	}
	for _, turns := range []*share.Shares{s.quotas.reading, s.quotas.work, s.quotas.probes, s.quotas.closing} {
		until(t, "the turns to be given back", func() bool { return turns.All() == 0 })
	}
	grant.Close()
	p.awaitGrantsClosed()
}

func (s *sequence) connect(limits Limits, uid uint32) *client {
	app, unetd := SocketPair(s.t)
	c := &client{sequence: s, application: application{s.t, app}, ended: make(chan struct{}), answers: make(chan protocol.Incoming, 1), told: make(chan string, 1)}
	c.session = newSession(s.ctx, unetd, mux.Owner{UID: uid}, share.ByUID(uid), s.server, limits, s.quotas, slog.New(slog.DiscardHandler))
	go func() {
		defer close(c.ended)
		c.session.run()
		c.session.disposal.Wait()
	}()
	go c.read()
	return c
}

// read checks the records from unetd, and passes on those that are no events.
func (c *client) read() {
	defer close(c.answers)
	for {
		b, fds, err := protocol.ReadRecord(c.conn, protocol.GrantDescriptors)
		protocol.CloseAll(fds)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				c.sequence.t.Errorf("read: %v", err)
			}
			return
		}
		a, err := protocol.ParseIncoming(b, len(fds))
		if err != nil || a.Error != nil && a.Error.Message == "" {
			c.sequence.t.Errorf("%.1000q: %v", b, err)
			return
		}
		if a.Event == "" {
			c.answers <- a
		}
	}
}

// record sends a record and waits for its answer, or for the end of the session.
func (c *client) record(record string, descriptors int) {
	if c.over || record == "" || len(record) > protocol.MaxRecord+100 {
		return
	}
	if descriptors < 0 || descriptors > 9 {
		descriptors = 0
	}
	before := c.p.newestLease()
	fds := slices.Repeat([]int{c.sock}, descriptors)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix([]byte(record), oob, nil); errors.Is(err, unix.EPIPE) {
		c.drain()
		return
	} else if err != nil {
		c.sequence.t.Fatal(err)
	}
	for a := range c.answers {
		if a.Lease == nil || !a.Lease.More {
			break
		}
	}
	if l := c.p.newestLease(); c.lease == nil && l != before {
		c.watch(l)
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if n := len(c.session.requests); n > 1 { // what was answered is not in progress, but for one that ends the session
		c.sequence.t.Errorf("%d requests in progress", n)
	}
}

// drain waits for the end of the stream.
func (c *client) drain() {
	for range c.answers {
	}
	c.over = true
}

// watch makes told get the notices that the session has sent.
func (c *client) watch(l *fakeLease) {
	c.lease = l
	sent := func(list []endpoint.Notice) {
		for _, n := range list {
			if len(n.Addr.String()) > 45 {
				c.sequence.t.Errorf("a destination of %d bytes is kept", len(n.Addr.String()))
			}
		}
		if n := len(list); n > 2+protocol.MaxTags+256 {
			c.sequence.t.Errorf("%d notices", n)
		}
		select {
		case c.told <- list[len(list)-1].Addr.String():
		case <-l.Done():
		}
	}
	l.sent.Store(&sent)
}

// notice gives a notice to the session, and returns when it was sent.
func (c *client) notice(words []string) {
	if c.lease == nil || len(words) == 0 {
		return
	}
	var addr netip.Addr
	if len(words) > 1 {
		addr, _ = netip.ParseAddr(words[1])
		addr = addr.WithZone("") // the kernel's addresses have none
	}
	l, kind, bits := c.lease, endpoint.NoticeKind(0), uint8(0)
	switch words[0] {
	case "hop", "hops":
		if words[0] == "hops" {
			addr = netip.Addr{}
		}
		l.hopChanged(addr)
	case "gone":
		kind = endpoint.NoticeAddrGone
	case "here":
		kind, bits = endpoint.NoticeAddrHere, 24
	case "down":
		kind = endpoint.NoticeLinkDown
	case "up":
		kind = endpoint.NoticeLinkUp
	case "end":
		l.end(endpoint.ErrLeaseClosed)
		c.drain()
	}
	if kind != 0 && (addr.IsValid() || kind == endpoint.NoticeLinkDown || kind == endpoint.NoticeLinkUp) {
		l.notify(endpoint.Notice{Kind: kind, Addr: addr, Bits: bits})
	}
	// The last of the notices: it comes after those above, or with them.
	last := netip.MustParseAddr("ffff::ffff")
	l.notify(endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: last})
	for !c.over {
		select {
		case addr := <-c.told:
			if addr == last.String() || addr == (netip.Addr{}).String() {
				return
			}
		case <-l.Done():
			c.drain()
		case <-c.ctx.Done():
			c.sequence.t.Fatal("no notice")
		}
	}
}

// close ends the connection, and waits until the session has ended.
func (c *client) close() {
	_ = c.conn.CloseWrite()
	c.drain()
	Await(c.sequence.t, "the end of the session", c.ended)
}

func TestSequences(t *testing.T) {
	for name, script := range sequenceSeeds() {
		t.Run(name, func(t *testing.T) {
			runSequence(t, script, false)
			runSequence(t, script, true)
		})
	}
}
