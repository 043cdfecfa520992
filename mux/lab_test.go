//go:build linux

package mux_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/unet-go/unet/bpf"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/frametest"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/route"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/internal/xsk"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/queues"
)

// lab is a mux on host A; host B has the kernel's stack only.
type lab struct {
	t *testing.T
	*netlab.Pair
	mux    *mux.Mux
	policy testPolicy // unless a config has another
}

// testPolicy permits all users what a rule permits, on given terms.
type testPolicy struct {
	opening sync.Mutex // held while the terms are not the usual ones
	mu      sync.Mutex
	other   *mux.Terms // nil: the usual ones
	claims  mux.Claims // nil: everything
	tags    int64      // number of permitted tags; 0: any
}

func (p *testPolicy) terms() mux.Terms {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.other != nil {
		return *p.other
	}
	return mux.Terms{Trusted: true, Infrastructure: true}
}

func (p *testPolicy) Open(mux.Owner, endpoint.Request) (mux.Terms, error) { return p.terms(), nil }

func (p *testPolicy) RatesOf(mux.Owner) (endpoint.Rates, bool) { return p.terms().Rates, true }

func (p *testPolicy) Claims(o mux.Owner) (mux.Claims, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claims != nil {
		return p.claims, nil
	}
	all, err := mux.Permit(mux.Terms{}).Claims(o)
	return limitedTags{all, p.tags}, err
}

// limitedTags permits a number of tags.
type limitedTags struct {
	mux.Claims
	tags int64
}

func (c limitedTags) Tags() int64 { return c.tags }

// on calls f while endpoints are opened on these terms.
func (p *testPolicy) on(t mux.Terms, f func()) {
	p.opening.Lock()
	defer p.opening.Unlock()
	set := func(t *mux.Terms) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.other = t
	}
	set(&t)
	defer set(nil)
	f()
}

func openLab(t *testing.T, mode mux.Mode) *lab {
	t.Helper()
	l := &lab{t: t, Pair: netlab.RequirePair(t, netlab.Config{})}
	l.openMux(mode)
	return l
}

func (l *lab) openMux(mode mux.Mode) { l.openConfig(mux.Config{Mode: mode}) }

// openConfig opens the mux of host A.
func (l *lab) openConfig(cfg mux.Config) {
	l.t.Helper()
	cfg.Interface, cfg.NetNS = l.A.Interface, l.A.NS
	if cfg.Policy == nil {
		cfg.Policy = &l.policy
	}
	if cfg.Pin != "" && cfg.Dir == "" {
		cfg.Dir = filepath.Dir(cfg.Pin) // the test's
	}
	m, err := mux.Open(cfg)
	testutil.Must(l.t, err)
	l.mux = m
	l.t.Cleanup(func() {
		if err := m.CheckTagCounts(); err != nil {
			l.t.Error(err)
		}
		if err := m.CheckTagTable(); err != nil {
			l.t.Error(err)
		}
		if err := m.Close(); err != nil {
			l.t.Errorf("close the mux: %v", err)
		}
	})
}

var small = endpoint.Geometry{FrameCount: 256, FillSize: 128, CompletionSize: 128, RxSize: 128, TxSize: 128}

func udpTag(s string) endpoint.Tag { return endpoint.UDPTag(netip.MustParseAddrPort(s)) }

// app is an application with a grant, on the rings without package datapath.
type app struct {
	t     *testing.T
	grant *endpoint.Grant
	lease *mux.Lease
	sock  *xsk.Socket
	mem   []byte
	next  uint32 // frame to send from
}

func (l *lab) open(tags ...endpoint.Tag) *app {
	l.t.Helper()
	return l.openRequest(endpoint.Request{Tags: tags})
}

func (l *lab) openRequest(req endpoint.Request) *app {
	l.t.Helper()
	return l.openFor(mux.Terms{Trusted: true}, req)
}

func (l *lab) openFor(terms mux.Terms, req endpoint.Request) *app {
	l.t.Helper()
	if req.Geometry == (endpoint.Geometry{}) {
		req.Geometry = small
	}
	g, lease, err := l.openAs(mux.Owner{PID: os.Getpid()}, terms, req)
	testutil.Must(l.t, err)
	a := attach(l.t, g)
	a.lease = lease
	return a
}

func (l *lab) openAs(o mux.Owner, terms mux.Terms, req endpoint.Request) (g *endpoint.Grant, lease *mux.Lease, err error) {
	l.policy.on(terms, func() { g, lease, err = l.mux.OpenEndpointFor(l.t.Context(), o, req) })
	return g, lease, err
}

// attach maps the socket and the segment of a grant.
func attach(t *testing.T, g *endpoint.Grant) *app {
	t.Helper()
	a := &app{t: t, grant: g}
	geo := g.Geometry
	var err error
	a.sock, err = xsk.Attach(g.XSK, xsk.Params{FrameSize: geo.FrameSize, FrameCount: geo.FrameCount, FillSize: geo.FillSize,
		CompletionSize: geo.CompletionSize, RxSize: geo.RxSize, TxSize: geo.TxSize})
	testutil.Must(t, err)
	a.mem, err = xsk.MapSegment(g.Segment, int(geo.SegmentSize()))
	testutil.Must(t, err)
	t.Cleanup(a.close)
	return a
}

func (a *app) close() {
	if a.sock == nil {
		return
	}
	var err error
	if a.lease != nil {
		err = a.lease.Close()
	}
	err = errors.Join(err, a.sock.Close(), xsk.UnmapSegment(a.mem), a.closeGrant())
	a.sock = nil
	if err != nil {
		a.t.Errorf("close endpoint: %v", err)
	}
}

// closeGrant closes the descriptors that no socket of package xsk has taken over.
func (a *app) closeGrant() error {
	err := a.grant.Segment.Close()
	if a.grant.Table != nil {
		err = errors.Join(err, a.grant.Table.Close())
	}
	return err
}

// closeDescriptors closes descriptors and mappings, as the death of a process does, and not the lease.
func (a *app) closeDescriptors() {
	a.t.Helper()
	testutil.Must(a.t, errors.Join(a.sock.Close(), xsk.UnmapSegment(a.mem), a.closeGrant()))
	a.sock = nil
}

// send puts one frame on the send queue, possibly in several descriptors, and kicks.
func (a *app) send(frame []byte) {
	a.t.Helper()
	testutil.Must(a.t, a.trySend(frame))
}

// trySend is send for goroutines.
func (a *app) trySend(frame []byte) error {
	size := int(a.grant.Geometry.FrameSize)
	for len(frame) > 0 {
		n := min(len(frame), size)
		at := uint64(a.grant.Geometry.Prefilled()+a.next%64) * uint64(size)
		a.next++
		copy(a.mem[at:], frame[:n])
		d := queues.Desc{Addr: at, Len: uint32(n)}
		if frame = frame[n:]; len(frame) > 0 {
			d.Options = queues.Continued
		}
		if !a.sock.TX.Push(d) {
			return errors.New("send queue full")
		}
	}
	a.sock.TX.Submit(a.sock.TX.Reserved())
	if err := a.sock.Kick(); err != nil {
		return err
	}
	a.sock.Completion.Release(a.sock.Completion.Peek(128))
	return nil
}

// received is one frame, and the size that the mux has put in place of the destination MAC address of a
// super-frame.
type received struct {
	frame   []byte
	gsoSize uint16
}

// recv waits for the next frame.
func (a *app) recv() received {
	a.t.Helper()
	// Most frames are there already. A short sleep leaves the processor to the other tests.
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(50 * time.Microsecond) {
		if r, ok := a.poll(); ok {
			return r
		}
		if time.Now().After(deadline) {
			a.t.Fatal("no frame was received")
		}
	}
}

// poll takes a frame off the receive queue, if there is one.
func (a *app) poll() (r received, ok bool) {
	n := a.sock.RX.Peek(64)
	for i := range n {
		d := *a.sock.RX.At(i)
		if dst := a.mem[d.Addr : d.Addr+6]; i == 0 && [4]byte(dst) == [4]byte{1} {
			r.gsoSize = binary.NativeEndian.Uint16(dst[4:])
		}
		r.frame = append(r.frame, a.mem[d.Addr:d.Addr+uint64(d.Len)]...)
		if !a.sock.Fill.Push(d.Addr - d.Addr%uint64(a.grant.Geometry.FrameSize)) {
			a.t.Fatal("free queue full")
		}
		if d.Options&queues.Continued == 0 {
			a.sock.Fill.Submit(a.sock.Fill.Reserved())
			a.sock.RX.Release(i + 1)
			return r, true
		}
	}
	if n > 0 {
		a.t.Fatalf("a packet of more than %d descriptors", n)
	}
	return r, false
}

// wantNothing checks that no frame waits.
func (a *app) wantNothing(why string) {
	a.t.Helper()
	if r, ok := a.poll(); ok {
		a.t.Errorf("%s: received %x", why, r.frame)
	}
}

func (l *lab) counters() []endpoint.Counter {
	l.t.Helper()
	list, err := l.mux.Counters()
	testutil.Must(l.t, err)
	return list
}

// count reads the counters that are not zero.
func (l *lab) count() map[string]uint64 {
	l.t.Helper()
	m := map[string]uint64{}
	for _, c := range l.counters() {
		if c.Value != 0 {
			m[c.Name] = c.Value
		}
	}
	return m
}

// await waits until a counter has a value.
func (l *lab) await(name string, value uint64) {
	l.t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		got := l.count()
		if got[name] == value {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s did not become %d: %v", name, value, got)
		}
	}
}

// wantIncrements runs fn and checks that of the counters with prefix exactly the named ones increase, by one.
func (l *lab) wantIncrements(what, prefix string, fn func(), names ...string) {
	l.t.Helper()
	before := l.count()
	fn()
	after := l.count()
	for name, v := range after {
		want := before[name]
		if slices.Contains(names, name) {
			want++
		} else if !strings.HasPrefix(name, prefix) {
			continue
		}
		if v != want {
			l.t.Errorf("%s: %s went from %d to %d", what, name, before[name], v)
		}
	}
	for _, name := range names {
		if after[name] != before[name]+1 {
			l.t.Errorf("%s: %s went from %d to %d", what, name, before[name], after[name])
		}
	}
}

// kernelUDP is an ordinary socket on a host.
func kernelUDP(t *testing.T, h *netlab.Host, addr string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	testutil.Must(t, h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	testutil.Must(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	return c
}

func sendTo(t *testing.T, c *net.UDPConn, to string, payload string) {
	t.Helper()
	_, err := c.WriteToUDPAddrPort([]byte(payload), netip.MustParseAddrPort(to))
	testutil.Must(t, err)
}

// readFrom reads one datagram.
func readFrom(t *testing.T, c *net.UDPConn, want string) netip.AddrPort {
	t.Helper()
	b := make([]byte, 2048)
	n, from, err := c.ReadFromUDPAddrPort(b)
	testutil.Must(t, err)
	if string(b[:n]) != want {
		t.Fatalf("received %q, want %q", b[:n], want)
	}
	return from
}

// packet decodes a frame with gopacket; an error fails the test.
func packet(t *testing.T, frame []byte) gopacket.Packet {
	t.Helper()
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if e := p.ErrorLayer(); e != nil {
		t.Fatalf("%v in %x", e.Error(), frame)
	}
	return p
}

// datagram is a frame with a UDP datagram.
func datagram(dst, src [6]byte, from, to string, payload string) []byte {
	return frametest.Datagram(dst, src, netip.MustParseAddrPort(from), netip.MustParseAddrPort(to), payload)
}

func messageFrame(dst, src [6]byte, to, from uint32, payload string) []byte {
	h := []byte{1, 0, byte(len(payload) >> 8), byte(len(payload))}
	h = binary.BigEndian.AppendUint32(h, to)
	h = binary.BigEndian.AppendUint32(h, from)
	return frametest.Build(&layers.Ethernet{DstMAC: dst[:], SrcMAC: src[:], EthernetType: 0x88b5}, gopacket.Payload(append(h, payload...)))
}

// hostObjects are the objects that a test could leave on a host and in this process. (Programs and maps
// need no list: they are not pinned, so they exist only as long as a descriptor.)
type hostObjects struct {
	links      []string
	cutters    []string // which are links too
	pairs      []string // of muxes, by which endpoints reach the host
	programs   []string // devices with programs that redirect frames, without cutters
	fds        int
	namespaces []string
}

// sameDevices compares the devices, and those with programs.
func (o hostObjects) sameDevices(p hostObjects) bool {
	return slices.Equal(o.links, p.links) && slices.Equal(o.cutters, p.cutters) && slices.Equal(o.pairs, p.pairs) && slices.Equal(o.programs, p.programs)
}

func listObjects(t *testing.T, h *netlab.Host) (found hostObjects) {
	t.Helper()
	testutil.Must(t, h.Do(func() error {
		links, err := route.Dump(netlink.LinkList)
		for _, l := range links {
			if l.Type() == "ifb" {
				found.cutters = append(found.cutters, l.Attrs().Name)
				continue
			}
			if strings.HasPrefix(l.Attrs().Name, "unetup") || strings.HasPrefix(l.Attrs().Name, "unettop") {
				found.pairs = append(found.pairs, l.Attrs().Name)
				continue
			}
			chain, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			if errors.Is(err, syscall.ENODEV) {
				continue // deleted since it was listed
			}
			testutil.Must(t, err)
			found.links = append(found.links, l.Attrs().Name)
			demultiplexes := slices.ContainsFunc(chain.Programs, func(p link.AttachedProgram) bool {
				return mux.ProgramName(p.ID) == bpf.MuxProgUnetUplinkTcx
			})
			if x := l.Attrs().Xdp; x != nil && x.Attached || demultiplexes {
				found.programs = append(found.programs, l.Attrs().Name)
			}
		}
		return err
	}))
	found.fds = openDescriptors(t)
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	testutil.Must(t, err)
	for _, l := range threads {
		if id, err := os.Readlink(l); err == nil && !slices.Contains(found.namespaces, id) {
			found.namespaces = append(found.namespaces, id)
		}
	}
	slices.Sort(found.namespaces)
	return found
}

// openDescriptors is the number of descriptors of this process.
func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	testutil.Must(t, err)
	return len(list)
}

// wantObjects waits until the objects are those of want: the kernel removes objects in the background.
// There may be fewer descriptors and namespaces: want can include some of an earlier test.
func wantObjects(t *testing.T, h *netlab.Host, want hostObjects) {
	t.Helper()
	var got hostObjects
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = listObjects(t, h)
		more := slices.ContainsFunc(got.namespaces, func(id string) bool { return !slices.Contains(want.namespaces, id) })
		if !more && got.fds <= want.fds && got.sameDevices(want) {
			return
		}
	}
	t.Errorf("left behind: %+v, before: %+v", got, want)
}
