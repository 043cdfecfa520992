//go:build linux

package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/asavie/xdp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/unet-go/unet/control"
	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/segment"
	"github.com/unet-go/unet/test/internal/unetd"
)

// attach is an endpoint of this process with one message tag, through unetd.
func attach(t *testing.T, socket string, req endpoint.Request, cfg datapath.Config) (*datapath.Endpoint, endpoint.Lease) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	grant, lease, err := control.Open(ctx, socket, req)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := datapath.Attach(grant, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ep.Close(), lease.Close()); err != nil {
			t.Error(err)
		}
	})
	return ep, lease
}

func tagged(n uint32, a endpoint.Attachment) endpoint.Request {
	return endpoint.Request{Attach: a, Tags: []endpoint.Tag{endpoint.MessageTag(n)}}
}

// recvMessage waits for one message.
func recvMessage(t *testing.T, ep *datapath.Endpoint) datapath.Message {
	t.Helper()
	var m [1]datapath.Message
	for deadline := time.Now().Add(testTimeout); ep.Borrow(m[:]) == 0; {
		if err := ep.Wait(deadline); err != nil {
			t.Fatal(err)
		}
	}
	return m[0]
}

// wantNoFramesHeld checks that neither the stack nor the application owns a frame when nothing is in flight.
func wantNoFramesHeld(t *testing.T, ep *datapath.Endpoint) {
	t.Helper()
	if a := ep.Audit(); a[segment.Stack] != 0 || a[segment.Application] != 0 {
		t.Errorf("frames left: %v", a)
	}
}

func TestMessages(t *testing.T) {
	for _, a := range attachments {
		for _, wait := range []endpoint.WaitMode{endpoint.WaitSpin, endpoint.WaitAdaptive, endpoint.WaitBlock} {
			t.Run(fmt.Sprintf("%v/%v", a, wait), func(t *testing.T) {
				pair := netlab.RequirePair(t, netlab.Config{})
				_, socketA := daemon(t, pair.A)
				_, socketB := daemon(t, pair.B)
				epA, lease := attach(t, socketA, tagged(1, a), datapath.Config{Wait: wait})
				epB, _ := attach(t, socketB, tagged(2, a), datapath.Config{Wait: wait})
				ch, err := epA.Channel(t.Context(), lease, pair.B.Addr.Addr(), 2, 1)
				if err != nil {
					t.Fatal(err)
				}
				if got := ch.MaxPayload(); got != 1488 {
					t.Errorf("the channel carries %d bytes, want 1500 less 12", got)
				}
				for size := 0; size <= ch.MaxPayload(); size += 124 {
					payload := bytes.Repeat([]byte{byte(size)}, size)
					if size%2 == 0 {
						err = epA.Write(&ch, payload)
					} else {
						var buf datapath.Buffer
						if buf, err = epA.Reserve(); err == nil {
							err = epA.Send(&ch, buf, copy(buf.Payload(), payload))
						}
					}
					if err = errors.Join(err, epA.Flush()); err != nil {
						t.Fatal(err)
					}
					m := recvMessage(t, epB)
					if !bytes.Equal(m.Payload(), payload) || m.Tag() != 2 ||
						m.From() != (datapath.Source{LinkAddr: pair.A.LinkAddr, Tag: 1}) {
						t.Fatalf("%d bytes arrived as %d for tag %d from %v", size, len(m.Payload()), m.Tag(), m.From())
					}
					reply := epB.ReplyChannel(&m)
					err := errors.Join(epB.Write(&reply, m.Payload()), epB.Flush())
					epB.Return(&m)
					if err != nil {
						t.Fatal(err)
					}
					m = recvMessage(t, epA)
					if !bytes.Equal(m.Payload(), payload) {
						t.Fatalf("%d bytes came back as %d", size, len(m.Payload()))
					}
					epA.Return(&m)
				}
				if err := epA.Write(&ch, make([]byte, ch.MaxPayload()+1)); !errors.Is(err, datapath.ErrMessageTooLong) {
					t.Errorf("too long a message: %v", err)
				}
				if err := epA.Wait(time.Now().Add(time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("wait with nothing to come: %v", err)
				}
				epA.Wake()
				if err := epA.Wait(time.Time{}); !errors.Is(err, datapath.ErrWoken) {
					t.Errorf("wait after Wake: %v", err)
				}
				wantNoFramesHeld(t, epA)
				wantNoFramesHeld(t, epB)
			})
		}
	}
}

// TestMessageBackPressure fills the send queue: nothing is dropped, the excess
// is refused, and all that was accepted arrives once it is flushed and taken.
func TestMessageBackPressure(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socketA := daemon(t, pair.A)
	_, socketB := daemon(t, pair.B)
	small := tagged(1, endpoint.AttachPort)
	small.Geometry = endpoint.Geometry{FrameCount: 256, FillSize: 64, RxSize: 64, TxSize: 32, CompletionSize: 32}
	epA, lease := attach(t, socketA, small, datapath.Config{})
	epB, _ := attach(t, socketB, tagged(2, endpoint.AttachPort), datapath.Config{})
	ch, err := epA.Channel(t.Context(), lease, pair.B.Addr.Addr(), 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 8)
	next := uint64(0)
	for round := range 20 {
		accepted := 0
		for {
			binary.BigEndian.PutUint64(payload, next)
			err := epA.Write(&ch, payload)
			if errors.Is(err, datapath.ErrQueueFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			next++
			accepted++
		}
		if accepted != 32 {
			t.Fatalf("round %d: a send queue of 32 took %d messages", round, accepted)
		}
		if err := epA.Flush(); err != nil {
			t.Fatal(err)
		}
		for want := next - uint64(accepted); want < next; want++ {
			m := recvMessage(t, epB)
			if got := binary.BigEndian.Uint64(m.Payload()); got != want {
				t.Fatalf("message %d arrived where %d should", got, want)
			}
			epB.Return(&m)
		}
	}
	st, err := epA.Stats()
	if err != nil || st.Sent != next || st.QueueFull != 20 || st.Kicks > 40 {
		t.Errorf("statistics %+v, %v", st, err)
	}
	wantNoFramesHeld(t, epA)
}

// TestMessageQuota: an application that frees nothing gets an error, and the
// kernel still has frames to receive into.
func TestMessageQuota(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socketA := daemon(t, pair.A)
	req := tagged(1, endpoint.AttachPort)
	req.Geometry = endpoint.Geometry{FrameCount: 128, FillSize: 64, RxSize: 64, TxSize: 64, CompletionSize: 64}
	receiver, _ := attach(t, socketA, req, datapath.Config{})
	sender, lease := attach(t, socketA, tagged(2, endpoint.AttachPort), datapath.Config{})
	ch, err := sender.Channel(t.Context(), lease, pair.A.Addr.Addr(), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	var held []datapath.Message
	for {
		if err := errors.Join(sender.Write(&ch, []byte("take this")), sender.Flush()); err != nil {
			t.Fatal(err)
		}
		err := receiver.Wait(time.Now().Add(testTimeout))
		if errors.Is(err, datapath.ErrNoBuffers) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var m [8]datapath.Message
		held = append(held, m[:receiver.Borrow(m[:])]...)
	}
	if got, want := len(held), 128-64-16; got != want {
		t.Errorf("the application could hold %d messages, want %d", got, want)
	}
	if n := receiver.Borrow(make([]datapath.Message, 8)); n != 0 {
		t.Errorf("%d more messages beyond the quota", n)
	}
	if got := receiver.Audit()[segment.KernelReceive]; got < 48 {
		t.Errorf("the kernel has %d frames to receive into", got)
	}
	receiver.ReturnBatch(held)
	m := recvMessage(t, receiver) // what waited meanwhile
	receiver.Return(&m)
	wantNoFramesHeld(t, receiver)
}

// TestUpcalls: Serve calls for a non-empty and for an almost full receive queue.
func TestUpcalls(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socketA := daemon(t, pair.A)
	req := tagged(1, endpoint.AttachPort)
	req.Geometry = endpoint.Geometry{RxSize: 64}
	ep, _ := attach(t, socketA, req, datapath.Config{})
	sender, lease := attach(t, socketA, tagged(2, endpoint.AttachPort), datapath.Config{})
	ch, err := sender.Channel(t.Context(), lease, pair.A.Addr.Addr(), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := ep.Serve(t.Context()); !errors.Is(err, datapath.ErrNoUpcall) {
		t.Errorf("Serve without an upcall: %v", err)
	}
	for event, count := range map[datapath.Event]int{datapath.NonEmpty: 1, datapath.AlmostFull: 48} {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		var calls [2]int
		drain := func(ev datapath.Event) func(*datapath.Endpoint) {
			return func(ep *datapath.Endpoint) {
				calls[ev]++
				var m [64]datapath.Message
				ep.ReturnBatch(m[:ep.Borrow(m[:])])
				cancel()
			}
		}
		ep.Upcall(datapath.NonEmpty, drain(datapath.NonEmpty))
		ep.Upcall(datapath.AlmostFull, drain(datapath.AlmostFull))
		for range count {
			if err := sender.Write(&ch, []byte("ring")); err != nil {
				t.Fatal(err)
			}
		}
		if err := sender.Flush(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(testTimeout); ep.Frames().Queued() < count; {
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d messages arrived", ep.Frames().Queued(), count)
			}
		}
		if err := ep.Serve(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve: %v", err)
		}
		if calls[event] != 1 || calls[1-event] != 0 {
			t.Errorf("%d messages: upcalls %v", count, calls)
		}
	}
}

// TestMessageAllocs: no message allocates, in either direction.
func TestMessageAllocs(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A)
	epA, lease := attach(t, socket, tagged(1, endpoint.AttachPort), datapath.Config{Wait: endpoint.WaitSpin})
	epB, _ := attach(t, socket, tagged(2, endpoint.AttachPort), datapath.Config{Wait: endpoint.WaitSpin})
	ch, err := epA.Channel(t.Context(), lease, pair.A.Addr.Addr(), 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, 64)
	msgs := make([]datapath.Message, 8)
	recv := func(ep *datapath.Endpoint) {
		for ep.Borrow(msgs[:1]) == 0 {
			if err := ep.Wait(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := testing.AllocsPerRun(500, func() {
		if epA.Write(&ch, payload) != nil || epA.Flush() != nil {
			t.Fatal("send")
		}
		recv(epB)
		back := epB.ReplyChannel(&msgs[0])
		if epB.Write(&back, msgs[0].Payload()) != nil || epB.Flush() != nil {
			t.Fatal("reply")
		}
		epB.Return(&msgs[0])
		recv(epA)
		epA.Return(&msgs[0])
	}); n != 0 && !unetd.RaceEnabled {
		t.Errorf("%v allocations a round trip", n)
	}
}

// TestIndependentPeer: host B runs asavie/xdp instead of unet, and implements
// the message format from its description; gopacket decodes it.
func TestIndependentPeer(t *testing.T) {
	pair := netlab.RequirePair(t, netlab.Config{})
	_, socket := daemon(t, pair.A, "--mode", "native")
	ep, _ := attach(t, socket, tagged(0xfeedbeef, endpoint.AttachPort), datapath.Config{})
	peer := rawPeer(t, pair.B)
	for seq := range 100 {
		payload := fmt.Appendf(nil, "message number %d", seq)
		frame := append([]byte{}, pair.A.LinkAddr[:]...)
		frame = append(frame, pair.B.LinkAddr[:]...)
		frame = append(frame, 0x88, 0xb5, 1, 0)
		frame = binary.BigEndian.AppendUint16(frame, uint16(len(payload)))
		frame = binary.BigEndian.AppendUint32(frame, 0xfeedbeef)
		frame = binary.BigEndian.AppendUint32(frame, 0x01020304)
		frame = append(frame, payload...)
		frame = append(frame, make([]byte, max(0, 60-len(frame)))...) // Ethernet's padding
		peer.send(t, frame)

		m := recvMessage(t, ep)
		if !bytes.Equal(m.Payload(), payload) || m.Tag() != 0xfeedbeef ||
			m.From() != (datapath.Source{LinkAddr: pair.B.LinkAddr, Tag: 0x01020304}) {
			t.Fatalf("message %d arrived as %q from %v", seq, m.Payload(), m.From())
		}
		ch := ep.ReplyChannel(&m)
		if err := errors.Join(ep.Write(&ch, m.Payload()), ep.Flush()); err != nil {
			t.Fatal(err)
		}
		ep.Return(&m)

		got := gopacket.NewPacket(peer.recv(t), layers.LayerTypeEthernet, gopacket.Default)
		eth := got.Layer(layers.LayerTypeEthernet).(*layers.Ethernet)
		want := append([]byte{1, 0, 0, byte(len(payload)), 1, 2, 3, 4, 0xfe, 0xed, 0xbe, 0xef}, payload...)
		if eth.EthernetType != 0x88b5 || !bytes.Equal(eth.SrcMAC, pair.A.LinkAddr[:]) ||
			!bytes.Equal(eth.DstMAC, pair.B.LinkAddr[:]) || !bytes.Equal(eth.Payload, want) {
			t.Fatalf("reply %d is\n% x\nwant the payload\n% x", seq, got.Data(), want)
		}
	}
	wantNoFramesHeld(t, ep)
}

// peer is asavie/xdp's socket on a whole uplink.
type peer struct{ sock *xdp.Socket }

func rawPeer(t *testing.T, h *netlab.Host) peer {
	t.Helper()
	prog, err := xdp.NewProgram(1)
	if err != nil {
		t.Fatal(err)
	}
	var sock *xdp.Socket
	index := 0
	if err := h.Do(func() (err error) {
		if index, err = interfaceIndex(h.Interface); err != nil {
			return err
		}
		if sock, err = xdp.NewSocket(index, 0, nil); err != nil {
			return err
		}
		return errors.Join(prog.Register(0, sock.FD()), prog.Attach(index))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(h.Do(func() error { return prog.Detach(index) }), sock.Close(), prog.Close()); err != nil {
			t.Error(err)
		}
	})
	sock.Fill(sock.GetDescs(sock.NumFreeFillSlots()))
	return peer{sock}
}

func (p peer) send(t *testing.T, frame []byte) {
	t.Helper()
	d := p.sock.GetDescs(1)
	d[0].Len = uint32(copy(p.sock.GetFrame(d[0]), frame))
	if p.sock.Transmit(d) != 1 {
		t.Fatal("asavie/xdp did not transmit")
	}
	if _, _, err := p.sock.Poll(0); err != nil {
		t.Fatal(err)
	}
}

func (p peer) recv(t *testing.T) []byte {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		n, _, err := p.sock.Poll(1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range p.sock.Receive(n) {
			frame := bytes.Clone(p.sock.GetFrame(d))
			p.sock.Fill(p.sock.GetDescs(p.sock.NumFreeFillSlots()))
			return frame
		}
	}
	t.Fatal("asavie/xdp received nothing")
	return nil
}
