package rdma

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unet-go/unet/internal/testutil"
)

// TestStoreAndLoadAtAllAlignments copies every short length to and from every alignment.
func TestStoreAndLoadAtAllAlignments(t *testing.T) {
	src := make([]byte, 64)
	fill(src, 3)
	for _, copyIn := range []func(dst, src []byte){store, storeWords} {
		for to := range 9 {
			for n := range 40 {
				for from := range 4 {
					buf := bytes.Repeat([]byte{0xee}, 64)
					copyIn(buf[to:to+n], src[from:from+n])
					want := bytes.Repeat([]byte{0xee}, 64)
					copy(want[to:], src[from:from+n])
					if !bytes.Equal(buf, want) {
						t.Fatalf("%d bytes to offset %d: %x, want %x", n, to, buf, want)
					}
					got := make([]byte, n)
					load(got, buf[to:to+n])
					if !bytes.Equal(got, src[from:from+n]) {
						t.Fatalf("load %d bytes from offset %d: %x", n, to, got)
					}
				}
			}
		}
	}
}

// TestLastWordIsStoredLast: a reader that has loaded the last word of a store sees the rest of it.
func TestLastWordIsStoredLast(t *testing.T) {
	for _, size := range []int{8, 12, 64, 100, 4096} {
		words := make([]uint32, size/4)
		buf := bytesOf(words)
		var wg sync.WaitGroup
		wg.Go(func() {
			src := make([]byte, size)
			for i := byte(1); i < 100; i++ {
				for k := range src {
					src[k] = i
				}
				store(buf, src)
				for atomic.LoadUint32(&words[0]) != 0 { // until it has been checked
				}
			}
		})
		for i := uint32(1); i < 100; i++ {
			for atomic.LoadUint32(&words[len(words)-1]) != i*0x01010101 {
			}
			for k := range words {
				if got := atomic.LoadUint32(&words[k]); got != i*0x01010101 {
					t.Errorf("size %d: word %d is %#x in round %d", size, k, got, i)
				}
			}
			atomic.StoreUint32(&words[0], 0)
		}
		wg.Wait()
	}
}

func TestRegister(t *testing.T) {
	d := newDevice(1, Config{})
	pd := d.AllocPD()
	for _, access := range []Access{AccessRemoteWrite, AccessRemoteAtomic, 1 << 9} {
		if _, err := pd.RegMR(make([]byte, 8), access); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("access %#x: %v", access, err)
		}
	}
	if _, err := pd.RegMR(nil, 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	seen := map[uint32]bool{}
	for range 100 {
		mr := testutil.Value(pd.RegMR(make([]byte, 8), 0))
		if seen[mr.RKey()] {
			t.Error("the same key twice")
		}
		seen[mr.RKey()] = true
		if d.find(mr.RKey()) != &mr.region {
			t.Error("not found")
		}
		if err := mr.Close(); err != nil || d.find(mr.RKey()) != nil {
			t.Error(err)
		}
	}
	if len(d.keys) != 0 {
		t.Error(len(d.keys))
	}
}

// TestWindows binds a window, uses it, and invalidates it by each of the three ways.
func TestWindows(t *testing.T) {
	for _, way := range []string{"local", "send", "dealloc", "destroy"} {
		p, a, b := connected(t, RC)
		mw := testutil.Value(b.pd.AllocMW())
		old, key := mw.RKey(), IncRKey(mw.RKey())
		bind := SendWR{WRID: 1, Opcode: WRBindMW, Flags: SendSignaled, MW: mw,
			Bind: MWBind{RKey: key, MR: b.mr, Addr: b.mr.Addr() + 100, Length: 50, Access: AccessRemoteWrite}}
		b.post(bind)
		b.expect(WC{WRID: 1, Opcode: WCBindMW})
		if mw.RKey() != key || b.d.find(old) != nil {
			t.Fatal("the old key is valid")
		}
		if err := b.mr.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Error(err)
		}
		write := SendWR{WRID: 2, Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, 50)}, RemoteAddr: b.mr.Addr() + 100, RKey: key}
		a.post(write)
		p.run()
		a.expect(WC{WRID: 2, Opcode: WCRDMAWrite})
		switch way {
		case "local":
			b.post(SendWR{WRID: 3, Opcode: WRLocalInv, Flags: SendSignaled, InvalidateRKey: key})
			b.expect(WC{WRID: 3, Opcode: WCLocalInv})
		case "send":
			b.recv(RecvWR{WRID: 4})
			a.post(SendWR{Opcode: WRSendWithInv, InvalidateRKey: key})
			p.run()
			b.expect(WC{WRID: 4, Opcode: WCRecv, Flags: WCWithInv, InvalidatedRKey: key})
		case "dealloc":
			mw.Close()
			mw.Close()
		case "destroy":
			b.qp.Close()
		}
		if b.mr.windows != 0 {
			t.Error(way, ": still bound")
		}
		if way == "destroy" {
			continue
		}
		a.post(write)
		p.run()
		a.expect(WC{WRID: 2, Status: StatusRemAccessErr})
	}
}

// TestWindowOfAnotherQueuePair: a window works on its queue pair only, and within its range.
func TestWindowOfAnotherQueuePair(t *testing.T) {
	for _, c := range []struct {
		off, n int
		rights Access
		other  bool
		want   Status
	}{
		{100, 50, AccessRemoteWrite, false, StatusSuccess}, {99, 50, AccessRemoteWrite, false, StatusRemAccessErr},
		{101, 50, AccessRemoteWrite, false, StatusRemAccessErr}, {100, 50, AccessRemoteRead, false, StatusRemAccessErr},
		{100, 50, AccessRemoteWrite, true, StatusRemAccessErr},
	} {
		p, a, b := connected(t, RC)
		q := b.qp
		if c.other {
			q = p.end(1, RC).qp
			q.state = StateRTS
		}
		mw := testutil.Value(b.pd.AllocMW())
		if !q.bindFor(b, mw, MWBind{RKey: IncRKey(mw.RKey()), MR: b.mr, Addr: b.mr.Addr() + 100, Length: 50, Access: c.rights}) && !c.other {
			t.Fatal("bind")
		}
		a.post(SendWR{Opcode: WRRDMAWrite, Flags: SendSignaled, SGList: []SGE{a.mr.SGE(0, c.n)}, RemoteAddr: b.mr.Addr() + uint64(c.off), RKey: mw.RKey()})
		p.run()
		a.expect(WC{Opcode: WCRDMAWrite, Status: c.want})
	}
}

// bindFor binds on q, whose domain becomes that of b.
func (q *QP) bindFor(b *end, w *MW, info MWBind) bool {
	q.pd = b.pd
	return q.bind(w, info)
}

// TestBindErrors lists what cannot be bound.
func TestBindErrors(t *testing.T) {
	for name, change := range map[string]func(e *end, w *SendWR){
		"same key":       func(e *end, w *SendWR) { w.Bind.RKey = w.MW.RKey() },
		"other key":      func(e *end, w *SendWR) { w.Bind.RKey ^= 0x100 },
		"nothing":        func(e *end, w *SendWR) { w.Bind.Length = 0 },
		"beyond the end": func(e *end, w *SendWR) { w.Bind.Length = uint64(len(e.buf)) + 1 },
		"overflow":       func(e *end, w *SendWR) { w.Bind.Addr, w.Bind.Length = w.Bind.Addr+8, ^uint64(0)-3 },
		"local access":   func(e *end, w *SendWR) { w.Bind.Access = AccessLocalWrite },
		"no binding": func(e *end, w *SendWR) {
			w.Bind.MR = testutil.Value(e.pd.RegMR(make([]byte, 100), AccessLocalWrite))
			w.Bind.Addr = w.Bind.MR.Addr()
		},
		"no write": func(e *end, w *SendWR) {
			w.Bind.MR = testutil.Value(e.pd.RegMR(make([]byte, 100), AccessMWBind))
			w.Bind.Addr = w.Bind.MR.Addr()
		},
		"other domain": func(e *end, w *SendWR) {
			w.MW = testutil.Value(e.d.AllocPD().AllocMW())
			w.Bind.RKey = IncRKey(w.MW.RKey())
		},
		"deallocated": func(e *end, w *SendWR) { w.MW.Close() },
	} {
		_, a, _ := connected(t, RC)
		mw := testutil.Value(a.pd.AllocMW())
		wr := SendWR{WRID: 1, Opcode: WRBindMW, MW: mw, Bind: MWBind{RKey: IncRKey(mw.RKey()), MR: a.mr, Addr: a.mr.Addr(), Length: 10, Access: AccessRemoteWrite}}
		change(a, &wr)
		t.Log(name)
		a.post(wr)
		a.expect(WC{WRID: 1, Status: StatusMWBindErr})
	}
	_, a, _ := connected(t, RC)
	a.post(SendWR{WRID: 1, Opcode: WRLocalInv, InvalidateRKey: a.mr.RKey()})
	a.expect(WC{WRID: 1, Status: StatusMWBindErr})
}
