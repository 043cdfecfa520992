package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"sync"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	icmpv4 "golang.org/x/net/ipv4"

	"github.com/unet-go/unet/internal/netlab"
)

const (
	tripTimeout = time.Minute          // then what was asked counts as lost
	tripPause   = 2 * time.Millisecond // between trips: bystanders leave the processors to the attackers
)

// bystander sends requests that have nothing to do with the attack, one after
// another, and looks at every byte of the answers.
type bystander struct {
	name string
	trip func(n uint64) error

	mu    sync.Mutex
	state trips
}

// trips is what has become of a bystander's requests.
type trips struct {
	Name  string
	Done  uint64
	Lost  uint64        // no answer in time
	Wrong uint64        // an answer of other bytes, from somebody else, or a second one
	Worst time.Duration // of Done since the last look
	Why   string        // the first that was lost or wrong
}

// errWrong: something came that was not what should.
var errWrong = errors.New("wrong answer")

// run goes on until stop is closed.
func (b *bystander) run(stop <-chan struct{}) {
	for n := uint64(1); ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(tripPause):
		}
		begin := time.Now()
		err := b.trip(n)
		took := time.Since(begin)
		b.mu.Lock()
		switch {
		case err == nil:
			b.state.Done++
			b.state.Worst = max(b.state.Worst, took)
		case errors.Is(err, errWrong):
			b.state.Wrong++
		case errors.Is(err, net.ErrClosed):
			b.mu.Unlock()
			return
		default:
			b.state.Lost++
		}
		if err != nil && b.state.Why == "" {
			b.state.Why = fmt.Sprintf("trip %d: %v", n, err)
		}
		b.mu.Unlock()
	}
}

// look takes what has happened. The worst time begins anew.
func (b *bystander) look() trips {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.state
	s.Name = b.name
	b.state.Worst = 0
	return s
}

// question is the n-th that a bystander asks: no two are alike.
func question(name string, n uint64) []byte {
	b := append(binary.BigEndian.AppendUint64(nil, n), name...)
	for i := range 40 + int(n*397%900) { // short and long ones in turn
		b = append(b, byte(uint64(i)*n))
	}
	return b
}

// startKernelTraffic has host B's kernel ping host A's and talk to its UDP and
// TCP services.
func startKernelTraffic(t testing.TB, pair *netlab.Pair) []*bystander {
	t.Helper()
	for _, h := range []*netlab.Host{pair.A, pair.B} {
		echo, err := h.ServeEcho(fmt.Sprintf("%v:%d", h.Addr.Addr(), kernelPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { echo.Close() })
	}
	var pinger *icmp.PacketConn
	if err := pair.B.Do(func() (err error) {
		pinger, err = icmp.ListenPacket("ip4:icmp", hostB.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	service := fmt.Sprintf("%v:%d", hostA, kernelPort)
	overUDP, err := pair.B.Dial("udp", service)
	if err != nil {
		t.Fatal(err)
	}
	overTCP, err := pair.B.Dial("tcp", service)
	if err != nil {
		t.Fatal(err)
	}
	all := []*bystander{
		{name: "ping", trip: func(n uint64) error { return pingOnce(pinger, n) }},
		{name: "kernel UDP", trip: func(n uint64) error { return askUDP(overUDP, question("udp", n)) }},
		{name: "kernel TCP", trip: func(n uint64) error { return askTCP(overTCP, question("tcp", n)) }},
	}
	start(t, all)
	t.Cleanup(func() { pinger.Close(); overUDP.Close(); overTCP.Close() })
	return all
}

// start runs bystanders until the test ends. What wakes them from their waiting
// is to be cleaned up before, that is, registered after.
func start(t testing.TB, all []*bystander) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	for _, b := range all {
		running.Go(func() { b.run(stop) })
	}
	t.Cleanup(func() { close(stop); running.Wait() })
}

func pingOnce(c *icmp.PacketConn, n uint64) error {
	c.SetDeadline(time.Now().Add(tripTimeout))
	echo := &icmp.Echo{ID: 0x756e, Seq: int(uint16(n)), Data: question("ping", n)}
	request, err := (&icmp.Message{Type: icmpv4.ICMPTypeEcho, Body: echo}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(request, &net.IPAddr{IP: hostA.AsSlice()}); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	for {
		size, from, err := c.ReadFrom(buf)
		if err != nil {
			return err
		}
		m, err := icmp.ParseMessage(1, buf[:size])
		got, ok := m.Body.(*icmp.Echo)
		if err != nil || m.Type != icmpv4.ICMPTypeEchoReply || !ok {
			continue // a raw socket hears all of the host's ICMP
		}
		if from.String() != hostA.String() || got.ID != echo.ID || got.Seq != echo.Seq || !bytes.Equal(got.Data, echo.Data) {
			return fmt.Errorf("%w: echo reply %d of %d bytes from %v", errWrong, got.Seq, len(got.Data), from)
		}
		return nil
	}
}

func askUDP(c net.Conn, q []byte) error {
	c.SetDeadline(time.Now().Add(tripTimeout))
	if _, err := c.Write(q); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	n, err := c.Read(buf)
	if err == nil && !bytes.Equal(buf[:n], q) {
		err = fmt.Errorf("%w: %d bytes for %d", errWrong, n, len(q))
	}
	return err
}

func askTCP(c net.Conn, q []byte) error {
	c.SetDeadline(time.Now().Add(tripTimeout))
	if _, err := c.Write(q); err != nil {
		return err
	}
	buf := make([]byte, len(q))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if !bytes.Equal(buf, q) {
		return fmt.Errorf("%w: other bytes", errWrong)
	}
	return nil
}
