package unettest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/hoststack"
	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/notices"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// Options describe a network. The zero value is two hosts, "a" and "b", and a perfect path.
type Options struct {
	Hosts []string // names, at most 254; default: "a" and "b"
	Path  Path     // between all hosts, in each direction
	// Seed is of the random numbers. A burst before the first route is found loses datagrams
	// that no seed decides about.
	Seed uint64
	MTU  int  // bytes of IP packet, 576 to 9000, with IPv6 1280 at least; default 1500
	IPv6 bool // hosts have an IPv6 address beside the IPv4 one

	TCP unet.TCPConfig // of all hosts
}

// Path is how one direction between two hosts treats frames. The zero value passes all on
// at once. A line with a Rate has a drop-tail queue.
type Path struct {
	Loss      float64 // probability that a frame is lost
	Duplicate float64 // probability that a frame arrives twice

	Delay    time.Duration // until a frame arrives
	Jitter   time.Duration // up to as much longer, evenly distributed; keeps the order
	Reorder  float64       // probability that a frame is held back and may be overtaken
	HoldBack time.Duration // by how much at most, evenly distributed; required with Reorder

	Rate  int64 // bits a second; 0: there is no limit and no queue
	Queue int   // bytes that may wait for the line; 0: 150,000

	Down bool // everything is lost
}

func (p Path) rule() linksim.Rule {
	r := linksim.Rule{Loss: p.Loss, Duplicate: p.Duplicate, Delay: p.Delay, Jitter: p.Jitter, Reorder: p.Reorder, HoldBack: p.HoldBack, Rate: p.Rate, Queue: p.Queue}
	if p.Down {
		r.Blackout = linksim.Down
	}
	return r
}

const frames = 2048 // of a host

// LAN is a network in memory. Its methods may be called from any goroutine.
type LAN struct {
	hosts []*host
	begun time.Time
	wake  chan struct{} // something has been sent
	stop  chan struct{} // closed by Close
	ended chan struct{} // closed when the switch has ended
	close func() error

	mu sync.Mutex
	// +checklocks:mu
	links [][]*linksim.Link[[]byte] // from each host, to each host
	// +checklocks:mu
	cut []string // the side of each partition that each host is on
}

// host is a host and its port of the switch.
type host struct {
	*unet.Host
	name string
	addr netip.Addr
	ipv6 netip.Addr // the zero value without Options.IPv6
	mac  wire.LinkAddr
	link *memlink.Link
}

// Pair makes two hosts, which are closed at the end of the test. See [New].
func Pair(t testing.TB) (a, b *unet.Host) {
	t.Helper()
	l := New(t, Options{})
	return l.Host("a"), l.Host("b")
}

// New makes a network, which is closed at the end of the test. The test fails if Options are
// not valid, and if it keeps data or buffers of sockets ([unet.TCPData], [unet.UDPDatagram], [unet.UDPBuffer]) that it
// has not released.
func New(t testing.TB, o Options) *LAN {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Open makes a network outside of a test. The error is about the options.
func Open(o Options) (*LAN, error) {
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"a", "b"}
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if n := len(o.Hosts); n > 254 {
		return nil, fmt.Errorf("unettest: Options.Hosts are %d: want at most 254", n)
	}
	if o.MTU < 576 || o.MTU > 9000 {
		return nil, fmt.Errorf("unettest: Options.MTU is %d: want 576 to 9000", o.MTU)
	}
	if o.IPv6 && o.MTU < wire.MinIPv6MTU {
		return nil, fmt.Errorf("unettest: Options.MTU is %d: want %d at least with Options.IPv6", o.MTU, wire.MinIPv6MTU)
	}
	if err := o.Path.rule().Validate(); err != nil {
		return nil, fmt.Errorf("unettest: Options.Path: %w", err)
	}
	for i, name := range o.Hosts {
		if name == "" || slices.Index(o.Hosts, name) != i {
			return nil, fmt.Errorf("unettest: Options.Hosts has %q: want names that differ", name)
		}
	}
	links := make([][]*linksim.Link[[]byte], len(o.Hosts))
	for i := range links {
		for j := range links {
			links[i] = append(links[i], linksim.NewLink[[]byte](o.Seed+uint64(i)<<32+uint64(j), o.Path.rule()))
		}
	}
	l := &LAN{
		begun: time.Now(),
		wake:  make(chan struct{}, 1),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
		links: links,
		cut:   make([]string, len(o.Hosts)),
	}
	l.close = sync.OnceValue(l.shut)
	for i, name := range o.Hosts {
		n := byte(i + 1)
		h := &host{name: name, addr: netip.AddrFrom4([4]byte{10, 0, 0, n}), mac: wire.LinkAddr{2, 0, 0, 0, 0, n}}
		if o.IPv6 {
			h.ipv6 = netip.AddrFrom16([16]byte{0: 0xfd, 15: n})
		}
		h.link, _ = memlink.Pair(memlink.Config{FrameSize: max(2048, o.MTU+wire.EthernetHeaderLen), FrameCount: frames})
		h.link.Filter(func(frame []byte) bool { l.send(i, frame); return false })
		l.hosts = append(l.hosts, h)
	}
	go l.run()
	for _, h := range l.hosts {
		addrs := []netip.Prefix{netip.PrefixFrom(h.addr, 24)}
		if o.IPv6 {
			addrs = append(addrs, netip.PrefixFrom(h.ipv6, 64))
		}
		made, err := hoststack.NewOnLink(&lease{lan: l, done: make(chan struct{})}, stack.Config{
			Link:         h.link,
			LinkAddr:     h.mac,
			Addrs:        addrs,
			OwnedAddress: true,
			MTU:          o.MTU,
			Wait:         endpoint.WaitBlock, // in a synctest bubble time stands still while a goroutine spins
			TCP:          o.TCP,
		}, l.resolver())
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		h.Host = made.(*unet.Host)
	}
	return l, nil
}

// Host is the host of that name. It panics if there is none.
func (l *LAN) Host(name string) *unet.Host { return l.hosts[l.index(name)].Host }

func (l *LAN) index(name string) int {
	i := slices.IndexFunc(l.hosts, func(h *host) bool { return h.name == name })
	if i < 0 {
		panic(fmt.Sprintf("unettest: there is no host %q", name))
	}
	return i
}

// SetPath changes the direction from one host to another, for frames that are sent from now
// on. It panics if the path is not valid.
func (l *LAN) SetPath(from, to string, p Path) { l.set(l.index(from), l.index(to), p) }

// SetAll changes all directions between all hosts, as SetPath does.
func (l *LAN) SetAll(p Path) {
	for i := range l.hosts {
		for j := range l.hosts {
			l.set(i, j, p)
		}
	}
}

func (l *LAN) set(from, to int, p Path) {
	if err := p.rule().Validate(); err != nil {
		panic("unettest: path: " + err.Error())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links[from][to].Set(time.Since(l.begun), p.rule())
}

// Partition parts the named hosts from all others: frames between the two sides are lost,
// until [LAN.Heal]. A second partition parts both sides again.
func (l *LAN) Partition(names ...string) {
	for _, name := range names {
		l.index(name) // panics if there is none
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range l.hosts {
		l.cut[i] += map[bool]string{false: "0", true: "1"}[slices.Contains(names, h.name)]
	}
}

// Heal ends all partitions. Paths that are Down stay so.
func (l *LAN) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.cut)
}

// Close closes the hosts and ends the network. The error lists frames that the application
// has not given back.
func (l *LAN) Close() error { return l.close() }

func (l *LAN) shut() error {
	// At the same time: a host that closes waits for its peers.
	errs := make([]error, len(l.hosts))
	var closing sync.WaitGroup
	for i, h := range l.hosts {
		if h.Host != nil {
			closing.Go(func() { errs[i] = errors.Join(h.Host.Close(), h.link.Audit()) })
		}
	}
	closing.Wait()
	close(l.stop)
	<-l.ended
	return errors.Join(errs...)
}

// send puts a frame of a host on the links that lead to its destination. It is called under
// the lock of the host's link.
func (l *LAN) send(from int, frame []byte) {
	if len(frame) < wire.EthernetHeaderLen {
		return
	}
	frame = slices.Clone(frame)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.begun)
	for to, h := range l.hosts {
		group := frame[0]&1 != 0 && to != from
		if (group || wire.LinkAddr(frame[:6]) == h.mac) && l.cut[to] == l.cut[from] {
			l.links[from][to].Send(now, linksim.Frame{Size: len(frame)}, frame)
		}
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run delivers frames when they are due.
func (l *LAN) run() {
	defer close(l.ended)
	for {
		var due <-chan time.Time // nil, so that a synctest bubble finds a deadlock, if nothing is on its way
		if next := l.deliver(); next >= 0 {
			// No timer that is due already: see memlink.Link.Sleep.
			pause := next - time.Since(l.begun)
			if pause <= 0 {
				continue
			}
			due = time.After(pause)
		}
		select {
		case <-l.wake:
		case <-due:
		case <-l.stop:
		}
		select {
		case <-l.stop:
			return
		default:
		}
	}
}

// deliver hands over the frames that are due, and returns when the next one is; -1: none is
// on its way.
func (l *LAN) deliver() (next time.Duration) {
	type arrival struct {
		at    time.Duration
		to    *memlink.Link
		frame []byte
	}
	var arrived []arrival
	next = -1
	l.mu.Lock()
	now := time.Since(l.begun)
	for from := range l.links {
		for to, link := range l.links[from] {
			for a, ok := link.Receive(now); ok; a, ok = link.Receive(now) {
				arrived = append(arrived, arrival{a.At, l.hosts[to].link, a.Item})
			}
			if at, ok := link.Next(); ok && (next < 0 || at < next) {
				next = at
			}
		}
	}
	l.mu.Unlock()
	slices.SortStableFunc(arrived, func(a, b arrival) int { return int(a.at - b.at) })
	for _, a := range arrived { // without the lock: Inject takes the link's
		a.to.Inject(stack.Frame{Data: a.frame})
	}
	return next
}

// lease grants everything but memory paths.
type lease struct {
	notices.NoPaths
	lan  *LAN
	once sync.Once
	done chan struct{}
}

func (l *lease) Claim(_ context.Context, t endpoint.Tag) (endpoint.Tag, error) { return t, nil }
func (l *lease) Unclaim(context.Context, endpoint.Tag) error                   { return nil }
func (l *lease) Done() <-chan struct{}                                         { return l.done }
func (l *lease) Close() error                                                  { l.once.Do(func() { close(l.done) }); return nil }

// Notices has none: the network and its hosts do not change.
func (l *lease) Notices(ctx context.Context) iter.Seq[[]endpoint.Notice] {
	return func(func([]endpoint.Notice) bool) {
		select {
		case <-l.done:
		case <-ctx.Done():
		}
	}
}

func (l *lease) Err() error {
	select {
	case <-l.done:
		return endpoint.ErrLeaseClosed
	default:
		return nil
	}
}

func (l *lease) Resolve(_ context.Context, _, dst netip.Addr) (endpoint.Route, error) {
	for _, h := range l.lan.hosts {
		if h.addr == dst || h.ipv6 == dst {
			return endpoint.Route{LinkAddr: h.mac}, nil
		}
	}
	return endpoint.Route{}, endpoint.ErrUnreachable
}
