//go:build linux

package addresses

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/test/internal/unetd"
	"github.com/unet-go/unet/verbs"
)

var loadFor = flag.Duration("load", 0, "how long addresses come and go under load; 0: some seconds")

// Of the load: its least number of changes, how long a stream may make no progress, and the port of the echo services.
const (
	leastChanges = 24
	stalled      = 5 * time.Minute // the interval of TCP's retransmissions grows to two minutes
	echoPort     = 7001
	largestChunk = 32 << 10
)

// changing are the addresses that come and go: single ones and those of subnets.
func changing() (addrs, prefixes []string) {
	for i := range 3 {
		addrs = append(addrs, fmt.Sprintf("10.50.0.%d", 1+i), fmt.Sprintf("2001:db8:50::%d", 1+i))
		prefixes = append(prefixes, "/32", "/128 nodad")
	}
	for i := range 2 {
		addrs = append(addrs, four.own(1+i), six.own(1+i))
		prefixes = append(prefixes, "/24", "/64 nodad")
	}
	return addrs, prefixes
}

// load is traffic at addresses that stay and at ten that come and go, on either side. Whatever goes on in the kernel
// has to go on.
func (s *scene) load() {
	stays := []string{four.own(0), six.own(0)}
	addrs, prefixes := changing()
	random := rand.New(rand.NewPCG(1, 2))
	ends := s.openDevices()
	s.ip(six.add(stays[1]))
	change := func(verb string, i int) string {
		return "addr " + verb + " " + addrs[i] + strings.Replace(prefixes[i], " nodad", map[string]string{"add": " nodad"}[verb], 1) + " dev uplink"
	}
	for i := range addrs {
		s.ip(change("add", i))
	}
	s.open()
	s.listen("", "")

	l := &loaded{scene: s, stop: make(chan struct{}), results: map[string]map[*side]error{}}
	defer l.end()
	s.both(func(d *side) error { return errors.Join(l.echo(d.host), l.echo(d.peer)) })
	exact := make([]byte, 15<<10)
	rand.NewChaCha8([32]byte{1}).Read(exact)
	bulk := hex.EncodeToString(exact) // of TCP; a datagram is not longer than the MTU
	for i, f := range []family{four, six} {
		l.exchanges(s.connect("tcp", stays[i]), bulk)
		l.exchanges(s.connectTo("tcp", f.peer(0)), bulk)
		l.exchanges(s.connect("udp", stays[i]), bulk[:1000])
		l.exchanges(s.connectTo("udp", f.peer(0)), bulk[:1000])
	}
	for _, a := range append(stays, addrs...) {
		l.stream("to "+a, func(d *side) (net.Conn, error) { return d.peer.dial("tcp", "", d.at(d.B, a, echoPort)) })
		to := map[bool]string{true: six.peer(0), false: four.peer(0)}[strings.Contains(a, ":")]
		l.stream("from "+a, func(d *side) (net.Conn, error) { return d.host.dial("tcp", a, d.at(d.A, to, echoPort)) })
	}
	for _, e := range ends {
		l.running.Go(func() { l.transfer(e) })
	}

	var gone []int // at most two: an address that is absent for half of the time stalls connections for minutes, in the kernel too
	back := func() {
		i := gone[0]
		gone = gone[1:]
		s.both(func(d *side) error { return ip(d.A, change("add", i)) })
		if random.IntN(4) == 0 {
			s.same(reach("tcp", "", addrs[i]), reach("udp", "", addrs[i]))
		}
	}
	end := time.Now().Add(*loadFor)
	changes := 0
	for ; (changes < leastChanges || time.Now().Before(end)) && !s.Failed(); changes++ {
		i := random.IntN(len(addrs))
		if !slices.Contains(gone, i) {
			s.both(func(d *side) error { return ip(d.A, change("del", i)) })
			gone = append(gone, i)
		}
		if len(gone) == 2 {
			back()
		}
		if changes%5 == 0 { // a device's address is gone for less than the retries last
			s.both(func(d *side) error {
				return ip(d.A, "addr del "+deviceAddr+"/32 dev uplink;addr add "+deviceAddr+"/32 dev uplink")
			})
		}
	}
	for len(gone) > 0 {
		back()
	}
	l.end()
	s.Logf("%d addresses went and came back, %d exchanges, %d chunks and %d transfers on unet", changes, l.exchanged.Load(), l.chunks.Load(), l.transferred.Load())
	for name, of := range l.results {
		switch kernel, ours := of[s.kernel], of[s.unet]; {
		case kernel != nil:
			s.Logf("%s: the kernel has not kept it: %v; unet: %v", name, kernel, ours)
		case ours != nil:
			s.Errorf("%s: %v; the kernel has kept it", name, ours)
		}
	}
	for _, f := range []family{four, six} {
		s.same(f.view(f.own(0))...)
	}
}

// loaded is the load of a scene.
type loaded struct {
	*scene
	running sync.WaitGroup
	stop    chan struct{}
	ending  sync.Once

	exchanged, chunks, transferred atomic.Int64 // on unet

	mu      sync.Mutex
	results map[string]map[*side]error // +checklocks:mu
}

// end waits until all traffic has ended.
func (l *loaded) end() {
	l.ending.Do(func() { close(l.stop) })
	l.running.Wait()
}

func (l *loaded) stopped() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// exchanges is exchanges of the same text, without one that is lost.
func (l *loaded) exchanges(k *connection, filler string) {
	for d, c := range k.ends {
		want := exchange(c, filler, nil, 0)
		l.running.Go(func() {
			for n := 1; !l.stopped(); n++ {
				if got := exchange(c, filler, nil, 0); got != want {
					l.Errorf("%s, unet %v, exchange %d: %s, want %s", k.name, d == l.unet, n, got, want)
					return
				}
				if d == l.unet {
					l.exchanged.Add(1)
				}
			}
		})
	}
}

// echo serves a port at all addresses, until the end of the row.
func (l *loaded) echo(k sockets) error {
	listener, err := k.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	l.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return nil
}

// stream sends random chunks by a connection on either side, and compares what comes back.
func (l *loaded) stream(name string, connect func(*side) (net.Conn, error)) {
	l.Helper()
	l.results[name] = map[*side]error{}
	l.both(func(d *side) error {
		c, err := connect(d)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.Cleanup(func() { c.Close() })
		l.running.Go(func() {
			err := l.chunked(d, c)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.results[name][d] = err
		})
		return nil
	})
}

func (l *loaded) chunked(d *side, c net.Conn) error {
	random := rand.NewChaCha8([32]byte{7})
	sent, back := make([]byte, largestChunk), make([]byte, largestChunk)
	for n := 1; !l.stopped(); n++ {
		size := 1 + int(random.Uint64()%largestChunk)
		random.Read(sent[:size])
		c.SetDeadline(time.Now().Add(stalled))
		if _, err := c.Write(sent[:size]); err != nil {
			return fmt.Errorf("chunk %d: %w", n, err)
		}
		if _, err := io.ReadFull(c, back[:size]); err != nil {
			return fmt.Errorf("chunk %d: %w", n, err)
		}
		if !bytes.Equal(sent[:size], back[:size]) {
			return fmt.Errorf("chunk %d: other bytes came back", n)
		}
		if d == l.unet {
			l.chunks.Add(1)
		}
	}
	return nil
}

// deviceAddr is the address of an RDMA device that goes and comes back at once.
const deviceAddr = "10.50.0.9"

// requester is one end of a queue pair of type RC, which writes to the memory of the other one, and reads it.
type requester struct {
	name   string
	qp     *verbs.QP
	cq     *verbs.CQ
	own    *verbs.MR
	remote *verbs.MR
}

// openDevices opens RDMA devices on host A of unet at an address that stays, at one that does not, and on host B, and
// connects them. The first addresses of the interface are these on either side.
func (s *scene) openDevices() []requester {
	s.Helper()
	device := func(d *unetd.Daemon, want string) *verbs.Context {
		h, err := unet.Open(s.Context(), unet.Config{Socket: d.Socket})
		testutil.Must(s.T, err)
		s.Cleanup(func() { h.Close() })
		c, err := verbs.Open(s.Context(), h, verbs.Config{})
		testutil.Must(s.T, err)
		if c.Addr() != netip.MustParseAddr(want) {
			s.Fatalf("a device at %v, want %s", c.Addr(), want)
		}
		s.Cleanup(func() { c.Close() })
		serving, stop := context.WithCancel(context.Background())
		s.Cleanup(stop)
		go c.Serve(serving)
		return c
	}
	far := unetd.Serve(s.T, s.unet.B, unetd.Options{})
	peer := device(far, s.unet.B.Addr.Addr().String())
	s.ip("addr add " + deviceAddr + "/32 dev uplink")
	returns := device(s.unet.daemon, deviceAddr)
	s.ip(four.add(four.own(0)) + ";addr del " + deviceAddr + "/32 dev uplink;route add " + peer.Addr().String() + " dev uplink")
	stays := device(s.unet.daemon, four.own(0))
	s.ip("addr add " + deviceAddr + "/32 dev uplink")
	var all []requester
	for _, c := range []*verbs.Context{stays, returns} {
		ours, theirs := s.queuePair(c), s.queuePair(peer)
		s.reliable(ours.qp, theirs.qp.Local(), c.ActiveMTU())
		s.reliable(theirs.qp, ours.qp.Local(), c.ActiveMTU())
		ours.remote, theirs.remote = theirs.own, ours.own
		ours.name, theirs.name = "from "+c.Addr().String(), "to "+c.Addr().String()
		all = append(all, ours, theirs)
	}
	return all
}

const deviceMemory = 64 << 10 // half of it is what the peer writes to

func (s *scene) queuePair(c *verbs.Context) (r requester) {
	s.Helper()
	pd := c.AllocPD()
	var err error
	r.own, err = pd.RegMR(make([]byte, deviceMemory), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
	testutil.Must(s.T, err)
	r.cq, err = c.CreateCQ(16, nil)
	testutil.Must(s.T, err)
	r.qp, err = c.CreateQP(pd, verbs.QPInit{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	testutil.Must(s.T, err)
	testutil.Must(s.T, r.qp.Init(verbs.AccessRemoteWrite|verbs.AccessRemoteRead))
	return r
}

// reliable connects a queue pair whose retries last for some seconds, since the machine may have other work.
func (s *scene) reliable(qp *verbs.QP, peer verbs.Peer, mtu verbs.MTU) {
	s.Helper()
	attr := verbs.QPAttr{State: verbs.StateRTR, AH: verbs.AHAttr{Dst: peer.Addr.As4()}, PathMTU: mtu, DestQPN: peer.QPN, RQPSN: peer.PSN, MaxDestRDAtomic: 1, MinRNRTimer: 12}
	testutil.Must(s.T, qp.Modify(attr, verbs.QPState|verbs.QPAV|verbs.QPPathMTU|verbs.QPDestQPN|verbs.QPRQPSN|verbs.QPMaxDestRDAtomic|verbs.QPMinRNRTimer))
	attr = verbs.QPAttr{State: verbs.StateRTS, SQPSN: qp.PSN(), Timeout: 18, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1} // 1.07 s
	testutil.Must(s.T, qp.Modify(attr, verbs.QPState|verbs.QPSQPSN|verbs.QPTimeout|verbs.QPRetryCnt|verbs.QPRNRRetry|verbs.QPMaxQPRDAtomic))
}

// transfer writes random bytes to the peer's memory and reads them back.
func (l *loaded) transfer(r requester) {
	random := rand.NewChaCha8([32]byte{9})
	const half = deviceMemory / 2
	mem := r.own.Bytes()
	do := func(op verbs.WROpcode, at, size int) error {
		if _, err := r.qp.PostSend(verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{r.own.SGE(at, size)}, RemoteAddr: r.remote.Addr() + half, RKey: r.remote.RKey()}); err != nil {
			return err
		}
		var wc [1]verbs.WC
		if _, err := r.cq.Wait(wc[:], time.Now().Add(stalled)); err != nil {
			return err
		}
		if wc[0].Status != verbs.StatusSuccess {
			return fmt.Errorf("completed with %v", wc[0].Status)
		}
		return nil
	}
	for n := 1; !l.stopped(); n++ {
		size := 1 + int(random.Uint64()%(half/2))
		random.Read(mem[:size])
		clear(mem[half/2 : half/2+size])
		err := do(verbs.WRRDMAWrite, 0, size)
		if err == nil {
			err = do(verbs.WRRDMARead, half/2, size)
		}
		if err == nil && !bytes.Equal(mem[:size], mem[half/2:half/2+size]) {
			err = errors.New("other bytes were read than were written")
		}
		if err != nil {
			l.Errorf("RC %s, transfer %d: %v", r.name, n, err)
			return
		}
		l.transferred.Add(1)
	}
}
