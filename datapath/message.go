package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/pathlink"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/stack"
	"github.com/unet-go/unet/wire"
)

// headerLen is the length of the headers before a message's payload, in bytes.
const headerLen = wire.EthernetHeaderLen + wire.MessageHeaderLen

// Source is the sender of a message.
type Source struct {
	LinkAddr wire.LinkAddr // MAC address of the sending host
	Tag      uint32        // of the sending endpoint on it
}

// Channel is a remote endpoint that has been resolved: the headers of every
// message to it, complete except for the length. It is a value; copying it is cheap.
type Channel struct {
	header     [headerLen]byte
	maxPayload int
}

// NewChannel makes a channel to the endpoint that holds remoteTag on the host
// with MAC address dst. localTag must be a tag of this endpoint, or the mux
// drops what is sent. mtu is the link's, in bytes of Ethernet payload.
func (e *Endpoint) NewChannel(dst wire.LinkAddr, remoteTag, localTag, mtu uint32) Channel {
	e.usePaths()
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
	r, err := lease.Resolve(ctx, netip.Addr{}, host)
	if err != nil {
		return Channel{}, fmt.Errorf("channel to %v tag %d: %w", host, remoteTag, err)
	}
	if r.NextHop != host.Unmap() {
		return Channel{}, fmt.Errorf("channel to %v tag %d: %w: it is behind gateway %v, and messages are not routed",
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

var nativeEndian = binary.NativeEndian

// Buffer is a frame of the segment to compose a message in. It is the
// caller's until Send takes it or Cancel gives it back.
type Buffer struct {
	desc    Desc
	payload []byte
}

// Payload is the room for the message.
func (b *Buffer) Payload() []byte { return b.payload }

// Reserve takes a buffer from the pool. [ErrNoBuffers]: all are in use.
func (e *Endpoint) Reserve() (Buffer, error) {
	addr, ok := e.seg.Alloc(segment.Stack)
	if !ok {
		if addr, ok = e.allocAgain(); !ok {
			return Buffer{}, ErrNoBuffers
		}
	}
	d := Desc{Addr: addr, Len: e.seg.FrameSize()}
	return Buffer{d, e.Frames().Bytes(d)[headerLen:]}, nil
}

// Cancel gives a reserved buffer back unsent.
func (e *Endpoint) Cancel(b Buffer) { e.Frames().Return(b.desc) }

// Send stages the first n bytes of b's payload as a message on ch; it leaves
// with the next Flush. It takes b, unless it fails: [ErrQueueFull] or
// [ErrMessageTooLong].
func (e *Endpoint) Send(ch *Channel, b Buffer, n int) error {
	if n > ch.maxPayload || n < 0 {
		return ErrMessageTooLong
	}
	frame := e.Frames().Bytes(b.desc)
	*(*[headerLen]byte)(frame) = ch.header
	binary.BigEndian.PutUint16(frame[wire.EthernetHeaderLen+2:], uint16(n))
	if !e.link.Send(stack.Frame{Data: frame[:headerLen+n], ID: b.desc.Addr}) {
		return ErrQueueFull
	}
	return nil
}

// Write copies p into a buffer and stages it as a message on ch. It fails with
// [ErrQueueFull], [ErrNoBuffers] or [ErrMessageTooLong], having sent nothing.
func (e *Endpoint) Write(ch *Channel, p []byte) error {
	if len(p) > ch.maxPayload {
		return ErrMessageTooLong
	}
	b, err := e.Reserve()
	if err != nil {
		return err
	}
	copy(b.payload, p)
	if err := e.Send(ch, b, len(p)); err != nil {
		e.Cancel(b)
		return err
	}
	return nil
}

// Message is a received message, lent in place until it is returned.
type Message struct {
	payload []byte
	addr    uint64 // of the frame in the segment
	from    Source
	tag     uint32
	state   messageState
}

type messageState uint8

const (
	messageEmpty messageState = iota
	messageFrame              // payload lies in the frame at addr
	messageHeap               // payload lies in memory of its own
)

// Payload is what was sent. It is valid until Return.
func (m *Message) Payload() []byte { return m.payload }

// From is where the message came from. The sending host's mux has checked the tag;
// the MAC address is not verified.
func (m *Message) From() Source { return m.from }

// Tag is the local tag that the message was sent to.
func (m *Message) Tag() uint32 { return m.tag }

// Borrow takes received messages, at most len(msgs), and returns how many. Each
// must be returned before its place in msgs is used again. A frame that is not a
// message is counted and dropped. While the application holds as many messages as it may,
// Borrow returns none: they stay in the receive queue.
func (e *Endpoint) Borrow(msgs []Message) int {
	e.usePaths()
	e.paths.serve()
	frames := e.frames[:min(len(msgs), len(e.frames), max(0, e.quota()-int(e.held)))]
	if len(frames) == 0 { // then an empty batch would not mean that the receive queue is empty
		return 0
	}
	got := 0
	for _, f := range frames[:e.link.Borrow(frames)] {
		m := &msgs[got]
		if f.Volatile { // it is longer than a frame of the segment
			if len(f.Data) > wire.EthernetHeaderLen+int(e.grant.Identity.MTU) { // nobody sends such a message
				e.stats.Malformed++
				e.link.Return(f)
				continue
			}
			f.Data = slices.Clone(f.Data)
		}
		if !e.accept(m, f.Data) {
			e.link.Return(f)
			continue
		}
		got++
		m.addr, m.state = pathlink.AddrOf(f.ID), messageHeap
		if m.addr < heapFrame {
			m.state = messageFrame
			e.seg.Move(m.addr, segment.Stack, segment.Application)
		}
	}
	e.held += uint32(got)
	return got
}

// accept reads the headers of a frame into m, or counts why it is not a message.
func (e *Endpoint) accept(m *Message, frame []byte) bool {
	if m.state != messageEmpty {
		panic("BUG: received into a message that was not returned")
	}
	var eth wire.Ethernet
	if eth.Parse(frame) != nil {
		e.stats.Malformed++
		return false
	}
	if eth.Type != wire.EtherTypeUNet {
		e.stats.NotMessage++
		return false
	}
	msg, err := wire.ParseMessage(eth.Payload)
	if err != nil {
		e.stats.Malformed++
		return false
	}
	m.payload = msg.Payload()
	m.from = Source{eth.Src, msg.Src()}
	m.tag = msg.Dst()
	return true
}

// Return gives a borrowed message back. Its payload must not be used afterwards.
func (e *Endpoint) Return(m *Message) {
	switch m.state {
	case messageFrame:
		e.seg.Free(m.addr, segment.Application)
	case messageEmpty:
		panic("BUG: message returned twice")
	}
	e.held--
	m.state, m.payload = messageEmpty, nil
	if e.deficit >= e.refillAt {
		e.refill()
	}
}

// ReturnBatch returns the messages of ms.
func (e *Endpoint) ReturnBatch(ms []Message) {
	for i := range ms {
		e.Return(&ms[i])
	}
}

// quota is how many frames the application may hold: all of the segment except those of
// the free queue, and an eighth, which is for sending.
func (e *Endpoint) quota() int {
	geo := &e.grant.Geometry
	return max(1, int(geo.FrameCount-geo.Prefilled()-geo.FrameCount/8))
}

// Event is what an upcall is about (SOSP 1995, section 3.1: the receive queue
// becomes non-empty, or is almost full).
type Event uint8

const (
	NonEmpty   Event = iota // something to receive
	AlmostFull              // the receive queue is three quarters full: receive, or the kernel drops frames
)

// Upcall registers the function that Serve calls for ev; nil removes it. The function
// should receive a batch. Without one for AlmostFull, Serve calls that for NonEmpty.
func (e *Endpoint) Upcall(ev Event, fn func(*Endpoint)) { e.upcalls[ev] = fn }

// ErrNoUpcall: Serve was called with no upcall registered.
var ErrNoUpcall = errors.New("no upcall for a non-empty receive queue")

// Serve waits and makes upcalls, on the goroutine that calls it, until ctx ends
// or waiting fails. What the upcalls stage is flushed.
func (e *Endpoint) Serve(ctx context.Context) error {
	if e.upcalls[NonEmpty] == nil {
		return ErrNoUpcall
	}
	defer context.AfterFunc(ctx, e.Wake)()
	size := int(e.sock.RX.Size())
	almostFull := size - size/4
	for ctx.Err() == nil {
		if err := e.Wait(time.Time{}); errors.Is(err, ErrWoken) {
			continue
		} else if err != nil {
			return err
		}
		fn := e.upcalls[NonEmpty]
		if full := e.upcalls[AlmostFull]; full != nil && e.Frames().Queued() >= almostFull {
			fn = full
		}
		fn(e)
	}
	return errors.Join(e.Flush(), ctx.Err())
}
