package tcp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/unet-go/unet/wire"
)

// spec is the text of a segment.
type spec struct {
	flags wire.TCPFlags
	seq   uint32
	text  int
	has   map[string]string
	ack   uint32
	win   int
}

func (r *runner) parse(w []string) (s spec) {
	for _, f := range w[0] {
		if f != '-' {
			s.flags |= 1 << strings.IndexRune("FSRPAUEC", f)
		}
	}
	first, text, _ := strings.Cut(w[1], ":")
	s.seq, s.text = uint32(r.number(first)), r.number(text)
	s.has = map[string]string{}
	s.win = 8000
	for i := 2; i < len(w); i++ {
		switch w[i] {
		case "sackok", "badtext", "badsum", "ect", "ce":
			s.has[w[i]] = ""
		default:
			s.has[w[i]] = w[i+1]
			i++
		}
	}
	if v, ok := s.has["ack"]; ok {
		s.ack = uint32(r.number(v))
	}
	if v, ok := s.has["win"]; ok {
		s.win = r.number(v)
	}
	return s
}

func (r *runner) inject(w []string) {
	s := r.parse(w)
	f := wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: s.flags, Window: uint16(s.win), Seq: peerISN + s.seq}
	if s.flags&wire.TCPAck != 0 {
		f.Ack = r.iss + s.ack
	}
	if v, ok := s.has["urg"]; ok {
		f.Urgent = uint16(r.number(v))
	}
	var o wire.TCPOptions
	if v, ok := s.has["mss"]; ok {
		o.MSS = uint16(r.number(v))
	}
	if v, ok := s.has["ws"]; ok {
		o.HasWindowScale, o.WindowScale = true, uint8(r.number(v))
	}
	_, o.SACKPermitted = s.has["sackok"]
	if v, ok := s.has["ts"]; ok {
		val, ecr, _ := strings.Cut(v, "/")
		o.HasTimestamps, o.TSVal = true, uint32(r.number(val))
		if ecr == "ECHO" {
			o.TSEcr = r.lastTS
		} else if ecr != "" {
			o.TSEcr = uint32(r.number(ecr)) + 1000 + r.tab.timestampOffset(r.id)
		}
	} else if r.stamped {
		o.HasTimestamps, o.TSVal = true, 500
	}
	if v, ok := s.has["sack"]; ok {
		for _, b := range strings.Split(v, ",") {
			left, right, _ := strings.Cut(b, "-")
			o.SACK[o.SACKBlocks] = wire.SACKBlock{Left: r.iss + uint32(r.number(left)), Right: r.iss + uint32(r.number(right))}
			o.SACKBlocks++
		}
	}
	b := make([]byte, 60+s.text)
	n, sum := wire.PutTCPOptions(b[20:], &o)
	n += 20
	b = b[:n+s.text]
	for i := range s.text {
		place := int(s.seq) + i - 1
		if s.flags&wire.TCPSyn != 0 {
			place++
		}
		b[n+i] = pattern(1, place)
		if _, bad := s.has["badtext"]; bad {
			b[n+i] ^= 0xff
		}
	}
	sum = addSums(sum, wire.Sum(b[n:], wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, uint16(len(b)))))
	wire.PutTCP(b, &f, n, sum)
	if _, bad := s.has["badsum"]; bad {
		b[16] ^= 0x40
	}
	_, r.marked = s.has["ce"]
	r.process(b)
}

func (r *runner) process(b []byte) {
	r.frameID++
	in := Inbound{Src: hostB, Dst: hostA, Data: b, Frame: r.frameID, Memory: MemoryFrame}
	if r.marked {
		in.ECN, r.marked = wire.ECNMarked, false
	}
	res := r.tab.Process(r.now, &in)
	if res.Kept {
		r.frames[r.frameID] = true
	}
	if res.Reply {
		out := make([]byte, 60)
		r.out = append(r.out, out[:r.tab.EmitReply(out)])
	}
}

func (r *runner) describe(b []byte) string {
	s := wire.TCP(b)
	return fmt.Sprintf("%v %d:%d ack %d win %d options %x", s.Flags(), s.Seq()-r.iss, len(s.Payload()), s.Ack()-peerISN, s.Window(), s.Options())
}

func (r *runner) expect(w []string) {
	if w[0] == "nothing" {
		r.nothingElse()
		return
	}
	if len(r.out) == 0 {
		r.fatalf("nothing was sent")
	}
	b := r.out[0]
	r.out = r.out[1:]
	s, err := wire.ParseTCP(b)
	if err != nil || s.Checksum(hostA, hostB) != wire.ChecksumGood || s.SrcPort() != localPort || s.DstPort() != peerPort {
		r.fatalf("sent %x: %v", b, err)
	}
	want := r.parse(w)
	if _, another := want.has["new"]; (another || !r.issKnown) && s.Flags()&wire.TCPSyn != 0 {
		r.iss, r.issKnown = s.Seq(), true
	}
	wantSeq := r.iss + want.seq
	if _, ok := want.has["zero"]; ok {
		wantSeq = 0
	}
	flags := s.Flags() &^ wire.TCPPsh
	if want.flags&wire.TCPPsh != 0 {
		flags = s.Flags()
	}
	if flags != want.flags || s.Seq() != wantSeq || len(s.Payload()) != want.text {
		r.fatalf("sent %s", r.describe(b))
	}
	if want.flags&wire.TCPAck != 0 && s.Ack() != peerISN+want.ack {
		r.fatalf("sent %s", r.describe(b))
	}
	for i, c := range s.Payload() {
		if c != pattern(0, int(want.seq)-1+i) {
			r.fatalf("text differs at %d", i)
		}
	}
	if _, ok := want.has["win"]; ok && int(s.Window()) != want.win {
		r.fatalf("sent %s", r.describe(b))
	}
	if _, ect := want.has["ect"]; ect != r.ect[&b[0]] {
		r.fatalf("may be marked: %t", !ect)
	}
	var o wire.TCPOptions
	if !s.ReadOptions(&o) {
		r.fatalf("malformed options %x", s.Options())
	}
	check := func(key, got string) {
		if v, ok := want.has[key]; ok && v != got {
			r.fatalf("%s is %s: %s", key, got, r.describe(b))
		}
	}
	check("mss", strconv.Itoa(int(o.MSS)))
	ws, ts, sack := "-", "-", "-"
	if o.HasWindowScale {
		ws = strconv.Itoa(int(o.WindowScale))
	}
	if r.lastTS = o.TSVal; o.HasTimestamps {
		ts = fmt.Sprintf("%d/%d", int32(o.TSVal-1000-r.tab.timestampOffset(r.id)), o.TSEcr)
	}
	for i, b := range o.SACK[:o.SACKBlocks] {
		if i == 0 {
			sack = ""
		} else {
			sack += ","
		}
		sack += fmt.Sprintf("%d-%d", b.Left-peerISN, b.Right-peerISN)
	}
	check("ws", ws)
	check("ts", ts)
	check("sack", sack)
	if _, ok := want.has["sackok"]; ok && !o.SACKPermitted {
		r.fatalf("no SACK permitted")
	}
}

// other is a second peer, at another port: S sends its SYN, A completes its
// handshake. What is sent to it is not the script's business.
func (r *runner) other(what string) {
	f := wire.TCPFields{SrcPort: peerPort + 1, DstPort: localPort, Flags: wire.TCPSyn, Window: 8000}
	if what == "A" {
		if r.otherISS == 0 {
			r.other("S")
			r.drainOther()
		}
		f.Flags, f.Seq, f.Ack = wire.TCPAck, 1, r.otherISS+1
	}
	b := make([]byte, 20)
	wire.PutTCP(b, &f, 20, wire.PseudoHeader4(hostB, hostA, wire.ProtocolTCP, 20))
	r.process(b)
	r.drainOther()
}

func (r *runner) drainOther() {
	for c := r.tab.NextReady(); c != nil; c = r.tab.NextReady() {
		b := make([]byte, 2000)
		c.Emit(r.now, b)
		if s := wire.TCP(b); s.Flags()&wire.TCPSyn != 0 {
			r.otherISS = s.Seq()
		}
	}
}
