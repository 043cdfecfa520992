package attack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// TestCycles opens and closes endpoints, and kills processes that have them, again and
// again. Afterwards everything is back where it started.
func TestCycles(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{IPv6: true})
	d := unetd.Serve(t, pair.A, unetd.Options{Policy: policy})
	w := &world{pair: pair, unetd: d, ear: startCapture(t, pair.B), kernel: startKernelTraffic(t, pair)}
	suite := t

	t.Run("open and close", func(t *testing.T) {
		cycles := lengthOf(1000, 30, 10)
		row := results.add(t, fmt.Sprintf("%d open/close cycles", cycles), "an endpoint with a UDP port, a block and a message tag, through unetd, opened, attached and closed")
		cycle := func() {
			ctx, cancel := context.WithTimeout(t.Context(), tripTimeout)
			defer cancel()
			grant, lease, err := control.Open(ctx, d.Socket, tagged(endpoint.MessageTag(0), endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)), endpoint.TCPTag(netip.AddrPortFrom(hostA, 0)).AsBlock()))
			if err != nil {
				t.Fatal(err)
			}
			ep, err := datapath.Attach(grant, datapath.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(ep.Close(), lease.Close()); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 { // what is made once and kept is made
			cycle()
		}
		before, trips, begin := stock(t, pair.A, d), w.look(t), time.Now()
		for range cycles {
			cycle()
		}
		row.note("%s a cycle", rounded(time.Since(begin)/time.Duration(cycles)))
		backTo(t, row, before, pair.A, d)
		w.unharmed(t, row, trips)
	})
	t.Run("kill", func(t *testing.T) {
		cycles := lengthOf(200, 5, 3)
		row := results.add(t, fmt.Sprintf("%d processes killed under load", cycles), "kill -9 of a process that sends as fast as it can")
		killLoaded(t, w) // once before, as above
		before, trips := stock(t, pair.A, d), w.look(t)
		var worst time.Duration
		for range cycles {
			worst = max(worst, killLoaded(t, w))
		}
		row.note("port and tags were gone after %s at the latest", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until port and tags were gone: want a second at most", worst)
		}
		backTo(t, row, before, pair.A, d)
		w.unharmed(t, row, trips)
	})
	t.Run("kill while unetd is dead", func(t *testing.T) {
		cycles := lengthOf(20, 2, 2)
		row := results.add(t, fmt.Sprintf("%d processes killed while unetd is dead", cycles), "kill -9 of unetd, then of a process that sends as fast as it can; unetd is started again")
		before, trips := stock(t, pair.A, d), w.look(t)
		var worst time.Duration
		for range cycles {
			a, port := loaded(t, w)
			d.Kill(t)
			begin := time.Now()
			a.kill()
			if !unetd.Eventually(func() bool { return len(unetd.Links(t, pair.A)) == 3 }) {
				t.Fatalf("devices after the kill: %v", unetd.Links(t, pair.A))
			}
			worst = max(worst, time.Since(begin))
			isKernels(t, pair, port)
			d.Start(suite)
			if left := list(t, d); len(left) != 0 {
				t.Errorf("the next unetd lists %+v", left)
			}
		}
		row.note("the port was gone after %s at the latest, and its frames were the kernel's", rounded(worst))
		if worst > time.Second {
			t.Errorf("it took %s until the port was gone: want a second at most", worst)
		}
		backTo(t, row, before.ofAnother(), pair.A, d)
		w.unharmed(t, row, trips)
	})
	if err := d.Stop(t); err != nil {
		t.Errorf("unetd on SIGTERM: %v", err)
	}
	unetd.Untouched(t, pair.A)
}

// loaded is a process that sends as fast as it can, and its port.
func loaded(t testing.TB, w *world) (*actor, uint16) {
	t.Helper()
	a := cast(t, w.pair.A, attackerID)
	gun := openGun.do(t, a, openArg{w.unetd.Socket, tagged(endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)), endpoint.MessageTag(0))})
	port := gun.Tags[0].Port
	frame := ether(linkB, linkA, typeIPv4, ipv4(hostA, hostB, protocolUDP, udp(nobodysPort, discard, mark(forged, 0)))) // all the way to the mux, and no further
	hammer.do(t, a, hammerArg{gun.Gun, frame})
	return a, port
}

// hammerArg is a frame to send until the agent rests.
type hammerArg struct {
	Gun   int
	Frame []byte
}

// hammer sends in the background.
var hammer = teach("hammer", func(a *agent, arg hammerArg) (nothing, error) {
	g := a.guns[arg.Gun]
	a.begin(func(stop <-chan struct{}) error {
		_, err := g.fire(func(yield func(shot) bool) {
			for yield(shot{Frame: arg.Frame}) {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		return err
	})
	return nothing{}, nil
})

// killLoaded kills a process under load and returns how long its port and its tags
// outlived it.
func killLoaded(t testing.TB, w *world) time.Duration {
	t.Helper()
	a, _ := loaded(t, w)
	before := w.counters(t)
	if !unetd.Eventually(func() bool { return since(before, w.counters(t))["tx_forged_addr"] > 1000 }) {
		t.Fatal("there is no load")
	}
	begin := time.Now()
	a.kill()
	if !unetd.Eventually(func() bool { return len(unetd.Links(t, w.pair.A)) == 3 && len(list(t, w.unetd)) == 0 }) {
		t.Fatalf("after the kill there are devices %v and endpoints %+v", unetd.Links(t, w.pair.A), list(t, w.unetd))
	}
	return time.Since(begin)
}

// isKernels checks that host A's kernel answers for a port: that nobody has it. It
// asks again, because the kernel limits how often it says so.
func isKernels(t testing.TB, pair *netlab.Pair, port uint16) {
	t.Helper()
	conn, err := pair.B.Dial("udp", netip.AddrPortFrom(hostA, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !unetd.Eventually(func() bool {
		conn.Write([]byte("anybody?")) // which may tell what the last one led to
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err = conn.Read(make([]byte, 1))
		return errors.Is(err, unix.ECONNREFUSED)
	}) {
		t.Errorf("a datagram to port %d, which a dead process had: %v, want a refusal of the kernel", port, err)
	}
}
