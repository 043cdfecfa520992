//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/protocol"
	. "github.com/unet-go/unet/internal/protocoltest"
	"github.com/unet-go/unet/mux"
)

var (
	allRoutes = endpoint.Notice{Kind: endpoint.NoticeRoute}
	linkDown  = endpoint.Notice{Kind: endpoint.NoticeLinkDown}
	linkUp    = endpoint.Notice{Kind: endpoint.NoticeLinkUp}
)

func routeTo(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeRoute, Addr: a}
}

func addrGone(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrGone, Addr: a}
}

func addrHere(a netip.Addr) endpoint.Notice {
	return endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: a, Bits: 24}
}

// The records are those of docs/control-protocol.md.
func TestEventRecords(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.open()
	l := p.newestLease()
	for _, c := range []struct {
		notice endpoint.Notice
		event  string
	}{
		{routeTo(remoteAddr), `{"addrs":["10.0.0.2"],"event":"routes","v":1}`},
		{routeTo(netip.MustParseAddr("fe80::1%eth0")), `{"addrs":["fe80::1%eth0"],"event":"routes","v":1}`},
		{allRoutes, `{"event":"routes","v":1}`},
		{linkDown, `{"event":"link","up":false,"v":1}`},
		{linkUp, linkUpEvent},
		{addrGone(localAddr), `{"addrs":["10.0.0.1"],"event":"address","up":false,"v":1}`},
		{addrHere(localAddr), `{"event":"address","prefixes":["10.0.0.1/24"],"up":true,"v":1}`},
	} {
		l.notify(c.notice)
		a.want(c.event)
	}
	l.end(fmt.Errorf("%w: revoked: its fill ring ran away", endpoint.ErrLeaseClosed))
	a.want(`{"event":"closed","message":"revoked: its fill ring ran away","v":1}`)
	select { // the event is sent after the lease has been closed
	case <-p.closed:
	default:
		t.Error("the event was sent before the lease was closed")
	}
	a.wantEOF()
	until(t, "the session to leave the notices", func() bool { return l.watched.Load() == 0 })
}

// A link that is down is reported right after the grant.
func TestLinkDownAtOpen(t *testing.T) {
	p := newFakeProvider(t)
	p.setLink(true)
	socket, _ := start(t, &Server{Provider: p})
	a := connect(t, socket)
	a.open()
	a.want(`{"event":"link","up":false,"v":1}`)
	fd := endpointOf(t, p, 0)
	b := connect(t, socket)
	b.send(presentRecord, fd)
	b.receive()
	b.want(`{"event":"link","up":false,"v":1}`)
}

// A notice does not block its sender if an application does not read. The connection of such an application is
// closed, as when it does not read its answers.
func TestEventsNotRead(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p, Limits: Limits{WriteTimeout: 20 * time.Millisecond}})
	_, neighbour := mustOpen(t, socket, endpoint.Request{})
	a := connect(t, socket)
	a.open()
	l := p.newestLease()
	for i, end := uint32(0), time.Now().Add(TestTimeout); ; i++ {
		l.notify(routeTo(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})))
		if l.Err() != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the connection was not closed")
		}
		if i%64 == 0 {
			time.Sleep(time.Millisecond) // notices that wait to be sent become one event
		}
	}
	if l := p.awaitClosed(); l.e.id != 2 {
		t.Errorf("lease %d was closed", l.e.id)
	}
	if _, err := neighbour.Resolve(context.Background(), netip.Addr{}, remoteAddr); err != nil {
		t.Errorf("neighbour: %v", err)
	}
}

// noticeLog collects the notices that a loop gets, and apart from them the last one about unetd.
type noticeLog struct {
	mu    sync.Mutex
	list  []endpoint.Notice
	unetd endpoint.NoticeKind // the last notice about unetd
}

// collect adds the notices of a lease, until stop or the end of the test.
func (w *noticeLog) collect(t *testing.T, l endpoint.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	changes := l.Notices(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for list := range changes {
			w.add(list)
		}
	}()
	return func() { cancel(); <-ended }
}

func (w *noticeLog) add(list []endpoint.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range list {
		if n.Kind == endpoint.NoticeUnetdGone || n.Kind == endpoint.NoticeUnetdBack {
			w.unetd = n.Kind
		} else {
			w.list = append(w.list, n)
		}
	}
}

func (w *noticeLog) awaitUnetd(t *testing.T, want endpoint.NoticeKind) {
	t.Helper()
	until(t, fmt.Sprint("notice of kind ", want), func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.unetd == want
	})
}

func (w *noticeLog) all() []endpoint.Notice {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

func (w *noticeLog) await(t *testing.T, want ...endpoint.Notice) {
	t.Helper()
	until(t, fmt.Sprint(want), func() bool { return slices.Equal(w.all(), want) })
}

// Loops over notices get those of their time, and when they begin the state of the link. After a restart of unetd they
// get the state of the link and of the routes again.
func TestNoticesOfLinkAndRoutes(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	var first, second, late noticeLog
	stopFirst := first.collect(t, l)
	second.collect(t, l)
	lease := p.newestLease()
	lease.notify(routeTo(remoteAddr))
	first.await(t, routeTo(remoteAddr))
	second.await(t, routeTo(remoteAddr))
	stopFirst()
	lease.notify(linkDown)
	second.await(t, routeTo(remoteAddr), linkDown)
	late.collect(t, l)
	late.await(t, linkDown)

	// The next unetd reports that the link is up, and that all routes may have changed.
	d.kill()
	second.awaitUnetd(t, endpoint.NoticeUnetdGone)
	d.start()
	second.awaitUnetd(t, endpoint.NoticeUnetdBack)
	until(t, "the endpoint to be presented", func() bool { return p.newestLease() != lease })
	lease = p.newestLease()
	until(t, "notices", func() bool {
		all := second.all()
		return slices.Contains(all, linkUp) && slices.Contains(all, allRoutes)
	})
	lease.notify(linkUp) // not new
	lease.notify(routeTo(localAddr))
	until(t, "the notice about the route", func() bool { return slices.Contains(second.all(), routeTo(localAddr)) })
	if got := second.all(); len(got) != 5 {
		t.Errorf("notices %v", got)
	}
	if got := first.all(); len(got) != 1 {
		t.Errorf("after stop, notices %v", got)
	}
}

// Loops get one notice that an address is gone and one that it is here, also if unetd repeats them. A new loop
// gets what has changed since the grant. The next unetd reports all addresses again, so loops also get a notice of
// addresses that came and went while no unetd ran.
func TestNoticesOfAddresses(t *testing.T) {
	p := newFakeProvider(t)
	d := newDaemon(t, p)
	_, l := mustOpen(t, d.socket, endpoint.Request{})
	var first, late noticeLog
	first.collect(t, l)
	lease := p.newestLease()
	lease.notify(addrGone(localAddr))
	first.await(t, addrGone(localAddr))
	lease.notify(addrHere(remoteAddr))
	first.await(t, addrGone(localAddr), addrHere(remoteAddr))
	lease.notify(addrHere(remoteAddr))
	lease.notify(addrGone(localAddr))
	lease.notify(allRoutes)
	first.await(t, addrGone(localAddr), addrHere(remoteAddr), allRoutes)
	late.collect(t, l)
	late.await(t, addrHere(remoteAddr), addrGone(localAddr))

	d.kill()
	d.start() // it has the addresses of the provider: localAddr
	until(t, "the endpoint to be presented", func() bool { return p.newestLease() != lease })
	until(t, "the notices of what has changed", func() bool {
		got := late.all()
		return slices.Contains(got, addrHere(localAddr)) && slices.Contains(got, addrGone(remoteAddr)) && slices.Contains(got, allRoutes)
	})
	lease = p.newestLease()
	lease.notify(addrHere(localAddr)) // not new
	lease.notify(addrGone(localAddr))
	until(t, "gone again", func() bool { got := late.all(); return got[len(got)-1] == addrGone(localAddr) })
	if got := late.all(); len(got) != 6 {
		t.Errorf("notices %v", got)
	}
}

// More addresses than a grant and an event have room for all reach a lease, also if it has as many tags as it can
// open with, and again after a restart of unetd. What has not changed meanwhile is not reported.
func TestManyAddresses(t *testing.T) {
	p := newFakeProvider(t)
	p.addrs = nil
	for i := range 3000 {
		p.addrs = append(p.addrs, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 0xaa, 0xaa, 0xbb, 0xbb, 0xcc, 0xcc, 0xdd, 0xdd, 0x10, 14: byte(i>>8) | 0x10, 15: byte(i)}), 128))
	}
	var tags []endpoint.Tag
	for i := range uint16(protocol.MaxTags) {
		tags = append(tags, endpoint.UDPTag(netip.AddrPortFrom(p.addrs[i].Addr(), 65535)).AsBlock())
	}
	d := newDaemon(t, p)
	g, l := mustOpen(t, d.socket, endpoint.Request{Tags: tags})
	if !slices.Equal(g.Identity.Addrs, p.addrs[:endpoint.MaxIdentityAddrs]) || !slices.Equal(g.Tags, tags) {
		t.Errorf("granted %d addresses, %d tags", len(g.Identity.Addrs), len(g.Tags))
	}
	var got noticeLog
	got.collect(t, l)
	want := map[endpoint.Notice]bool{}
	for _, a := range p.addrs[endpoint.MaxIdentityAddrs:] {
		want[endpoint.Notice{Kind: endpoint.NoticeAddrHere, Addr: a.Addr(), Bits: 128}] = true
	}
	check := func(what string) {
		t.Helper()
		until(t, what, func() bool { return len(got.all()) >= len(want) })
		for _, n := range got.all() {
			if !want[n] {
				t.Fatalf("%s: %v", what, n)
			}
			delete(want, n)
		}
	}
	check("the other addresses")
	lease := p.newestLease()
	d.kill()
	p.mu.Lock()
	gone := p.addrs[2900:]
	p.addrs = append(slices.Clone(p.addrs[:2900]), netip.PrefixFrom(localAddr, 24))
	p.mu.Unlock()
	got.mu.Lock()
	got.list = nil
	got.mu.Unlock()
	want = map[endpoint.Notice]bool{allRoutes: true, addrHere(localAddr): true}
	for _, a := range gone {
		want[addrGone(a.Addr())] = true
	}
	d.start()
	until(t, "the endpoint to be presented", func() bool { return p.newestLease() != lease })
	check("after a restart")
}

// A loop over notices that blocks delays no other and no answer. It may use the lease.
func TestLoopOverNoticesUsesLease(t *testing.T) {
	p := newFakeProvider(t)
	socket, _ := start(t, &Server{Provider: p})
	_, l := mustOpen(t, socket, endpoint.Request{})
	changes, others := l.Notices(t.Context()), l.Notices(t.Context())
	p.newestLease().notify(linkDown)
	for range changes {
		for range others {
			break
		}
		if _, err := l.Resolve(t.Context(), netip.Addr{}, remoteAddr); err != nil {
			t.Error(err)
		}
		break
	}
}

// When the provider ends a lease the application's lease ends with the reason, and the endpoint is not presented
// again.
func TestProviderEndsLease(t *testing.T) {
	DescriptorLeaks(t)
	p := newFakeProvider(t)
	p.hook(hooks{present: func(context.Context, mux.Owner, *os.File) error {
		t.Error("the endpoint was presented")
		return nil
	}})
	socket, stop := start(t, &Server{Provider: p})
	defer stop()
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("the uplink is gone"), "lease closed: the uplink is gone"},
		{fmt.Errorf("%w: revoked", endpoint.ErrLeaseClosed), "lease closed: revoked"},
		{endpoint.ErrLeaseClosed, "lease closed: the endpoint was taken down"},
		{errors.Join(errors.New("one"), errors.New("two")), "lease closed: one; two"},
		{errors.New(strings.Repeat("long ", 500)), "lease closed: long long"},
	} {
		g, l := mustOpen(t, socket, endpoint.Request{})
		if err := l.Err(); err != nil {
			t.Errorf("Err before the end: %v", err)
		}
		p.newestLease().end(c.err)
		Await(t, "Done", l.Done())
		p.awaitClosed()
		if err := l.Err(); !errors.Is(err, endpoint.ErrLeaseClosed) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Err: %v, want %s", err, c.want)
		}
		if _, err := l.Claim(context.Background(), endpoint.MessageTag(1)); !errors.Is(err, endpoint.ErrLeaseClosed) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Claim: %v, want %s", err, c.want)
		}
		for list := range l.Notices(t.Context()) {
			t.Errorf("notices after the end: %v", list)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		g.Close()
		p.awaitGrantsClosed()
	}
}
