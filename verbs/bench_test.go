//go:build linux

package verbs_test

import (
	"sync/atomic"
	"testing"

	"github.com/unet-go/unet"
	"github.com/unet-go/unet/endpoint"
	"github.com/unet-go/unet/verbs"
)

// Round trips of 64 bytes between two contexts in memory, both driven by one goroutine.
func BenchmarkRoundTrip(b *testing.B) {
	for _, op := range []string{"send", "write", "read"} {
		b.Run(op, func(b *testing.B) {
			p, q := newPeers(b, links[0], unet.HostConfig{Wait: endpoint.WaitSpin}, verbs.RC)
			listP, listQ := []verbs.SGE{p.mr.SGE(0, 64)}, []verbs.SGE{q.mr.SGE(0, 64)}
			recvP, recvQ := []verbs.RecvWR{{SGList: listP}}, []verbs.RecvWR{{SGList: listQ}}
			to := []verbs.SendWR{{Opcode: verbs.WRSend, SGList: listP, RemoteAddr: q.mr.Addr(), RKey: q.mr.RKey()}}
			back := []verbs.SendWR{{Opcode: verbs.WRSend, SGList: listQ, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}}
			switch op {
			case "write":
				to[0].Opcode, back[0].Opcode = verbs.WRRDMAWrite, verbs.WRRDMAWrite
			case "read":
				to[0].Opcode = verbs.WRRDMARead
			}
			wcs := make([]verbs.WC, 4)
			post := func(p *peer, wrs []verbs.SendWR, i uint64) {
				wrs[0].Flags = 0
				if i%16 == 0 || op == "read" {
					wrs[0].Flags = verbs.SendSignaled
				}
				if n, err := p.qp.PostSend(wrs...); n == 0 {
					b.Fatal(err)
				}
			}
			poll := func(p *peer) {
				for {
					n := p.cq.Poll(wcs)
					for _, wc := range wcs[:n] {
						if wc.Status != verbs.StatusSuccess {
							b.Fatal(wc.Status)
						}
						if wc.Opcode == verbs.WCRecv || op == "read" {
							return
						}
					}
				}
			}
			see := func(p *peer, i uint64) {
				for atomic.LoadUint64(p.word(56)) != i {
					p.ctx.Poll()
				}
				if i%16 == 0 {
					p.cq.Poll(wcs)
				}
			}
			b.ReportAllocs()
			for i := uint64(0); b.Loop(); {
				i++
				switch op {
				case "send":
					p.qp.PostRecv(recvP...)
					q.qp.PostRecv(recvQ...)
					post(p, to, i)
					poll(q)
					post(q, back, i)
					poll(p)
				case "write":
					*p.word(56) = i
					post(p, to, i)
					see(q, i)
					*p.word(56) = 0
					*q.word(56) = i
					post(q, back, i)
					see(p, i)
				case "read":
					post(p, to, i)
					q.ctx.Poll()
					poll(p)
				}
			}
		})
	}
}
