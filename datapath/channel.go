package datapath

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/wire"
)

// headerLen is what stands before a message's payload in a frame.
const headerLen = wire.EthernetHeaderLen + wire.MessageHeaderLen

// Source says where a message came from.
type Source struct {
	LinkAddr wire.LinkAddr // of the sending host
	Tag      uint32        // of the sending endpoint on it
}

// Channel is a remote endpoint that has been resolved: the headers of every
// message to it, ready but for the length. It is a value; copying it is cheap.
type Channel struct {
	header     [headerLen]byte
	maxPayload int
}

// NewChannel makes a channel to the endpoint that holds remoteTag on the host
// with link address dst. localTag must be a tag of this endpoint, or the mux
// drops what is sent. mtu is the link's, in bytes of Ethernet payload.
func (e *Endpoint) NewChannel(dst wire.LinkAddr, remoteTag, localTag, mtu uint32) Channel {
	var c Channel
	wire.PutEthernet(c.header[:], dst, e.grant.Identity.LinkAddr, wire.EtherTypeUNet)
	wire.PutMessage(c.header[wire.EthernetHeaderLen:], remoteTag, localTag, 0)
	room := int(e.seg.FrameSize()) - headerLen
	c.maxPayload = max(0, min(room, int(mtu)-wire.MessageHeaderLen, wire.MaxMessagePayload))
	return c
}

// Channel resolves host through the lease's route service and makes a channel
// to its endpoint with remoteTag. Errors are those of [endpoint.Lease.Resolve].
func (e *Endpoint) Channel(ctx context.Context, lease endpoint.Lease, host netip.Addr, remoteTag, localTag uint32) (Channel, error) {
	r, err := lease.Resolve(ctx, host)
	if err != nil {
		return Channel{}, fmt.Errorf("channel to %v tag %d: %w", host, remoteTag, err)
	}
	if r.NextHop != host.Unmap() {
		return Channel{}, fmt.Errorf("channel to %v tag %d: %w: it is behind the gateway %v, and messages stay on their link",
			host, remoteTag, endpoint.ErrUnreachable, r.NextHop)
	}
	return e.NewChannel(r.LinkAddr, remoteTag, localTag, r.MTU), nil
}

// ReplyChannel is the channel back to where m came from.
func (e *Endpoint) ReplyChannel(m *Message) Channel {
	return e.NewChannel(m.from.LinkAddr, m.from.Tag, m.tag, e.grant.Identity.MTU)
}

// MaxPayload is the longest message that the channel carries, in bytes.
func (c *Channel) MaxPayload() int { return c.maxPayload }
