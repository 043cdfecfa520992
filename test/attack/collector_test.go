//go:build linux

package attack

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/test/internal/unetd"
)

// sampleCounts counts the samples that a receiver has received.
type sampleCounts struct {
	samples []sample // those that are for it

	mu    sync.Mutex
	got   uint64
	last  uint64
	wrong []string
}

// record judges a frame, or of a kernel socket a payload: it must be a sample for this
// receiver, byte for byte, with a number above all before.
func (y *sampleCounts) record(b []byte, payload bool) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, s := range y.samples {
		at, want := numberAt(s.Frame), s.Frame
		if payload {
			want = want[at-markLen:]
			at = markLen
		}
		if len(b) < len(want) || !bytes.Equal(b[:at], want[:at]) || !bytes.Equal(b[at+8:len(want)], want[at+8:]) {
			continue
		}
		n := binary.BigEndian.Uint64(b[at:])
		if n <= y.last {
			y.note("number %d after %d", n, y.last)
		}
		y.last = n
		y.got++
		return
	}
	y.note("foreign: %s", hex.EncodeToString(b[:min(len(b), 96)]))
}

func (y *sampleCounts) note(format string, args ...any) {
	if len(y.wrong) < 10 {
		y.wrong = append(y.wrong, fmt.Sprintf(format, args...))
	}
}

func (y *sampleCounts) snapshot() (got uint64, wrong []string) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.got, y.wrong
}

// collector takes frames from endpoints of this process, as fast as it can.
type collector struct {
	eps    []*datapath.Endpoint
	counts []*sampleCounts
	stop   chan struct{}
	done   chan struct{}
}

func collect(t testing.TB, eps []*datapath.Endpoint, counts []*sampleCounts) *collector {
	c := &collector{eps, counts, make(chan struct{}), make(chan struct{})}
	go c.run()
	t.Cleanup(c.end)
	return c
}

func (c *collector) run() {
	defer close(c.done)
	descs := make([]datapath.Desc, 256)
	for {
		idle := true
		for i, ep := range c.eps {
			n := ep.Frames().Borrow(descs, len(descs))
			for _, d := range descs[:n] {
				c.counts[i].record(ep.Frames().Bytes(d), false)
				ep.Frames().Return(d)
			}
			idle = idle && n == 0
		}
		if idle {
			select {
			case <-c.stop:
				return
			default:
				runtime.Gosched()
			}
		}
	}
}

// end receives the frames that have arrived, and stops.
func (c *collector) end() {
	select {
	case <-c.done:
	default:
		close(c.stop)
		<-c.done
	}
}

// attach is an endpoint of this process, which is root's, through unetd.
func attach(t testing.TB, socket string, req endpoint.Request) *datapath.Endpoint {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	grant, lease, err := control.Open(ctx, socket, req)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ep.Close(), lease.Close()); err != nil {
			t.Error(err)
		}
	})
	return ep
}

// openSink opens a kernel socket and reads it until the test ends.
func openSink(t testing.TB, h *netlab.Host, at netip.AddrPort, y *sampleCounts) *net.UDPConn {
	t.Helper()
	conn, err := h.ListenUDP(at.String())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20)
	})
	if err := errors.Join(ctlErr, err); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				y.record(buf[:n], true)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return conn
}

// sinkDrops is how many datagrams found no room in a kernel socket's buffer.
func sinkDrops(conn *net.UDPConn) (drops uint64, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(fd uintptr) { drops, err = socketDrops(int(fd)) })
	return drops, errors.Join(ctlErr, err)
}

// startPeers has this process answer on host B, through unetd there: datagrams at a
// port by a unet.Host, and messages to peerTag by an endpoint.
func startPeers(t testing.TB, d *unetd.Daemon, port uint16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	h, err := unet.Open(ctx, unet.Config{Socket: d.Socket, HostConfig: unet.HostConfig{Wait: endpoint.WaitBlock}})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := h.ListenUDP(ctx, netip.AddrPortFrom(h.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	grant, lease, err := control.Open(ctx, d.Socket, tagged(endpoint.MessageTag(peerTag)))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, datapath.Config{Wait: endpoint.WaitBlock, Lease: lease})
	if err != nil {
		t.Fatal(err)
	}
	var answering sync.WaitGroup
	answering.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, err = conn.WriteToUDPAddrPort(buf[:n], from)
			}
			if err != nil {
				t.Errorf("peer on host B: %v", err)
				return
			}
		}
	})
	answering.Go(func() {
		if err := answerMessages(ep); !errors.Is(err, endpoint.ErrLeaseClosed) {
			t.Errorf("peer on host B: %v", err)
		}
	})
	t.Cleanup(func() {
		err := errors.Join(h.Close(), lease.Close())
		answering.Wait()
		if err := errors.Join(err, ep.Close()); err != nil {
			t.Error(err)
		}
	})
}
func answerMessages(ep *datapath.Endpoint) error {
	msgs := make([]datapath.Message, 32)
	for {
		if err := ep.Wait(time.Time{}); err != nil && !errors.Is(err, datapath.ErrWoken) {
			return err
		}
		n := ep.Borrow(msgs)
		for i := range msgs[:n] {
			ch := ep.ReplyChannel(&msgs[i])
			err := ep.Write(&ch, msgs[i].Payload())
			ep.Return(&msgs[i])
			if err != nil {
				return err
			}
		}
		if err := ep.Flush(); err != nil {
			return err
		}
	}
}
