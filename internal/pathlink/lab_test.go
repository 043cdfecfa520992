//go:build linux

package pathlink

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/mempath"
	"github.com/unet-go/unet/internal/tagtable"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/wire"
)

// uplink is the MAC address of all endpoints of a mux.
var uplink = wire.LinkAddr{2, 0, 0, 0, 0, 1}

var (
	addrs  = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	addrs6 = [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
)

// lab is two endpoints of one mux: stacks on two ends of a memlink, which stands for their ports, and a tag table.
type lab struct {
	table  *tagtable.Table
	ends   [2]*node
	byPort atomic.Int64 // frames of TCP and UDP that went by the ports

	refuse bool        // OpenPath makes no path
	made   atomic.Bool // there is a path that no end has given back
}

// node is an endpoint.
type node struct {
	lab   *lab
	i     int
	port  *memlink.Link
	link  *Link
	stack *stack.Stack
	paths chan *endpoint.Path
	given atomic.Int64 // paths that were given back

	endpoint.Lease
}

func (n *node) id() uint64 { return uint64(n.i + 1) }

// socket is a memlink with bells. They call the goroutine that sleeps as those of a real socket do.
type socket struct {
	*memlink.Link
	bells   int // an epoll instance
	pending atomic.Pointer[func() bool]
}

func newSocket(t testing.TB, port *memlink.Link) *socket {
	t.Helper()
	s := &socket{Link: port, bells: testutil.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))}
	var stop [2]int
	testutil.Must(t, unix.Pipe2(stop[:], unix.O_CLOEXEC))
	testutil.Must(t, unix.EpollCtl(s.bells, unix.EPOLL_CTL_ADD, stop[0], &unix.EpollEvent{Events: unix.EPOLLHUP, Fd: int32(stop[0])}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var got [1]unix.EpollEvent
		for {
			n, err := unix.EpollWait(s.bells, got[:], -1)
			if n == 1 && got[0].Fd == int32(stop[0]) || err != nil && err != unix.EINTR {
				return
			}
			s.Wake()
		}
	}()
	t.Cleanup(func() {
		unix.Close(stop[1])
		<-ended
		unix.Close(stop[0])
		unix.Close(s.bells)
	})
	return s
}

func (s *socket) Watch(fd int, pending func() bool) error {
	s.pending.Store(&pending)
	return unix.EpollCtl(s.bells, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&(1<<32-1), Fd: int32(fd)})
}

func (s *socket) Sleep(until time.Time, again bool) error {
	if pending := s.pending.Load(); pending != nil && (*pending)() {
		return nil
	}
	return s.Link.Sleep(until, again)
}

func (s *socket) Unwatch(fd int) error { return unix.EpollCtl(s.bells, unix.EPOLL_CTL_DEL, fd, nil) }

// sameHost answers that every host is this one.
type sameHost struct{}

func (sameHost) Resolve(context.Context, netip.Addr, netip.Addr) (stack.Route, error) {
	return stack.Route{LinkAddr: uplink}, nil
}

func (n *node) OpenPath(context.Context, uint64) error {
	if n.lab.refuse {
		return endpoint.ErrNoPath
	}
	if n.lab.made.Swap(true) {
		return nil
	}
	both, err := n.lab.makePath()
	if err == nil {
		n.lab.ends[0].paths <- both[0]
		n.lab.ends[1].paths <- both[1]
	}
	return err
}

func (n *node) ClosePath(context.Context, uint64) error {
	n.lab.made.Store(false)
	n.given.Add(1)
	return nil
}

func (n *node) Paths(ctx context.Context) iter.Seq[*endpoint.Path] {
	return func(yield func(*endpoint.Path) bool) {
		for {
			select {
			case p := <-n.paths:
				if !yield(p) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// makePath makes both ends of a path.
func (l *lab) makePath() (both [2]*endpoint.Path, err error) {
	if both[0], both[1], err = mempath.Make(); err != nil {
		return both, err
	}
	for i, p := range both {
		p.Peer, p.Epoch, p.PeerEpoch = l.ends[1-i].id(), l.table.Epoch(l.ends[i].id()), l.table.Epoch(l.ends[1-i].id())
	}
	return both, nil
}

func newLab(t testing.TB, cfg stack.Config) *lab {
	t.Helper()
	table, err := tagtable.Create("", "")
	testutil.Must(t, err)
	l := &lab{table: table}
	t.Cleanup(func() { testutil.Must(t, table.Close()) })
	a, b := memlink.Pair(memlink.Config{FrameCount: 2048})
	for i, port := range []*memlink.Link{a, b} {
		port.Filter(func(frame []byte) bool {
			if _, _, ok := ends(frame); ok {
				l.byPort.Add(1)
			}
			return true
		})
		f, err := table.Reader()
		testutil.Must(t, err)
		view, err := tagtable.Open(f)
		testutil.Must(t, err)
		n := &node{lab: l, i: i, port: port, paths: make(chan *endpoint.Path, 16)}
		n.link = New(newSocket(t, port), n.id(), uplink, view)
		cfg.Link, cfg.LinkAddr, cfg.OwnedAddress, cfg.Resolver, cfg.MTU = n.link, uplink, true, sameHost{}, cmp.Or(cfg.MTU, 1500)
		cfg.Addrs = []netip.Prefix{netip.PrefixFrom(addrs[i], 24), netip.PrefixFrom(addrs6[i], 64)}
		l.ends[i] = n
		for _, a := range []netip.Addr{addrs[i], addrs6[i]} {
			testutil.Must(t, table.Set(endpoint.AddrTag(a), n.id()))
		}
		n.stack, err = stack.New(cfg)
		testutil.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n.link.Run(ctx, n, n.stack.Do)
		}()
		t.Cleanup(func() {
			cancel()
			<-ended
			n.stack.Close()
			testutil.Must(t, n.link.Close())
			if err := port.Audit(); err != nil {
				t.Error(err)
			}
		})
	}
	return l
}

// count is a counter of an endpoint's link.
func (n *node) count(name string) (value uint64) {
	n.stack.Do(func() {
		for _, c := range n.link.Counters() {
			if c.Name == name {
				value = c.Value
			}
		}
	})
	return value
}

// path is the path of an endpoint; nil: it has none.
func (n *node) path() (p *path) {
	n.stack.Do(func() {
		if to := n.link.peers[n.lab.ends[1-n.i].id()]; to != nil {
			p = to.path
		}
	})
	return p
}

func (l *lab) at(i int, port uint16, ipv6 bool) netip.AddrPort {
	if ipv6 {
		return netip.AddrPortFrom(addrs6[i], port)
	}
	return netip.AddrPortFrom(addrs[i], port)
}

// connect makes a TCP connection from the first endpoint to the second.
func (l *lab) connect(t testing.TB, ipv6 bool) (client, server *stack.TCPConn) {
	t.Helper()
	listener, err := l.ends[1].stack.ListenTCP(l.at(1, 80, ipv6), stack.TCPListenOptions{})
	testutil.Must(t, err)
	defer listener.Close()
	client, err = l.ends[0].stack.DialTCP(t.Context(), netip.AddrPort{}, l.at(1, 80, ipv6), stack.TCPOptions{})
	testutil.Must(t, err)
	server, err = listener.AcceptTCP()
	testutil.Must(t, err)
	return client, server
}

// awaitPath exchanges text until both ends have a path.
func (l *lab) awaitPath(t testing.TB, client, server *stack.TCPConn) {
	t.Helper()
	testutil.Eventually(t, "a path", func() bool {
		say(t, client, server, "a")
		say(t, server, client, "b")
		return l.ends[0].path() != nil && l.ends[1].path() != nil
	})
}

func say(t testing.TB, from, to *stack.TCPConn, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := from.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if _, err := readFull(to, b); err != nil || string(b) != text {
		t.Fatal(fmt.Errorf("%q: %v", b, err))
	}
}

// peerEnd is another endpoint's end of a path to an endpoint of the lab.
type peerEnd struct {
	id    uint64
	addr  netip.AddrPort
	ring  *mempath.Path
	frame []byte // a datagram to port 7
}

func (p *peerEnd) send(t testing.TB) {
	room := p.ring.Reserve(len(p.frame))
	if room == nil {
		t.Fatal("no room in a path")
	}
	copy(room, p.frame)
	p.ring.Publish(len(p.frame))
	p.ring.Flush()
}

// crowd makes paths from the second endpoint to n others.
func (l *lab) crowd(t testing.TB, n int) (peers []*peerEnd) {
	t.Helper()
	for i := range n {
		id, addr := uint64(10+i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 1000)
		testutil.Must(t, l.table.Set(endpoint.AddrTag(addr.Addr()), id))
		near, far, err := mempath.Make()
		testutil.Must(t, err)
		near.Peer, near.Epoch, near.PeerEpoch = id, l.table.Epoch(l.ends[1].id()), l.table.Epoch(id)
		ring, err := mempath.Open(far)
		testutil.Must(t, err)
		t.Cleanup(func() { ring.Close() })
		l.ends[1].stack.Do(func() { l.ends[1].link.Add(near) })
		peers = append(peers, &peerEnd{id, addr, ring, datagram(addr, l.at(1, 7, false), "message")})
	}
	return peers
}
