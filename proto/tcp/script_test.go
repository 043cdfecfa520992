package tcp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unet-go/unet/wire"
)

// A script is a test of one table. The test is the table's driver, its application and its peer, and
// runs the script line by line:
//
//	dial | listen             the table opens; the peer is hostB port 2000
//	established               the handshake after dial or listen
//	< SA 0:0 ack 1 win 9000   a segment is received: flags, sequence number : bytes of data
//	> A 1:0 ack 1             exactly these segments are sent, in this order
//	> nothing                 no segment is sent
//	+5ms                      time passes, and timers run
//	write 100 [= 50]          a call of the application and what it returns
//	read 100 = 50 | EOF | none | ECONNRESET
//	state ESTABLISHED         the state of the connection, of its TIME-WAIT record, or of the listener
//	count resets_sent 1       a counter
//	window 7000               the congestion window, bytes; sacked, lost: bytes of the scoreboard
//	events readable connected the events since the last such line; accepts 1: events Acceptable
//	toolarge 1:1500 1400      ICMP: the packet of 1500 bytes with number 1 is too large for an MTU of 1400
//	icmp 1 11                 ICMP: destination unreachable, code 1, about the segment with number 11
//	mtu 1400, suggest 1400    SetMTU, SuggestMTU; path: PathMTU
//	hold, go                  segments are not emitted from here on; they are emitted again
//	timer 5ms                 the connection's next timer, from now
//	other S | other A         a second peer sends its SYN, or completes its handshake
//
// close, closewrite, closeread, abort, flush, lend, accept and others are the calls of those names;
// redial dials the same pair again. "both:" runs the rest twice: after dial and established, and
// after listen and established.
//
// The flags are F, S, R, P, A, U, E (ECE) and C (CWR); "-" is a segment without flags. Sequence
// numbers are relative to the SYN of their side. Options of a segment follow as mss 1460, ws 7,
// sackok, ts VAL/ECR (our clock in milliseconds since the script began; ECHO is the last one that
// was sent), sack L-R,L-R. "ect" is an IP header with ECT(0), "ce" one with CE. "baddata" changes the
// data and "badsum" the checksum. "new" is a SYN with another initial number, "zero" a segment with the
// absolute number 0. Options and win of a sent segment are compared if the line names them. The data
// depends on the sequence number, and is compared.
type script struct {
	name string
	cfg  Config
	opts Options
	lopt ListenOptions // its Options are opts
	text string
}

// noOptions is a configuration without TCP options.
var noOptions = Config{NoTimestamps: true, NoSACK: true, NoWindowScale: true}

const (
	peerISN   = 0xfffffff0 // so that the peer's numbers wrap in every script
	localPort = 1000
	peerPort  = 2000
)

type runner struct {
	t         *testing.T
	line      int
	src       string // what is run, for messages
	tab       *Table
	now       Time
	c         *Conn
	l         *Listener
	dialed    bool
	id        tuple
	iss       uint32
	issKnown  bool
	out       [][]byte       // segments that were sent and not compared yet
	ect       map[*byte]bool // which of out are ECT(0), by the addresses of their first bytes
	written   int
	bytesRead int
	events    Events
	accepts   int
	held      bool
	lopt      ListenOptions
	opts      Options
	lent      [][]byte
	frames    map[uint64]bool // that the table has kept
	frameID   uint64
	lastTS    uint32 // of the last segment that was expected
	otherISS  uint32
	marked    bool // the next segment that is received is CE
	stamped   bool // the peer sends timestamps with the value 500
}

// newRunner makes a runner and its table. The peer of its pair is hostB.
func newRunner(t *testing.T, cfg Config) *runner {
	r := &runner{t: t, now: Time(time.Second), frames: map[uint64]bool{}}
	cfg.Secret = testSecret
	cfg.ReturnFrame = func(id uint64) {
		if !r.frames[id] {
			t.Fatalf("frame %d is released, which is not kept", id)
		}
		delete(r.frames, id)
	}
	r.tab = NewTable(cfg)
	r.id = makeTuple(AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort})
	return r
}

// runLines runs the lines of a script. "#" begins a comment.
func (r *runner) runLines(text string) {
	for i, l := range strings.Split(text, "\n") {
		r.line = i
		if l, _, _ = strings.Cut(l, "#"); strings.TrimSpace(l) != "" {
			r.src = strings.TrimSpace(l)
			r.run(strings.Fields(l))
		}
	}
}

func runScripts(t *testing.T, scripts []script) {
	t.Helper()
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			if !strings.Contains(s.text, "both:") {
				runScript(t, s, s.text)
				return
			}
			t.Run("active", func(t *testing.T) {
				runScript(t, s, strings.Replace(s.text, "both:", "dial\nestablished", 1))
			})
			t.Run("passive", func(t *testing.T) {
				runScript(t, s, strings.Replace(s.text, "both:", "listen\nestablished", 1))
			})
		})
	}
}

func runScript(t *testing.T, s script, text string) {
	s.cfg.MinRTO = cmp.Or(s.cfg.MinRTO, DefaultMinRTO) // scripts have the timeouts of a LAN
	r := newRunner(t, s.cfg)
	r.lopt, r.opts = s.lopt, s.opts
	r.runLines(text)
	r.nothingElse()
}

func (r *runner) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("line %d, %q: %s", r.line, r.src, fmt.Sprintf(format, args...))
}

func (r *runner) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		r.fatalf("%v", err)
	}
	return n
}

// emitBuffer is for the next segment of a script. No two scripts run at once.
var emitBuffer [20000]byte

// drain emits what is ready and collects the events.
func (r *runner) drain() {
	for !r.held {
		c := r.tab.Ready
		if c == nil {
			break
		}
		n := c.Emit(r.now, emitBuffer[:])
		if n == 0 {
			r.fatalf("ready, and Emit writes nothing")
		}
		b := bytes.Clone(emitBuffer[:n])
		if view(b).DstPort != peerPort {
			continue // it is for the other peer
		}
		r.out = append(r.out, b)
		if c.ECT {
			if r.ect == nil {
				r.ect = make(map[*byte]bool)
			}
			r.ect[&b[0]] = true
		}
		if len(r.out) > 10000 {
			r.fatalf("more than 10000 segments are sent")
		}
	}
	for {
		c, e := r.tab.NextEvent()
		if c == nil {
			break
		}
		if e&Acceptable != 0 {
			r.accepts++
		}
		r.events |= e &^ Acceptable
	}
	for _, c := range r.tab.conns {
		if msg := c.invariant(); msg != "" && !r.held {
			r.fatalf("%s", msg)
		}
	}
}

// nothingElse fails if a segment was sent that the script has not compared.
func (r *runner) nothingElse() {
	if len(r.out) > 0 {
		r.fatalf("not expected: %s", r.describe(r.out[0]))
	}
}

// run runs one line.
func (r *runner) run(w []string) {
	if w[0] == ">" {
		r.expect(w[1:])
		return
	}
	switch w[0] {
	case "state", "count", "events", "established", "state-of-pair", "window", "sacked", "lost", "path":
	default:
		r.nothingElse()
	}
	switch {
	case w[0] == "<":
		r.inject(w[1:])
	case strings.HasPrefix(w[0], "+"):
		d, err := time.ParseDuration(w[0][1:])
		if err != nil {
			r.fatalf("%v", err)
		}
		r.advance(r.now.add(d))
	case w[0] == "dial":
		c, err := r.tab.Dial(r.now, AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort}, r.opts)
		r.must(err)
		r.c, r.dialed = c, true
	case w[0] == "listen":
		r.lopt.Options = r.opts
		l, err := r.tab.Listen(AddrPort{Port: localPort}, r.lopt)
		r.must(err)
		r.l = l
	case w[0] == "accept":
		r.c = r.l.Accept()
		if (r.c == nil) != (len(w) > 1) {
			r.fatalf("accepted %v", r.c)
		}
	case w[0] == "established":
		r.establish()
	default:
		r.call(w)
	}
	r.drain()
}

// advance advances the clock, and runs the timers at each deadline.
func (r *runner) advance(to Time) {
	for {
		at := r.tab.Deadline
		if at > to {
			break
		}
		r.now = max(at, r.now)
		r.tab.Expire(r.now)
		if r.tab.Deadline <= r.now {
			r.fatalf("a timer is due after Expire")
		}
		r.drain()
	}
	r.now = to
}

func (r *runner) must(err error) {
	if err != nil {
		r.fatalf("%v", err)
	}
}

func (r *runner) establish() {
	if r.dialed {
		r.drain()
		r.expect(strings.Fields("S 0:0"))
		r.inject(strings.Fields("SA 0:0 ack 1 win 8000"))
		r.drain()
		r.expect(strings.Fields("A 1:0 ack 1"))
	} else {
		r.inject(strings.Fields("S 0:0 win 8000"))
		r.drain()
		r.expect(strings.Fields("SA 0:0 ack 1"))
		r.inject(strings.Fields("A 1:0 ack 1 win 8000"))
		r.c = r.l.Accept()
		if r.c == nil {
			r.fatalf("nothing to accept")
		}
	}
	r.drain()
	r.events, r.accepts = 0, 0
}

// result compares the result of a call with what follows "=", or else with the argument: all bytes.
func (r *runner) result(w []string, n int, err error) {
	want := w[1]
	if i := slices.Index(w, "="); i >= 0 {
		want = w[i+1]
	}
	if got := resultString(n, err); got != want {
		r.fatalf("returned %s", got)
	}
}

// checkError compares an error with the first argument, or with none.
func (r *runner) checkError(w []string, err error) {
	want := "none"
	if len(w) > 1 {
		want = w[1]
	}
	if got := resultString(0, err); got != want {
		r.fatalf("returned %s", got)
	}
}

func resultString(n int, err error) string {
	got := strconv.Itoa(n)
	var errno syscall.Errno
	switch {
	case err == io.EOF:
		got = "EOF"
	case errors.As(err, &errno):
		got = errnoNames[errno]
	case err != nil:
		got = err.Error()
	case n == 0:
		got = "none"
	}
	return got
}

var errnoNames = map[syscall.Errno]string{
	syscall.ECONNREFUSED: "ECONNREFUSED", syscall.ECONNRESET: "ECONNRESET", syscall.ETIMEDOUT: "ETIMEDOUT",
	syscall.EPIPE: "EPIPE", syscall.ECONNABORTED: "ECONNABORTED", syscall.EHOSTUNREACH: "EHOSTUNREACH",
	syscall.ENETUNREACH: "ENETUNREACH", syscall.ENOTCONN: "ENOTCONN", syscall.EADDRINUSE: "EADDRINUSE",
}

// call runs a line that is a call of the application, or a comparison.
func (r *runner) call(w []string) {
	arg := 0
	if len(w) > 1 {
		arg, _ = strconv.Atoi(w[1])
	}
	switch w[0] {
	case "write", "lend":
		p := make([]byte, arg)
		for i := range p {
			p[i] = pattern(0, r.written+i)
		}
		n, err := 0, error(nil)
		if w[0] == "write" {
			n, err = r.c.Write(r.now, p)
		} else {
			var ok bool
			if ok, err = r.c.Lend(r.now, p); ok {
				n = arg
				r.lent = append(r.lent, p)
			}
		}
		r.written += n
		r.result(w, n, err)
	case "read":
		p := make([]byte, arg)
		n, err := r.c.Read(r.now, p)
		r.verify(p[:n])
		r.result(w, n, err)
	case "flush":
		r.c.Flush(r.now)
	case "closewrite":
		r.checkError(w, r.c.CloseWrite(r.now))
	case "closeread":
		r.c.CloseRead(r.now)
	case "close":
		r.c.Close(r.now)
	case "abort":
		r.c.Abort()
	case "unlisten":
		r.l.Close()
	case "keepalive":
		r.c.SetKeepAlive(r.now, KeepAlive{Enable: arg > 0, Idle: 10 * time.Second, Interval: time.Second, Count: arg})
	case "buffers":
		r.c.SetBuffers(r.now, 0, arg)
	case "hold":
		r.held = true
	case "go":
		r.held = false
	case "returned":
		if _, n := r.c.Lent(); int(n) != arg {
			r.fatalf("%d returned", n)
		}
	case "state":
		r.checkState(w[1])
	case "count":
		for c, name := range counterNames {
			if name == w[1] {
				if got := r.tab.counts[c]; got != uint64(r.number(w[2])) {
					r.fatalf("%d", got)
				}
				return
			}
		}
		r.fatalf("no such counter")
	case "events":
		if got := eventString(r.events); got != strings.Join(w[1:], " ") {
			r.fatalf("events %q", got)
		}
		r.events = 0
	case "accepts":
		if r.accepts != arg {
			r.fatalf("%d events Acceptable", r.accepts)
		}
		r.accepts = 0
	case "err":
		r.checkError(w, r.c.Err())
	case "sacked":
		if got := r.c.Info().Sacked; got != arg {
			r.fatalf("%d", got)
		}
	case "lost":
		if got := r.c.Info().Lost; got != arg {
			r.fatalf("%d", got)
		}
	case "window":
		if got := r.c.Info().CongestionWindow; got != arg {
			r.fatalf("%d", got)
		}
	case "mtu": // of the link
		r.c.SetMTU(r.now, arg, false)
	case "suggest": // an MTU that another connection has found
		r.c.SuggestMTU(r.now, arg, false)
	case "toolarge": // ICMP: a segment, as "first:bytes of packet", and the MTU that is reported
		first, size, _ := strings.Cut(w[1], ":")
		e := unreachable(r.t, wire.ICMPUnreachable, wire.ICMPFragmentationNeeded, r.id, r.iss+uint32(r.number(first)))
		e.Size = r.number(size)
		e.MTU = r.number(w[2])
		r.tab.ProcessICMP(r.now, e)
	case "icmp": // destination unreachable, with this code, of the segment with that number
		e := unreachable(r.t, wire.ICMPUnreachable, uint8(arg), r.id, r.iss+uint32(r.number(w[2])))
		r.tab.ProcessICMP(r.now, e)
	case "path":
		if got, _ := r.c.PathMTU(); got != arg {
			r.fatalf("%d", got)
		}
	case "other":
		r.other(w[1])
	case "state-of-pair":
		if c := r.tab.conns[r.id]; c == nil || c.state.String() != w[1] {
			r.fatalf("%v", c)
		}
	case "info":
		i := r.c.Info()
		if got := fmt.Sprint(i.SendMSS, i.SendScale, i.SACK, i.Timestamps); got != strings.Join(w[1:], " ") {
			r.fatalf("%s", got)
		}
	case "redial":
		_, err := r.tab.Dial(r.now, AddrPort{Addr: hostA, Port: localPort}, AddrPort{Addr: hostB, Port: peerPort}, r.opts)
		r.checkError(w, err)
	case "timer":
		// The connection's next timer, from now. The table's deadline may be earlier.
		at := r.c.earliestTimer()
		if got := time.Duration(at - r.now); w[1] != got.String() && !(w[1] == "never" && at == Never) {
			r.fatalf("next timer in %v", got)
		}
	default:
		r.fatalf("unknown command")
	}
}

func eventString(e Events) string {
	var s []string
	for i, n := range []string{"readable", "writable", "connected", "returned", "drained", "path", "finished"} {
		if e&(1<<i) != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, " ")
}

// verify compares data that was read.
func (r *runner) verify(p []byte) {
	for _, b := range p {
		if want := pattern(1, r.bytesRead); b != want {
			r.fatalf("byte %d read is %#x, want %#x", r.bytesRead, b, want)
		}
		r.bytesRead++
	}
}

// state is the state of the pair: of its connection, or of its TIME-WAIT record, or of the listener
// if no connection was accepted.
func (r *runner) state() State {
	switch c := r.tab.conns[r.id]; {
	case c != nil:
		return c.state
	case r.tab.waits.records[r.id] != nil:
		return TimeWait
	case r.c == nil && r.l != nil && !r.l.closed:
		return Listen
	}
	return Closed
}

// checkState compares the state, and fails if the pair has another connection than the one that was
// dialed or accepted.
func (r *runner) checkState(want string) {
	if got := r.state(); got.String() != want {
		r.fatalf("state %v", got)
	}
	if c := r.tab.conns[r.id]; c != nil && r.c != nil && r.c != c {
		r.fatalf("the pair has another connection")
	}
}

// segmentSpec is a segment as a script describes it.
type segmentSpec struct {
	flags   wire.TCPFlags
	seq     uint32
	dataLen int
	has     map[string]string // everything that follows, by its name
	ack     uint32
	win     int
}

func (r *runner) parse(w []string) (s segmentSpec) {
	for _, f := range w[0] {
		if f != '-' {
			s.flags |= 1 << strings.IndexRune("FSRPAUEC", f)
		}
	}
	first, length, _ := strings.Cut(w[1], ":")
	s.seq, s.dataLen = uint32(r.number(first)), r.number(length)
	s.has = map[string]string{}
	s.win = 8000
	for i := 2; i < len(w); i++ {
		switch w[i] {
		case "sackok", "baddata", "badsum", "ect", "ce":
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

// inject receives a segment of the peer.
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
	b := make([]byte, 60+s.dataLen)
	n, sum := wire.PutTCPOptions(b[20:], &o)
	n += 20
	b = b[:n+s.dataLen]
	for i := range s.dataLen {
		place := int(s.seq) + i - 1
		if s.flags&wire.TCPSyn != 0 {
			place++
		}
		b[n+i] = pattern(1, place)
		if _, bad := s.has["baddata"]; bad {
			b[n+i] ^= 0xff
		}
	}
	sum = addSums(sum, wire.Sum(b[n:], wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(len(b)))))
	wire.PutTCP(b, &f, n, sum)
	if _, bad := s.has["badsum"]; bad {
		b[16] ^= 0x40
	}
	_, r.marked = s.has["ce"]
	r.process(b)
}

// process gives a segment of the peer to the table.
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

// view is a segment as fields.
func view(b []byte) *wire.TCP {
	s := new(wire.TCP)
	if err := s.Parse(b); err != nil {
		panic(err)
	}
	return s
}

func (r *runner) describe(b []byte) string {
	s := view(b)
	return fmt.Sprintf("%v %d:%d ack %d win %d options %x", s.Flags, s.Seq-r.iss, len(s.Payload), s.Ack-peerISN, s.Window, s.Options)
}

// expect compares the next segment that was sent.
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
	var s wire.TCP
	if err := s.Parse(b); err != nil || s.Checksum(hostA, hostB) != wire.ChecksumGood || s.SrcPort != localPort || s.DstPort != peerPort {
		r.fatalf("sent %x: %v", b, err)
	}
	want := r.parse(w)
	if _, another := want.has["new"]; (another || !r.issKnown) && s.Flags&wire.TCPSyn != 0 {
		r.iss, r.issKnown = s.Seq, true
	}
	wantSeq := r.iss + want.seq
	if _, ok := want.has["zero"]; ok {
		wantSeq = 0
	}
	flags := s.Flags &^ wire.TCPPsh
	if want.flags&wire.TCPPsh != 0 {
		flags = s.Flags
	}
	if flags != want.flags || s.Seq != wantSeq || len(s.Payload) != want.dataLen {
		r.fatalf("sent %s", r.describe(b))
	}
	if want.flags&wire.TCPAck != 0 && s.Ack != peerISN+want.ack {
		r.fatalf("sent %s", r.describe(b))
	}
	for i, c := range s.Payload {
		if c != pattern(0, int(want.seq)-1+i) {
			r.fatalf("data differs at %d", i)
		}
	}
	if _, ok := want.has["win"]; ok && int(s.Window) != want.win {
		r.fatalf("sent %s", r.describe(b))
	}
	if _, ect := want.has["ect"]; ect != r.ect[&b[0]] {
		r.fatalf("ECT is %t", !ect)
	}
	var o wire.TCPOptions
	if !s.ReadOptions(&o) {
		r.fatalf("malformed options %x", s.Options)
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
		r.fatalf("the option SACK Permitted is missing")
	}
}

// other is a second peer, at another port: "S" sends its SYN, "A" completes its handshake. Segments to
// it are not compared.
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
	wire.PutTCP(b, &f, 20, wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, 20))
	r.process(b)
	r.drainOther()
}

func (r *runner) drainOther() {
	for c := r.tab.Ready; c != nil; c = r.tab.Ready {
		b := make([]byte, 2000)
		c.Emit(r.now, b)
		if s := view(b); s.Flags&wire.TCPSyn != 0 {
			r.otherISS = s.Seq
		}
	}
}
