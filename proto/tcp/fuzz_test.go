package tcp

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// FuzzSegments brings a table into a state and then gives it the fuzzer's segments, with the right
// ports and checksums, mixed with timers and calls of the application. Nothing may panic, the
// invariants hold, and no memory is in use in the end.
//
// An instruction is a byte: the length of the segment that follows, or from 0xf0 on a call.
func FuzzSegments(f *testing.F) {
	seg := func(flags wire.TCPFlags, number, ack int, text string) []byte {
		b := make([]byte, 20+len(text))
		wire.PutTCP(b, &wire.TCPFields{Seq: uint32(number), Ack: uint32(ack), Flags: flags, Window: 500}, 20, 0)
		copy(b[20:], text)
		return append([]byte{byte(len(b))}, b...)
	}
	for i := range situations {
		f.Add(uint8(i), append(append(seg(wire.TCPAck, 1, 1, "hello"), seg(wire.TCPAck|wire.TCPFin, 6, 2, "")...), 0xf0, 0xf2))
		f.Add(uint8(i), append(append(append(seg(wire.TCPAck, 10, 1, "later"), 0xf1), seg(wire.TCPAck, 1, 11, "overlapping")...), seg(wire.TCPRst, 12, 1, "")...))
		f.Add(uint8(i), append(append(seg(wire.TCPSyn, 0, 0, ""), 0xf4, 0xf5, 0xf7), seg(wire.TCPAck, 1, 1, "")...))
	}
	f.Fuzz(func(t *testing.T, state uint8, program []byte) {
		q := situations[int(state)%len(situations)]
		cfg := Config{InPlace: 8}
		if state >= 128 {
			cfg.NoTimestamps, cfg.NoSACK = true, true
		}
		r := atSituation(t, q, cfg, false)
		r.out = nil
		for len(program) > 0 {
			op := program[0]
			program = program[1:]
			if op >= 0xf0 {
				r.fuzzOp(op & 0x0f)
			} else {
				n := min(int(op), len(program))
				b := append([]byte(nil), program[:n]...)
				program = program[n:]
				r.fuzzSegment(b)
			}
			r.drain()
			r.out = nil
			for _, c := range r.tab.conns {
				if msg := c.invariant(); msg != "" {
					t.Fatal(msg)
				}
			}
		}
		r.finish()
	})
}

// fuzzSegment gives a segment the right ports and checksum, and numbers relative to the SYNs.
func (r *runner) fuzzSegment(b []byte) {
	if len(b) >= 20 {
		binary.BigEndian.PutUint16(b, peerPort)
		binary.BigEndian.PutUint16(b[2:], localPort)
		binary.BigEndian.PutUint32(b[4:], peerISN+binary.BigEndian.Uint32(b[4:]))
		binary.BigEndian.PutUint32(b[8:], r.iss+binary.BigEndian.Uint32(b[8:]))
		b[16], b[17] = 0, 0
		binary.BigEndian.PutUint16(b[16:], ^wire.Fold(wire.Sum(b, wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(len(b))))))
	}
	r.process(b)
}

// fuzzOp runs timers or a call of the application.
func (r *runner) fuzzOp(op byte) {
	if r.l != nil && r.c == nil {
		r.c = r.l.Accept()
	}
	if op < 3 {
		r.advance(r.now.add([]time.Duration{1e6, 1e9, 61e9}[op]))
		return
	}
	if r.c == nil {
		return
	}
	switch op {
	case 3:
		r.c.Write(r.now, make([]byte, 700))
	case 4:
		r.c.Read(r.now, make([]byte, 100))
	case 5:
		r.c.CloseWrite(r.now)
	case 6:
		r.c.Close(r.now)
	case 7:
		r.c.CloseRead(r.now)
	case 8:
		r.c.Post(r.now, make([]byte, 50))
	case 9:
		r.c.Unpost(r.now)
	case 10:
		if l, ok := r.c.Borrow(r.now); ok {
			r.tab.Return(&l)
		}
	case 11:
		r.c.Abort()
	case 12:
		r.c.Lend(r.now, make([]byte, 900))
	case 13:
		r.c.SetMTU(r.now, 600, false)
	case 14:
		r.c.SetBuffers(r.now, 3000, 3000)
	case 15:
		r.c.SetKeepAlive(r.now, KeepAlive{Enable: true})
	}
}

// finish ends all connections and checks that no memory, frame or timer is left.
func (r *runner) finish() {
	if r.l != nil {
		r.l.Close()
	}
	for _, c := range r.tab.conns {
		c.Abort()
	}
	if r.c != nil {
		r.c.Abort()
	}
	r.drain()
	r.out = nil
	r.advance(r.now.add(DefaultTimeWait))
	if r.tab.Len() != 0 || r.tab.TimeWaits() != 0 || r.tab.MemoryInUse() != 0 || len(r.frames) != 0 || len(r.tab.timers) != 0 || r.tab.Deadline != Never {
		r.fatalf("%d connections, %d in TIME-WAIT, %d bytes, %d frames, %d timers left", r.tab.Len(), r.tab.TimeWaits(),
			r.tab.MemoryInUse(), len(r.frames), len(r.tab.timers))
	}
}

// FuzzListener gives a listener with short queues segments from four peers.
func FuzzListener(f *testing.F) {
	f.Add([]byte{0, 2, 0, 0, 1, 2, 0, 0, 2, 2, 0, 0, 2, 16, 1, 1, 0xff})
	f.Add([]byte("7B\t07\xd9\t\x01\xff00077\r0")) // accepted with data, and reset
	f.Add([]byte{3, 2, 0, 0, 3, 4, 1, 0, 3, 16, 1, 1, 0xfe, 3, 17, 1, 1})
	f.Fuzz(func(t *testing.T, program []byte) {
		tab := NewTable(Config{Secret: testSecret})
		l, err := tab.Listen(AddrPort{Port: localPort}, ListenOptions{SynQueue: 2, AcceptQueue: 1})
		if err != nil {
			t.Fatal(err)
		}
		now := Time(1e9)
		var accepted []*Conn
		var iss [4]uint32
		noteISS := func(b []byte) {
			if s := view(b); s.Flags&wire.TCPSyn != 0 {
				iss[s.DstPort%4] = s.Seq
			}
		}
		for len(program) >= 4 {
			peer, flags, number, ack := program[0], program[1], program[2], program[3]
			program = program[4:]
			if peer >= 0xfe {
				if peer == 0xff {
					if c := l.Accept(); c != nil {
						accepted = append(accepted, c)
					}
				}
				now = now.add(time.Duration(flags) * 1e9)
				tab.Expire(now)
			} else {
				peer %= 4
				b := make([]byte, 20+int(flags>>6))
				wire.PutTCP(b, &wire.TCPFields{SrcPort: peerPort + uint16(peer), DstPort: localPort, Flags: wire.TCPFlags(flags & 0x3f),
					Seq: uint32(number), Ack: iss[(peerPort+uint16(peer))%4] + uint32(ack), Window: 99},
					20, wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(len(b))))
				if tab.Process(now, &Inbound{Src: hostB, Dst: hostA, Data: b}).Reply {
					out := make([]byte, 60)
					noteISS(out[:tab.EmitReply(out)])
				}
			}
			for c := tab.Ready; c != nil; c = tab.Ready {
				out := make([]byte, 2000)
				noteISS(out[:c.Emit(now, out)])
			}
			if l.syns.n > 2 || l.accepts.n > 1 {
				t.Fatalf("%d in the SYN queue, %d in the accept queue", l.syns.n, l.accepts.n)
			}
		}
		l.Close()
		for _, c := range accepted {
			c.Abort()
		}
		if tab.Len() != 0 || tab.MemoryInUse() != 0 || len(tab.timers) != 0 {
			t.Fatalf("%d connections, %d bytes, %d timers left", tab.Len(), tab.MemoryInUse(), len(tab.timers))
		}
	})
}

// FuzzPair runs the simulation with a seed and a link that the fuzzer chooses.
func FuzzPair(f *testing.F) {
	f.Add(uint64(1), uint16(0), uint16(0), uint16(100), uint16(2000), false)
	f.Add(uint64(2), uint16(200), uint16(100), uint16(9000), uint16(1), true)
	f.Fuzz(func(t *testing.T, seed uint64, loss, dup, ab, ba uint16, simultaneous bool) {
		net := newNetwork(t, seed, [2]Config{})
		net.setLink(linkModel{loss: float64(loss%100) / 1000, dup: float64(dup%300) / 1000, delay: 10000, jitter: 300000})
		o := [2]Options{{ReceiveBuffer: 4000 + int(ab)}, {MTU: 200 + int(ba)%2000}}
		runPair(net, o, [2]int{int(ab), int(ba)}, simultaneous)
	})
}
