//go:build linux

package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/bench/internal/workload"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/wire"
)

func TestTransports(t *testing.T) {
	seen := map[string]bool{}
	for _, tr := range All {
		if seen[tr.Name] || tr.Name == "" || tr.About == "" || len(tr.Waits) == 0 || (tr.Open == nil) == (tr.Dial == nil) {
			t.Errorf("row %+v", tr)
		}
		seen[tr.Name] = true
		if got, err := ByName(workload.RTT, tr.Name); err != nil || got.Name != tr.Name {
			t.Errorf("%s is not found: %v", tr.Name, err)
		}
		if (tr.Dial == nil) != (tr.Listen == nil) {
			t.Errorf("%s has one side that opens connections", tr.Name)
		}
		if tr.Granted && tr.Network != Muxed {
			t.Errorf("%s wants an endpoint where there is no mux", tr.Name)
		}
		if tr.Privileged != (tr.Network == Direct) {
			t.Errorf("%s is privileged beside others, or attaches a program without privilege", tr.Name)
		}
	}
	for _, tr := range slices.Concat(IPv6, Verbs) {
		if got, err := ByName(workload.RTT, tr.Name); err != nil || got.Name != tr.Name || seen[tr.Name] || len(tr.Waits) == 0 {
			t.Errorf("%s is not found, or twice: %v", tr.Name, err)
		}
	}
	for _, tr := range Operations {
		if got, err := ByName(workload.RDMA, tr.Name); err != nil || got.Name != tr.Name || tr.About == "" {
			t.Errorf("%s is not found: %v", tr.Name, err)
		}
	}
	if _, err := ByName(workload.RDMA, UDP); err == nil {
		t.Error("found an operation that does not exist")
	}
	for _, name := range []string{Floor, Message, UDP, KernelUDP, KernelUDPMux, Unix, GoUnix, NetstackUDP, NetstackTCP} {
		if !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
	if _, err := ByName(workload.RTT, "none"); err == nil {
		t.Error("found a transport that does not exist")
	}
}

func TestBulkTransports(t *testing.T) {
	for _, tr := range Bulk {
		if tr.Name == "" || tr.About == "" || len(tr.Waits) == 0 || (tr.Dial == nil) != (tr.Listen == nil) || (tr.Dial == nil) == (tr.Open == nil) {
			t.Errorf("row %+v", tr)
		}
		if got, err := ByName(workload.Bandwidth, tr.Name); err != nil || got.Name != tr.Name {
			t.Errorf("%s is not found: %v", tr.Name, err)
		}
	}
	if _, err := ByName(workload.Bandwidth, UDP); err == nil {
		t.Error("found a transport that does not exist")
	}
}

func TestTransportsWithoutUnetdCarryMessages(t *testing.T) {
	for _, tr := range All {
		if tr.Granted {
			continue
		}
		t.Run(tr.Name, func(t *testing.T) {
			pair := requirePair(t, tr)
			a, b := netip.AddrPortFrom(pair.A.Addr.Addr(), 21000), netip.AddrPortFrom(pair.B.Addr.Addr(), 21001)
			size := 0 // any
			if _, stream := streams[tr.Name]; stream {
				size = 100
			}
			open := func(h *netlab.Host, role workload.Role, local, remote netip.AddrPort, listening func()) (c workload.Conn, err error) {
				job := workload.Job{Case: workload.Case{Bench: workload.RTT, Batch: 8, Size: size}, Role: role, Local: workload.Address{UDP: local, LinkAddr: h.LinkAddr}, Remote: workload.Address{UDP: remote}}
				err = h.Do(func() (err error) { c, err = tr.open(t.Context(), job, listening); return err })
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return c, err
			}
			var server workload.Conn
			listens, opened := make(chan struct{}), make(chan error, 1)
			listening := sync.OnceFunc(func() { close(listens) })
			go func() {
				var err error
				server, err = open(pair.B, workload.Server, b, a, listening)
				listening()
				opened <- err
			}()
			<-listens
			client, err := open(pair.A, workload.Client, a, b, nil)
			if err := errors.Join(err, <-opened); err != nil {
				t.Fatal(err)
			}
			checkConn(t, client, server, size)
		})
	}
}

// streams are the transports whose messages all have the size of the job.
var streams = map[string]struct{}{KernelTCP: {}, GoTCP: {}, Unix: {}, GoUnix: {}, NetstackTCP: {}}

// requirePair is the pair of hosts for both ends of a transport, or the same host twice.
func requirePair(t *testing.T, tr Transport) *netlab.Pair {
	t.Helper()
	pair := netlab.RequirePair(t, netlab.Config{})
	if tr.Network == OneHost {
		return &netlab.Pair{A: pair.A, B: pair.A}
	}
	return pair
}

func TestTransportsWithoutUnetdOpenAndCloseConnections(t *testing.T) {
	for _, name := range []string{KernelTCP, GoTCP, Unix, GoUnix, NetstackTCP} {
		tr, err := ByName(workload.Connect, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, connections := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s, %d at a time", name, connections), func(t *testing.T) {
				pair := requirePair(t, tr)
				job := workload.Job{Case: workload.Case{Bench: workload.Connect, Size: 64}, Effort: workload.Effort{Connections: connections}, Local: workload.Address{UDP: netip.AddrPortFrom(pair.B.Addr.Addr(), 21000), LinkAddr: pair.B.LinkAddr}}
				var l workload.Listener
				if err := pair.B.Do(func() (err error) { l, err = tr.Listen(t.Context(), job); return err }); err != nil {
					t.Fatal(err)
				}
				job.Local, job.Remote = workload.Address{UDP: netip.AddrPortFrom(pair.A.Addr.Addr(), 0), LinkAddr: pair.A.LinkAddr}, job.Local
				// All of a dial happens in the namespace of the thread that makes it.
				err := pair.A.Do(func() error {
					d, err := tr.Dial(t.Context(), job)
					if err != nil {
						return err
					}
					checkDialer(t, d, l)
					return d.Close()
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// checkDialer holds a transport that opens connections to the contract of
// workload.Dialer and Listener. It closes l.
func checkDialer(t *testing.T, d workload.Dialer, l workload.Listener) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 {
		a, err := d.Dial(ctx)
		check(err)
		b, err := l.Accept()
		check(err)
		until := time.Now().Add(time.Minute)
		check(errors.Join(a.SetReadDeadline(until), b.SetReadDeadline(until)))
		_, err = a.Write([]byte("question"))
		check(err)
		in := make([]byte, 16)
		n, err := b.Read(in)
		check(err)
		check(a.CloseWrite())
		if k, err := b.Read(in[n:]); k != 0 || err != io.EOF {
			t.Errorf("after a half-close: %d, %v", k, err)
		}
		_, err = b.Write(in[:n])
		check(err)
		if n, err := a.Read(in); string(in[:n]) != "question" || err != nil {
			t.Errorf("the other half: %q, %v", in[:n], err)
		}
		check(a.SetReadDeadline(time.Now().Add(20 * time.Millisecond)))
		if n, err := a.Read(in); n != 0 || !isTimeout(err) {
			t.Errorf("nothing to read: %d, %v", n, err)
		}
		check(errors.Join(b.Close(), a.Close()))
	}
	check(l.Close())
	if c, err := d.Dial(ctx); c != nil || err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("dial without a listener: %v, %v", c, err)
	}
}

// isTimeout reports whether err is of a deadline.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// checkConn holds two ends of a transport to the contract of workload.Conn. size is
// that of all messages; 0: they may differ.
func checkConn(t *testing.T, a, b workload.Conn, size int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	extend := func() {
		check(errors.Join(a.SetDeadline(time.Now().Add(time.Minute)), b.SetDeadline(time.Now().Add(time.Minute))))
	}
	extend()

	one := bytes.Repeat([]byte{0xa5}, 100)
	check(a.Send(one))
	got, err := b.Recv()
	check(err)
	if !bytes.Equal(got, one) {
		t.Errorf("one message: got % x", got)
	}
	check(b.Reply())
	got, err = a.Recv()
	check(err)
	if !bytes.Equal(got, one) {
		t.Errorf("its reply: got % x", got)
	}

	var batch [][]byte
	for i := range 8 {
		n := size
		if n == 0 {
			n = 16 + 100*i
		}
		batch = append(batch, bytes.Repeat([]byte{byte(i)}, n))
	}
	for range 3 { // buffers are used again
		check(a.SendBatch(batch))
		var received [][]byte
		in := make([][]byte, workload.RecvBatchSize)
		for len(received) < len(batch) {
			n, err := b.RecvBatch(in)
			check(err)
			for _, m := range in[:n] {
				received = append(received, slices.Clone(m))
			}
		}
		if !slices.EqualFunc(received, batch, bytes.Equal) {
			t.Errorf("a batch of %d came as %d messages, or changed", len(batch), len(received))
		}
	}

	for _, c := range []workload.Conn{a, b} {
		check(c.SetDeadline(time.Now().Add(20 * time.Millisecond)))
		if m, err := c.Recv(); !isTimeout(err) {
			t.Errorf("nothing to receive: %q, %v", m, err)
		}
		check(c.SetDeadline(time.Now().Add(20 * time.Millisecond)))
		if n, err := c.RecvBatch(make([][]byte, 4)); !isTimeout(err) {
			t.Errorf("no batch to receive: %d, %v", n, err)
		}
	}
	extend()
	check(a.Send(one))
	if _, err := b.Recv(); err != nil {
		t.Errorf("after a deadline: %v", err)
	}
}

func TestSwapAddressesExchangesSourceAndDestination(t *testing.T) {
	here, there := wire.LinkAddr{2, 0, 0, 0, 0, 1}, wire.LinkAddr{2, 0, 0, 0, 0, 2}
	frame := make([]byte, floorHeader+3)
	wire.PutEthernet(frame, there, here, wire.EtherTypeUNet)
	wire.PutMessage(frame[wire.EthernetHeaderLen:], 0x01020304, 0xa0b0c0d0, 3)
	copy(frame[floorHeader:], "abc")
	want := slices.Clone(frame)
	wire.PutEthernet(want, here, there, wire.EtherTypeUNet)
	wire.PutMessage(want[wire.EthernetHeaderLen:], 0xa0b0c0d0, 0x01020304, 3)
	if swapAddresses(frame); !bytes.Equal(frame, want) {
		t.Errorf("got  % x\nwant % x", frame, want)
	}
}
