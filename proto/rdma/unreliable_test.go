package rdma

import (
	"bytes"
	"testing"

	"github.com/unet-go/unet/wire"
)

// TestUC loses, repeats and breaks messages of UC: nothing is answered, and what arrives whole
// arrives once and in order.
func TestUC(t *testing.T) {
	p := newPeer(t, UC, 4)
	count := func(c Counter) uint64 { return p.q.d.counts[c] }
	send := func(op wire.Opcode, psn uint32, n int) {
		t.Helper()
		h := wire.RoCE{Opcode: op, PSN: psn & psnMask, VA: p.mr.Addr() + 3000, RKey: p.mr.RKey(), DMALen: 300}
		p.expect("answers", p.send(h, n), "")
	}
	for _, s := range []struct {
		name    string
		op      wire.Opcode
		psn     uint32
		n       int
		done    string
		counter Counter
		counted uint64
	}{
		{"FIRST", wire.OpSendFirst, 100, 256, "", 0, 0},
		{"LAST", wire.OpSendLast, 101, 9, "0: 265 bytes", 0, 0},
		{"the same again", wire.OpSendLast, 101, 9, "", Duplicates, 1},
		{"an old FIRST", wire.OpSendFirst, 100, 256, "", Duplicates, 2},
		{"ONLY behind a gap", wire.OpSendOnly, 105, 5, "1: 5 bytes", SequenceGaps, 1},
		{"FIRST", wire.OpSendFirst, 106, 256, "", 0, 0},
		{"LAST behind a gap", wire.OpSendLast, 108, 9, "", MessagesDropped, 1},
		{"MIDDLE of nothing", wire.OpSendMiddle, 109, 256, "", MessagesDropped, 1},
		{"ONLY: the receive of the dropped message", wire.OpSendOnly, 110, 7, "2: 7 bytes", 0, 0},
		{"FIRST", wire.OpSendFirst, 111, 256, "", 0, 0},
		{"FIRST within the message", wire.OpSendFirst, 112, 256, "", MessagesDropped, 2},
		{"LAST", wire.OpSendLast, 113, 1, "3: 257 bytes", 0, 0},
		{"no receive", wire.OpSendOnly, 114, 1, "", ReceiverNotReady, 1},
		{"WRITE FIRST", wire.OpWriteFirst, 115, 256, "", 0, 0},
		{"WRITE LAST", wire.OpWriteLast, 116, 44, "", MessagesDropped, 3},
		{"WRITE LAST of nothing", wire.OpWriteLast, 117, 44, "", RequestsInvalid, 1},
		{"far ahead", wire.OpWriteFirst, 1 << 22, 256, "", SequenceGaps, 3},
		{"far behind", wire.OpWriteFirst, 500, 256, "", MessagesDropped, 5},
	} {
		send(s.op, s.psn, s.n)
		p.expect(s.name, p.completions(), s.done)
		if s.counter != 0 && count(s.counter) != s.counted {
			t.Errorf("%s: counter %s is %d, want %d", s.name, counterNames[s.counter], count(s.counter), s.counted)
		}
	}
	if !bytes.Equal(p.mr.Bytes()[3000:3300], bytes.Repeat([]byte{0xaa}, 300)) {
		t.Error("the WRITE has not arrived")
	}
	if p.q.State() != StateRTS {
		t.Error(p.q.State())
	}
}

// TestUD takes datagrams, and drops those that do not fit their receive. A dropped
// datagram consumes no receive.
func TestUD(t *testing.T) {
	p := newPeer(t, UD, 0)
	send := func(qkey uint32, n int) {
		p.expect("answers", p.send(wire.RoCE{Opcode: wire.OpSendOnly, QKey: qkey, SrcQP: 0x1234}, n), "")
	}
	send(9, 4)
	p.receive(1, 50)
	send(9, 11)
	send(8, 4)
	send(9, 257)
	p.expect("completions", p.completions(), "")
	for c, want := range map[Counter]uint64{ReceiverNotReady: 1, ReceivesTooShort: 1, BadQKey: 1, RequestsInvalid: 1} {
		if n := p.q.d.counts[c]; n != want {
			t.Errorf("counter %s is %d, want %d", counterNames[c], n, want)
		}
	}
	send(9, 10)
	p.expect("completions", p.completions(), "0: 50 bytes")
	send(9, 0)
	p.receive(1, 40)
	send(9, 0)
	p.expect("completions", p.completions(), "0: 40 bytes")
	// The receive of a dropped datagram is still posted.
	p.receive(1, 39)
	send(9, 0)
	if err := p.q.Modify(0, &QPAttr{State: StateErr}, QPState); err != nil {
		t.Fatal(err)
	}
	p.expect("completions", p.completions(), "0: Work Request Flushed Error")
}
