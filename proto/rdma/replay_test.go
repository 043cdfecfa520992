package rdma

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/unet-go/unet/wire"
)

// frame is a packet of a capture of the Linux kernel's RDMA over UDP (testdata/README.md).
type frame struct {
	number   int // from 1
	at       Time
	src, dst [4]byte
	h        wire.RoCE
	packet   Packet
}

func (f *frame) String() string {
	return fmt.Sprintf("frame %d: %v PSN %d syndrome %#x MSN %d, %d bytes", f.number, f.h.Opcode, f.h.PSN, f.h.Syndrome, f.h.MSN, len(f.h.Payload))
}

func (f *frame) isRequest() bool { return !isResponse(f.h.Opcode) }

// readCapture is the IPv4 packets of a capture that are not of the connection manager.
func readCapture(t testing.TB, path string) (frames []*frame) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	b = b[24:]
	for n := 1; len(b) > 0; n++ {
		length := le.Uint32(b[8:])
		ip := b[16+14 : 16+length : 16+length]
		f := &frame{number: n, at: Time(le.Uint32(b))*1e9 + Time(le.Uint32(b[4:]))*1e3}
		b = b[16+length:]
		if ip[0]>>4 != 4 {
			continue
		}
		f.src, f.dst = [4]byte(ip[12:]), [4]byte(ip[16:])
		f.packet = Packet{IP: ip, Src: f.src, SrcPort: binary.BigEndian.Uint16(ip[20:]), Data: ip[wire.RoCEOffset:]}
		if err := f.h.Parse(f.packet.Data); err != nil {
			t.Fatalf("%s, frame %d: %v", path, n, err)
		}
		if f.h.DstQP > 1 {
			frames = append(frames, f)
		}
	}
	return frames
}

// direction is the requests to one queue pair of a capture, and its answers.
type direction struct {
	addr, peer [4]byte
	qpn        uint32
}

func (d direction) String() string { return fmt.Sprintf("to %v QP %#x", d.addr, d.qpn) }

// captureSetup is what a capture does not show of the responder.
type captureSetup struct {
	mtu      MTU
	receive  int    // bytes of each receive
	access   Access // of the regions; 0: all
	unknown  bool   // the regions do not exist
	short    int    // bytes that the regions lack at their end
	rnrRetry uint8  // RNRRetry of the requester; 0: 7
}

var captureSetups = map[string]captureSetup{
	"ib_write_lat_mtu256_1000":  {mtu: MTU256},
	"rc_read_mtu256":            {mtu: MTU256},
	"mtu4096_rc_pingpong_10000": {mtu: MTU4096},
	"rc_bad_rkey_read":          {unknown: true},
	"rc_bad_rkey_write":         {unknown: true},
	"rc_no_access_read":         {access: AccessRemoteWrite | AccessRemoteAtomic},
	"rc_no_access_write":        {access: AccessRemoteRead | AccessRemoteAtomic},
	"rc_bad_range_write":        {short: 32},
	"rc_recv_too_small":         {receive: 16},
	"rc_rnr_exceeded":           {rnrRetry: 2},
}

// testQP is a queue pair in RTS on a device of its own, as the two ends of a capture agreed on it.
func testQP(t testing.TB, typ QPType, addr, peer [4]byte, qpn uint32, a QPAttr) *QP {
	d := New(Config{Addr: addr, LinkMTU: 9000, Rand: rand.NewPCG(1, 2), MaxRDAtomic: 128})
	cq, err := d.CreateCQ(4096)
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.CreateQP(d.AllocPD(), QPInit{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4}})
	if err != nil {
		t.Fatal(err)
	}
	delete(d.qps, q.num)
	q.num = qpn
	d.qps[qpn] = q
	a.AH.Dst = peer
	if a.PathMTU == 0 {
		a.PathMTU = MTU1024
	}
	for _, m := range moves {
		if m.from == q.state && m.to == q.state+1 && m.to <= StateRTS {
			a.State = m.to
			if err := q.Modify(0, &a, m.required[min(typ, UD)]|QPState); err != nil {
				t.Fatal(err)
			}
		}
	}
	if q.state != StateRTS {
		t.Fatal(q.state)
	}
	return q
}

// mapRegion registers memory at an address and with a key that the caller chooses.
func mapRegion(q *QP, key uint32, base uint64, n int, access Access) *region {
	mem := make([]byte, n+16)[base%8:][:n:n] // the allocator aligns it to 8 bytes
	r := &region{pd: q.pd, key: key, access: access, mem: mem, base: base}
	q.d.keys[key>>8] = r
	q.pd.uses++
	return r
}

// drain is everything that the device sends, with right ICRCs and in packets that fit the link.
func drain(t testing.TB, d *Device, now Time) (frames []*frame) {
	for q := d.Ready(false); q != nil; q = d.Ready(false) {
		b := make([]byte, 9000)
		n := q.Emit(now, b)
		if n == 0 {
			continue
		}
		b = b[:n:n]
		if !wire.CheckICRC(b) {
			t.Fatalf("wrong ICRC in % x", b)
		}
		f := &frame{src: [4]byte(b[12:]), dst: [4]byte(b[16:])}
		f.packet = Packet{IP: b, Src: f.src, SrcPort: binary.BigEndian.Uint16(b[20:]), Data: b[wire.RoCEOffset:]}
		if err := f.h.Parse(f.packet.Data); err != nil {
			t.Fatalf("%v in % x", err, b)
		}
		frames = append(frames, f)
		if len(frames) > 1<<20 {
			t.Fatal("the device does not stop sending")
		}
	}
	return frames
}

// sameReply reports whether two answers are equal on the wire, except for their ports.
func sameReply(a, b *frame) bool {
	x, y := a.h, b.h
	return x.Opcode == y.Opcode && x.PSN == y.PSN && x.DstQP == y.DstQP && x.PKey == y.PKey && x.AckReq == y.AckReq && x.Solicited == y.Solicited &&
		(!hasAETH(x.Opcode) || x.Syndrome == y.Syndrome && x.MSN == y.MSN) &&
		(x.Opcode != wire.OpAtomicAck || x.Original == y.Original) && bytes.Equal(x.Payload, y.Payload)
}

func hasAETH(op wire.Opcode) bool { return isResponse(op) && op != wire.OpReadResponseMiddle }

func capturePaths(t testing.TB) (paths []string) {
	for _, pattern := range []string{"testdata/*.pcap", "../../wire/testdata/*.pcap"} {
		p, err := filepath.Glob(pattern)
		if err != nil || len(p) < 10 {
			t.Fatal(p, err)
		}
		paths = append(paths, p...)
	}
	return paths
}

// TestRepliesOfTheKernel feeds the requests of each capture to an engine in place of the kernel's
// responder. It must answer the same, packet by packet, but for these:
//   - a READ that is asked for again from its middle is answered FIRST ... LAST (section
//     9.7.5.1.3), by the kernel MIDDLE ... LAST;
//   - a SEND that is longer than its receive is an invalid request, for the kernel a
//     remote operational error.
func TestRepliesOfTheKernel(t *testing.T) {
	answers := 0
	for _, path := range capturePaths(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		frames := readCapture(t, path)
		directions := map[direction]bool{}
		for _, f := range frames {
			if f.isRequest() && f.h.Opcode.Transport() == wire.TransportRC {
				directions[direction{f.dst, f.src, f.h.DstQP}] = true
			}
		}
		for d := range directions {
			// What was lost on the way is in the other end's file only.
			if strings.HasPrefix(name, "lossy") && strings.HasSuffix(name, ".g1") != (d.addr == [4]byte{10, 9, 1, 1}) || name == "rc_no_such_qp" {
				continue
			}
			t.Run(name+"/"+d.String(), func(t *testing.T) { answers += replayRequests(t, frames, d, captureSetups[name]) })
		}
	}
	if answers < 240 {
		t.Errorf("compared only %d answers", answers)
	}
}

// conversation is the requests of a direction, and the answers.
func conversation(frames []*frame, d direction) (requests, replies []*frame) {
	for _, f := range frames {
		if f.isRequest() && (direction{f.dst, f.src, f.h.DstQP}) == d {
			requests = append(requests, f)
		}
	}
	// Two queue pairs of a capture have different first PSNs.
	first := requests[0].h.PSN
	for _, f := range frames {
		if !f.isRequest() && f.src == d.addr && f.dst == d.peer && uint32(psnDiff(f.h.PSN, first)) < 1<<16 {
			replies = append(replies, f)
		}
	}
	return requests, replies
}

// replayRequests returns the number of answers that were compared.
func replayRequests(t *testing.T, frames []*frame, d direction, s captureSetup) int {
	requests, replies := conversation(frames, d)
	if len(replies) == 0 {
		t.Fatal("no replies")
	}
	all := AccessRemoteRead | AccessRemoteWrite | AccessRemoteAtomic
	attr := QPAttr{AccessFlags: all, PathMTU: s.mtu, RQPSN: requests[0].h.PSN, DestQPN: replies[0].h.DstQP, MaxDestRDAtomic: 16, MinRNRTimer: 14}
	q := testQP(t, RC, d.addr, d.peer, d.qpn, attr)

	regions := capturedRegions(q, requests, s, all)
	n := cmp.Or(s.receive, 1<<16)
	receives, err := q.pd.RegMR(make([]byte, n), AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	written := map[uint64]bool{}
	var got []*frame
	for _, f := range requests {
		// A receive is posted unless the kernel answered with an RNR NAK.
		i := slices.IndexFunc(replies, func(r *frame) bool { return r.number > f.number && r.h.PSN == f.h.PSN })
		refused := i >= 0 && hasAETH(replies[i].h.Opcode) && replies[i].h.Syndrome&wire.SyndromeKind == wire.SyndromeRNR
		if p := parts[f.h.Opcode.Operation()]; (p.message == sendMessage && p.first || p.imm) && f.h.PSN == q.resp.expected && !refused {
			if _, err := q.PostRecv([]RecvWR{{SGList: []SGE{receives.SGE(0, n)}}}); err != nil {
				t.Fatal(err)
			}
		}
		setMemory(regions, written, f, replies, q.mtu)
		q.d.Process(f.at, &f.packet)
		got = append(got, drain(t, q.d, f.at)...)
	}
	for i := range max(len(got), len(replies)) {
		if i >= len(got) || i >= len(replies) {
			t.Fatalf("%d answers, the kernel gave %d", len(got), len(replies))
		}
		g, want := *got[i], replies[i]
		restarted := slices.ContainsFunc(requests, func(f *frame) bool { return f.h.Opcode == wire.OpReadRequest && f.h.PSN == g.h.PSN })
		switch g.h.Opcode {
		case wire.OpReadResponseFirst:
			if restarted && want.h.Opcode == wire.OpReadResponseMiddle {
				g.h.Opcode = want.h.Opcode
			}
		case wire.OpReadResponseOnly:
			if restarted && want.h.Opcode == wire.OpReadResponseLast {
				g.h.Opcode = want.h.Opcode
			}
		case wire.OpAck:
			if g.h.Syndrome == wire.SyndromeNAKInvalid && want.h.Syndrome == wire.SyndromeNAKOperational && s.receive > 0 {
				g.h.Syndrome = want.h.Syndrome
			}
		}
		if !sameReply(&g, want) {
			t.Fatalf("answer %d is %v, the kernel's %v", i, got[i], want)
		}
	}
	if q.d.counts[BadICRC] > 1 {
		t.Errorf("%d wrong ICRCs", q.d.counts[BadICRC])
	}
	return len(replies)
}

// capturedRegions are the regions and windows that the requests name.
func capturedRegions(q *QP, requests []*frame, s captureSetup, access Access) map[uint32]*region {
	type span struct{ from, to uint64 }
	spans, windows := map[uint32]span{}, map[uint32]bool{}
	for _, f := range requests {
		n := uint64(f.h.DMALen)
		switch op := f.h.Opcode.Operation(); {
		case parts[op].invalidate:
			windows[f.h.RKey] = true
			continue
		case op == wire.OpCompareSwap || op == wire.OpFetchAdd:
			n = 8
		case op != wire.OpReadRequest && (parts[op].message != writeMessage || !parts[op].first):
			continue
		}
		old, ok := spans[f.h.RKey]
		if !ok {
			old = span{f.h.VA, f.h.VA + n}
		}
		spans[f.h.RKey] = span{min(old.from, f.h.VA), max(old.to, f.h.VA+n)}
	}
	regions := map[uint32]*region{}
	if !s.unknown {
		for key, p := range spans {
			r := mapRegion(q, key, p.from, int(p.to-p.from)-s.short, cmp.Or(s.access, access))
			if windows[key] {
				r.window, r.qp, r.mr = true, q, &MR{windows: 1}
			}
			regions[key] = r
		}
	}
	return regions
}

// setMemory gives the memory that a READ or atomic names the content that the kernel's first
// answer to it shows, but for bytes that requests have written.
func setMemory(regions map[uint32]*region, written map[uint64]bool, f *frame, replies []*frame, mtu uint32) {
	r, op := regions[f.h.RKey], f.h.Opcode
	atomic := op == wire.OpCompareSwap || op == wire.OpFetchAdd
	n := uint64(f.h.DMALen)
	if atomic {
		n = 8
	}
	if p := parts[op.Operation()]; r == nil || op != wire.OpReadRequest && !atomic && (p.message != writeMessage || !p.first) {
		return
	}
	packets := uint32(max(1, (n+uint64(mtu)-1)/uint64(mtu)))
	for i := len(replies) - 1; i >= 0 && (atomic || op == wire.OpReadRequest); i-- {
		a := replies[i]
		packet := (a.h.PSN - f.h.PSN) & psnMask
		if a.number < f.number || packet >= packets {
			continue
		}
		content := a.h.Payload
		if a.h.Opcode == wire.OpAtomicAck {
			content = binary.NativeEndian.AppendUint64(nil, a.h.Original)
		}
		for k, x := range content {
			addr := f.h.VA + uint64(packet*mtu) + uint64(k)
			if mem, ok := r.span(addr, 1); ok && !written[addr] {
				mem[0] = x
			}
		}
	}
	for k := range n {
		written[f.h.VA+k] = written[f.h.VA+k] || op != wire.OpReadRequest
	}
}

// TestUnreliableCaptures feeds captures of UC and UD to engines: every message arrives, with its
// data, its length and its immediate data.
func TestUnreliableCaptures(t *testing.T) {
	for _, c := range []struct {
		path     string
		typ      QPType
		messages int // completions of receives
	}{
		{"../../wire/testdata/uc_imm.pcap", UC, 4}, {"testdata/uc_pingpong_4096.pcap", UC, 10},
		{"../../wire/testdata/ud_imm.pcap", UD, 2}, {"testdata/ud_pingpong_1000.pcap", UD, 10}, {"testdata/ud_bad_qkey.pcap", UD, 0},
	} {
		frames := readCapture(t, c.path)
		directions := map[direction]bool{}
		for _, f := range frames {
			directions[direction{f.dst, f.src, f.h.DstQP}] = true
		}
		messages := 0
		for d := range directions {
			t.Run(filepath.Base(c.path)+"/"+d.String(), func(t *testing.T) {
				mine := slices.Clone(frames)
				mine = slices.DeleteFunc(mine, func(f *frame) bool { return direction{f.dst, f.src, f.h.DstQP} != d })
				a := QPAttr{AccessFlags: AccessRemoteWrite, RQPSN: mine[0].h.PSN, QKey: 0x11111111}
				q := testQP(t, c.typ, d.addr, d.peer, d.qpn, a)
				regions := capturedRegions(q, mine, captureSetup{}, AccessRemoteWrite)
				messages += replayMessages(t, q, regions, mine)
			})
		}
		if messages != c.messages {
			t.Errorf("%s: %d messages, want %d", c.path, messages, c.messages)
		}
	}
}

func replayMessages(t *testing.T, q *QP, regions map[uint32]*region, frames []*frame) (messages int) {
	var data []byte
	var write wire.RoCE // the first packet of a WRITE
	room := make([]byte, 8192)
	mr, err := q.pd.RegMR(room, AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if q.rq.len() == 0 && !q.resp.taken {
			if _, err := q.PostRecv([]RecvWR{{WRID: 7, SGList: []SGE{mr.SGE(0, len(room))}}}); err != nil {
				t.Fatal(err)
			}
		}
		p := parts[f.h.Opcode.Operation()]
		if p.first {
			data, write = nil, f.h
		}
		data = append(data, f.h.Payload...)
		if !p.last {
			q.d.Process(f.at, &f.packet)
			continue
		}
		q.d.Process(f.at, &f.packet)
		var wc [2]WC
		n := q.recvCQ.Poll(wc[:])
		messages += n
		want := WC{WRID: 7, Opcode: WCRecv, QPNum: q.num, ByteLen: uint32(len(data))}
		got := room
		if p.message == writeMessage {
			want.Opcode = WCRecvRDMAWithImm
			got, _ = regions[write.RKey].span(write.VA, uint64(write.DMALen))
		}
		if p.imm {
			want.Flags, want.ImmData = WCWithImm, 0x04030201
		}
		if q.typ == UD {
			if f.h.QKey != q.attr.QKey {
				if n != 0 || q.d.counts[BadQKey] != 1 {
					t.Errorf("%v: %d completions", f, n)
				}
				continue
			}
			want.Flags, want.SrcQP, want.ByteLen = want.Flags|WCGRH, f.h.SrcQP, want.ByteLen+40
			if !bytes.Equal(got[:20], make([]byte, 20)) || !bytes.Equal(got[20:40], f.packet.IP[:20]) {
				t.Errorf("%v: network header % x", f, got[:40])
			}
			got = got[40:]
		}
		if !bytes.HasPrefix(got, data) {
			t.Errorf("%v: wrong data", f)
		}
		if (p.message == sendMessage || p.imm) && (n != 1 || wc[0] != want) {
			t.Errorf("%v: completions %+v, want %+v", f, wc[:n], want)
		}
	}
	if out := drain(t, q.d, 0); len(out) != 0 {
		t.Errorf("answers: %v", out)
	}
	return messages
}

// TestRequestsOfTheKernel posts what the requesters of the captures posted, and feeds the kernel's
// answers to the engine: it must send the same packets, but for AckReq, and complete what the
// kernel has answered.
func TestRequestsOfTheKernel(t *testing.T) {
	failures := map[string]Status{"rc_bad_range_write": StatusRemAccessErr, "rc_bad_rkey_read": StatusRemAccessErr, "rc_bad_rkey_write": StatusRemAccessErr,
		"rc_no_access_write": StatusRemAccessErr, "rc_send_inv": StatusRemAccessErr, "rc_send_inv_long": StatusRemAccessErr,
		"rc_recv_too_small": StatusRemOpErr, "rc_rnr_exceeded": StatusRNRRetryExcErr}
	packets := 0
	for _, path := range capturePaths(t) {
		name := strings.TrimSuffix(filepath.Base(path), ".pcap")
		frames := readCapture(t, path)
		directions := map[direction]bool{}
		for _, f := range frames {
			if f.isRequest() && f.h.Opcode.Transport() == wire.TransportRC {
				directions[direction{f.dst, f.src, f.h.DstQP}] = true
			}
		}
		for d := range directions {
			// What the two send after a loss differs: the kernel has no congestion window. host_requester
			// sends a wrong ICRC.
			if strings.HasPrefix(name, "lossy") || name == "host_requester" || name == "rc_no_such_qp" {
				continue
			}
			t.Run(name+"/"+d.String(), func(t *testing.T) { packets += replayWorkRequests(t, frames, d, captureSetups[name], failures[name]) })
		}
	}
	if packets < 200 {
		t.Errorf("compared only %d requests", packets)
	}
}

// replayWorkRequests returns the number of packets that were compared.
func replayWorkRequests(t *testing.T, frames []*frame, d direction, s captureSetup, failure Status) (packets int) {
	requests, replies := conversation(frames, d)
	first := requests[0].h.PSN
	q := testQP(t, RC, d.peer, d.addr, replies[0].h.DstQP, QPAttr{PathMTU: s.mtu, SQPSN: first, DestQPN: d.qpn, MaxRDAtomic: 16, RetryCnt: 7, RNRRetry: cmp.Or(s.rnrRetry, 7)})
	q.sqSigAll = true
	fresh, posted := first, 0
	b := make([]byte, 9000)
	for _, f := range frames {
		if slices.Contains(replies, f) {
			q.d.Process(f.at, &f.packet)
			continue
		}
		if !slices.Contains(requests, f) {
			continue
		}
		q.d.Expire(f.at)
		if f.h.PSN == fresh {
			mr, err := q.pd.RegMR(make([]byte, 16384), AccessLocalWrite)
			if err != nil {
				t.Fatal(err)
			}
			wr := capturedWorkRequest(requests, f, mr)
			if _, err := q.PostSend(f.at, []SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			posted++
			fresh = psnAdd(fresh, q.sq.at(q.sq.tail-1).packets)
		}
		if q.d.Ready(false) == nil {
			t.Fatalf("the engine does not send %v", f)
		}
		ip := b[:q.Emit(f.at, b)]
		got := f.h
		if err := got.Parse(ip[wire.RoCEOffset:]); err != nil {
			t.Fatal(err)
		}
		packets++
		got.AckReq = f.h.AckReq
		same := bytes.Equal(got.Payload, f.h.Payload)
		want := f.h
		got.Payload, want.Payload = nil, nil
		if !same || !reflect.DeepEqual(got, want) {
			t.Fatalf("sent %+v, the kernel %+v", got, want)
		}
	}
	if q.d.Ready(false) != nil {
		t.Error("the engine has more to send")
	}
	wc := make([]WC, 64)
	wc = wc[:q.sendCQ.Poll(wc)]
	for i, c := range wc {
		if want := failure; c.Status != StatusSuccess && (i < len(wc)-1 || c.Status != want) {
			t.Errorf("completion %d is %+v", i, c)
		}
	}
	if len(wc) != posted || failure != StatusSuccess && len(wc) > 0 && wc[len(wc)-1].Status != failure {
		t.Errorf("%d work requests, completions %+v", posted, wc)
	}
	return packets
}

// capturedWorkRequest is the work request that begins with packet f.
func capturedWorkRequest(requests []*frame, f *frame, mr *MR) SendWR {
	wr := SendWR{RemoteAddr: f.h.VA, RKey: f.h.RKey}
	op := f.h.Opcode.Operation()
	n := f.h.DMALen
	switch op {
	case wire.OpReadRequest:
		wr.Opcode = WRRDMARead
	case wire.OpCompareSwap:
		wr.Opcode, wr.CompareAdd, wr.Swap, n = WRAtomicCmpAndSwp, f.h.Compare, f.h.SwapAdd, 8
	case wire.OpFetchAdd:
		wr.Opcode, wr.CompareAdd, n = WRAtomicFetchAndAdd, f.h.SwapAdd, 8
	default:
		n = 0
		for psn, last := f.h.PSN, false; !last; psn = psnAdd(psn, 1) {
			i := slices.IndexFunc(requests, func(r *frame) bool { return r.h.PSN == psn })
			r := requests[i]
			n += uint32(copy(mr.Bytes()[n:], r.h.Payload))
			p := parts[r.h.Opcode.Operation()]
			last = p.last
			switch {
			case p.message == sendMessage && p.invalidate:
				wr.Opcode, wr.InvalidateRKey = WRSendWithInv, r.h.RKey
			case p.message == sendMessage && p.imm:
				wr.Opcode, wr.ImmData = WRSendWithImm, r.h.Imm
			case p.message == sendMessage:
				wr.Opcode = WRSend
			case p.imm:
				wr.Opcode, wr.ImmData = WRRDMAWriteWithImm, r.h.Imm
			default:
				wr.Opcode = WRRDMAWrite
			}
			if r.h.Solicited {
				wr.Flags = SendSolicited
			}
		}
	}
	if n > 0 {
		wr.SGList = []SGE{mr.SGE(0, int(n))}
	}
	return wr
}
