package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// patience is how long a test waits for what must happen; it is no bound on
// how fast that is.
const patience = 20 * time.Second

var (
	localAddr  = netip.MustParseAddr("10.0.0.1")
	remoteAddr = netip.MustParseAddr("10.0.0.2")
)

// hooks, where set, replace what a fakeProvider and its leases do.
type hooks struct {
	open  func(ctx context.Context, p Peer, req endpoint.Request) error
	claim func(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error)
	route func(ctx context.Context, dst netip.Addr) (endpoint.Route, error)
}

// fakeProvider grants memfds and pipes.
type fakeProvider struct {
	t      testing.TB
	closed chan *fakeLease // gets every lease that is closed

	mu     sync.Mutex
	hooks  hooks
	last   uint64
	newest *fakeLease
	pipes  []*os.File // read ends, at end of file once no copy of a grant is left
}

type fakeLease struct {
	p    *fakeProvider
	id   uint64
	mu   sync.Mutex
	tags map[endpoint.Tag]bool
	done bool
	gone chan struct{} // closed when the lease has ended
}

func newFakeProvider(t testing.TB) *fakeProvider {
	p := &fakeProvider{t: t, closed: make(chan *fakeLease, 4096)}
	t.Cleanup(func() {
		for _, f := range p.pipes {
			f.Close()
		}
	})
	return p
}

func (p *fakeProvider) hook(h hooks) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = h
}

func (p *fakeProvider) current() hooks {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hooks
}

func (p *fakeProvider) OpenEndpoint(ctx context.Context, peer Peer, req endpoint.Request) (*endpoint.Grant, endpoint.Lease, error) {
	if open := p.current().open; open != nil {
		if err := open(ctx, peer, req); err != nil {
			return nil, nil, err
		}
	}
	g := req.Geometry.WithDefaults()
	if err := g.Validate(); err != nil {
		return nil, nil, err
	}
	memfd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	segment := os.NewFile(uintptr(memfd), "segment")
	if _, err := segment.WriteString("segment"); err != nil {
		return nil, nil, err
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		segment.Close()
		return nil, nil, err
	}
	// Only the read end meets the poller; the write end stays blocking, as
	// an XSK does.
	if err := unix.SetNonblock(pipe[0], true); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	p.pipes = append(p.pipes, os.NewFile(uintptr(pipe[0]), "pipe"))
	lease := &fakeLease{p: p, id: p.last, tags: make(map[endpoint.Tag]bool), gone: make(chan struct{})}
	p.newest = lease
	for _, t := range req.Tags {
		lease.tags[t] = true
	}
	return &endpoint.Grant{
		XSK: os.NewFile(uintptr(pipe[1]), "xsk"), Segment: segment,
		ID: p.last, Attach: req.Attach, Geometry: g, Tags: req.Tags,
		Identity: endpoint.Identity{Interface: "eth0", LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 1},
			Addr: netip.PrefixFrom(localAddr, 24), MTU: 1500, PartialChecksums: true, Mode: "generic"},
	}, lease, nil
}

// noCopies waits until every descriptor of every grant so far is closed.
func (p *fakeProvider) noCopies() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range p.pipes {
		if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
			p.t.Fatal(err)
		}
		for {
			if _, err := f.Read(make([]byte, 16)); errors.Is(err, os.ErrDeadlineExceeded) {
				p.t.Fatalf("a descriptor of grant %d is still open", i+1)
			} else if err != nil {
				break // io.EOF
			}
		}
		f.Close()
	}
	p.pipes = nil
}

// awaitClosed waits for a lease to be closed.
func (p *fakeProvider) awaitClosed() *fakeLease {
	p.t.Helper()
	select {
	case l := <-p.closed:
		return l
	case <-time.After(patience):
		p.t.Fatal("the lease was not closed")
		return nil
	}
}

func (l *fakeLease) Claim(ctx context.Context, t endpoint.Tag) (endpoint.Tag, error) {
	if claim := l.p.current().claim; claim != nil {
		var err error
		if t, err = claim(ctx, t); err != nil {
			return endpoint.Tag{}, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tags[t] {
		return endpoint.Tag{}, endpoint.ErrTagHeld
	}
	if t.Kind == endpoint.TagUDP && t.Port == 0 {
		t.Port = 40001
	}
	l.tags[t] = true
	return t, nil
}

func (l *fakeLease) Unclaim(ctx context.Context, t endpoint.Tag) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.tags[t] {
		return errors.New("no such tag")
	}
	delete(l.tags, t)
	return nil
}

func (l *fakeLease) Resolve(ctx context.Context, dst netip.Addr) (endpoint.Route, error) {
	if route := l.p.current().route; route != nil {
		return route(ctx, dst)
	}
	return endpoint.Route{Source: localAddr, NextHop: dst, LinkAddr: wire.LinkAddr{2, 0, 0, 0, 0, 2}, MTU: 1500}, nil
}

func (l *fakeLease) Done() <-chan struct{} { return l.gone }

// end is what happens when the provider takes an endpoint down.
func (l *fakeLease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gone:
	default:
		close(l.gone)
	}
}

func (l *fakeLease) Close() error {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		panic("BUG: lease closed twice")
	}
	l.done = true
	l.p.closed <- l
	return nil
}

// listen makes a socket in a folder of the test.
func listen(t testing.TB) (string, *net.UnixListener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return path, ln
}

// start runs s until stop is called, or the test ends. stop returns when Serve
// has, and then every lease must be closed.
func start(t testing.TB, s *Server) (socket string, stop func()) {
	t.Helper()
	socket, ln := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve did not return")
		}
	})
	t.Cleanup(stop)
	return socket, stop
}

func mustOpen(t testing.TB, socket string, req endpoint.Request) (*endpoint.Grant, *Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, l, err := Open(ctx, socket, req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close(); l.Close() })
	return g, l
}

// descriptorLeaks fails the test if it ends with more descriptors open than
// it began with.
func descriptorLeaks(t *testing.T) {
	t.Helper()
	// The runtime's poller keeps descriptors of its own from first use on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	before := openDescriptors(t)
	t.Cleanup(func() {
		if after := openDescriptors(t); len(after) > len(before) {
			t.Errorf("descriptors before %v, after %v", before, after)
		}
	})
}

func openDescriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			open = append(open, e.Name()+"="+target)
		}
	}
	return open
}

func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
}
