//go:build linux

package bpf

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/unet-go/unet/internal/testutil"
)

// costRuns is how many times a program runs in one turn. The kernel rounds the time of a run to 1 ns.
const costRuns = 100_000

// BenchmarkPrograms measures the run time of the programs by BPF_PROG_TEST_RUN, with all caches warm, in
// nanoseconds above that of a program that only returns XDP_DROP. All cases take turns. The result is the mean
// of the faster half of the turns, which other load on the machine changes little. In a test run a redirect
// only stores the destination: the kernel's part of it is not measured. -v also prints the sizes of the programs.
func BenchmarkPrograms(b *testing.B) {
	inLab(b, true, func(l *lab) { l.benchmark(b) })
}

func (l *lab) benchmark(b *testing.B) {
	l.deliverTo(openSocket(b, l.uplink))
	cases := l.costCases()
	// Limits that are not reached: of an endpoint and its user, and of an endpoint only.
	highLimit := func(uid uint32) *Limit {
		return &Limit{Uid: uid, Packets: NewBucket(1e9, 1e9), Bytes: NewBucket(1e10, 5e9)}
	}
	putLimit(b, l.objs.PortLimits, l.a, highLimit(limitedUID))
	putLimit(b, l.objs.UserLimits, limitedUID, highLimit(0))
	putLimit(b, l.objs.PortLimits, l.b, highLimit(NoUser))
	for _, c := range cases {
		l.want(c.name, c.program, c.frame, c.from, 0, c.counter)
	}
	cases = append(cases, costCase{"floor", empty(b, ebpf.XDP, drop), toSocket(64), l.uplink, 0})
	turns := make([][]time.Duration, len(cases))
	for b.Loop() {
		for i, c := range cases {
			d, err := timed(c.program, c.frame, c.from, costRuns)
			testutil.Must(b, err)
			turns[i] = append(turns[i], d)
		}
	}
	floor := fastMean(turns[len(cases)-1])
	for i, c := range cases[:len(cases)-1] {
		b.ReportMetric(fastMean(turns[i])-floor, c.name+"-ns")
	}
	b.ReportMetric(floor, "floor-ns")
	b.ReportMetric(0, "ns/op") // the time of an iteration is not a result
	for name, p := range map[string]*ebpf.Program{"unet_port": l.objs.UnetPort, "unet_port_limited": l.objs.UnetPortLimited, "unet_uplink": l.objs.UnetUplink, "unet_deliver": l.objs.UnetDeliver,
		"unet_deliver_linear": l.objs.UnetDeliverLinear, "unet_deliver_whole": l.objs.UnetDeliverWhole} {
		info, err := p.Info()
		testutil.Must(b, err)
		jited, err := info.JitedSize()
		testutil.Must(b, err)
		translated, err := info.TranslatedSize()
		testutil.Must(b, err)
		verified, _ := info.VerifiedInstructions()
		b.Logf("%s: %d instructions, %d bytes of machine code, %d instructions verified", name, translated/8, jited, verified)
	}
}

// BenchmarkUnclaimed measures, as BenchmarkPrograms does, what a frame that no tag claims costs: UDP to a
// port in no block with a tag, while other ports and no owned address are claimed.
func BenchmarkUnclaimed(b *testing.B) {
	inLab(b, true, func(l *lab) {
		l.claim(Key(TagUDP, shared.As4(), 7000), l.port(l.a))
		l.claim(Key(TagTCPBlock, shared.As4(), 32768), l.port(l.a))
		frame := datagram(l.mac, peerMAC, netip.AddrPortFrom(peer, 4000), netip.AddrPortFrom(shared, 53), 64)
		programs := map[string][2]*ebpf.Program{ // with one that only returns
			"tcx": {l.objs.UnetUplinkTcx, empty(b, ebpf.SchedCLS, -1)},
			"lo":  {l.objs.UnetLo, empty(b, ebpf.SchedCLS, -1)},
			"out": {l.objs.UnetEgress, empty(b, ebpf.SchedCLS, -1)},
			"XDP": {l.objs.UnetUplink, empty(b, ebpf.XDP, int32(pass))},
		}
		turns := map[*ebpf.Program][]time.Duration{}
		for b.Loop() {
			for _, pair := range programs {
				for _, p := range pair {
					d, err := timed(p, frame, l.uplink, costRuns)
					testutil.Must(b, err)
					turns[p] = append(turns[p], d)
				}
			}
		}
		for name, pair := range programs {
			b.ReportMetric(fastMean(turns[pair[0]])-fastMean(turns[pair[1]]), name+"-ns")
		}
		b.ReportMetric(0, "ns/op") // the time of an iteration is not a result
	})
}

// empty is a program that only returns.
func empty(b *testing.B, kind ebpf.ProgramType, verdict int32) *ebpf.Program {
	b.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()}})
	testutil.Must(b, err)
	b.Cleanup(func() { p.Close() })
	return p
}

// fastMean is the mean of the faster half, in nanoseconds.
func fastMean(turns []time.Duration) float64 {
	slices.Sort(turns)
	half := turns[:(len(turns)+1)/2]
	sum := time.Duration(0)
	for _, d := range half {
		sum += d
	}
	return float64(sum) / float64(len(half))
}

// costCase is a program and a frame, and the counter of its verdict.
type costCase struct {
	name    string
	program *ebpf.Program
	frame   []byte
	from    int
	counter Counter
}

// costCases are the cases of BenchmarkPrograms.
func (l *lab) costCases() []costCase {
	claimForPorts(l)
	l.claim(Key(TagTCP, shared.As4(), 7000), l.port(l.a))
	l.reach(l.uplink, l.a, l.b)
	remote4 := netip.AddrPortFrom(peer, 4000)
	own := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	var list []costCase
	for _, c := range []struct {
		name  string
		tcp   bool
		local netip.AddrPort
		from  int
	}{
		{"UDP", false, own(shared, 7000), l.a},
		{"TCP", true, own(shared, 7000), l.a},
		{"block", true, own(shared, 32769), l.a},
		{"owned", false, own(owned, 5000), l.b},
		{"UDP6", false, own(shared6, 7000), l.a},
	} {
		build := datagram
		remote := remote4
		if c.tcp {
			build = segment
		}
		if c.local.Addr().Is6() {
			remote = netip.AddrPortFrom(peer6, 4000)
		}
		list = append(list,
			costCase{"port/" + c.name, l.objs.UnetPort, build(peerMAC, l.mac, c.local, remote, 64), c.from, txUplink},
			costCase{"uplink/" + c.name, l.objs.UnetUplink, build(l.mac, peerMAC, remote, c.local, 64), l.uplink, rxPort})
	}
	return append(list,
		costCase{"port/message", l.objs.UnetPort, message(peerMAC, l.mac, 9, 7, 64, 64), l.a, txUplink},
		costCase{"uplink/message", l.objs.UnetUplink, message(l.mac, peerMAC, 7, 9, 64, 64), l.uplink, rxPort},
		costCase{"limited/message", l.objs.UnetPortLimited, message(peerMAC, l.mac, 9, 7, 64, 64), l.a, txUplink},
		costCase{"limited-endpoint/message", l.objs.UnetPortLimited, message(peerMAC, l.mac, 9, 8, 64, 64), l.b, txUplink},
		costCase{"port/local", l.objs.UnetPort, datagram(l.mac, l.mac, own(shared, 7000), own(owned, 5000), 64), l.a, txLocal},
		costCase{"uplink/pass", l.objs.UnetUplink, datagram(l.mac, peerMAC, remote4, own(shared, 53), 64), l.uplink, rxPass},
		costCase{"deliver/trusted", l.objs.UnetDeliver, toSocket(64), l.uplink, delivered},
		costCase{"deliver/linear", l.objs.UnetDeliverLinear, toSocket(64), l.uplink, delivered},
		costCase{"deliver/whole", l.objs.UnetDeliverWhole, toSocket(64), l.uplink, delivered})
}
