package tcp

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
	"github.com/unet-go/unet/wire"
)

// A connection over a path with a round trip of 10 ms, whose MTU is assumed to be 1500 bytes, has four
// segments of that size in flight. In mtuUnproven no segment of that size has been acknowledged yet;
// in mtuProven four have.
const (
	mtuUnproven = `
			dial
			> S 0:0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1460 sackok
			> A 1:0 ack 1
			events writable connected
			write 5840
			> A 1:1460 ack 1
			> A 1461:1460 ack 1
			> A 2921:1460 ack 1
			> PA 4381:1460 ack 1
			`
	mtuProven = mtuUnproven + `
			+10ms
			< A 1:0 ack 5841 win 60000
			write 5840
			> A 5841:1460 ack 1
			> A 7301:1460 ack 1
			> A 8761:1460 ack 1
			> PA 10221:1460 ack 1
			`
)

func TestPathMTU(t *testing.T) {
	runScripts(t, []script{
		{name: "before a segment of that size was acknowledged a report is effective at once and is no congestion", cfg: withSack, text: mtuUnproven + `
			toolarge 1:1500 1400
			> A 1:1360 ack 1
			> A 1361:1360 ack 1
			> A 2721:1360 ack 1
			> A 4081:1360 ack 1
			> PA 5441:400 ack 1
			path 1400
			events path
			toolarge 1461:1500 1400	# reports of the other segments
			toolarge 2921:1500 1400
			count mtu_reports_accepted 1
			count mtu_reports_late 2
			count fast_recoveries 0
			window 14600
			+10ms
			< A 1:0 ack 5841 win 60000
			window 14600
			count timeouts 0`},
		{name: "after a segment of that size was acknowledged a report waits until the quoted segment is lost", cfg: withSack, text: mtuProven + `
			toolarge 5841:1500 1400
			path 1500
			count mtu_reports_held 1
			count mtu_reports_accepted 0
			+19ms
			path 1500
			+1ms			# the loss probe would be sent now, after two round trips
			> A 5841:1360 ack 1
			> A 7201:1360 ack 1
			> A 8561:1360 ack 1
			> A 9921:1360 ack 1
			> PA 11281:400 ack 1
			path 1400
			count mtu_reports_accepted 1
			count loss_probes 0
			count timeouts 0
			window 14600
			+10ms
			< A 1:0 ack 11681 win 60000
			window 14600`},
		{name: "after a segment of that size was acknowledged, SACKs of later segments confirm the report", cfg: withSack, text: mtuProven + `
			toolarge 5841:1500 1400
			< A 1:0 ack 5841 win 60000 sack 7301-8761
			path 1500
			< A 1:0 ack 5841 win 60000 sack 7301-10221
			path 1500
			< A 1:0 ack 5841 win 60000 sack 7301-11681
			> A 5841:1360 ack 1
			> A 7201:100 ack 1
			path 1400
			count fast_recoveries 0
			< A 1:0 ack 11681 win 60000
			window 14600`},
		{name: "a report about a segment that is then acknowledged has no effect", cfg: withSack, text: mtuProven + `
			toolarge 7301:1500 576
			< A 1:0 ack 7301 win 60000
			count mtu_reports_refuted 0
			< A 1:0 ack 8761 win 60000
			count mtu_reports_refuted 1
			< A 1:0 ack 11681 win 60000
			path 1500
			count mtu_reports_accepted 0`},
		{name: "impossible reports are counted and have no effect", cfg: withSack, text: mtuUnproven + `
			toolarge 1:1500 1500	# 1500 would have passed
			toolarge 1:1400 1450
			toolarge 1:1501 1400	# no segment of that size was sent
			toolarge 1:500 100
			count mtu_reports_bad 4
			toolarge 5841:1500 1400	# the quoted segment is not in flight
			toolarge 0:1500 1400
			count icmp_unmatched 2
			path 1500`},
		{name: "a reported MTU below 576 counts as 576", cfg: withSack, text: mtuUnproven + `
			toolarge 1:1500 68
			path 576
			> A 1:536 ack 1
			> A 537:536 ack 1
			> A 1073:536 ack 1
			> A 1609:536 ack 1
			> A 2145:536 ack 1
			> A 2681:536 ack 1
			> A 3217:536 ack 1
			> A 3753:536 ack 1
			> A 4289:536 ack 1
			> A 4825:536 ack 1
			> PA 5361:480 ack 1
			window 14600`},
		{name: "a report without an MTU selects the next plateau", cfg: withSack, text: mtuUnproven + `
			toolarge 1:1500 0
			path 1492
			> A 1:1452 ack 1
			> A 1453:1452 ack 1
			> A 2905:1452 ack 1
			> A 4357:1452 ack 1
			> PA 5809:32 ack 1`},
		{name: "a report during the handshake has no effect", cfg: withSack, text: `
			dial
			> S 0:0
			toolarge 0:60 40
			toolarge 0:1500 1400
			count mtu_reports_bad 2
			path 1500`},
		{name: "a smaller MTU does not retransmit segments that fit it", cfg: withSack, text: mtuUnproven + `
			+10ms
			< A 1:0 ack 5841 win 60000
			write 100
			> PA 5841:100 ack 1
			mtu 1000
			path 1000
			lost 0`},
		{name: "a smaller MTU of the link retransmits larger segments at once", cfg: withSack, text: mtuProven + `
			mtu 1000
			> A 5841:960 ack 1
			> A 6801:960 ack 1
			> A 7761:960 ack 1
			> A 8721:960 ack 1
			> A 9681:960 ack 1
			> A 10641:960 ack 1
			> PA 11601:80 ack 1
			window 14600
			+10ms
			< A 1:0 ack 11681 win 60000
			mtu 1500	# the link takes more again
			path 1500
			write 1460
			> PA 11681:1460 ack 1`},
		{name: "an MTU from another connection is used before a larger segment was acknowledged", cfg: withSack, text: mtuUnproven + `
			suggest 1400
			> A 1:1360 ack 1
			> A 1361:1360 ack 1
			> A 2721:1360 ack 1
			> A 4081:1360 ack 1
			> PA 5441:400 ack 1
			suggest 1450
			path 1400`},
		{name: "an MTU from another connection is ignored after a larger segment was acknowledged", cfg: withSack, text: mtuProven + `
			suggest 1400
			path 1500`},
	})
}

// mtuSilent is a connection whose peer has not answered for two seconds. The data is not acknowledged.
const mtuSilent = mtuUnproven + `
			write 7300
			> A 5841:1460 ack 1
			> A 7301:1460 ack 1
			> A 8761:1460 ack 1
			> A 10221:1460 ack 1
			> PA 11681:1460 ack 1
			+20ms
			count loss_probes 1
			> PA 11681:1460 ack 1
			+30ms
			> A 1:1460 ack 1
			+60ms
			> A 1:1460 ack 1
			+120ms
			> A 1:1460 ack 1
			+240ms
			> A 1:1460 ack 1
			+480ms
			> A 1:1460 ack 1
			+960ms
			> A 1:1460 ack 1
			count timeouts 6
			path 1500
			`

// mtuGuessed is a connection that has detected, after more than three seconds, that full segments are lost.
const mtuGuessed = mtuSilent + `
			+1920ms
			count timeouts 7
			> A 1:984 ack 1
			> A 985:476 ack 1
			count black_holes 1
			path 1024
			`

// blackHole is mtuGuessed, and all has been acknowledged. Nothing is in flight.
const blackHole = mtuGuessed + `
			+10ms
			< A 1:0 ack 985 win 60000
			> A 1461:984 ack 1
			> A 2445:984 ack 1
			+10ms
			< A 1:0 ack 13141 win 60000	# the peer has received the rest before
			`

// The path drops full segments without an ICMP report. Pacing is off.
func TestBlackHole(t *testing.T) {
	withSack := withSack // the outer one with pacing off
	withSack.noPacing = true
	runScripts(t, []script{
		{name: "a peer that is slow gets segments of the same size", cfg: withSack, text: mtuSilent + `
			+100ms
			< A 1:0 ack 13141 win 60000
			write 4380
			> A 13141:1460 ack 1
			> A 14601:1460 ack 1
			> PA 16061:1460 ack 1
			count black_holes 0
			path 1500`},
		{name: "a report after timeouts is effective at once", cfg: withSack, text: mtuSilent + `
			toolarge 1:1500 1400
			path 1400
			> A 1:1360 ack 1
			> A 1361:100 ack 1
			count mtu_reports_accepted 1
			+10ms
			< A 1:0 ack 13141 win 60000
			count black_holes 0`},
		{name: "a report after the MTU was guessed bounds the search", cfg: withSack, text: mtuGuessed + `
			toolarge 1:1500 1350
			toolarge 1461:1500 1400		# a report for the next segment
			count mtu_reports_held 1
			count mtu_reports_late 1
			path 1024
			+10ms
			< A 1:0 ack 13141 win 60000
			write 20000
			> A 13141:1310 ack 1	# an MTU probe of that size
			> A 14451:984 ack 1
			> A 15435:984 ack 1
			> A 16419:984 ack 1
			> A 17403:984 ack 1
			> A 18387:984 ack 1
			> A 19371:984 ack 1
			> A 20355:984 ack 1
			> A 21339:984 ack 1
			< A 1:0 ack 14451 win 60000
			path 1350
			> A 22323:1310 ack 1`},
		{name: "three seconds without an answer make segments smaller, and another three smaller still", cfg: withSack, text: mtuGuessed + `
			+3840ms
			> A 1:536 ack 1
			count black_holes 2
			path 576`},
		{name: "small segments say nothing about the MTU", cfg: withSack, text: `
			dial
			> S 0:0
			+10ms
			< SA 0:0 ack 1 win 60000 mss 1460 sackok
			> A 1:0 ack 1
			write 1459
			> PA 1:1459 ack 1
			+30ms
			> PA 1:1459 ack 1
			+30ms
			> PA 1:1459 ack 1
			+60ms
			> PA 1:1459 ack 1
			+120ms
			> PA 1:1459 ack 1
			+240ms
			> PA 1:1459 ack 1
			+480ms
			> PA 1:1459 ack 1
			+960ms
			> PA 1:1459 ack 1
			+1920ms
			> PA 1:1459 ack 1
			+3840ms
			> PA 1:1459 ack 1
			count black_holes 0`},
		{name: "timeouts for three seconds make segments smaller, and an acknowledged MTU probe makes them larger again", cfg: withSack, text: blackHole + `
			write 20000
			> A 13141:1460 ack 1
			> A 14601:984 ack 1
			> A 15585:984 ack 1
			> A 16569:984 ack 1
			> A 17553:984 ack 1
			> A 18537:984 ack 1
			> A 19521:984 ack 1
			> A 20505:984 ack 1
			> A 21489:984 ack 1
			> A 22473:984 ack 1
			count mtu_probes 1
			< A 1:0 ack 14601 win 60000
			path 1500
			events path
			count mtu_probes_lost 0
			> A 23457:1460 ack 1`},
		{name: "a lost MTU probe is sent again in small segments and is no congestion", cfg: withSack, text: blackHole + `
			write 20000
			> A 13141:1460 ack 1
			> A 14601:984 ack 1
			> A 15585:984 ack 1
			> A 16569:984 ack 1
			> A 17553:984 ack 1
			> A 18537:984 ack 1
			> A 19521:984 ack 1
			> A 20505:984 ack 1
			> A 21489:984 ack 1
			> A 22473:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-15585
			> A 23457:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-16569
			> A 24441:984 ack 1
			< A 1:0 ack 13141 win 60000 sack 14601-18537
			> A 13141:984 ack 1
			> A 14125:476 ack 1
			> A 25425:984 ack 1
			> A 26409:984 ack 1
			count mtu_probes_lost 1
			count fast_recoveries 0
			path 1024`},
	})
}

// A peer may offer any MSS. The size of segments follows it within bounds: 48 bytes at least
// (CVE-2019-11479), and what the path permits at most.
func TestPeersMSS(t *testing.T) {
	const bare = 1460 - wire.TCPTimestampsLen
	for _, c := range []struct{ offered, sent int }{
		{0, 536}, {1, 48}, {8, 48}, {48, 48}, {49, 49}, {536, 536}, {1459, 1459}, {1460, 1460}, {1461, 1460}, {65535, 1460},
	} {
		for _, timestamps := range []bool{false, true} {
			want := c.sent
			if timestamps {
				want -= wire.TCPTimestampsLen
			}
			h := newHostilePeer(t, uint16(c.offered), Config{NoTimestamps: !timestamps})
			h.c.Write(h.now, make([]byte, 4*bare))
			h.emit()
			if h.largest != want {
				t.Errorf("MSS %d, timestamps %t: %d bytes of data, want %d", c.offered, timestamps, h.largest, want)
			}
		}
	}
}

// hostilePeer is a table with one connection, and a peer whose segments the test makes.
type hostilePeer struct {
	tab      *Table
	c        *Conn
	now      Time
	nextSeq  uint32 // of the peer
	ts       uint32 // the peer's last timestamp
	segments int    // that the connection has sent
	largest  int    // bytes of data in one of them, at most
	end      uint32 // the sequence number after all data that was sent
}

const hostileISS = 5000

func newHostilePeer(t *testing.T, mss uint16, cfg Config) *hostilePeer {
	t.Helper()
	cfg.Secret = testSecret
	h := &hostilePeer{tab: NewTable(cfg), now: Time(time.Second), nextSeq: hostileISS}
	var err error
	if h.c, err = h.tab.Dial(h.now, AddrPort{Addr: hostA, Port: 1}, AddrPort{Addr: hostB, Port: 2}, Options{}); err != nil {
		t.Fatal(err)
	}
	h.emit()
	h.end = h.c.iss.Uint32() + 1
	h.segment(wire.TCPSyn|wire.TCPAck, h.end, wire.TCPOptions{MSS: mss, HasWindowScale: true, WindowScale: 14, SACKPermitted: true})
	h.emit()
	if h.c.State() != Established {
		t.Fatal(h.c.State())
	}
	h.segments, h.largest = 0, 0
	return h
}

// segment receives a segment of the peer, with the largest window.
func (h *hostilePeer) segment(flags wire.TCPFlags, ack uint32, o wire.TCPOptions) {
	h.ts++
	o.HasTimestamps, o.TSVal, o.TSEcr = true, h.ts, h.c.timestamp(h.now)
	b := make([]byte, 60)
	n, sum := wire.PutTCPOptions(b[20:], &o)
	f := wire.TCPFields{SrcPort: 2, DstPort: 1, Seq: h.nextSeq, Ack: ack, Flags: flags, Window: 0xffff}
	if flags&wire.TCPSyn != 0 {
		h.nextSeq++
	}
	wire.PutTCP(b, &f, 20+n, addSums(sum, wire.PseudoHeader(hostB, hostA, wire.ProtocolTCP, uint16(20+n))))
	h.tab.Process(h.now, &Inbound{Src: hostB, Dst: hostA, Data: b[:20+n]})
}

// emit emits all segments of the connection.
func (h *hostilePeer) emit() {
	b := make([]byte, 2000)
	for h.tab.Ready != nil {
		n := h.c.Emit(h.now, b)
		s := view(b[:n])
		h.segments++
		h.largest = max(h.largest, len(s.Payload))
		if end := s.Seq + uint32(len(s.Payload)); int32(end-h.end) > 0 {
			h.end = end
		}
	}
	for c, _ := h.tab.NextEvent(); c != nil; c, _ = h.tab.NextEvent() {
	}
}

// The attacks of CVE-2019-11477 and CVE-2019-11478: many tiny segments, SACK blocks of every second one,
// and acknowledgments without the SACK blocks. The number of segments sent is in proportion to those of
// the peer, and the scoreboard is bounded.
func TestTinyMSS(t *testing.T) {
	const size = 1 << 19
	h := newHostilePeer(t, 1, Config{})
	h.c.Write(h.now, make([]byte, size))
	sent, received := 0, 0
	check := func() {
		t.Helper()
		if msg := h.c.invariant(); msg != "" {
			t.Fatal(msg)
		}
	}
	una := h.c.sndUna.Uint32()
	for h.c.Info().Unsent > 0 || h.c.sndUna != h.c.sndNxt {
		h.emit()
		h.now += Time(time.Millisecond)
		// Every second segment, from the newest to the oldest, three at a time; then all.
		end := h.end
		const piece = 36
		for at := end; received < 20_000 && int32(at-una) > 6*piece; at -= 6 * piece {
			o := wire.TCPOptions{SACKBlocks: 3}
			for i := range uint32(3) {
				o.SACK[i] = wire.SACKBlock{Left: at - (2*i+1)*piece, Right: at - 2*i*piece}
			}
			h.segment(wire.TCPAck, una, o)
			received++
			h.emit()
			check()
		}
		h.now += Time(10 * time.Millisecond)
		h.tab.Expire(h.now)
		h.emit()
		h.segment(wire.TCPAck, end, wire.TCPOptions{})
		received++
		una = h.c.sndUna.Uint32()
		check()
	}
	sent = h.segments
	if most := 2*size/36 + 3*received; sent > most {
		t.Errorf("%d segments sent for %d bytes and %d of the peer's", sent, size, received)
	}
	t.Logf("%d segments for %d bytes, %d of the peer's, %d blocks ignored", sent, size, received, h.tab.Count(SackIgnored))
}

// mtuTransfer is a bulk transfer over a path whose MTU changes.
type mtuTransfer struct {
	net         *network
	a, b        *Conn
	rule        linksim.Rule
	sendReports bool // the router sends ICMP reports
	reportedMTU func(mtu int) int
	mtu         int // of the path
	sent        int
	got         int
}

func newMTUTransfer(t *testing.T, seed uint64, cfg Config, o Options, link linkModel) *mtuTransfer {
	net := newNetwork(t, seed, [2]Config{cfg, cfg})
	net.setLink(linkModel{delay: link.delay})
	n := &mtuTransfer{net: net, rule: link.rule(), reportedMTU: func(mtu int) int { return mtu }}
	o.SendBuffer, o.ReceiveBuffer = cmp.Or(o.SendBuffer, 1<<20), cmp.Or(o.ReceiveBuffer, 1<<20)
	n.a, n.b = net.connect(net.listen(o), o)
	net.onTooLarge = n.report
	return n
}

// report gives the sender a router's ICMP report about a segment that was too large.
func (n *mtuTransfer) report(from int, b []byte) {
	if !n.sendReports {
		return
	}
	net := n.net
	packet := make([]byte, 20+len(b))
	src, dst := net.hosts[from].addr, net.hosts[1-from].addr
	wire.PutIPv4(packet, wire.IPv4Fields{TotalLen: uint16(len(packet)), TTL: 1, Protocol: wire.ProtocolTCP, Src: src.As4(), Dst: dst.As4()})
	copy(packet[20:], b)
	m := make([]byte, wire.MaxICMPv4ErrorLen)
	m = m[:wire.PutICMPv4Error(m, wire.ICMPUnreachable, wire.ICMPFragmentationNeeded, uint32(n.reportedMTU(n.mtu)), packet)]
	icmp, err := wire.ParseICMPv4(m)
	if err != nil {
		net.fatalf("%v", err)
	}
	e, err := icmp.Report()
	if err != nil {
		net.fatalf("%v", err)
	}
	net.note(from, fmt.Sprint("receives ICMP, MTU ", n.reportedMTU(n.mtu)), nil)
	net.hosts[from].tab.ProcessICMP(net.now, &e)
}

// setPath changes the path's MTU.
func (n *mtuTransfer) setPath(mtu int) {
	n.mtu = mtu
	n.rule.MaxSize = mtu - 20
	n.net.impair(0, n.rule)
}

// run transfers that many bytes more.
func (n *mtuTransfer) run(bytes int) {
	net := n.net
	limit := net.now.add(10 * time.Minute)
	to := make([]byte, 64<<10)
	for end := n.got + bytes; n.got < end; {
		for n.sent < end && n.a.Room() >= 32<<10 {
			k, err := n.a.Write(net.now, patternBytes(0, n.sent, min(len(to), end-n.sent)))
			if err != nil {
				net.fatalf("%v", err)
			}
			if n.sent += k; k == 0 {
				break
			}
		}
		net.step(limit)
		for {
			k, _ := n.b.Read(net.now, to)
			if k == 0 {
				break
			}
			checkPattern(net.t, 0, n.got, to[:k])
			n.got += k
		}
		if net.now >= limit {
			net.fatalf("%d of %d bytes after ten minutes", n.got, end)
		}
	}
}

// counts are the counters, for the message of a failure.
func (n *mtuTransfer) counts() string {
	t := n.net.hosts[0].tab
	s := fmt.Sprintf("%v, MTU %d", time.Duration(n.net.now), n.a.Info().PathMTU)
	for _, c := range []Counter{Timeouts, FastRecoveries, BlackHoles, MTUProbes, MTUProbesLost, MTUReportsAccepted, MTUReportsHeld, MTUReportsRefuted, MTUReportsLate, MTUReportsBad} {
		s += fmt.Sprintf(", %d %v", t.Count(c), c)
	}
	return s
}

// A smaller MTU of the path is found, with and without ICMP reports, with loss and with reordering: the
// transfer ends, and segments become nearly as large as the path permits.
func TestPathMTUDiscovery(t *testing.T) {
	skipUnderRace(t)
	lan := linkModel{delay: 20 * time.Microsecond}
	for _, c := range []struct {
		name  string
		link  linkModel
		cfg   Config
		way   string
		bytes int
	}{
		{"LAN", lan, Config{}, "black hole", 1 << 20},
		{"LAN, ICMP", lan, Config{}, "ICMP", 1 << 20},
		{"LAN, old router", lan, Config{}, "old router", 1 << 20},
		{"1% loss", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, "black hole", 3 << 20},
		{"1% loss, ICMP", linkModel{loss: 0.01, delay: 500 * time.Microsecond}, Config{}, "ICMP", 1 << 20},
		{"20 ms, jitter", linkModel{delay: 10 * time.Millisecond, jitter: time.Millisecond}, Config{}, "black hole", 3 << 20},
		{"20 ms, jitter, ICMP", linkModel{delay: 10 * time.Millisecond, jitter: time.Millisecond}, Config{}, "ICMP", 1 << 20},
		{"LAN, no SACK", lan, Config{NoSACK: true}, "black hole", 1 << 20},
		{"LAN, no SACK, ICMP", lan, Config{NoSACK: true}, "ICMP", 1 << 20},
		{"LAN, bare", lan, noOptions, "black hole", 1 << 20},
	} {
		for _, p := range []struct{ link, path, least, plateau int }{
			{1500, 1500, 1500, 1500}, {1500, 1492, 1492, 1492}, {1500, 1400, 1400, 1006}, {1500, 1300, 1284, 1006}, {1500, 1024, 1024, 1006}, {1500, 600, 576, 576},
			{9000, 1500, 1500, 1492}, {9000, 8950, 8934, 8166}, {9000, 4352, 4352, 4352}, {9000, 2000, 1500, 1492},
		} {
			t.Run(fmt.Sprintf("%s/%d over %d", c.name, p.link, p.path), func(t *testing.T) {
				n := newMTUTransfer(t, 1, c.cfg, Options{MTU: p.link}, c.link)
				n.sendReports = c.way != "black hole"
				if c.way == "old router" {
					n.reportedMTU = func(int) int { return 0 }
					p.least = p.plateau
				}
				n.setPath(p.path)
				n.run(c.bytes)
				tab := n.net.hosts[0].tab
				if mtu := n.a.Info().PathMTU; mtu > p.path || mtu < p.least {
					t.Errorf("found an MTU of %d, want %d to %d: %+v, %+v", mtu, p.least, p.path, n.a.path, n.a.congestion)
				}
				if holes := tab.Count(BlackHoles); (holes > 0) != (c.way == "black hole" && p.path < p.link) {
					t.Errorf("%d black holes were detected, path %d, link %d, %s", holes, p.path, p.link, c.way)
				}
				if c.link.loss == 0 && c.link.jitter == 0 && tab.Count(FastRecoveries) > 0 {
					t.Error("a fast recovery without loss: an MTU probe or a report counted as congestion")
				}
				t.Log(n.counts())
			})
		}
	}
}

// wait lets time pass in which nothing is written.
func (n *mtuTransfer) wait(d time.Duration) {
	for end := n.net.now.add(d); n.net.step(end); {
	}
}

// The MTU of a path becomes smaller during a transfer and then larger. The connection follows, upward by
// MTU probes.
func TestPathMTUChanges(t *testing.T) {
	for _, icmp := range []bool{true, false} {
		t.Run(fmt.Sprintf("ICMP %v", icmp), func(t *testing.T) {
			n := newMTUTransfer(t, 1, Config{}, Options{MTU: 1500, SendBuffer: 64 << 10}, linkModel{delay: 500 * time.Microsecond})
			n.sendReports = icmp
			check := func(what string, least, most int) {
				t.Helper()
				if mtu := n.a.Info().PathMTU; mtu < least || mtu > most {
					t.Errorf("%s: %s; %+v", what, n.counts(), n.a.path)
				}
			}
			n.run(1 << 20)
			n.setPath(1400)
			n.run(1 << 20)
			check("after the MTU has become smaller", 1384, 1400)
			n.wait(verifyAfter)
			n.run(2 << 20)
			check("after an MTU probe", 1384, 1400)
			before := n.net.lines[0].Counters().LostForSize
			n.run(1 << 20)
			n.wait(searchAgain / 2)
			n.run(1 << 20)
			if lost := n.net.lines[0].Counters().LostForSize - before; lost > 0 {
				t.Errorf("%d segments were too large after the MTU was found: %s", lost, n.counts())
			}
			n.setPath(1500)
			n.wait(searchAgain)
			n.run(1 << 20)
			check("after the MTU has become larger", 1500, 1500)
			if tab := n.net.hosts[0].tab; tab.Count(FastRecoveries) > 0 {
				t.Errorf("fast recoveries without loss: %s", n.counts())
			}
		})
	}
}

// Forged reports for each segment in flight do not lower an MTU that acknowledgments have proved. If the
// quoted segments are lost by chance they may lower it, until MTU probes raise it again.
func TestForgedMTUReports(t *testing.T) {
	for _, loss := range []float64{0, 0.01} {
		t.Run(fmt.Sprint("loss ", loss), func(t *testing.T) {
			n := newMTUTransfer(t, 1, Config{}, Options{MTU: 1500, SendBuffer: 64 << 10}, linkModel{loss: loss, delay: 500 * time.Microsecond})
			n.setPath(1500)
			n.run(1 << 18)
			n.sendReports, n.mtu = true, 68
			forging := true
			n.net.onSend = func(from int, b []byte) {
				if forging && from == 0 && len(view(b).Payload) > 0 {
					n.report(0, b)
				}
			}
			n.run(1 << 20)
			mtu := n.a.Info().PathMTU
			if loss == 0 && mtu != 1500 || mtu < 576 {
				t.Errorf("a forged report had an effect: %s", n.counts())
			}
			forging = false
			n.wait(verifyAfter)
			n.run(1 << 20)
			if n.a.Info().PathMTU != 1500 {
				t.Errorf("the effect of forged reports lasts: %s, %+v", n.counts(), n.a.path)
			}
			tab := n.net.hosts[0].tab
			if tab.Count(MTUReportsRefuted) < 10 || tab.Count(MTUReportsAccepted) > 10 {
				t.Error(n.counts())
			}
		})
	}
}
