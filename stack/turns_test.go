package stack_test

import (
	"io"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet/stack"
)

// Clients ask a server as soon as they have its answer. No connection is served much more often
// than another: what has arrived is served before more is received. One processor makes the order
// of goroutines that of their wake-ups. With a Write that receives, the most was 1.5 times the least.
func TestConnectionsTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	forEachMode(t, func(t *testing.T, cfg stack.Config) {
		sa, sb, _, _ := newPair(t, cfg)
		const conns, each = 32, 300
		l := must(sa.ListenTCP(ap("10.0.0.1:80"), stack.TCPListenOptions{}))
		var wg sync.WaitGroup
		var total atomic.Int64
		var turns [conns]atomic.Int64
		start, done := make(chan struct{}), make(chan struct{})
		for i := range conns {
			c := must(sb.DialTCP(t.Context(), netip.AddrPort{}, ap("10.0.0.1:80"), stack.TCPOptions{}))
			d := must(l.AcceptTCP())
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
					if total.Add(1) == conns*each {
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
		if least*14 < most*10 {
			t.Errorf("a connection had %d turns and another one %d", least, most)
		}
		sa.Close()
		sb.Close()
		wg.Wait()
	})
}
