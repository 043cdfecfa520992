package tcp

import (
	"bytes"
	"testing"
	"time"

	"github.com/unet-go/unet/internal/linksim"
)

func TestECN(t *testing.T) {
	bare := Config{NoTimestamps: true, NoSACK: true, NoWindowScale: true}
	on, off := bare, bare
	on.ECN, off.ECN = ECNOn, ECNOff
	runScripts(t, []script{
		{name: "dial asks for ECN and the peer agrees", cfg: on, opts: Options{Cork: -1}, text: `
			dial
			> SEC 0:0
			< SAE 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			write 1500
			> A 1:1000 ack 1 ect
			> PA 1001:500 ack 1 ect`},
		{name: "dial asks for ECN and the peer does not agree", cfg: on, text: `
			dial
			> SEC 0:0
			< SA 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			write 1000
			> PA 1:1000 ack 1
			< AE 1:100 ack 1001 ce
			> A 1001:0 ack 101
			count congestion_marks 0
			count congestion_echoes 0`},
		{name: "a SYN,ACK with the flags of the SYN does not agree to ECN", cfg: on, text: `
			dial
			> SEC 0:0
			< SAEC 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			write 1000
			> PA 1:1000 ack 1`},
		{name: "a retransmitted SYN does not ask for ECN, but the answer to the first SYN may agree", cfg: on, text: `
			dial
			> SEC 0:0
			+1s
			> S 0:0
			< SAE 0:0 ack 1 mss 1000
			> A 1:0 ack 1
			write 1000
			> PA 1:1000 ack 1
			< A 1:100 ack 1001 ce
			> AE 1001:0 ack 101`},
		{name: "a listener agrees to ECN if the peer asks", cfg: bare, text: `
			listen
			< SEC 0:0 mss 1000
			> SAE 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 1000
			> PA 1:1000 ack 1 ect`},
		{name: "a listener does not offer ECN if the peer does not ask", cfg: on, text: `
			listen
			< S 0:0 mss 1000
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 1000
			> PA 1:1000 ack 1`},
		{name: "a SYN with only ECE does not ask for ECN", cfg: on, text: `
			listen
			< SE 0:0 mss 1000
			> SA 0:0 ack 1`},
		{name: "a SYN with a congestion mark does not ask for ECN", cfg: on, text: `
			listen
			< SEC 0:0 mss 1000 ce
			> SA 0:0 ack 1`},
		{name: "a peer that repeats its SYN without ECN gets none", cfg: bare, text: `
			listen
			< SEC 0:0 mss 1000
			> SAE 0:0 ack 1
			< S 0:0 mss 1000
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 1000
			> PA 1:1000 ack 1`},
		{name: "ECNOff: a listener does not agree", cfg: off, text: `
			listen
			< SEC 0:0 mss 1000
			> SA 0:0 ack 1
			< A 1:0 ack 1
			accept
			write 1000
			> PA 1:1000 ack 1`},
		{name: "dial does not ask for ECN by default", cfg: bare, text: `
			dial
			> S 0:0`},
		{name: "ECN is agreed on with a SYN cookie", cfg: Config{}, lopt: ListenOptions{SynQueue: 1}, text: `
			listen
			other S
			< SEC 0:0 mss 1460 ts 500
			> SAE 0:0 ack 1
			< A 1:0 ack 1 ts 501/ECHO
			accept
			write 1000
			> PA 1:1000 ack 1 ect`},
		{name: "ECE is sent after marked data until CWR arrives", cfg: bare, text: `
			listen
			< SEC 0:0 mss 1000
			> SAE 0:0 ack 1
			< A 1:0 ack 1
			accept
			< A 1:100 ack 1 ce
			> AE 1:0 ack 101
			< A 101:100 ack 1
			> AE 1:0 ack 201
			write 10
			> PAE 1:10 ack 201 ect
			< A 201:0 ack 11 ce		# a mark on a segment without data is not echoed
			< AC 201:100 ack 11
			> A 11:0 ack 301
			count congestion_marks 1
			< AC 301:100 ack 11 ce		# CWR answers the last mark; this segment has the next one
			> AE 11:0 ack 401
			< A 9001:100 ack 11 ce
			> AE 11:0 ack 401
			count congestion_marks 3`},
		{name: "ECE reduces the congestion window once for each window of data", cfg: on, text: `
			dial
			> SEC 0:0
			+10ms
			< SAE 0:0 ack 1 win 60000 mss 1000
			> A 1:0 ack 1
			write 30000
			> A 1:1000 ack 1 ect
			> A 1001:1000 ack 1 ect
			> A 2001:1000 ack 1 ect
			> A 3001:1000 ack 1 ect
			> A 4001:1000 ack 1 ect
			> A 5001:1000 ack 1 ect
			> A 6001:1000 ack 1 ect
			> A 7001:1000 ack 1 ect
			> A 8001:1000 ack 1 ect
			> A 9001:1000 ack 1 ect
			+10ms
			< AE 1:0 ack 1001 win 60000
			window 7000
			count congestion_echoes 1
			< AE 1:0 ack 2001 win 60000
			< AE 1:0 ack 4001 win 60000
			> AC 10001:1000 ack 1 ect
			< AE 1:0 ack 10001 win 60000	# sent before CWR arrived: the same echo
			window 7000
			> A 11001:1000 ack 1 ect
			> A 12001:1000 ack 1 ect
			> A 13001:1000 ack 1 ect
			> A 14001:1000 ack 1 ect
			> A 15001:1000 ack 1 ect
			> A 16001:1000 ack 1 ect
			count congestion_echoes 1
			+10ms
			< AE 1:0 ack 12001 win 60000	# sent after CWR arrived: another mark
			count congestion_echoes 2
			window 4900`},
		{name: "retransmissions, window probes, FINs and ACKs are not ECT", cfg: on, text: `
			dial
			> SEC 0:0
			< SAE 0:0 ack 1 win 60000 mss 1000
			> A 1:0 ack 1
			write 1000
			> PA 1:1000 ack 1 ect
			+5ms
			> PA 1:1000 ack 1
			< A 1:0 ack 1001 win 0
			write 100
			+10ms
			> A 1001:1 ack 1
			< A 1:0 ack 1001 win 1000
			> PA 1001:100 ack 1		# the window probe has sent its first byte already
			< A 1:10 ack 1101 win 1000
			> A 1101:0 ack 11
			write 100
			> PAC 1101:100 ack 11 ect	# the timeout has reduced the window
			closewrite
			> FA 1201:0 ack 11`},
	})
}

// A loss in a window for which ECE has come does not reduce the congestion window again, and a recovery
// in which ECE has come is not undone.
func TestECNAndLoss(t *testing.T) {
	cfg := withSack
	cfg.ECN = ECNOn
	tenSegments := `
			dial
			> SEC 0:0
			+10ms
			< SAE 0:0 ack 1 win 60000 mss 1000 sackok
			> A 1:0 ack 1
			write 30000
			> A 1:1000 ack 1 ect
			> A 1001:1000 ack 1 ect
			> A 2001:1000 ack 1 ect
			> A 3001:1000 ack 1 ect
			> A 4001:1000 ack 1 ect
			> A 5001:1000 ack 1 ect
			> A 6001:1000 ack 1 ect
			> A 7001:1000 ack 1 ect
			> A 8001:1000 ack 1 ect
			> A 9001:1000 ack 1 ect
			+10ms
			`
	runScripts(t, []script{
		{name: "a loss after ECE does not reduce the window again", cfg: cfg, text: tenSegments + `
			< AE 1:0 ack 1001 win 60000
			window 7000
			< AE 1:0 ack 1001 win 60000 sack 2001-5001
			> A 1001:1000 ack 1
			> AC 10001:1000 ack 1 ect
			count fast_recoveries 1
			+10ms
			< AE 1:0 ack 10001 win 60000
			window 7000
			> A 11001:1000 ack 1 ect
			> A 12001:1000 ack 1 ect
			> A 13001:1000 ack 1 ect
			> A 14001:1000 ack 1 ect
			> A 15001:1000 ack 1 ect
			> A 16001:1000 ack 1 ect`},
		{name: "a recovery in which ECE arrives is not undone", cfg: cfg, text: tenSegments + `
			< A 1:0 ack 1 win 60000 sack 1001-4001
			> A 1:1000 ack 1
			count fast_recoveries 1
			< AE 1:0 ack 10001 win 60000 sack 1-1001
			count recoveries_undone 0
			count congestion_echoes 0
			window 7000
			> AC 10001:1000 ack 1 ect
			> A 11001:1000 ack 1 ect
			> A 12001:1000 ack 1 ect
			> A 13001:1000 ack 1 ect
			> A 14001:1000 ack 1 ect
			> A 15001:1000 ack 1 ect
			> A 16001:1000 ack 1 ect`},
	})
}

// Through a queue that marks, a stream with ECN uses the link and loses nothing. Without ECN the queue
// overflows.
func TestECNAvoidsLossAtMarkingQueue(t *testing.T) {
	link := linksim.Rule{Delay: 5 * time.Millisecond, Rate: 50e6, Queue: 120_000, MarkAbove: 30_000}
	for _, asked := range []bool{true, false} {
		var cfg [2]Config
		if asked {
			cfg[0].ECN = ECNOn
		}
		net := newNetwork(t, 1, cfg)
		for i := range net.hosts {
			net.impair(i, link)
		}
		o := Options{SendBuffer: 1 << 20, ReceiveBuffer: 1 << 20}
		a, b := net.connect(net.listen(o), o)
		const n = 20 << 20
		data, to := patternBytes(0, 0, n), make([]byte, 256<<10)
		start := net.now
		for sent, got := 0, 0; got < n; {
			k, err := a.Write(net.now, data[sent:min(sent+len(to), n)])
			if err != nil {
				net.fatalf("%v", err)
			}
			sent += k
			net.step(Never)
			k, _ = b.Read(net.now, to)
			if !bytes.Equal(to[:k], data[got:got+k]) {
				net.fatalf("%d bytes from %d on are wrong", k, got)
			}
			got += k
		}
		tab, marked := net.hosts[0].tab, net.lines[0].Counters().Marked
		lost := net.lines[0].Counters().Lost()
		share := float64(n) * 8 / time.Duration(net.now-start).Seconds() / float64(link.Rate)
		t.Logf("asked for: %t: %.2f of the line, %d lost, %d marked, %d echoes, %d sent again", asked, share, lost, marked, tab.Count(CongestionEchoes), tab.Count(BytesRetransmitted))
		switch {
		case a.Info().ECN != asked || b.Info().ECN != asked:
			t.Errorf("asked for: %t, agreed on: %t and %t", asked, a.Info().ECN, b.Info().ECN)
		case asked && (lost > 0 || marked == 0 || tab.Count(CongestionEchoes) == 0 || tab.Count(BytesRetransmitted) > 0 || share < 0.8):
			t.Error("with ECN: a segment is lost, none is marked or echoed, or less than 80 % of the link is used")
		case !asked && (lost == 0 || marked > 0):
			t.Error("without ECN: no segment is lost, or one is marked")
		}
		if marks := net.hosts[1].tab.Count(CongestionMarks); marks != marked {
			t.Errorf("the receiver counts %d marks of %d", marks, marked)
		}
	}
}
