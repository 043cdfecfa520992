//go:build linux

package mux_test

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/unet-go/unet/datapath"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/mux"
)

// benchRates are limits that are not reached.
var benchRates = endpoint.Rates{
	Endpoint: endpoint.Rate{Packets: 1e9, PacketBurst: 1e8, Bytes: 50e9, ByteBurst: 5e9},
	User:     endpoint.Rate{Packets: 1e9, PacketBurst: 1e8, Bytes: 50e9, ByteBurst: 5e9},
}

// messenger sends messages to a receiver on the other host.
type messenger struct {
	from, to *datapath.Endpoint
	ch       datapath.Channel
}

func newMessenger(b *testing.B, p *netlab.Pair, here, there *mux.Mux, policy *testPolicy, r endpoint.Rates, tag uint32) *messenger {
	b.Helper()
	m := &messenger{}
	policy.on(mux.Terms{Rates: r}, func() { m.from = openMessages(b, here, endpoint.AttachPort, tag) })
	m.to = openMessages(b, there, endpoint.AttachPort, tag)
	m.ch = m.from.NewChannel(p.B.LinkAddr, tag, tag, 1500)
	return m
}

// trip sends a message, and waits until it has come.
func (m *messenger) trip(b *testing.B, payload []byte) {
	if err := m.from.Write(&m.ch, payload); err != nil {
		b.Fatal(err)
	}
	if err := m.from.Flush(); err != nil {
		b.Fatal(err)
	}
	var got [1]datapath.Message
	for deadline := time.Now().Add(testTimeout); m.to.Borrow(got[:]) == 0; {
		if time.Now().After(deadline) {
			b.Fatal("a message was lost")
		}
	}
	m.to.Return(&got[0])
}

// openPair opens muxes on both hosts. The policy is that of host A.
func openPair(b *testing.B) (p *netlab.Pair, here, there *mux.Mux, policy *testPolicy) {
	b.Helper()
	p, policy = netlab.RequirePair(b, netlab.Config{}), &testPolicy{}
	here, err := mux.Open(mux.Config{Interface: p.A.Interface, NetNS: p.A.NS, Policy: policy})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { here.Close() })
	return p, here, openBench(b, p.B, mux.ModeAuto), policy
}

// BenchmarkRates is the time of a message from an endpoint with limits that are not reached, and from one
// without, as BenchmarkMessage has it. They take turns, and ratio is the median of those of neighbouring turns.
func BenchmarkRates(b *testing.B) {
	p, here, there, policy := openPair(b)
	kinds := []*messenger{
		newMessenger(b, p, here, there, policy, endpoint.Rates{}, 1),
		newMessenger(b, p, here, there, policy, benchRates, 2),
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	payload := make([]byte, benchPayload)
	const turn = 500 // messages
	var took [2][]float64
	var ratios []float64
	for b.Loop() {
		for i, m := range kinds {
			begin := time.Now()
			for range turn {
				m.trip(b, payload)
			}
			took[i] = append(took[i], float64(time.Since(begin))/turn)
		}
		ratios = append(ratios, took[1][len(ratios)]/took[0][len(ratios)])
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(median(took[0]), "without-ns")
	b.ReportMetric(median(took[1]), "limited-ns")
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op") // hides it
}

// BenchmarkBesideFlood is the time of a neighbour's message while another user's endpoint on another processor sends
// messages to the other host as fast as it can: none, without a limit, and at its limit of 10,000 packets a second.
func BenchmarkBesideFlood(b *testing.B) {
	for _, c := range []struct {
		name  string
		flood bool
		rates endpoint.Rates
	}{
		{"alone", false, endpoint.Rates{}},
		{"unlimited", true, endpoint.Rates{}},
		{"limited", true, endpoint.Rates{User: endpoint.Rate{Packets: 10_000, PacketBurst: 100}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, here, there, policy := openPair(b)
			neighbour := newMessenger(b, p, here, there, policy, endpoint.Rates{}, 1)
			stop := make(chan struct{})
			var running sync.WaitGroup
			defer running.Wait()
			defer close(stop)
			if c.flood {
				flooder := newMessenger(b, p, here, there, policy, c.rates, 2)
				running.Go(func() { flooder.flood(stop) })
			}
			payload := make([]byte, benchPayload)
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				neighbour.trip(b, payload)
				took = append(took, time.Since(begin))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
			b.ReportMetric(0, "ns/op") // hides it
		})
	}
}

// flood sends messages in batches until stop is closed. What the other host receives is thrown away.
func (m *messenger) flood(stop <-chan struct{}) {
	payload := make([]byte, benchPayload)
	var got [64]datapath.Message
	for {
		select {
		case <-stop:
			return
		default:
		}
		for range 64 {
			if m.from.Write(&m.ch, payload) != nil {
				break
			}
		}
		if err := m.from.Flush(); err != nil && !os.IsTimeout(err) {
			return
		}
		for n := m.to.Borrow(got[:]); n > 0; n = m.to.Borrow(got[:]) {
			for i := range n {
				m.to.Return(&got[i])
			}
		}
	}
}
