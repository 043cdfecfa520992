//go:build linux

package mux_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
)

// pinLab is a lab whose muxes are pinned, so that another process can take them over.
type pinLab struct {
	*lab
	pin string
}

func newPinLab(t *testing.T) *pinLab {
	t.Helper()
	dir := bpffs(t)
	return &pinLab{lab: &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}, pin: dir}
}

// serve starts a child that serves the mux.
func (l *pinLab) serve(o order) *child {
	l.t.Helper()
	c := startChild(l.t, l.A)
	o.Do, o.Interface, o.Pin = "open", l.A.Interface, l.pin
	c.do(o)
	return c
}

// openIn lets a child make an endpoint, which this process uses.
func (l *pinLab) openIn(c *child, req endpoint.Request) *app {
	l.t.Helper()
	if req.Geometry == (endpoint.Geometry{}) {
		req.Geometry = small
	}
	return attach(l.t, c.do(order{Do: "endpoint", Request: req}).Grant)
}

// me is this process as the owner of an endpoint.
var me = mux.Owner{PID: os.Getpid(), UID: 0}

// present presents an endpoint that was taken over.
func (l *pinLab) present(a *app) endpoint.Info {
	l.t.Helper()
	info, lease, err := l.mux.Present(l.t.Context(), me, a.grant.XSK, nil)
	testutil.Must(l.t, err)
	a.lease = lease
	return info
}

// echo sends a datagram to an endpoint, which sends an answer. Both must arrive.
func (l *lab) echo(b *net.UDPConn, a *app, text string) {
	l.t.Helper()
	tag := a.grant.Tags[0]
	to := fmt.Sprintf("%v:%d", tag.Addr, tag.Port)
	sendTo(l.t, b, to, text)
	p := packet(l.t, a.recv().frame)
	if udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP); !ok || string(udp.Payload) != text {
		l.t.Fatalf("received %v, want %q", p, text)
	}
	a.send(datagram(l.B.LinkAddr, l.A.LinkAddr, to, b.LocalAddr().String(), "re: "+text))
	testutil.Must(l.t, b.SetReadDeadline(time.Now().Add(testTimeout)))
	readFrom(l.t, b, "re: "+text)
}

// Traffic goes on without loss while the mux's process is killed several times and another takes
// over.
func TestTakeoverLosesNoFrames(t *testing.T) {
	t.Parallel()
	for _, mode := range []mux.Mode{mux.ModeTCX, mux.ModeNative} {
		t.Run(mode.String(), func(t *testing.T) {
			l := newPinLab(t)
			if mode == mux.ModeNative {
				listenGRO(t, l.B)
			}
			c := l.serve(order{Mode: mode})
			a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.MessageTag(7)}})
			b := kernelUDP(t, l.B, "10.0.0.2:0")
			done := make(chan error, 1)
			go func() {
				for range 5 {
					c.kill()
					next, err := newChild(t, l.A)
					if err != nil {
						done <- err
						return
					}
					if r, died := next.try(order{Do: "open", Interface: l.A.Interface, Pin: l.pin}); died || r.Error != "" {
						done <- fmt.Errorf("died %v, %s\n%s", died, r.Error, next.out)
						return
					}
					if r, died := next.try(order{Do: "present"}, a.grant.XSK); died || r.Error != "" || r.Endpoints[0].ID != a.grant.ID {
						done <- fmt.Errorf("died %v, %+v", died, r)
						return
					}
					c = next
				}
				done <- nil
			}()
			n := 0
			for running := true; running; n++ {
				l.echo(b, a, fmt.Sprint("number ", n))
				select {
				case err := <-done:
					testutil.Must(t, err)
					running = false
				default:
				}
			}
			c.do(order{Do: "abandon"})
			l.openConfig(mux.Config{Pin: l.pin})
			if got := l.mux.Identity().Mode; got != mode.String() {
				t.Errorf("mode %v", got)
			}
			l.present(a)
			l.echo(b, a, "the last")
			if got := l.count(); got["rx_port"] != uint64(n+1) || got["tx_uplink"] != uint64(n+1) {
				t.Errorf("%d round trips, counters %v", n+1, got)
			}
			testutil.Must(t, a.lease.Close())
			passed := l.count()["rx_pass"]
			sendTo(t, b, "10.0.0.1:7000", "too late")
			l.await("rx_pass", passed+1)
			testutil.Must(t, l.mux.Close())
			if left := pinnedIn(t, l.pin); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Who presents the socket of an endpoint gets the endpoint with all that it had. Another socket is refused, and
// so is another user.
func TestPresentedSocketGetsItsEndpoint(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	tags := []endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.TCPTag(netip.MustParseAddrPort("10.0.0.1:7000")), udpTag("10.0.0.1:32768").AsBlock(), addrTag("10.0.0.77"), endpoint.MessageTag(7)}
	a := l.openIn(c, endpoint.Request{Tags: tags})
	q := l.openIn(c, endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(8)}})
	listed := c.do(order{Do: "list"}).Endpoints
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin})

	before := l.mux.Endpoints()
	if len(before) != 2 || before[0].Leased || before[1].Leased {
		t.Fatalf("taken over: %+v", before)
	}
	ctx := t.Context()
	unbound, err := xsk.NewUnbound()
	testutil.Must(t, err)
	defer unbound.Close()
	udp, err := kernelUDP(t, l.B, "10.0.0.2:0").File()
	testutil.Must(t, err)
	defer udp.Close()
	for _, f := range []*os.File{unbound, udp, a.grant.Segment} {
		if _, _, err := l.mux.Present(ctx, me, f, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
			t.Errorf("present %s: %v", f.Name(), err)
		}
	}
	if _, _, err := l.mux.Present(ctx, mux.Owner{PID: 1, UID: netlab.NobodyID}, a.grant.XSK, nil); !errors.Is(err, os.ErrPermission) {
		t.Errorf("another user: %v", err)
	}
	info := l.present(a)
	if _, _, err := l.mux.Present(ctx, me, a.grant.XSK, nil); !errors.Is(err, endpoint.ErrLeased) {
		t.Errorf("twice: %v", err)
	}
	l.present(q)
	// All data of the endpoints are as before, except the number of the process.
	after := l.mux.Endpoints()
	for i := range listed {
		if listed[i].PID != c.cmd.Process.Pid || after[i].PID != os.Getpid() {
			t.Errorf("process %d, then %d", listed[i].PID, after[i].PID)
		}
		listed[i].PID = os.Getpid()
	}
	if fmt.Sprint(after) != fmt.Sprint(listed) || fmt.Sprint(info) != fmt.Sprint(listed[0]) || len(info.Tags) != len(tags) || !info.Leased {
		t.Errorf("endpoints %+v\nwere      %+v\npresented %+v", after, listed, info)
	}

	// The tags are held as before: others cannot claim them, and the lease can give them back.
	other := l.open()
	for _, tag := range append(tags, udpTag("10.0.0.1:32770"), endpoint.MessageTag(8)) {
		if _, err := other.lease.Claim(ctx, tag); !errors.Is(err, endpoint.ErrTagHeld) {
			t.Errorf("claim %v: %v", tag, err)
		}
	}
	for _, port := range []int{7000, 32800} {
		testutil.Must(t, l.A.Do(func() error {
			if k, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port}); err == nil {
				k.Close()
				t.Errorf("a kernel program got port %d", port)
			}
			return nil
		}))
	}
	if a.grant.ID == other.grant.ID || other.grant.ID == q.grant.ID {
		t.Errorf("endpoint numbers %d, %d, %d", a.grant.ID, q.grant.ID, other.grant.ID)
	}
	for _, tag := range tags {
		testutil.Must(t, a.lease.Unclaim(ctx, tag))
	}
	if _, err := other.lease.Claim(ctx, tags[0]); err != nil {
		t.Error(err)
	}
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.1:7000", "to the new owner of the tag")
	other.recv()
	sendRaw(t, l.B, messageFrame(l.A.LinkAddr, l.B.LinkAddr, 8, 1, "to the queue"))
	q.recv()
}

// An endpoint that is not presented is reclaimed, though its process lives.
func TestEndpointIsReclaimedAfterGracePeriod(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	ask := endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}}
	a := l.openIn(c, ask)
	queue := endpoint.Request{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{endpoint.MessageTag(8)}}
	q := l.openIn(c, queue)
	c.kill()
	var log logBuffer
	l.openConfig(mux.Config{Pin: l.pin, Grace: 300 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if n := len(l.mux.Endpoints()); n != 2 {
		t.Fatalf("%d endpoints were taken over", n)
	}
	testutil.Eventually(t, "the endpoints have been reclaimed", func() bool { return len(l.mux.Endpoints()) == 0 })
	testutil.Eventually(t, "the log has the reason", func() bool { return strings.Count(log.String(), "not presented within 300ms") == 2 })
	if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
		t.Errorf("present an endpoint that was reclaimed: %v", err)
	}
	l.openRequest(ask)
	l.wantStillCounted(3)
	a.closeDescriptors()
	q.closeDescriptors()
	l.wantCounted(0, 1)
	l.openRequest(queue)
}

// Endpoints whose processes died while no process served the mux are reclaimed as soon as a process does.
func TestEndpointsOfDeadProcessesAreReclaimed(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	ask := []endpoint.Request{
		{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000"), endpoint.MessageTag(7)}},
		{Attach: endpoint.AttachQueue, Tags: []endpoint.Tag{udpTag("10.0.0.1:7001"), endpoint.MessageTag(8)}},
	}
	a, q := l.openIn(c, ask[0]), l.openIn(c, ask[1])
	c.kill()
	a.closeDescriptors()
	q.closeDescriptors()
	testutil.Eventually(t, "the port is gone", func() bool { return len(listObjects(t, l.A).links) == 2 })
	// Frames for its tags go to the kernel meanwhile.
	frames := openCapture(t, l.A)
	b := kernelUDP(t, l.B, "10.0.0.2:9000")
	sendTo(t, b, "10.0.0.1:7000", "to the kernel")
	frames.vlanOf("to the kernel")

	l.openConfig(mux.Config{Pin: l.pin})
	if list := l.mux.Endpoints(); len(list) != 0 {
		t.Errorf("taken over: %+v", list)
	}
	for _, req := range ask {
		l.openRequest(req)
	}
}

// takenOver makes an endpoint in a child, kills the child and opens the mux again, to which the
// endpoint can be presented for an hour.
func takenOver(t *testing.T) (*pinLab, *child, *app) {
	t.Helper()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{})
	c.kill()
	l.openConfig(mux.Config{Pin: l.pin, Grace: time.Hour})
	return l, c, a
}

// An endpoint whose process dies before it is presented is reclaimed before the grace period ends.
func TestEndpointIsReclaimedWhenItsProcessDies(t *testing.T) {
	t.Parallel()
	l, _, a := takenOver(t)
	if n := len(l.mux.Endpoints()); n != 1 {
		t.Fatalf("%d endpoints were taken over", n)
	}
	a.closeDescriptors()
	testutil.Eventually(t, "the endpoint is gone", func() bool { return len(l.mux.Endpoints()) == 0 })
}

// A claimed port that another program has bound while no process served the mux is logged, and the
// tag stays.
func TestClaimedPortBoundByProgramIsLogged(t *testing.T) {
	t.Parallel()
	l := newPinLab(t)
	c := l.serve(order{})
	a := l.openIn(c, endpoint.Request{Tags: []endpoint.Tag{udpTag("10.0.0.1:7000")}})
	c.kill()
	kernelUDP(t, l.A, "10.0.0.1:7000")
	var log logBuffer
	l.openConfig(mux.Config{Pin: l.pin, Log: slog.New(slog.NewTextHandler(&log, nil))})
	l.present(a)
	if s := log.String(); !strings.Contains(s, "level=WARN") || !strings.Contains(s, "udp:10.0.0.1:7000") {
		t.Errorf("log: %s", s)
	}
	l.echo(kernelUDP(t, l.B, "10.0.0.2:0"), a, "hello")
	testutil.Must(t, a.lease.Unclaim(t.Context(), udpTag("10.0.0.1:7000")))
}

// If the fill ring of a presented socket cannot be mapped, Present fails, the endpoint keeps its owner, and
// another attempt can succeed.
func TestPresentFailsWithoutFillRing(t *testing.T) {
	t.Parallel()
	l, c, a := takenOver(t)
	l.mux.SetFillSize(a.grant.ID, 1<<20)
	if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); err == nil {
		t.Fatal("presented without its fill ring")
	}
	wantOwner := func(where string) {
		t.Helper()
		if list := l.mux.Endpoints(); len(list) != 1 || list[0].PID != c.cmd.Process.Pid || list[0].Leased {
			t.Errorf("%s: %+v, want process %d", where, list, c.cmd.Process.Pid)
		}
	}
	wantOwner("in the mux")
	testutil.Must(t, l.mux.Abandon())
	l.openConfig(mux.Config{Pin: l.pin, Grace: time.Hour})
	wantOwner("in the kernel")
	l.present(a)
}

// An endpoint that is being reclaimed has no lease, and cannot be presented any more.
func TestReclaimedEndpointCannotBePresented(t *testing.T) {
	t.Parallel()
	l, _, a := takenOver(t)
	if info := l.mux.Reclaim(a.grant.ID); info.Leased {
		t.Errorf("%+v", info)
	}
	if _, _, err := l.mux.Present(t.Context(), me, a.grant.XSK, nil); !errors.Is(err, endpoint.ErrNotPresentable) {
		t.Errorf("present: %v", err)
	}
}
