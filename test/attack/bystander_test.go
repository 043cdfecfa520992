//go:build linux

package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	icmpv4 "golang.org/x/net/ipv4"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
)

const (
	requestTimeout = time.Minute          // after it a request counts as lost
	requestPause   = 2 * time.Millisecond // between two requests: bystanders leave the processors to the attackers
)

// bystander sends requests that are not part of the attack, one after
// another, and checks every byte of the answers.
type bystander struct {
	name    string
	request func(n uint64) error

	mu     sync.Mutex
	counts requestCounts
	took   []time.Duration // the requests in Answered since the last snapshot
}

// requestCounts counts the outcomes of a bystander's requests.
type requestCounts struct {
	Name       string
	Answered   uint64
	Lost       uint64        // no answer in time
	Wrong      uint64        // an answer with other bytes, from another sender, or a second one
	Longest    time.Duration // of a request in Answered since the last snapshot
	Median     time.Duration // of these
	FirstError string        // the first that was lost or wrong
}

// errWrong: what was received is not the expected answer.
var errWrong = errors.New("wrong answer")

// run sends requests until stop is closed.
func (b *bystander) run(stop <-chan struct{}) {
	for n := uint64(1); ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(requestPause):
		}
		begin := time.Now()
		err := b.request(n)
		took := time.Since(begin)
		b.mu.Lock()
		switch {
		case err == nil:
			b.counts.Answered++
			b.took = append(b.took, took)
			b.counts.Longest = max(b.counts.Longest, took)
		case errors.Is(err, errWrong):
			b.counts.Wrong++
		case errors.Is(err, net.ErrClosed):
			b.mu.Unlock()
			return
		default:
			b.counts.Lost++
		}
		if err != nil && b.counts.FirstError == "" {
			b.counts.FirstError = fmt.Sprintf("request %d: %v", n, err)
		}
		b.mu.Unlock()
	}
}

// snapshot returns the counts so far, and resets Longest and Median.
func (b *bystander) snapshot() requestCounts {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.counts
	s.Name = b.name
	if len(b.took) > 0 {
		s.Median = median(b.took)
	}
	b.counts.Longest, b.took = 0, nil
	return s
}

// payloadFor is a bystander's n-th request. Each has other bytes.
func payloadFor(name string, n uint64) []byte {
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
		{name: "ping", request: func(n uint64) error { return pingOnce(pinger, n) }},
		{name: "kernel UDP", request: func(n uint64) error { return askUDP(overUDP, payloadFor("udp", n)) }},
		{name: "kernel TCP", request: func(n uint64) error { return askTCP(overTCP, payloadFor("tcp", n)) }},
	}
	start(t, all)
	t.Cleanup(func() { pinger.Close(); overUDP.Close(); overTCP.Close() })
	return all
}

// start runs bystanders until the test ends. A cleanup that unblocks waiting bystanders has
// to run before, so it is registered after this call.
func start(t testing.TB, all []*bystander) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	for _, b := range all {
		running.Go(func() { b.run(stop) })
	}
	t.Cleanup(func() { close(stop); running.Wait() })
}

func pingOnce(c *icmp.PacketConn, n uint64) error {
	c.SetDeadline(time.Now().Add(requestTimeout))
	echo := &icmp.Echo{ID: 0x756e, Seq: int(uint16(n)), Data: payloadFor("ping", n)}
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
			continue // a raw socket receives all of the host's ICMP
		}
		if from.String() != hostA.String() || got.ID != echo.ID || got.Seq != echo.Seq || !bytes.Equal(got.Data, echo.Data) {
			return fmt.Errorf("%w: echo reply %d of %d bytes from %v", errWrong, got.Seq, len(got.Data), from)
		}
		return nil
	}
}

func askUDP(c net.Conn, q []byte) error {
	c.SetDeadline(time.Now().Add(requestTimeout))
	if _, err := c.Write(q); err != nil {
		return err
	}
	buf := make([]byte, 8192)
	n, err := c.Read(buf)
	if err == nil && !bytes.Equal(buf[:n], q) {
		err = fmt.Errorf("%w: %d bytes for %d", errWrong, n, len(q))
	}
	return err
}

func askTCP(c net.Conn, q []byte) error {
	c.SetDeadline(time.Now().Add(requestTimeout))
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

// neighbour is the most exposed bystander: another user's process, with endpoints of its own
// on the same interface.
type neighbour struct {
	host  *unet.Host
	conn  *unet.UDPConn
	ep    *datapath.Endpoint
	lease endpoint.Lease
	ch    datapath.Channel
	peer  netip.AddrPort

	bystanders []*bystander
}

// neighbourTags are all that the neighbour holds beside its host's UDP port.
func neighbourTags() []endpoint.Tag {
	return []endpoint.Tag{
		endpoint.MessageTag(neighbourTag),
		endpoint.TCPTag(netip.AddrPortFrom(hostA, neighbourPort)),
		endpoint.UDPTag(netip.AddrPortFrom(hostA, neighbourBlock)).AsBlock(),
		endpoint.UDPTag(netip.AddrPortFrom(hostA6, neighbourPort)),
		endpoint.AddrTag(neighbourAddr),
		endpoint.AddrTag(neighbourAddr6),
	}
}

// neighbourArg has unetd's socket and the neighbour's peers on host B.
type neighbourArg struct {
	Socket string
	Peer   netip.AddrPort // answers datagrams
	Opens  bool           // now and then it opens another endpoint, too
}

// openNeighbour opens the neighbour's endpoints and starts its traffic.
var openNeighbour = newCommand("openNeighbour", func(a *agent, arg neighbourArg) (nothing, error) {
	n := &neighbour{peer: arg.Peer}
	ctx, cancel := timeout()
	defer cancel()
	var err error
	if n.host, err = unet.Open(ctx, unet.Config{Socket: arg.Socket, HostConfig: unet.HostConfig{Wait: endpoint.WaitBlock}}); err != nil {
		return nothing{}, err
	}
	if n.conn, err = n.host.ListenUDP(ctx, netip.AddrPortFrom(n.host.Addr(), neighbourPort)); err != nil {
		return nothing{}, err
	}
	grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Tags: neighbourTags()})
	if err != nil {
		return nothing{}, err
	}
	n.lease = lease
	if n.ep, err = datapath.Attach(grant, datapath.Config{Wait: endpoint.WaitBlock, Lease: lease}); err != nil {
		return nothing{}, err
	}
	if n.ch, err = n.ep.Channel(ctx, lease, hostB, peerTag, neighbourTag); err != nil {
		return nothing{}, err
	}
	n.bystanders = []*bystander{
		{name: "neighbour's UDP", request: n.askUDP},
		{name: "neighbour's messages", request: n.askMessage},
		{name: "neighbour's unetd", request: func(i uint64) error { return n.askDaemon(arg, i) }},
	}
	for _, b := range n.bystanders {
		a.runTask(func(stop <-chan struct{}) error { b.run(stop); return nil })
	}
	a.neighbour = n
	return nothing{}, nil
})

// neighbourCounts returns the outcomes of the neighbour's requests so far, and resets Longest.
var neighbourCounts = newCommand("neighbourCounts", func(a *agent, _ nothing) (all []requestCounts, err error) {
	for _, b := range a.neighbour.bystanders {
		all = append(all, b.snapshot())
	}
	return all, nil
})

func (n *neighbour) askUDP(i uint64) error {
	n.conn.SetDeadline(time.Now().Add(requestTimeout))
	q := payloadFor("neighbour", i)
	if _, err := n.conn.WriteToUDPAddrPort(q, n.peer); err != nil {
		return err
	}
	buf := make([]byte, 2048)
	size, from, err := n.conn.ReadFromUDPAddrPort(buf)
	if err == nil && (from != n.peer || !bytes.Equal(buf[:size], q)) {
		err = fmt.Errorf("%w: %d bytes from %v", errWrong, size, from)
	}
	return err
}

func (n *neighbour) askMessage(i uint64) error {
	q := payloadFor("message", i)
	if err := errors.Join(n.ep.Write(&n.ch, q), n.ep.Flush()); err != nil {
		return err
	}
	deadline := time.Now().Add(requestTimeout)
	var m [1]datapath.Message
	for n.ep.Borrow(m[:]) == 0 {
		if err := n.ep.Wait(deadline); err != nil {
			return err
		}
	}
	defer n.ep.Return(&m[0])
	if want := (datapath.Source{LinkAddr: linkB, Tag: peerTag}); m[0].From() != want || !bytes.Equal(m[0].Payload(), q) {
		return fmt.Errorf("%w: %d bytes from %v", errWrong, len(m[0].Payload()), m[0].From())
	}
	return nil
}

// daemonPause is the time between the neighbour's requests to unetd.
const daemonPause = 50 * time.Millisecond

// askDaemon requests a route and a tag, and at intervals another endpoint.
func (n *neighbour) askDaemon(arg neighbourArg, i uint64) error {
	ctx, cancel := timeout()
	defer cancel()
	r, err := n.lease.Resolve(ctx, netip.Addr{}, hostB)
	if err != nil || r.LinkAddr != linkB {
		return fmt.Errorf("resolve %v: %v, %w", hostB, r.LinkAddr, err)
	}
	tag, err := n.lease.Claim(ctx, endpoint.UDPTag(netip.AddrPortFrom(hostA, 0)))
	if err != nil {
		return err
	}
	if err := n.lease.Unclaim(ctx, tag); err != nil {
		return err
	}
	if arg.Opens && i%8 == 0 {
		grant, lease, err := control.Open(ctx, arg.Socket, endpoint.Request{Geometry: smallGeometry})
		if err != nil {
			return err
		}
		if err := errors.Join(grant.Close(), lease.Close()); err != nil {
			return err
		}
	}
	time.Sleep(daemonPause)
	return nil
}
