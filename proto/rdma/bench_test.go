package rdma

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// exchange hands over packets until there is none, without a copy.
func (p *pair) exchange(frame []byte) {
	for busy := true; busy; {
		busy = false
		for i, d := range p.host {
			for q := d.Ready(false); q != nil; q = d.Ready(false) {
				n := q.Emit(p.now, frame)
				pkt := Packet{IP: frame[:n], Src: d.cfg.Addr, SrcPort: wire.RoCEPort, Data: frame[wire.RoCEOffset:n]}
				p.host[1-i].Process(p.now, &pkt)
				busy = true
			}
		}
	}
}

// measure runs one round of the benchmark again and again; it allocates nothing.
func measure(b *testing.B, bytes int, round func()) {
	if n := testing.AllocsPerRun(100, round); n != 0 {
		b.Errorf("%v allocations", n)
	}
	b.SetBytes(int64(bytes))
	for b.Loop() {
		round()
	}
}

func BenchmarkSendRoundTrip(b *testing.B) {
	p, x, y := connected(b, RC)
	frame, wcs := make([]byte, 2048), make([]WC, 8)
	wr := func(e *end) ([]SendWR, []RecvWR) {
		return []SendWR{{Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{e.mr.SGE(0, 64)}}}, []RecvWR{{SGList: []SGE{e.mr.SGE(64, 64)}}}
	}
	xs, xr := wr(x)
	ys, yr := wr(y)
	measure(b, 64, func() {
		p.now += 1000
		x.qp.PostRecv(xr)
		y.qp.PostRecv(yr)
		x.qp.PostSend(p.now, xs)
		p.exchange(frame)
		y.qp.PostSend(p.now, ys)
		p.exchange(frame)
		if x.cq.Poll(wcs) != 2 || y.cq.Poll(wcs) != 2 {
			b.Fatal("incomplete")
		}
	})
}

// BenchmarkRequests posts lists of 32 with one completion.
func BenchmarkRequests(b *testing.B) {
	for _, c := range []struct {
		name string
		op   WROpcode
		n    int
		list int
	}{{"write64", WRRDMAWrite, 64, 32}, {"write64K", WRRDMAWrite, 65536, 1}, {"read64", WRRDMARead, 64, 32}, {"read64K", WRRDMARead, 65536, 1}, {"add", WRAtomicFetchAndAdd, 8, 32}} {
		b.Run(c.name, func(b *testing.B) {
			p, x, y := connected(b, RC)
			frame, wcs := make([]byte, 2048), make([]WC, 8)
			wrs := make([]SendWR, c.list)
			for i := range wrs {
				wrs[i] = SendWR{Opcode: c.op, SGList: []SGE{x.mr.SGE(0, c.n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
			}
			wrs[c.list-1].Flags = SendSignaled
			measure(b, c.n*c.list, func() {
				p.now += 1000
				x.qp.PostSend(p.now, wrs)
				p.exchange(frame)
				if x.cq.Poll(wcs) != 1 {
					b.Fatal("incomplete")
				}
			})
		})
	}
}
