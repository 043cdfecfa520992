package stack_test

import (
	"io"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/stack/memlink"
)

// Clients ask a server as soon as they have its answer. No connection is served much more often
// than another: what has arrived is served before more is received. One processor makes the order
// of goroutines that of their wake-ups. If a goroutine takes the poll role before those that were woken have
// run, the most is twice the least.
func TestConnectionsTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		const conns = 32
		each := 2000
		if testutil.UnderRace {
			each = 100
		}
		l := testutil.Value(sa.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		var wg sync.WaitGroup
		var total atomic.Int64
		var turns [conns]atomic.Int64
		start, done := make(chan struct{}), make(chan struct{})
		for i := range conns {
			c := testutil.Value(sb.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{}))
			d := testutil.Value(l.AcceptTCP())
			wg.Go(func() {
				io.Copy(struct{ io.Writer }{d}, struct{ io.Reader }{d})
			})
			wg.Go(func() {
				<-start
				b := make([]byte, 64)
				for {
					if _, err := c.Write(b); err != nil {
						return
					}
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					turns[i].Add(1)
					if total.Add(1) == int64(conns*each) {
						close(done)
					}
				}
			})
		}
		close(start)
		<-done
		least, most := int64(1<<62), int64(0)
		for i := range turns {
			n := turns[i].Load()
			least, most = min(least, n), max(most, n)
		}
		t.Logf("least %d, most %d turns", least, most)
		if !testutil.UnderRace && least*14 < most*10 {
			t.Errorf("a connection had %d turns and another one %d", least, most)
		}
		sa.Close()
		sb.Close()
		wg.Wait()
	})
}

// countingLink counts the frames that are sent, and those that are sent after a few hundred others
// without a call of Borrow in between.
type countingLink struct {
	*memlink.Link
	inRow      int
	sent, late atomic.Int64
}

func (l *countingLink) Send(f stack.Frame) bool {
	l.sent.Add(1)
	if l.inRow++; l.inRow > 640 {
		l.late.Add(1)
	}
	return l.Link.Send(f)
}

func (l *countingLink) Borrow(f []stack.Frame) int {
	l.inRow = 0
	return l.Link.Borrow(f)
}

// Connections that all have much to send do so in turns: after 64 segments, and as many for each of eight
// writers, the stack takes in the acknowledgments that have arrived, and those that waited for them are
// ready too. When it sent all that was ready, up to eight windows of 700 segments, the connection
// with the largest window had most of the link. Where nobody polls for a moment, all is sent still.
func TestBulkIsSentInTurns(t *testing.T) {
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		const conns = 8
		total := int64(64 << 20)
		if testutil.UnderRace {
			total = 8 << 20
		}
		la, lb := memlink.Pair(memlink.Config{FrameCount: 16384, TxSize: 2048})
		link := &countingLink{Link: la}
		cfg.OwnedAddress, cfg.Resolver = true, neighbours{}
		cfg.LinkAddr, cfg.Addrs, cfg.Link = linkA, []netip.Prefix{prefixA}, link
		sa := testutil.Value(stack.New(cfg))
		defer sa.Close()
		cfg.LinkAddr, cfg.Addrs = linkB, []netip.Prefix{prefixB}
		sb := newStack(t, lb, cfg)
		l := testutil.Value(sa.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		var wg sync.WaitGroup
		var received atomic.Int64
		start, done := make(chan struct{}), make(chan struct{})
		for range conns {
			c := testutil.Value(sb.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{ReceiveBuffer: 1 << 20}))
			d := testutil.Value(l.AcceptTCP())
			wg.Go(func() {
				<-start
				b := make([]byte, 4<<20) // more than the send buffer: the writer waits
				for {
					if _, err := d.Write(b); err != nil {
						return
					}
				}
			})
			wg.Go(func() {
				b := make([]byte, 64<<10)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					now := received.Add(int64(n))
					if now >= total && now-int64(n) < total {
						close(done)
					}
				}
			})
		}
		close(start)
		<-done
		if sent, late := link.sent.Load(), link.late.Load(); !testutil.UnderRace && late > sent/4 {
			t.Errorf("%d of %d frames were sent late", late, sent)
		}
		sa.Close()
		sb.Close()
		wg.Wait()
		if err := la.Audit(); err != nil {
			t.Error(err)
		}
	})
}

// A stack that closes sends a RST for each of its connections, though they are more than leave in a turn.
func TestCloseResetsAllConnections(t *testing.T) {
	sa, sb, la, _ := newPair(t, stack.Config{})
	const conns = 200
	l := testutil.Value(sa.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
	var wg sync.WaitGroup
	for range conns {
		c := testutil.Value(sb.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{}))
		d := testutil.Value(l.AcceptTCP())
		if err := d.CloseWrite(); err != nil { // FIN-WAIT-2 follows: there is nothing to drain
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
		wg.Go(func() { d.Read(make([]byte, 1)) })
	}
	var resets atomic.Int64
	la.Filter(func(frame []byte) bool {
		if s, err := describe(frame); err == nil && strings.Contains(s, "R") {
			resets.Add(1)
		}
		return true
	})
	sa.Close()
	wg.Wait()
	if n := resets.Load(); n != conns {
		t.Errorf("%d connections were reset, want %d", n, conns)
	}
}
