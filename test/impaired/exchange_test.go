//go:build linux

package impaired

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/internal/netlab"
	"github.com/unet-go/unet/internal/netlab/impair"
	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/proto/tcp"
	"github.com/unet-go/unet/test/internal/unetd"
)

const (
	ms = time.Millisecond
	mb = 1 << 20
)

// impairments are rules for both directions, how much is sent each way on each connection, and whether
// it is also sent over IPv6.
var impairments = []struct {
	name string
	rule impair.Rule
	size int
	ipv6 bool
}{
	{"clean", impair.Rule{}, mb, true},
	{"loss 0.1 %", impair.Rule{Loss: 0.001}, mb, false},
	{"loss 1 %", impair.Rule{Loss: 0.01}, mb, false},
	{"loss 5 %", impair.Rule{Loss: 0.05}, mb / 2, true},
	{"loss 30 %", impair.Rule{Loss: 0.3}, 64 << 10, false},
	{"bursts", impair.Rule{Burst: linksim.Burst{Enter: 0.005, Leave: 0.25}}, mb, true},
	{"doubled", impair.Rule{Duplicate: 0.2}, mb, true},
	{"reordered", impair.Rule{Reorder: 0.1, HoldBack: 2 * ms}, mb, true},
	{"damaged", impair.Rule{Corrupt: 0.03}, mb, true},
	{"delay 1 ms", impair.Rule{Delay: ms}, mb, false},
	{"delay 10 ms and jitter", impair.Rule{Delay: 10 * ms, Jitter: 5 * ms}, mb, false},
	{"delay 50 ms", impair.Rule{Delay: 50 * ms}, mb, false},
	{"delay 50 ms and loss", impair.Rule{Delay: 50 * ms, Loss: 0.005}, mb / 2, true},
	{"bottleneck", impair.Rule{Rate: 10e6, Queue: 10_000, Delay: 2 * ms}, mb, true}, // the queue is shorter than two initial windows
	{"all at once", impair.Rule{Loss: 0.02, Duplicate: 0.02, Corrupt: 0.01, Reorder: 0.05, HoldBack: ms, Delay: 2 * ms, Jitter: ms}, mb / 2, true},
	{"blackout", impair.Rule{Rate: 20e6, Blackout: linksim.Blackout{After: 100 * ms, Length: 2 * time.Second}}, mb / 2, true},
	{"blackouts", impair.Rule{Rate: 20e6, Blackout: linksim.Blackout{After: 50 * ms, Length: 100 * ms, Every: 300 * ms}}, mb / 2, false},
}

// TestExchange sends data each way over each impairment, on two connections of which
// either side has dialled one.
func TestExchange(t *testing.T) {
	for _, variant := range []struct {
		stack peer
		ipv6  bool
	}{{kernelPeer, false}, {unetPeer, false}, {kernelPeer, true}} {
		for _, impairment := range impairments {
			if variant.ipv6 && !impairment.ipv6 {
				continue
			}
			name := string(variant.stack)
			if variant.ipv6 {
				name += " over IPv6"
			}
			t.Run(name+"/"+impairment.name, func(t *testing.T) {
				s := openScene(t, variant.stack, netlab.Config{IPv6: variant.ipv6})
				if impairment.rule.Loss < 0.3 { // a lost SYN costs a second, and the connection then begins with a longer timeout
					s.impair(impairment.rule, impairment.rule)
				}
				connections := []connection{s.connect(t, true), s.connect(t, false)}
				s.impair(impairment.rule, impairment.rule)
				// If a retransmission timeout is a multiple of the time between two blackouts, so is each
				// doubled one: every retransmission can fall into a blackout.
				defer time.AfterFunc(20*time.Second, func() { s.impair(impair.Rule{}, impair.Rule{}) }).Stop()
				size := impairment.size
				if unetd.RaceEnabled {
					size /= 2
				}
				if err := exchange(size, connections...); err != nil {
					t.Error(err)
				}
				for d := range impair.Direction(2) {
					s.checkLink(t, d, impairment.rule)
				}
				if ours, peers := s.damagedSegments(t); impairment.rule.Corrupt >= 0.03 && (ours == 0 || peers == 0) {
					t.Errorf("damage was found in %d segments by us, in %d by the peer", ours, peers)
				}
			})
		}
	}
}

// checkLink checks that a direction of the link did what its rule says.
func (s *scene) checkLink(t *testing.T, d impair.Direction, r impair.Rule) {
	t.Helper()
	c := s.link.Counters(d)
	if c.Missed+c.Refused > 0 {
		t.Errorf("direction %d: the link itself has lost frames: %+v", d, c)
	}
	for _, x := range []struct {
		what     string
		expected bool
		n        uint64
	}{
		{"lost", r.Loss >= 0.01, c.LostByChance},
		{"lost in bursts", r.Burst.Enter > 0, c.LostInBursts},
		{"lost in the queue", r.Queue > 0, c.LostInQueue},
		{"lost in the blackout", r.Blackout.Length > 0, c.LostInBlackouts},
		{"doubled", r.Duplicate > 0, c.Duplicated},
		{"damaged", r.Corrupt > 0, c.Corrupted},
		{"held back", r.Reorder > 0, c.HeldBack},
	} {
		if x.expected && x.n == 0 {
			t.Errorf("direction %d: nothing was %s: %+v", d, x.what, c)
		}
	}
}

// TestImpairmentInOneDirection: only one direction is impaired, so that either only data or only
// acknowledgments are lost, of either side.
func TestImpairmentInOneDirection(t *testing.T) {
	rule := impair.Rule{Loss: 0.1, Reorder: 0.1, HoldBack: ms}
	for _, stack := range peers {
		for _, c := range []struct {
			name       string
			aToB, bToA impair.Rule
		}{{"to the peer", rule, impair.Rule{}}, {"to us", impair.Rule{}, rule}} {
			for _, weSend := range []bool{true, false} {
				sender := "we send"
				if !weSend {
					sender = "the peer sends"
				}
				t.Run(string(stack)+"/"+c.name+"/"+sender, func(t *testing.T) {
					s := openScene(t, stack, netlab.Config{})
					x := s.connect(t, true)
					s.impair(c.aToB, c.bToA)
					from, to := x.ours, x.peers
					if !weSend {
						from, to = to, from
					}
					if err := errors.Join(transfer(from, to, 1, mb), from.Close(), to.Close()); err != nil {
						t.Error(err)
					}
					s.checkLink(t, impair.AtoB, c.aToB)
					s.checkLink(t, impair.BtoA, c.bToA)
				})
			}
		}
	}
}

// TestJumboFramesWithLosses sends frames of 9,000 bytes, some of which are lost.
func TestJumboFramesWithLosses(t *testing.T) {
	rule := impair.Rule{Loss: 0.02, Reorder: 0.02, HoldBack: ms, Delay: ms}
	for _, stack := range peers {
		t.Run(string(stack), func(t *testing.T) {
			s := openScene(t, stack, netlab.Config{MTU: 9000})
			connections := []connection{s.connect(t, true), s.connect(t, false)}
			s.impair(rule, rule)
			if err := exchange(2*mb, connections...); err != nil {
				t.Error(err)
			}
			for d := range impair.Direction(2) {
				s.checkLink(t, d, rule)
			}
		})
	}
}

// TestImpairmentsThatChange changes the rules of the link every fifty frames, while data is in flight.
func TestImpairmentsThatChange(t *testing.T) {
	for _, stack := range peers {
		t.Run(string(stack), func(t *testing.T) { testImpairmentsThatChange(t, stack) })
	}
}

func testImpairmentsThatChange(t *testing.T, stack peer) {
	const rate = 100e6 // so that it takes a while
	s := openScene(t, stack, netlab.Config{})
	c := s.connect(t, true)
	done := make(chan error, 1)
	s.impair(impair.Rule{Rate: rate}, impair.Rule{Rate: rate})
	go func() { done <- exchange(2*mb, c) }()
	changes := 0
	for frames := uint64(0); ; {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			if changes < 10 {
				t.Errorf("the rules have changed %d times", changes)
			}
			held := uint64(0)
			for d := range impair.Direction(2) {
				s.checkLink(t, d, impair.Rule{Loss: 1, Duplicate: 1}) // of the other impairments there may be none
				held += s.link.Counters(d).HeldBack
			}
			if held == 0 {
				t.Error("nothing was held back in either direction")
			}
			return
		case <-time.After(ms):
		}
		if n := s.link.Counters(impair.AtoB).Frames; n >= frames+50 {
			frames = n
			changes++
			for d, k := range []int{changes % 10, (changes * 3) % 10} { // those without a long delay
				r := impairments[k].rule
				r.Rate = rate
				s.link.Set(impair.Direction(d), r)
			}
		} else if s.link.Rule(impair.AtoB).Loss >= 0.3 || s.link.Rule(impair.BtoA).Loss >= 0.3 {
			s.impair(impair.Rule{Rate: rate}, impair.Rule{Rate: rate}) // a high loss lasts a short time only
		}
	}
}

// TestECN: a bottleneck marks frames above a threshold (RFC 3168), in both directions. The
// two sides negotiate ECN in either role, report the marks and send more slowly,
// so that nothing is lost.
func TestECN(t *testing.T) {
	rule := impair.Rule{Rate: 50e6, Queue: 300_000, MarkAbove: 15_000, Delay: 2 * ms}
	for _, c := range []struct {
		name   string
		dial   bool
		ours   tcp.ECN
		kernel string
		ipv6   bool
		marks  string // the kernel's counter
	}{
		{"we ask", true, tcp.ECNOn, "2", false, "IpExtInCEPkts"},
		{"the kernel asks", false, tcp.ECNAccept, "1", false, "IpExtInCEPkts"},
		{"we ask over IPv6", true, tcp.ECNOn, "2", true, "Ip6InCEPkts"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := openScene(t, kernelPeer, netlab.Config{IPv6: c.ipv6}, unet.HostConfig{TCP: unet.TCPConfig{ECN: c.ours}})
			testutil.Must(t, s.B.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_ecn", []byte(c.kernel), 0) }))
			s.impair(rule, rule)
			marked := func() bool { return s.link.Counters(0).Marked > 0 && s.link.Counters(1).Marked > 0 }
			for range 20 { // a sender that gets little of a busy processor fills no queue
				both := s.connect(t, c.dial)
				if !both.ours.(*unet.TCPConn).Info().ECN {
					t.Error("ECN was not negotiated")
				}
				if err := exchange(2*mb, both); err != nil {
					t.Error(err)
				}
				if marked() || t.Failed() {
					break
				}
			}
			for d := range impair.Direction(2) {
				if n := s.link.Counters(d); n.Marked == 0 || n.Lost() > 0 {
					t.Errorf("direction %d: %+v", d, n)
				}
			}
			counted := counters(s.host)
			if counted["tcp_congestion_marks"] == 0 || counted["tcp_congestion_echoes"] == 0 || counted["tcp_bytes_retransmitted"] > 0 {
				t.Errorf("%d marks, %d echoes, %d bytes sent again", counted["tcp_congestion_marks"], counted["tcp_congestion_echoes"], counted["tcp_bytes_retransmitted"])
			}
			marks, err := s.B.Counted(c.marks)
			testutil.Must(t, err)
			if marks == 0 {
				t.Error("the kernel has seen no marks")
			}
			t.Logf("marks received by us %d, reported to us %d, received by the kernel %d", counted["tcp_congestion_marks"], counted["tcp_congestion_echoes"], marks)
		})
	}
}
