package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
	"github.com/unet-go/unet/wire"
)

var sizes = []int{0, 1, 3, 64, 1023, 1024, 1025, 4096, 100_000}

func TestSendAndReceive(t *testing.T) {
	for _, typ := range []QPType{RC, UC} {
		for _, n := range sizes {
			t.Run(fmt.Sprint(typ, n), func(t *testing.T) {
				p, a, b := connected(t, typ)
				fill(a.buf, uint64(n))
				b.recv(RecvWR{WRID: 1, SGList: []SGE{b.mr.SGE(5, 1000), b.mr.SGE(2000, 200_000)}})
				a.post(SendWR{WRID: 2, Opcode: WRSendWithImm, ImmData: 77, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(1, n/2), a.mr.SGE(1+n/2, n-n/2)}})
				p.run()
				a.expect(WC{WRID: 2, Opcode: WCSend})
				b.expect(WC{WRID: 1, Opcode: WCRecv, ByteLen: uint32(n), ImmData: 77, Flags: WCWithImm})
				k := min(n, 1000)
				if !bytes.Equal(b.buf[5:5+k], a.buf[1:1+k]) || !bytes.Equal(b.buf[2000:2000+n-k], a.buf[1+k:1+n]) {
					t.Fatal("the data differs")
				}
			})
		}
	}
}

func TestWriteReadAtomic(t *testing.T) {
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			p, a, b := connected(t, RC)
			fill(a.buf[:300_000], uint64(n))
			binary.NativeEndian.PutUint64(b.buf[8:], 40)
			a.post(
				SendWR{WRID: 1, Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(3, n)}, RemoteAddr: b.mr.Addr() + 16, RKey: b.mr.RKey()},
				SendWR{WRID: 2, Opcode: WRRDMARead, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(500_000, n/3), a.mr.SGE(500_000+n/3, n-n/3)}, RemoteAddr: b.mr.Addr() + 16, RKey: b.mr.RKey()},
				SendWR{WRID: 3, Opcode: WRAtomicFetchAndAdd, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(800_000, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 2},
				SendWR{WRID: 4, Opcode: WRAtomicCmpAndSwp, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(800_008, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 42, Swap: 9},
				SendWR{WRID: 5, Opcode: WRAtomicCmpAndSwp, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(800_016, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 42, Swap: 10})
			p.run()
			a.expect(WC{WRID: 1, Opcode: WCRDMAWrite}, WC{WRID: 2, Opcode: WCRDMARead, ByteLen: uint32(n)},
				WC{WRID: 3, Opcode: WCFetchAdd, ByteLen: 8}, WC{WRID: 4, Opcode: WCCompSwap, ByteLen: 8}, WC{WRID: 5, Opcode: WCCompSwap, ByteLen: 8})
			if !bytes.Equal(b.buf[16:16+n], a.buf[3:3+n]) || !bytes.Equal(a.buf[500_000:500_000+n], a.buf[3:3+n]) {
				t.Fatal("the data differs")
			}
			for i, want := range []uint64{40, 42, 9} {
				if got := binary.NativeEndian.Uint64(a.buf[800_000+8*i:]); got != want {
					t.Errorf("atomic %d returned %d, want %d", i, got, want)
				}
			}
			if got := binary.NativeEndian.Uint64(b.buf[8:]); got != 9 {
				t.Errorf("the word is %d", got)
			}
			if p.host[0].counts[Retransmitted] != 0 {
				t.Error("retransmitted without a loss")
			}
		})
	}
}

// TestLoss drops each packet of an exchange in turn.
func TestLoss(t *testing.T) {
	const n = 20_000
	for lost := 0; ; lost++ {
		p, a, b := connected(t, RC)
		fill(a.buf[:300_000], uint64(n))
		sent := 0
		p.drop = func(from int, h *wire.RoCE) bool {
			sent++
			return sent == lost+1
		}
		for i := range 3 {
			b.recv(RecvWR{WRID: uint64(10 + i), SGList: []SGE{b.mr.SGE(i*n, n)}})
			a.post(
				SendWR{WRID: uint64(3 * i), Opcode: WRSend, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(i*n, n)}},
				SendWR{WRID: uint64(3*i + 1), Opcode: WRAtomicFetchAndAdd, SGList: []SGE{a.mr.SGE(800_000+8*i, 8)}, RemoteAddr: b.mr.Addr() + 900_000, RKey: b.mr.RKey(), CompareAdd: 1, Flags: SendSignaled},
				SendWR{WRID: uint64(3*i + 2), Opcode: WRRDMARead, Flags: SendSignaled | SendFence, SGList: []SGE{a.mr.SGE(500_000+i*n, n)}, RemoteAddr: b.mr.Addr() + uint64(i*n), RKey: b.mr.RKey()})
		}
		p.run()
		if sent <= lost {
			if lost < 20 {
				t.Fatal(lost)
			}
			return
		}
		a.expect(WC{WRID: 0, Opcode: WCSend}, WC{WRID: 1, Opcode: WCFetchAdd, ByteLen: 8}, WC{WRID: 2, Opcode: WCRDMARead, ByteLen: n},
			WC{WRID: 3, Opcode: WCSend}, WC{WRID: 4, Opcode: WCFetchAdd, ByteLen: 8}, WC{WRID: 5, Opcode: WCRDMARead, ByteLen: n},
			WC{WRID: 6, Opcode: WCSend}, WC{WRID: 7, Opcode: WCFetchAdd, ByteLen: 8}, WC{WRID: 8, Opcode: WCRDMARead, ByteLen: n})
		if !bytes.Equal(b.buf[:3*n], a.buf[:3*n]) || !bytes.Equal(a.buf[500_000:500_000+3*n], a.buf[:3*n]) {
			t.Fatalf("packet %d lost: the data differs", lost)
		}
		for i := range 3 {
			if got := binary.NativeEndian.Uint64(a.buf[800_000+8*i:]); got != uint64(i) {
				t.Fatalf("packet %d lost: atomic %d returned %d", lost, i, got)
			}
		}
	}
}

// TestNoAllocation: neither posting nor packets take memory.
func TestNoAllocation(t *testing.T) {
	p, a, b := connected(t, RC)
	frame, wcs := make([]byte, 2048), make([]WC, 16)
	wrs := []SendWR{
		{Opcode: WRSend, Flags: SendSignaled | SendInline, Inline: a.buf[:64]},
		{Opcode: WRRDMAWrite, SGList: []SGE{a.mr.SGE(0, 3000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: WRRDMARead, SGList: []SGE{a.mr.SGE(0, 3000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: WRAtomicFetchAndAdd, SGList: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: WRBindMW, MW: testutil.Value(a.pd.AllocMW()), Bind: MWBind{MR: a.mr, Addr: a.mr.Addr(), Length: 8, Access: AccessRemoteRead}},
		{Opcode: WRLocalInv, Flags: SendSignaled},
	}
	recv := []RecvWR{{SGList: []SGE{b.mr.SGE(0, 64)}}}
	if n := testing.AllocsPerRun(100, func() {
		p.now += 1000
		key := IncRKey(wrs[4].MW.RKey())
		wrs[4].Bind.RKey, wrs[5].InvalidateRKey = key, key
		b.qp.PostRecv(recv)
		a.qp.PostSend(p.now, wrs)
		p.exchange(frame)
		if a.cq.Poll(wcs) != 2 || b.cq.Poll(wcs) != 1 {
			t.Fatal("incomplete")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
