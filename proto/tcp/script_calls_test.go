package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unet-go/unet/wire"
)

// result compares what a call has returned with what follows "=".
func (r *runner) result(w []string, n int, err error) {
	want := ""
	for i, s := range w {
		if s == "=" {
			want = w[i+1]
		}
	}
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
	if want == "" {
		want = w[1]
	}
	if got != want {
		r.fatalf("returned %s", got)
	}
}

var errnoNames = map[syscall.Errno]string{
	syscall.ECONNREFUSED: "ECONNREFUSED", syscall.ECONNRESET: "ECONNRESET", syscall.ETIMEDOUT: "ETIMEDOUT",
	syscall.EPIPE: "EPIPE", syscall.ECONNABORTED: "ECONNABORTED", syscall.EHOSTUNREACH: "EHOSTUNREACH",
	syscall.ENETUNREACH: "ENETUNREACH", syscall.ENOTCONN: "ENOTCONN", syscall.EADDRINUSE: "EADDRINUSE",
}

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
		r.result([]string{"", "none", "=", strings.Join(append(w, "none")[1:2], "")}, 0, r.c.CloseWrite(r.now))
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
		r.state(w[1])
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
			r.fatalf("told %d times to accept", r.accepts)
		}
		r.accepts = 0
	case "err":
		r.result([]string{"", "", "=", w[1]}, 0, r.c.Err())
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
	case "mtu": // what the link takes
		r.c.SetMTU(r.now, arg)
	case "suggest": // what another connection has learnt
		r.c.SuggestMTU(r.now, arg, false)
	case "toolarge": // ICMP: a segment, as "first:bytes of packet", and the MTU that is said to pass
		first, size, _ := strings.Cut(w[1], ":")
		m, q := unreachable(r.t, wire.ICMPUnreachable, wire.ICMPFragmentationNeeded, r.id, r.iss+uint32(r.number(first)))
		binary.BigEndian.PutUint16(q[2:], uint16(r.number(size)))
		binary.BigEndian.PutUint16(m[6:], uint16(r.number(w[2])))
		r.tab.ProcessICMP(r.now, m, q)
	case "icmp": // destination unreachable, with this code, of the segment with that number
		m, q := unreachable(r.t, wire.ICMPUnreachable, uint8(arg), r.id, r.iss+uint32(r.number(w[2])))
		r.tab.ProcessICMP(r.now, m, q)
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
		r.result([]string{"", "", "=", strings.Join(append(w, "none")[1:2], "")}, 0, err)
	case "timer":
		// The connection's next timer, from now. The table may be told earlier.
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

func (r *runner) verify(p []byte) {
	for i, b := range p {
		if want := pattern(1, r.gotten); b != want {
			r.fatalf("byte %d read is %#x, want %#x", r.gotten, p[i], want)
		}
		r.gotten++
	}
}

// state compares with the connection or, where there is none, with what the table
// knows of the pair.
func (r *runner) state(want string) {
	got := Closed
	switch c := r.tab.conns[r.id]; {
	case c != nil:
		got = c.state
	case r.tab.waits.records[r.id] != nil:
		got = TimeWait
	case r.c == nil && r.l != nil && !r.l.closed:
		got = Listen
	}
	if got.String() != want {
		r.fatalf("state %v", got)
	}
	if c := r.tab.conns[r.id]; c != nil && r.c != nil && r.c != c {
		r.fatalf("another connection")
	}
}
