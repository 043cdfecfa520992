package attack

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/stack"
)

// neighbour is the bystander that an attacker would most like to harm: another
// user's process, with endpoints of its own on the same interface.
type neighbour struct {
	host  *unet.Host
	conn  *unet.UDPConn
	ep    *datapath.Endpoint
	lease endpoint.Lease
	ch    datapath.Channel
	peer  netip.AddrPort

	all []*bystander
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

// settleArg is where unetd is and whom the neighbour asks on host B.
type settleArg struct {
	Socket string
	Peer   netip.AddrPort // answers datagrams
	Opens  bool           // now and then it opens another endpoint, too
}

// settle opens the neighbour's endpoints and starts its traffic.
var settle = teach("settle", func(a *agent, arg settleArg) (nothing, error) {
	n := &neighbour{peer: arg.Peer}
	ctx, cancel := timeout()
	defer cancel()
	var err error
	if n.host, err = unet.Open(ctx, unet.Config{Socket: arg.Socket, Wait: stack.WaitBlock}); err != nil {
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
	if n.ep, err = datapath.Attach(grant, datapath.Config{Wait: datapath.WaitBlock, Lease: lease}); err != nil {
		return nothing{}, err
	}
	if n.ch, err = n.ep.Channel(ctx, lease, hostB, peerTag, neighbourTag); err != nil {
		return nothing{}, err
	}
	n.all = []*bystander{
		{name: "neighbour's UDP", trip: n.askUDP},
		{name: "neighbour's messages", trip: n.askMessage},
		{name: "neighbour's unetd", trip: func(i uint64) error { return n.askDaemon(arg, i) }},
	}
	for _, b := range n.all {
		a.begin(func(stop <-chan struct{}) error { b.run(stop); return nil })
	}
	a.neighbour = n
	return nothing{}, nil
})

// howIsIt takes what has become of the neighbour's requests.
var howIsIt = teach("how is it", func(a *agent, _ nothing) (all []trips, err error) {
	for _, b := range a.neighbour.all {
		all = append(all, b.look())
	}
	return all, nil
})

func (n *neighbour) askUDP(i uint64) error {
	n.conn.SetDeadline(time.Now().Add(tripTimeout))
	q := question("neighbour", i)
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
	q := question("message", i)
	if err := errors.Join(n.ep.Write(&n.ch, q), n.ep.Flush()); err != nil {
		return err
	}
	deadline := time.Now().Add(tripTimeout)
	var m [1]datapath.Message
	for n.ep.Recv(m[:]) == 0 {
		if err := n.ep.Wait(deadline); err != nil {
			return err
		}
	}
	defer n.ep.Free(&m[0])
	if want := (datapath.Source{LinkAddr: linkB, Tag: peerTag}); m[0].From() != want || !bytes.Equal(m[0].Payload(), q) {
		return fmt.Errorf("%w: %d bytes from %v", errWrong, len(m[0].Payload()), m[0].From())
	}
	return nil
}

// daemonPause is how often the neighbour asks unetd for something.
const daemonPause = 50 * time.Millisecond

// askDaemon asks for a route and a tag, and now and then for another endpoint.
func (n *neighbour) askDaemon(arg settleArg, i uint64) error {
	ctx, cancel := timeout()
	defer cancel()
	r, err := n.lease.Resolve(ctx, hostB)
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
		small := endpoint.Request{Geometry: endpoint.Geometry{FrameCount: 64, FillSize: 32, RxSize: 32, TxSize: 32, CompletionSize: 32}}
		grant, lease, err := control.Open(ctx, arg.Socket, small)
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
