//go:build linux

package verbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/stack/memlink"
	"github.com/unet-go/unet/verbs"
)

// peer is one end of a queue pair, with a region of 64 KiB.
type peer struct {
	t   testing.TB
	ctx *verbs.Context
	pd  *verbs.PD
	mr  *verbs.MR
	cq  *verbs.CQ
	qp  *verbs.QP
	wcs [16]verbs.WC
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic | verbs.AccessMWBind

var capacity = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}

func open(t testing.TB, h host) *verbs.Context {
	t.Helper()
	c, err := openContext(t.Context(), h, verbs.Config{})
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func newPeer(t testing.TB, c *verbs.Context, typ verbs.QPType) *peer {
	t.Helper()
	p := &peer{t: t, ctx: c, pd: c.AllocPD()}
	var err error
	p.mr, err = p.pd.RegMR(make([]byte, 64<<10), allAccess)
	testutil.Must(t, err)
	p.cq, err = c.CreateCQ(256, nil)
	testutil.Must(t, err)
	p.qp, err = p.ctx.CreateQP(p.pd, verbs.QPInit{Type: typ, SendCQ: p.cq, RecvCQ: p.cq, Cap: capacity})
	testutil.Must(t, err)
	return p
}

// newPeers are two connected ends.
func newPeers(t testing.TB, l link, cfg unet.HostConfig, typ verbs.QPType) (a, b *peer) {
	t.Helper()
	ha, hb := l.open(t, cfg)
	a, b = newPeer(t, open(t, ha), typ), newPeer(t, open(t, hb), typ)
	connectPeers(t, a, b)
	return a, b
}

// connectPeers connects two ends without the connection manager.
func connectPeers(t testing.TB, a, b *peer) {
	t.Helper()
	for _, p := range []*peer{a, b} {
		testutil.Must(t, p.qp.Init(allAccess&^verbs.AccessMWBind))
	}
	testutil.Must(t, a.qp.Connect(b.qp.Local()))
	testutil.Must(t, b.qp.Connect(a.qp.Local()))
}

func (p *peer) send(wrs ...verbs.SendWR) {
	p.t.Helper()
	if n, err := p.qp.PostSend(wrs...); n != len(wrs) || err != nil {
		p.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func (p *peer) recv(wrs ...verbs.RecvWR) {
	p.t.Helper()
	if n, err := p.qp.PostRecv(wrs...); n != len(wrs) || err != nil {
		p.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// wait waits for one completion, which must be a success.
func (p *peer) wait() verbs.WC {
	p.t.Helper()
	n, err := p.cq.Wait(p.wcs[:1], time.Now().Add(testTimeout))
	if n != 1 || err != nil {
		p.t.Fatalf("%d completions, %v", n, err)
	}
	if p.wcs[0].Status != verbs.StatusSuccess {
		p.t.Fatalf("completion: %v", p.wcs[0].Status)
	}
	return p.wcs[0]
}

// word is an aligned word of the region, for sync/atomic.
func (p *peer) word(off int) *uint64 { return (*uint64)(unsafe.Pointer(&p.mr.Bytes()[off])) }

// onLinks runs a test on each link.
func onLinks(t *testing.T, f func(*testing.T, link)) {
	for _, l := range links {
		t.Run(l.name, func(t *testing.T) { f(t, l) })
	}
}

func TestSendRecv(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		for _, mode := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock} {
			t.Run(mode.String(), func(t *testing.T) {
				a, b := newPeers(t, l, unet.HostConfig{Wait: mode}, verbs.RC)
				const rounds = 20
				done := make(chan struct{})
				go func() { // sends everything back
					defer close(done)
					b.recv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 32<<10)}})
					for range rounds {
						wc := b.wait()
						for wc.Opcode != verbs.WCRecv {
							wc = b.wait()
						}
						b.recv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 32<<10)}})
						b.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{b.mr.SGE(0, int(wc.ByteLen))}})
					}
				}()
				for i := range rounds {
					n := []int{0, 1, 64, 1024, 1025, 20000}[i%6]
					for k := range n {
						a.mr.Bytes()[k] = byte(i + k)
					}
					a.recv(verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{a.mr.SGE(32<<10, 32<<10)}})
					a.send(verbs.SendWR{WRID: 8, Opcode: verbs.WRSend, SGList: []verbs.SGE{a.mr.SGE(0, n)}})
					if wc := a.wait(); wc.WRID != 7 || wc.Opcode != verbs.WCRecv || int(wc.ByteLen) != n {
						t.Fatalf("round %d: %+v", i, wc)
					}
					if !bytes.Equal(a.mr.Bytes()[32<<10:][:n], a.mr.Bytes()[:n]) {
						t.Fatalf("round %d: the data differs", i)
					}
				}
				<-done
			})
		}
	})
}

// Two applications that poll their memory exchange WRITEs, with no completion.
func TestWriteIsSeenByPolling(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		a, b := newPeers(t, l, unet.HostConfig{}, verbs.RC)
		const rounds = 200
		turn := func(me, other *peer, first uint64) {
			flag := me.word(8)
			for i := first; i <= rounds; i += 2 {
				for i > 1 && atomic.LoadUint64(flag) != i-1 {
					me.ctx.Poll()
				}
				if i > 1 && binary.NativeEndian.Uint64(me.mr.Bytes()) != ^(i-1) { // written before the flag
					t.Errorf("round %d: data %x", i, me.mr.Bytes()[:8])
				}
				out := me.mr.Bytes()[1024:]
				binary.NativeEndian.PutUint64(out, ^i)
				binary.NativeEndian.PutUint64(out[8:], i)
				flags := verbs.SendFlags(0)
				if i%32 < 2 { // so that the send queue does not fill up
					flags = verbs.SendSignaled
				}
				me.send(verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: flags, SGList: []verbs.SGE{me.mr.SGE(1024, 16)}, RemoteAddr: other.mr.Addr(), RKey: other.mr.RKey()})
				if flags != 0 {
					me.wait()
				}
			}
		}
		done := make(chan struct{})
		go func() {
			turn(b, a, 2)
			close(done)
		}()
		turn(a, b, 1)
		for stop := false; !stop; {
			select {
			case <-done:
				stop = true
			default:
				a.ctx.Poll()
			}
		}
	})
}

// One-sided operations need no goroutine of the target's application. The only one that it has
// here is blocked.
func TestOneSidedOperationsNeedNoCallOfTarget(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		for _, serve := range []bool{false, true} {
			t.Run(fmt.Sprint("serve ", serve), func(t *testing.T) {
				a, b := newPeers(t, l, unet.HostConfig{}, verbs.RC)
				if serve {
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error)
					go func() { ended <- b.ctx.Serve(ctx) }()
					defer func() {
						cancel()
						if err := <-ended; err != context.Canceled {
							t.Errorf("Serve: %v", err)
						}
					}()
				}
				blocked := make(chan struct{})
				defer close(blocked)
				go func() { <-blocked }()
				copy(b.mr.Bytes()[100:], "read me")
				atomic.StoreUint64(b.word(8), 40)
				b.qp.Query() // takes the lock: the goroutine that serves the peer sees what was written
				signaled := verbs.SendWR{Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}

				read := signaled
				read.Opcode, read.SGList, read.RemoteAddr = verbs.WRRDMARead, []verbs.SGE{a.mr.SGE(0, 7)}, read.RemoteAddr+100
				a.send(read)
				if wc := a.wait(); wc.Opcode != verbs.WCRDMARead || string(a.mr.Bytes()[:7]) != "read me" {
					t.Errorf("%+v: %q", wc, a.mr.Bytes()[:7])
				}
				add := signaled
				add.Opcode, add.SGList, add.RemoteAddr, add.CompareAdd = verbs.WRAtomicFetchAndAdd, []verbs.SGE{a.mr.SGE(16, 8)}, add.RemoteAddr+8, 2
				swap := signaled
				swap.Opcode, swap.SGList, swap.RemoteAddr = verbs.WRAtomicCmpAndSwp, []verbs.SGE{a.mr.SGE(24, 8)}, swap.RemoteAddr+8
				swap.CompareAdd, swap.Swap = 42, 7
				a.send(add, swap)
				a.wait()
				a.wait()
				if x, y := *a.word(16), *a.word(24); x != 40 || y != 42 {
					t.Errorf("before the atomics: %d and %d", x, y)
				}
				if n := atomic.LoadUint64(b.word(8)); n != 7 {
					t.Errorf("after them: %d", n)
				}
				write := signaled
				write.Opcode, write.Flags, write.Inline = verbs.WRRDMAWrite, verbs.SendSignaled|verbs.SendInline, []byte("written!")
				a.send(write)
				a.wait()
				if n := atomic.LoadUint64(b.word(0)); n != binary.NativeEndian.Uint64([]byte("written!")) {
					t.Errorf("%x was written", n)
				}
			})
		}
	})
}

// Atomics of several peers and of sync/atomic on the same word lose nothing.
func TestAtomicsWithSyncAtomic(t *testing.T) {
	a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.RC)
	const n = 500
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range n {
			atomic.AddUint64(b.word(64), 1)
			runtime.Gosched()
		}
	}()
	for range n {
		a.send(verbs.SendWR{Opcode: verbs.WRAtomicFetchAndAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(), CompareAdd: 1 << 32})
		a.wait()
	}
	<-done
	if got := atomic.LoadUint64(b.word(64)); got != n<<32|n {
		t.Errorf("%#x", got)
	}
}

// What has arrived is acknowledged, also if the application's next call ends the queue pair.
func TestReceivedMessageIsAcknowledgedAtEnd(t *testing.T) {
	for name, end := range map[string]func(*peer){
		"close":   func(p *peer) { testutil.Must(t, p.ctx.Close()) },
		"destroy": func(p *peer) { p.qp.Close() },
		"modify":  func(p *peer) { testutil.Must(t, p.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.QPState)) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newPeers(t, links[0], unet.HostConfig{Wait: endpoint.WaitSpin}, verbs.RC)
			b.recv(verbs.RecvWR{})
			a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled})
			for b.cq.Poll(b.wcs[:1]) == 0 {
			}
			end(b)
			a.wait()
		})
	}
	t.Run("disconnect", func(t *testing.T) {
		ha, hb := links[0].open(t, unet.HostConfig{Wait: endpoint.WaitSpin})
		a, b := newPeer(t, open(t, ha), verbs.RC), newPeer(t, open(t, hb), verbs.RC)
		_, cb := connected(t, a, b)
		b.recv(verbs.RecvWR{})
		a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled})
		for b.cq.Poll(b.wcs[:1]) == 0 {
		}
		testutil.Must(t, cb.Close())
		a.wait()
	})
}

func TestUnreliable(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		t.Run("UC", func(t *testing.T) {
			a, b := newPeers(t, l, unet.HostConfig{}, verbs.UC)
			b.recv(verbs.RecvWR{})
			a.send(verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, Flags: verbs.SendInline, Inline: []byte("hello"), ImmData: 5, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
			if wc := b.wait(); wc.Opcode != verbs.WCRecvRDMAWithImm || wc.ImmData != 5 || string(b.mr.Bytes()[:5]) != "hello" {
				t.Errorf("%+v %q", wc, b.mr.Bytes()[:5])
			}
		})
		t.Run("UD", func(t *testing.T) {
			ha, hb := l.open(t, unet.HostConfig{})
			a, b := newPeer(t, open(t, ha), verbs.UD), newPeer(t, open(t, hb), verbs.UD)
			for _, p := range []*peer{a, b} {
				testutil.Must(t, p.qp.Modify(verbs.QPAttr{State: verbs.StateInit, QKey: 0x11}, verbs.QPState|verbs.QPQKey))
				testutil.Must(t, p.qp.Modify(verbs.QPAttr{State: verbs.StateRTR}, verbs.QPState))
				testutil.Must(t, p.qp.Modify(verbs.QPAttr{State: verbs.StateRTS, SQPSN: p.qp.PSN()}, verbs.QPState|verbs.QPSQPSN))
			}
			ah, err := a.pd.CreateAH(verbs.AHAttr{Dst: b.ctx.Addr().As4()})
			testutil.Must(t, err)
			b.recv(verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 100)}})
			a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendInline, Inline: []byte("datagram"), AH: ah, RemoteQPN: b.qp.Num(), RemoteQKey: 0x11})
			if wc := b.wait(); wc.ByteLen != 48 || wc.Flags&verbs.WCGRH == 0 || wc.SrcQP != a.qp.Num() || string(b.mr.Bytes()[40:48]) != "datagram" {
				t.Errorf("%+v %q", wc, b.mr.Bytes()[:48])
			}
		})
	})
}

// A long message of UC leaves in parts, and its completion wakes the goroutine that waits for it.
func TestLongUnreliableMessage(t *testing.T) {
	a, b := newPeers(t, links[0], unet.HostConfig{}, verbs.UC)
	from, err := a.pd.RegMR(make([]byte, 4<<20), 0)
	testutil.Must(t, err)
	to, err := b.pd.RegMR(make([]byte, 4<<20), verbs.AccessLocalWrite)
	testutil.Must(t, err)
	b.recv(verbs.RecvWR{SGList: []verbs.SGE{to.SGE(0, 4<<20)}})
	a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 4<<20)}})
	a.wait() // a receiver that is slower may have lost some of it
}

func TestDoesNotAllocate(t *testing.T) {
	for _, op := range []string{"send", "write", "read", "atomic"} {
		t.Run(op, func(t *testing.T) {
			a, b := newPeers(t, links[0], unet.HostConfig{Wait: endpoint.WaitSpin}, verbs.RC)
			listA, listB := []verbs.SGE{a.mr.SGE(0, 64)}, []verbs.SGE{b.mr.SGE(0, 64)}
			recvA, recvB := []verbs.RecvWR{{SGList: listA}}, []verbs.RecvWR{{SGList: listB}}
			wrs := []verbs.SendWR{{SGList: listA, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Flags: verbs.SendSignaled}}
			back := []verbs.SendWR{{Opcode: verbs.WRSend, SGList: listB}}
			ends := 1
			switch op {
			case "send":
				wrs[0].Opcode, ends = verbs.WRSend, 2
			case "write":
				wrs[0].Opcode = verbs.WRRDMAWrite
			case "read":
				wrs[0].Opcode = verbs.WRRDMARead
			case "atomic":
				wrs[0].Opcode, wrs[0].SGList = verbs.WRAtomicFetchAndAdd, []verbs.SGE{a.mr.SGE(0, 8)}
			}
			wcs := make([]verbs.WC, 4)
			round := func() {
				if op == "send" {
					a.qp.PostRecv(recvA...)
					b.qp.PostRecv(recvB...)
				}
				a.qp.PostSend(wrs...)
				if op == "send" {
					for b.cq.Poll(wcs) == 0 {
					}
					b.qp.PostSend(back...)
				}
				for n := 0; n < ends; n += a.cq.Poll(wcs) {
					b.ctx.Poll()
				}
			}
			for range 10 {
				round()
			}
			if n := testing.AllocsPerRun(100, round); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// kickCounter is a link in memory that counts its kicks.
type kickCounter struct {
	*memlink.Link
	kicks atomic.Int64
}

func (l *kickCounter) Flush() error {
	l.kicks.Add(1)
	return l.Link.Flush()
}

// A list of work requests is sent with one kick of the link.
func TestListIsOneKick(t *testing.T) {
	la, lb := memlink.Pair(memlink.Config{})
	counted := &kickCounter{Link: la}
	a := newPeer(t, open(t, newMemHost(t, la, counted, 1, unet.HostConfig{})), verbs.RC)
	b := newPeer(t, open(t, newMemHost(t, lb, lb, 2, unet.HostConfig{})), verbs.RC)
	connectPeers(t, a, b)
	wrs := make([]verbs.SendWR, 8)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline, Inline: []byte{byte(i)}, RemoteAddr: b.mr.Addr() + uint64(i), RKey: b.mr.RKey()}
	}
	wrs[7].Flags |= verbs.SendSignaled
	a.send(wrs...) // the route to b is known after these
	a.wait()
	before := counted.kicks.Load()
	a.send(wrs...)
	if n := counted.kicks.Load() - before; n != 1 {
		t.Errorf("%d kicks for a list of %d", n, len(wrs))
	}
	a.wait()
	for i := range wrs {
		if b.mr.Bytes()[i] != byte(i) {
			t.Errorf("byte %d: %d", i, b.mr.Bytes()[i])
		}
	}
}

func TestSharedReceiveQueue(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	ca, cb := open(t, ha), open(t, hb)
	a, b := newPeer(t, ca, verbs.RC), newPeer(t, cb, verbs.RC)
	srq, err := b.pd.CreateSRQ(16, 1)
	testutil.Must(t, err)
	b.qp, err = b.ctx.CreateQP(b.pd, verbs.QPInit{Type: verbs.RC, SendCQ: b.cq, RecvCQ: b.cq, SRQ: srq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	testutil.Must(t, err)
	testutil.Must(t, a.qp.Init(0))
	testutil.Must(t, b.qp.Init(0))
	testutil.Must(t, a.qp.Connect(b.qp.Local()))
	testutil.Must(t, b.qp.Connect(a.qp.Local()))
	if n, err := srq.PostRecv(verbs.RecvWR{WRID: 1}, verbs.RecvWR{WRID: 2}); n != 2 || err != nil {
		t.Fatalf("%d %v", n, err)
	}
	testutil.Must(t, srq.SetLimit(2))
	a.send(verbs.SendWR{Opcode: verbs.WRSend})
	if wc := b.wait(); wc.WRID != 1 {
		t.Errorf("%+v", wc)
	}
	for {
		e, err := cb.AsyncEvent(t.Context())
		testutil.Must(t, err)
		if e.Type == verbs.EventSRQLimitReached {
			if e.SRQ != srq {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if _, posted, limit := srq.Query(); posted != 1 || limit != 0 {
		t.Errorf("%d posted, limit %d", posted, limit)
	}
}

// One goroutine waits for several queues at a channel.
func TestCompChannel(t *testing.T) {
	onLinks(t, func(t *testing.T, l link) {
		a, b := newPeers(t, l, unet.HostConfig{}, verbs.RC)
		ch := b.ctx.CreateCompChannel()
		var err error
		b.cq, err = b.ctx.CreateCQ(4, ch)
		testutil.Must(t, err)
		other, err := b.ctx.CreateCQ(4, ch)
		testutil.Must(t, err)
		other.ReqNotify(false)
		b.qp.Close()
		b.qp, err = b.ctx.CreateQP(b.pd, verbs.QPInit{Type: verbs.RC, SendCQ: b.cq, RecvCQ: b.cq, Cap: capacity})
		testutil.Must(t, err)
		testutil.Must(t, b.qp.Init(0))
		testutil.Must(t, b.qp.Connect(a.qp.Local()))
		testutil.Must(t, a.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.QPState))
		testutil.Must(t, a.qp.Init(0))
		testutil.Must(t, a.qp.Connect(b.qp.Local()))
		b.recv(verbs.RecvWR{}, verbs.RecvWR{}, verbs.RecvWR{})
		b.cq.ReqNotify(true)
		late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
		defer cancel()
		a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled})
		a.wait() // it has arrived
		if _, err := ch.Get(late); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("not solicited: %v", err)
		}
		a.send(verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSolicited})
		got, err := ch.Get(t.Context())
		if err != nil || got != b.cq {
			t.Errorf("%v %v", got, err)
		}
		if n := b.cq.Poll(b.wcs[:]); n != 2 {
			t.Errorf("%d completions", n)
		}
	})
}

func TestErrors(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	c := open(t, ha)
	if _, err := openContext(t.Context(), ha, verbs.Config{}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second owner of the port: %v", err)
	}
	p, q := newPeer(t, c, verbs.RC), newPeer(t, open(t, hb), verbs.RC)
	of := func(_ any, err error) error { return err }
	name := fmt.Sprintf("%#x", p.qp.Num())
	for rule, err := range map[string]error{
		"from RESET to RTS":             p.qp.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.QPState),
		"it is in RESET":                of(p.qp.PostRecv(verbs.RecvWR{})),
		"it belongs to another context": of(q.ctx.Dial(t.Context(), q.ctxAddr(1), p.qp, nil)),
	} {
		if err == nil || !errors.Is(err, syscall.EINVAL) || !bytes.Contains([]byte(err.Error()), []byte(rule)) || !bytes.Contains([]byte(err.Error()), []byte(name)) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	if err := p.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a domain in use: %v", err)
	}
	if err := p.cq.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a completion queue in use: %v", err)
	}
	timeout := func(name string, err error) {
		t.Helper()
		if e, ok := err.(net.Error); !ok || !e.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	timeout("wait", of(p.cq.Wait(p.wcs[:], time.Unix(1, 0))))
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	timeout("async", of(c.AsyncEvent(late)))
	timeout("get", of(c.CreateCompChannel().Get(late)))
	timeout("serve", &net.OpError{Err: c.Serve(late)})
	l, err := c.Listen(7, 0)
	testutil.Must(t, err)
	timeout("accept", of(l.Accept(late)))
	// The end of the context ends all calls.
	got := make(chan error)
	blocked := []func() error{
		func() error {
			n, err := p.cq.Wait(p.wcs[:], time.Time{})
			if n == 1 && err == nil && p.wcs[0].Status == verbs.StatusWRFlushErr { // it was called after the end
				_, err = p.cq.Wait(p.wcs[:], time.Time{})
			}
			return err
		},
		func() error { return of(c.AsyncEvent(t.Context())) },
		func() error { return of(l.Accept(t.Context())) },
		func() error { return c.Serve(t.Context()) },
	}
	for _, f := range blocked {
		go func() { got <- f() }()
	}
	testutil.Must(t, c.Close())
	for range blocked {
		if err := <-got; !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
	for _, err := range []error{c.Close(), of(c.Listen(8, 0)), of(p.cq.Wait(p.wcs[:], time.Time{}))} {
		if _, ok := err.(net.Error); !ok || !errors.Is(err, net.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	}
	testutil.Must(t, open(t, ha).Close()) // the port is free again
}

// The end of the host's lease is the error of all calls, also those that block.
func TestLeaseEndIsErrorOfAllCalls(t *testing.T) {
	ha, hb := links[0].open(t, unet.HostConfig{})
	c := open(t, ha)
	p := newPeer(t, c, verbs.RC)
	testutil.Must(t, p.qp.Init(0))
	p.recv(verbs.RecvWR{WRID: 1})
	l, err := c.Listen(7, 0)
	testutil.Must(t, err)
	of := func(_ any, err error) error { return err }
	got := make(chan error)
	blocked := []func() error{
		func() error {
			n, err := p.cq.Wait(p.wcs[:], time.Time{})
			if n == 1 && err == nil && p.wcs[0].Status == verbs.StatusWRFlushErr { // it was called after the end
				_, err = p.cq.Wait(p.wcs[:], time.Time{})
			}
			return err
		},
		func() error { return of(c.AsyncEvent(t.Context())) },
		func() error { return of(c.CreateCompChannel().Get(t.Context())) },
		func() error { return of(l.Accept(t.Context())) },
		func() error { return c.Serve(t.Context()) },
	}
	dialling := newPeer(t, c, verbs.RC)
	to := netip.AddrPortFrom(hb.Addr(), 7) // that host has no RDMA device, and does not answer
	blocked = append(blocked, func() error { return of(c.Dial(t.Context(), to, dialling.qp, nil)) })
	for _, f := range blocked {
		go func() { got <- f() }()
	}
	for started := false; !started; runtime.Gosched() {
		c.EachCounter(func(name string, value uint64) { started = started || name == "cm_mads_sent" && value > 0 })
	}
	ha.(memHost).stack.Fail(fmt.Errorf("the test ends it: %w", endpoint.ErrLeaseClosed))
	for range blocked {
		if err := <-got; !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("blocked: %v", err)
		}
	}
	testutil.Must(t, l.Close())
	testutil.Must(t, c.Close())
	for i, err := range []error{of(c.Dial(t.Context(), l.Addr(), p.qp, nil)), of(l.Accept(t.Context())), l.Close(), c.Close(), of(c.Listen(8, 0))} {
		if !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("later call %d: %v", i, err)
		}
	}
}
