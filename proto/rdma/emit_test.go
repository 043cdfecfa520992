package rdma

import (
	"testing"

	"github.com/unet-go/unet/wire"
)

// With holdACKs an ACK waits; requests, and responses that carry data, do not, also those of
// queue pairs behind it.
func TestReadyHoldsACKs(t *testing.T) {
	p, x, y := connected(t, RC)
	x2, y2 := p.end(0, RC), p.end(1, RC)
	x2.connect(y2, attrs, 1, 2)
	y2.connect(x2, attrs, 2, 1)
	hold, last := true, wire.Opcode(0)
	deliver := func(e *end) {
		t.Helper()
		q := e.d.Ready(hold)
		if q != e.qp {
			t.Fatal("the queue pair is not ready")
		}
		b := make([]byte, q.Room())
		defer func() { last = wire.Opcode(b[wire.RoCEOffset]) }()
		b = b[:q.Emit(p.now, b)]
		to := p.host[0]
		if e.d == to {
			to = p.host[1]
		}
		to.Process(p.now, &Packet{IP: b, Src: e.d.cfg.Addr, SrcPort: wire.RoCEPort, Data: b[wire.RoCEOffset:]})
	}
	write := SendWR{Opcode: WRRDMAWrite, SGList: []SGE{x.mr.SGE(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
	x.qp.PostSend(p.now, []SendWR{write})
	deliver(x)
	if y.d.Ready(true) != nil || y.d.Ready(false) != y.qp {
		t.Error("an ACK is not held")
	}
	y2.qp.PostSend(p.now, []SendWR{{Opcode: WRRDMARead, SGList: []SGE{y2.mr.SGE(0, 8)}, RemoteAddr: x2.mr.Addr(), RKey: x2.mr.RKey()}})
	deliver(y2)
	deliver(x2)
	if y.d.Ready(true) != nil || y.d.Ready(false) != y.qp {
		t.Error("the ACK has gone")
	}
	write.SGList = []SGE{y.mr.SGE(0, 8)}
	write.RemoteAddr, write.RKey = x.mr.Addr(), x.mr.RKey()
	y.qp.PostSend(p.now, []SendWR{write, write})
	hold = false
	for _, want := range []wire.Opcode{wire.OpWriteOnly, wire.OpAck, wire.OpWriteOnly} { // one request goes ahead of an ACK
		if deliver(y); last != want {
			t.Errorf("sent %v, want %v", last, want)
		}
	}
	if y.d.Ready(false) != nil {
		t.Error("more to send")
	}
}
