//go:build linux

package unet_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/mux"
	"github.com/unet-go/unet/segment"
)

// messengers are two endpoints of one mux that exchange messages: tag 1 and tag 2.
type messengers struct {
	mux *mux.Mux
	eps [2]*datapath.Endpoint
	ids [2]uint64
	ch  datapath.Channel // from the first to the second
}

func openMessengers(t testing.TB, terms mux.Terms, off bool, wait endpoint.WaitMode, geo ...endpoint.Geometry) *messengers {
	t.Helper()
	p := netlab.RequirePair(t, netlab.Config{MTU: 4000})
	m, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Policy: mux.Permit(terms)})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, m.Close()) })
	n := &messengers{mux: m}
	for i := range n.eps {
		owner := mux.Owner{PID: i + 1, UID: uint32(1000 + i)}
		request := endpoint.Request{Tags: []endpoint.Tag{endpoint.MessageTag(uint32(i + 1))}, NoMemoryPaths: off}
		if geo != nil {
			request.Geometry = geo[i]
		}
		grant, lease, err := m.OpenEndpointFor(t.Context(), owner, request)
		testutil.Must(t, err)
		n.ids[i] = grant.ID
		n.eps[i], err = datapath.Attach(grant, datapath.Config{Wait: wait, Lease: lease})
		testutil.Must(t, err)
		t.Cleanup(func() { testutil.Must(t, errors.Join(n.eps[i].Close(), lease.Close())) })
	}
	n.ch = n.eps[0].NewChannel(p.A.LinkAddr, 2, 1, n.eps[0].Identity().MTU)
	return n
}

// take waits for one message.
func take(t testing.TB, ep *datapath.Endpoint) datapath.Message {
	t.Helper()
	var m [1]datapath.Message
	for deadline := time.Now().Add(time.Minute); ep.Borrow(m[:]) == 0; {
		testutil.Must(t, ep.Wait(deadline))
	}
	return m[0]
}

// roundTrip sends text there and back.
func (n *messengers) roundTrip(t testing.TB, text string) {
	t.Helper()
	testutil.Must(t, errors.Join(n.eps[0].Write(&n.ch, []byte(text)), n.eps[0].Flush()))
	m := take(t, n.eps[1])
	back := n.eps[1].ReplyChannel(&m)
	err := errors.Join(n.eps[1].Write(&back, m.Payload()), n.eps[1].Flush())
	n.eps[1].Return(&m)
	testutil.Must(t, err)
	m = take(t, n.eps[0])
	if string(m.Payload()) != text || m.From().Tag != 2 || m.Tag() != 1 {
		t.Fatalf("%q came back from %v for tag %d", m.Payload(), m.From(), m.Tag())
	}
	n.eps[0].Return(&m)
}

// byMemory counts what came to an endpoint by memory.
func byMemory(ep *datapath.Endpoint) (received uint64) {
	for _, c := range ep.PathCounters() {
		if c.Name == "path_frames_received" {
			received = c.Value
		}
	}
	return received
}

// Messages between two endpoints of one mux go by memory without a word of their programs, in each way of waiting. Their ports carry nothing
// after that, and no frame is left behind.
func TestMessagesGoByMemory(t *testing.T) {
	for _, wait := range []endpoint.WaitMode{endpoint.WaitAdaptive, endpoint.WaitSpin, endpoint.WaitBlock} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			n := openMessengers(t, mux.Terms{Trusted: true}, false, wait)
			n.awaitMemory(t)
			var before [2]datapath.Stats
			for i, ep := range n.eps {
				before[i] = testutil.Value(ep.Stats())
			}
			for size := 0; size <= n.ch.MaxPayload(); size += 124 {
				n.roundTrip(t, string(make([]byte, size)))
			}
			for i, ep := range n.eps {
				if st := testutil.Value(ep.Stats()); st.Sent != before[i].Sent || st.Received != before[i].Received {
					t.Errorf("endpoint %d: %+v, before %+v", i, st, before[i])
				}
				if a := ep.Audit(); a[segment.Stack] != 0 || a[segment.Application] != 0 {
					t.Errorf("frames left: %v", a)
				}
			}
		})
	}
}

// awaitMemory exchanges messages until they go by memory.
func (n *messengers) awaitMemory(t testing.TB) {
	t.Helper()
	before := [2]uint64{byMemory(n.eps[0]), byMemory(n.eps[1])}
	testutil.Eventually(t, "messages by memory both ways", func() bool {
		n.roundTrip(t, "text")
		return byMemory(n.eps[0]) > before[0] && byMemory(n.eps[1]) > before[1]
	})
}

// What the policy or a request forbids goes by the ports, and so does what an operator captures, as long as he does.
func TestMessagesNotByMemory(t *testing.T) {
	for name, c := range map[string]struct {
		terms mux.Terms
		off   bool
	}{
		"policy":  {terms: mux.Terms{Trusted: true, NoMemoryPaths: true}},
		"rate":    {terms: mux.Terms{Trusted: true, Rates: endpoint.Rates{Endpoint: endpoint.Rate{Packets: 1 << 20, PacketBurst: 1 << 20}}}},
		"request": {terms: mux.Terms{Trusted: true}, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := openMessengers(t, c.terms, c.off, endpoint.WaitAdaptive)
			for range 200 {
				n.roundTrip(t, "text")
			}
			if a, b := byMemory(n.eps[0]), byMemory(n.eps[1]); a != 0 || b != 0 {
				t.Errorf("%d and %d messages by memory", a, b)
			}
		})
	}
	t.Run("capture", func(t *testing.T) {
		t.Parallel()
		n := openMessengers(t, mux.Terms{Trusted: true}, false, endpoint.WaitAdaptive)
		n.awaitMemory(t)
		stop, err := n.mux.Capture(&n.ids[1])
		testutil.Must(t, err)
		before := byMemory(n.eps[0]) + byMemory(n.eps[1])
		for range 200 {
			n.roundTrip(t, "text")
		}
		if after := byMemory(n.eps[0]) + byMemory(n.eps[1]); after != before {
			t.Errorf("%d messages by memory under a capture", after-before)
		}
		stop()
		n.awaitMemory(t)
	})
}

// An application that holds all messages that it may loses none of those that wait in a path, and gets them in order.
func TestMessagesWaitInThePath(t *testing.T) {
	t.Parallel()
	small := endpoint.Geometry{FrameCount: 64, FillSize: 16, RxSize: 16, TxSize: 16, CompletionSize: 16}
	const quota, more = 64 - 16 - 64/8, 20
	n := openMessengers(t, mux.Terms{Trusted: true}, false, endpoint.WaitAdaptive, small, small)
	n.awaitMemory(t)
	for i := range byte(quota + more) {
		testutil.Must(t, errors.Join(n.eps[0].Write(&n.ch, []byte{i}), n.eps[0].Flush()))
	}
	var held [2 * quota]datapath.Message
	got := 0
	for k := -1; k != 0; got += k {
		k = n.eps[1].Borrow(held[got:])
	}
	if got != quota {
		t.Fatalf("%d messages at once, want %d", got, quota)
	}
	if err := n.eps[1].Wait(time.Now().Add(time.Second)); !errors.Is(err, datapath.ErrNoBuffers) {
		t.Errorf("wait: %v", err)
	}
	for i := range held[:got] {
		if b := held[i].Payload(); b[0] != byte(i) {
			t.Errorf("message %d came as number %d", b[0], i)
		}
	}
	n.eps[1].ReturnBatch(held[:got])
	for i := range more {
		m := take(t, n.eps[1])
		if b := m.Payload(); b[0] != byte(quota+i) {
			t.Errorf("message %d came as number %d", b[0], quota+i)
		}
		n.eps[1].Return(&m)
	}
}

// A message may be longer than a frame of the endpoint that reads it.
func TestMessageLongerThanAFrameByMemory(t *testing.T) {
	t.Parallel()
	n := openMessengers(t, mux.Terms{Trusted: true}, false, endpoint.WaitAdaptive, endpoint.Geometry{FrameSize: 4096}, endpoint.Geometry{})
	n.awaitMemory(t)
	payload := make([]byte, n.ch.MaxPayload())
	for i := range payload {
		payload[i] = byte(i * 7 >> 3)
	}
	before := byMemory(n.eps[1])
	testutil.Must(t, errors.Join(n.eps[0].Write(&n.ch, payload), n.eps[0].Flush()))
	m := take(t, n.eps[1])
	if !bytes.Equal(m.Payload(), payload) {
		t.Errorf("%d bytes came as %d", len(payload), len(m.Payload()))
	}
	n.eps[1].Return(&m)
	if byMemory(n.eps[1]) == before {
		t.Error("it did not come by memory")
	}
}

// BenchmarkMessengers is a round trip of 64 bytes between two endpoints of one mux.
func BenchmarkMessengers(b *testing.B) {
	for _, wait := range []endpoint.WaitMode{endpoint.WaitSpin, endpoint.WaitAdaptive, endpoint.WaitBlock} {
		for _, off := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/memory=%v", wait, !off), func(b *testing.B) {
				n := openMessengers(b, mux.Terms{Trusted: true}, off, wait)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					var m [1]datapath.Message
					for !errors.Is(n.eps[1].Wait(time.Time{}), datapath.ErrWoken) {
						if n.eps[1].Borrow(m[:]) == 1 {
							back := n.eps[1].ReplyChannel(&m[0])
							n.eps[1].Write(&back, m[0].Payload())
							n.eps[1].Return(&m[0])
						}
					}
				}()
				b.Cleanup(func() { n.eps[1].Wake(); <-ended })
				payload := make([]byte, 64)
				trip := func() {
					testutil.Must(b, errors.Join(n.eps[0].Write(&n.ch, payload), n.eps[0].Flush()))
					m := take(b, n.eps[0])
					n.eps[0].Return(&m)
				}
				timeTrips(b, trip)
				if received := byMemory(n.eps[0]); (received > 0) == off {
					b.Errorf("%d messages by memory", received)
				}
			})
		}
	}
}
