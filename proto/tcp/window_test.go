package tcp

import (
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/proto/tcp/seq"
	"github.com/unet-go/unet/wire"
)

// rightEdge is the right edge of the window that one end of a connection has advertised.
type rightEdge struct {
	scale   uint8
	scaled  bool // both SYNs had the window scale option
	edge    seq.Number
	known   bool
	offered bool // the SYN of this end had it
}

// edges are the right edges of all connections of a network. The key is the sender and the receiver.
type edges map[[2]AddrPort]*rightEdge

// note notes a segment, and reports whether its right edge is to the left of an earlier one (RFC 9293,
// SHLD-14).
func (e edges) note(from, to wire.Addr, b []byte) (shrunk bool) {
	h := view(b)
	here, there := AddrPort{Addr: from, Port: h.SrcPort}, AddrPort{Addr: to, Port: h.DstPort}
	w := e[[2]AddrPort{here, there}]
	if w == nil {
		w = &rightEdge{}
		e[[2]AddrPort{here, there}] = w
	}
	var o wire.TCPOptions
	switch f := h.Flags; {
	case f&wire.TCPSyn != 0:
		h.ReadOptions(&o)
		w.scale, w.offered = o.WindowScale, o.HasWindowScale
		if peer := e[[2]AddrPort{there, here}]; f&wire.TCPAck != 0 || peer != nil {
			w.scaled = w.offered && peer != nil && peer.offered
			if peer != nil {
				peer.scaled = w.scaled
			}
		}
		if w.known = f&wire.TCPAck != 0; w.known {
			w.edge = seq.New(h.Ack).Add(uint32(h.Window))
		}
		return false
	case f&wire.TCPRst != 0, f&wire.TCPAck == 0:
		return false
	}
	wnd := uint32(h.Window)
	if w.scaled {
		wnd <<= w.scale
	}
	edge := seq.New(h.Ack).Add(wnd)
	shrunk = w.known && edge.Before(w.edge)
	if !w.known || !shrunk {
		w.edge, w.known = edge, true
	}
	return shrunk
}

// timedTransfer is a bulk transfer for a fixed time.
type timedTransfer struct {
	delay  time.Duration
	rate   int64
	length time.Duration
	opts   [2]Options
	cfg    Config
	read   func(net *network, c *Conn, to []byte) int // reads at the receiver; nil: all data at once
}

// run returns the network, both connections, and how many bytes were read.
func (l *timedTransfer) run(t *testing.T) (net *network, conns [2]*Conn, got int) {
	net = newNetwork(t, 7, [2]Config{l.cfg, l.cfg})
	for i := range net.hosts {
		net.impair(i, linksim.Rule{Delay: l.delay, Rate: l.rate, Queue: 4 << 20})
	}
	a, b := net.connect(net.listen(l.opts[1]), l.opts[0])
	text, to := make([]byte, 64<<10), make([]byte, 1<<20)
	for end := net.now.add(l.length); net.now < end; {
		for {
			if n, err := a.Write(net.now, text); err != nil {
				net.fatalf("%v", err)
			} else if n < len(text) {
				break
			}
		}
		net.step(end)
		if l.read != nil {
			got += l.read(net, b, to)
			continue
		}
		for {
			n, _ := b.Read(net.now, to)
			if got += n; n == 0 {
				break
			}
		}
	}
	return net, [2]*Conn{a, b}, got
}

// The buffers of both sides grow to what the path holds, and a transfer uses the path. With fixed buffers
// of a megabyte it does not.
func TestBuffersGrow(t *testing.T) {
	skipUnderRace(t)
	for _, timestamps := range []bool{true, false} {
		l := timedTransfer{delay: 10 * time.Millisecond, rate: 1e9, length: 600 * time.Millisecond}
		l.cfg.NoTimestamps = !timestamps
		net, c, got := l.run(t)
		const bdp = 1e9 / 8 / 50
		if n := c[1].Info().ReceiveBuffer; n < 2*bdp/10*9 || n > DefaultMaxReceiveBuffer {
			t.Errorf("timestamps %v: a receive buffer of %d bytes, the path holds %d", timestamps, n, int(bdp))
		}
		if n := c[0].Info().SendBuffer; n != DefaultMaxSendBuffer {
			t.Errorf("timestamps %v: a send buffer of %d bytes", timestamps, n)
		}
		if float64(got) < 0.6*l.length.Seconds()*1e9/8 {
			t.Errorf("timestamps %v: %d bytes in %v", timestamps, got, l.length)
		}
		if n := net.hosts[1].tab.MemoryInUse(); n > 64<<10 {
			t.Errorf("timestamps %v: the receiver has %d bytes of memory in use although all data is read", timestamps, n)
		}
	}
	l := timedTransfer{delay: 10 * time.Millisecond, rate: 1e9, length: 300 * time.Millisecond,
		opts: [2]Options{{SendBuffer: DefaultBuffer, ReceiveBuffer: DefaultBuffer}, {SendBuffer: DefaultBuffer, ReceiveBuffer: DefaultBuffer}}}
	if _, c, got := l.run(t); got > 300/20*DefaultBuffer || c[1].Info().ReceiveBuffer != DefaultBuffer || c[0].Info().SendBuffer != DefaultBuffer {
		t.Errorf("fixed buffers: %d bytes read, receive buffer %d, send buffer %d", got, c[1].Info().ReceiveBuffer, c[0].Info().SendBuffer)
	}
}

// In a LAN buffers of DefaultBuffer bytes are enough, and they do not grow beyond that.
func TestBuffersInLAN(t *testing.T) {
	l := timedTransfer{delay: 20 * time.Microsecond, rate: 10e9, length: 20 * time.Millisecond}
	_, c, got := l.run(t)
	if r, s := c[1].Info().ReceiveBuffer, c[0].Info().SendBuffer; r > DefaultBuffer || s > DefaultBuffer {
		t.Errorf("buffers of %d and %d bytes", s, r)
	}
	if float64(got) < 0.7*l.length.Seconds()*10e9/8 {
		t.Errorf("%d bytes in %v", got, l.length)
	}
}

// The buffers do not grow for a slow reader: one that reads a little at a time, one that reads much once a
// second, one that reads nothing.
func TestSlowReaders(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		every time.Duration
	}{
		"a little":     {2000, 10 * time.Millisecond},
		"seldom":       {1 << 20, time.Second},
		"nothing":      {0, time.Second},
		"byte by byte": {1, time.Millisecond},
	} {
		next := Time(0)
		l := timedTransfer{delay: 10 * time.Millisecond, rate: 1e9, length: 5 * time.Second}
		l.read = func(net *network, conn *Conn, to []byte) (n int) {
			if net.now >= next {
				next = net.now.add(c.every)
				n, _ = conn.Read(net.now, to[:c.n])
			}
			return n
		}
		net, conns, got := l.run(t)
		if n := conns[1].Info().ReceiveBuffer; n > initialReceiveBuffer {
			t.Errorf("%s: a receive buffer of %d bytes", name, n)
		}
		if n := conns[0].Info().SendBuffer; n > 2*initialSendBuffer {
			t.Errorf("%s: a send buffer of %d bytes", name, n)
		}
		if n := net.hosts[1].tab.MemoryInUse(); n > initialReceiveBuffer+2*ChunkSize {
			t.Errorf("%s: the receiver holds %d bytes", name, n)
		}
		if got == 0 && c.n > 0 {
			t.Errorf("%s: nothing was read", name)
		}
	}
}

// Buffers stop growing when the memory is used up, and when the application sets a size.
func TestBufferGrowthStops(t *testing.T) {
	l := timedTransfer{delay: 10 * time.Millisecond, rate: 1e9, length: time.Second, cfg: Config{Memory: 1 << 20}}
	net, c, _ := l.run(t)
	if n := c[0].Info().SendBuffer; n > 1<<20 {
		t.Errorf("a send buffer of %d bytes in a table with 1 MiB", n)
	}
	if n := net.hosts[0].tab.MemoryInUse(); n > 1<<20 {
		t.Errorf("%d bytes in use", n)
	}
	set := false
	l = timedTransfer{delay: 10 * time.Millisecond, rate: 1e9, length: time.Second}
	l.read = func(net *network, conn *Conn, to []byte) int {
		if !set {
			conn.SetBuffers(net.now, 0, 200_000)
			set = true
		}
		n, _ := conn.Read(net.now, to)
		return n
	}
	if _, c, _ := l.run(t); c[1].Info().ReceiveBuffer != 200_000 {
		t.Errorf("a receive buffer of %d bytes, and the application has set 200000", c[1].Info().ReceiveBuffer)
	}
}

// Segments with an option of each known kind, and of some unknown ones, with each length that its length
// byte can have, at different places among the options, for every state. No option was agreed on, so
// only in a SYN it may have an effect: the outcome is that of the oracle for the segment without options.
func TestEveryOptionLength(t *testing.T) {
	kinds := []uint8{0, 1, wire.TCPOptionMSS, wire.TCPOptionWindowScale, wire.TCPOptionSACKPermitted, wire.TCPOptionSACK,
		6, 7, wire.TCPOptionTimestamps, 19, 28, 30, 34, 253, 254, 255}
	for _, q := range situations {
		t.Run(q.name, func(t *testing.T) {
			for _, flags := range []wire.TCPFlags{wire.TCPAck, wire.TCPSyn, wire.TCPSyn | wire.TCPAck} {
				for _, kind := range kinds {
					for length := range 256 {
						if length > 45 && length < 250 {
							continue // longer than the 40 bytes of options
						}
						place := (int(kind) + length) % 5
						if length <= 12 {
							place = length % 3
						}
						options := make([]byte, 40)
						for i := range options {
							options[i] = wire.TCPOptionNop
						}
						options[place], options[place+1] = kind, uint8(length)
						for i := place + 2; i < min(place+length, len(options)); i++ {
							options[i] = 0x5a
						}
						s := incoming{flags: flags, seq: q.rcvNxt, ack: q.una + 1, dataLen: 7}
						r := atSituation(t, q, Config{}, false)
						r.src = fmt.Sprintf("%v, option %d of length %d at %d", flags, kind, length, place)
						b := r.build(s, options)
						r.checkCase(q, s, b)
						well := view(b).ReadOptions(new(wire.TCPOptions))
						if n := r.tab.Count(BadOptions); well && n != 0 || !well && n != 1 {
							r.fatalf("%d bad options counted", n)
						}
					}
				}
			}
		})
	}
}

// Options that do not begin at a boundary of 4 bytes are read (MUST-64). An option with an impossible
// length is not read, and those before it count (MUST-7).
func TestSYNOptions(t *testing.T) {
	for _, c := range []struct {
		options                []byte
		mss                    uint16
		scaling, sack, stamped bool
		sndScale               uint8
		bad                    uint64
	}{
		{options: nil, mss: defaultMSS},
		{options: []byte{2, 4, 4, 0, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0}, mss: 1024, scaling: true, sndScale: 7, sack: true, stamped: true},
		{options: []byte{1, 3, 3, 2, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 4, 0, 0}, mss: 1024, scaling: true, sndScale: 2, stamped: true},
		{options: []byte{253, 3, 0, 2, 4, 4, 0, 4, 2, 1, 1, 1}, mss: 1024, sack: true},
		{options: []byte{2, 4, 4, 0, 3, 0, 7, 4}, mss: 1024, bad: 1},                                               // a length of 0
		{options: []byte{2, 4, 4, 0, 3, 1, 4, 2}, mss: 1024, bad: 1},                                               // a length of 1
		{options: []byte{2, 4, 4, 0, 8, 10, 0, 0}, mss: 1024, bad: 1},                                              // beyond the header
		{options: []byte{4, 2, 2, 3, 9, 3, 3, 5}, mss: defaultMSS, sack: true, scaling: true, sndScale: 5, bad: 1}, // an MSS of length 3
		{options: []byte{2, 6, 4, 0, 0, 0, 4, 2}, mss: defaultMSS, sack: true, bad: 1},
		{options: []byte{2, 4, 0, 0, 0, 0, 0, 0}, mss: defaultMSS}, // an MSS of 0
		{options: []byte{0, 2, 4, 4, 0, 0, 0, 0}, mss: defaultMSS}, // an MSS behind the end of the options
		{options: []byte{3, 3, 200, 0}, mss: defaultMSS, scaling: true, sndScale: 14},
	} {
		tab := NewTable(Config{Secret: testSecret})
		if _, err := tab.Listen(AddrPort{Port: localPort}, ListenOptions{}); err != nil {
			t.Fatal(err)
		}
		n := 20 + len(c.options)
		b := make([]byte, n)
		copy(b[20:], c.options)
		wire.PutTCP(b, &wire.TCPFields{SrcPort: peerPort, DstPort: localPort, Flags: wire.TCPSyn}, n,
			wire.Sum(b[20:], wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(n))))
		conn := tab.Process(0, &Inbound{Src: hostB, Dst: hostA, Data: b}).Opening
		if conn == nil {
			t.Errorf("%x: no connection", c.options)
			continue
		}
		if conn.peerMSS != c.mss || conn.scaling != c.scaling || conn.sack != c.sack || conn.timestamps != c.stamped ||
			conn.sndScale != c.sndScale || tab.Count(BadOptions) != c.bad {
			t.Errorf("%x: MSS %d, scale %v %d, SACK %v, timestamps %v, %d bad", c.options, conn.peerMSS, conn.scaling, conn.sndScale,
				conn.sack, conn.timestamps, tab.Count(BadOptions))
		}
	}
}
